//! The engine `zookeeper:`, on real ZooKeeper servers.

mod contract;
#[path = "../proxies/mod.rs"]
mod proxies;
