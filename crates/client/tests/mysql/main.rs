//! The engine `mysql:`, on real servers of MariaDB.

mod contract;
#[path = "../proxies/mod.rs"]
mod proxies;
