//! The engine `redlock:`, on five real Redis servers.

mod contract;
