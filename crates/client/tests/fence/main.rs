//! The fence, on real servers and with real processes that come too late.

mod guard;
mod holder;
mod http;
mod redis;
mod sql;
mod story;

use std::fmt::Display;
use std::time::Duration;

use tenure::FencingToken;
use tenure::fence::FenceError;
use tenure_testkit::{Condition, eventually};

/// Longer than any test takes: nothing that a test sees can be due to its end.
const LONG: Duration = Duration::from_mins(10);

const fn token(number: u64) -> FencingToken {
    FencingToken::new(number)
}

/// The newest token, according to a refusal.
#[track_caller]
fn stale<T: std::fmt::Debug>(answer: Result<T, FenceError>) -> u64 {
    match answer {
        Err(FenceError::Stale { newest, .. }) => newest.get(),
        other => panic!("not refused as stale: {other:?}"),
    }
}

/// Waits for something that is looked at by blocking.
async fn wait_for<C>(what: impl Display + Send + 'static, look: impl FnMut() -> C + Send + 'static)
where
    C: Condition + Send + 'static,
    C::Found: Send,
{
    tokio::task::spawn_blocking(move || drop(eventually(what, look))).await.unwrap();
}
