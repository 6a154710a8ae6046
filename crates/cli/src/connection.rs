//! A client for the length of a command. It is closed on every way out: what the command began at the engine does not outlive it.

use tenure::blocking::Client;
use tracing_subscriber::filter::LevelFilter;

use crate::exit::Failure;
use crate::say::log;

/// Connects, does the work, and closes the client, however the work ended.
pub(crate) fn with_client<T>(
    url: &str,
    work: impl FnOnce(&Client) -> Result<T, Failure>,
) -> Result<T, Failure> {
    log(LevelFilter::WARN);
    let client = Client::connect(url)?;
    let outcome = work(&client);
    // These commands hold nothing: a close that is not confirmed changes nothing about the outcome.
    let _ = client.close();
    outcome
}
