//! The engine `postgres:`, on real servers.

mod contract;
#[path = "../databases/mod.rs"]
mod databases;
mod faults;
#[path = "../proxies/mod.rs"]
mod proxies;
