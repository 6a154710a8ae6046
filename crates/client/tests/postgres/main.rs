//! The engine `postgres:`, on real servers.

mod advisory;
mod contract;
#[path = "../databases/mod.rs"]
mod databases;
mod durable;
mod faults;
mod pooled;
#[path = "../proxies/mod.rs"]
mod proxies;
