//! The engine `redlock:`, on five real Redis servers.

mod contract;
mod faults;
#[path = "../proxies/mod.rs"]
mod proxies;
