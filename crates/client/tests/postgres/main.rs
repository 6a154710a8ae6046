//! The engine `postgres:`, on real servers.

mod contract;
#[path = "../proxies/mod.rs"]
mod proxies;
