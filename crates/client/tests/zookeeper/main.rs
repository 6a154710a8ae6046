//! The engine `zookeeper:`, on real ZooKeeper servers.

mod contract;
mod cut_off;
mod faults;
mod herd;
mod layout;
mod login;
mod neighbours;
#[path = "../partition/mod.rs"]
mod partition;
#[path = "../peer/mod.rs"]
mod peer;
mod peers;
#[path = "../proxies/mod.rs"]
mod proxies;
mod sessions;
mod tree;

use std::time::Duration;

use tenure::Client;
use tenure::contract::within;

/// How long anything may take on a slow machine.
const PATIENCE: Duration = Duration::from_mins(2);
/// The longest that a session lasts at the kit's servers: longer than any fault of these tests.
const LONG: Duration = Duration::from_mins(1);
/// Time enough for those who are woken to come, so that their not coming says something.
const A_WHILE: Duration = Duration::from_millis(500);

const RECIPES: [&str; 2] = ["sequential", "simple"];

async fn connect(url: &str) -> Client {
    Client::connect(url).await.unwrap_or_else(|error| panic!("{url}: {error}"))
}

async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    within(PATIENCE, what, future).await
}

async fn eventually(what: &str, holds: impl AsyncFnMut() -> bool) {
    tenure::contract::eventually(PATIENCE, what, holds).await;
}

/// Whether somebody else cannot get a lock now.
async fn is_busy(client: &Client, name: &str) -> bool {
    client.lock(name).try_acquire().await.unwrap().is_none()
}

/// An error, with all that is behind it.
fn in_full(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(behind) = cause {
        text = format!("{text}: {behind}");
        cause = behind.source();
    }
    text
}
