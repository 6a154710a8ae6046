//! The engine `zookeeper:`, on real ZooKeeper servers.

mod contract;
mod neighbours;
#[path = "../proxies/mod.rs"]
mod proxies;
mod sessions;

use std::time::Duration;

use tenure::Client;

/// How long anything may take on a slow machine.
const PATIENCE: Duration = Duration::from_mins(2);

async fn connect(url: &str) -> Client {
    Client::connect(url).await.unwrap_or_else(|error| panic!("{url}: {error}"))
}
