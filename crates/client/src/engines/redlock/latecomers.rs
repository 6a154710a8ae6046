//! Requests that are still under way when their caller has enough answers.
//!
//! The client's own thread finishes them in batches. Each lock has some of them, and a separate wake-up of that thread for each request
//! would cost more than the lock.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use tokio::task::unconstrained;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;

/// The time for which a batch is gathered. Most requests have their answers by then.
const GATHER: Duration = Duration::from_millis(5);

/// The next batch.
#[derive(Default)]
pub(super) struct Latecomers(Mutex<Vec<BoxFuture<'static, ()>>>);

impl Latecomers {
    fn gathered(&self) -> MutexGuard<'_, Vec<BoxFuture<'static, ()>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a request. Returns true for the first one of a batch: the caller then runs [`finish`](Self::finish).
    pub(super) fn add(&self, latecomer: BoxFuture<'static, ()>) -> bool {
        let mut gathered = self.gathered();
        gathered.push(latecomer);
        gathered.len() == 1
    }

    /// Gathers a batch, and finishes it.
    pub(super) async fn finish(self: Arc<Self>, clock: Arc<dyn Clock>, closing: CancellationToken) {
        tokio::select! {
            () = closing.cancelled() => {}
            () = clock.sleep_until(clock.now() + GATHER) => {}
        }
        let mut all = mem::take(&mut *self.gathered());
        all.retain_mut(|latecomer| unconstrained(latecomer.as_mut()).now_or_never().is_none());
        all.into_iter().collect::<FuturesUnordered<_>>().for_each(async |()| {}).await;
    }
}

impl std::fmt::Debug for Latecomers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Latecomers({})", self.gathered().len())
    }
}
