//! The engine `etcd:`, on real etcds.

mod cluster;
mod contract;
mod crowd;
mod cut_off;
mod faults;
mod layout;
mod login;
#[path = "../partition/mod.rs"]
mod partition;
mod peers;
#[path = "../proxies/mod.rs"]
mod proxies;
mod tls;

use std::time::Duration;

use tenure::Client;
use tenure::contract::eventually;

/// Longer than any test waits: nothing that a test sees can be due to its end.
const LONG: Duration = Duration::from_mins(10);

/// How long something may take to come true on a slow machine.
const PATIENCE: Duration = Duration::from_mins(2);

async fn connect(url: &str) -> Client {
    Client::connect(url).await.unwrap_or_else(|error| panic!("{url}: {error:?}"))
}

/// Why there is no client of this URL, with all that is behind it.
async fn refusal(url: &str) -> String {
    let error = Client::connect(url).await.expect_err("it is refused");
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(behind) = cause {
        text = format!("{text}: {behind}");
        cause = behind.source();
    }
    text
}

/// Waits until so many wait for a lock.
async fn waiters(client: &Client, name: &str, count: usize) {
    eventually(PATIENCE, "the waiters are seen", async || {
        client.inspect(name).await.is_ok_and(|info| info.waiters.len() == count)
    })
    .await;
}
