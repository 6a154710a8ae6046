//! The engine `redis:`, on real Redis servers.

mod contract;
