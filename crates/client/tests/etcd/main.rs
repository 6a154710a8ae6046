//! The engine `etcd:`, on real etcds.

mod contract;
#[path = "../proxies/mod.rs"]
mod proxies;
