//! The engine `mysql:`, on real servers of MariaDB.

mod contract;
#[path = "../databases/mod.rs"]
mod databases;
mod faults;
#[path = "../proxies/mod.rs"]
mod proxies;
mod sessions;
