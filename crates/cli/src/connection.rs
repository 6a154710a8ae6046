//! A client for the duration of one command. It is always closed, so that no request of the command outlives it.

use tenure::blocking::Client;
use tracing_subscriber::filter::LevelFilter;

use crate::exit::Failure;
use crate::say::log;

/// Connects, does the work, and closes the client, whatever the result.
pub(crate) fn with_client<T>(
    url: &str,
    work: impl FnOnce(&Client) -> Result<T, Failure>,
) -> Result<T, Failure> {
    log(LevelFilter::WARN);
    let client = Client::connect(url)?;
    let outcome = work(&client);
    // These commands hold no lock, so an unconfirmed close does not change the result.
    let _ = client.close();
    outcome
}
