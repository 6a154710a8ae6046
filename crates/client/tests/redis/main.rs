//! The engine `redis:`, on real Redis servers.

mod contract;
mod peers;
