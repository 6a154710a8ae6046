//! The engine `redlock:`, on five real Redis servers.

mod contract;
#[path = "../proxies/mod.rs"]
mod proxies;
