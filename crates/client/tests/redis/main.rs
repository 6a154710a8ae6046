//! The engine `redis:`, on real Redis servers.

mod contract;
mod faults;
mod hand_over;
mod layout;
mod many;
#[path = "../peer/mod.rs"]
mod peer;
mod peers;
#[path = "../proxies/mod.rs"]
mod proxies;
mod queue;
mod take;
mod tls;

use std::time::Duration;

use tenure::Client;

/// Longer than any test waits: nothing that a test sees can be due to its end.
const LONG: Duration = Duration::from_mins(10);

async fn connect(url: &str) -> Client {
    Client::connect(url).await.unwrap_or_else(|error| panic!("{url}: {error}"))
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
