//! The engine `redis:`, on real Redis servers.

mod contract;
mod peers;
#[path = "../proxies/mod.rs"]
mod proxies;
