//! The engine `memory:`, and what a test can do with it.

mod answers;
mod contract;
mod faults;
mod names;
mod storm;
mod time;

use std::time::Duration;

use tenure::clock::ManualClock;
use tenure::contract::eventually;
use tenure::memory::{Link, MemoryStore};
use tenure::{Client, Mode};

const TTL: Duration = Duration::from_secs(30);

/// A store whose time stands still, with a client that can be cut off and one that cannot.
struct Still {
    clock: ManualClock,
    store: MemoryStore,
    link: Link,
    far: Client,
    near: Client,
}

impl Still {
    async fn new() -> Self {
        let clock = ManualClock::new();
        let store = MemoryStore::with_clock(clock.clone());
        let link = store.link();
        let (far, near) = (link.connect().await.unwrap(), store.connect().await.unwrap());
        Self { clock, store, link, far, near }
    }

    /// Whether somebody else could get it now, in this mode.
    async fn is_free(&self, name: &str, mode: Mode) -> bool {
        match self.near.lock(name).mode(mode).try_acquire().await.unwrap() {
            Some(guard) => guard.release().await.is_ok(),
            None => false,
        }
    }

    async fn holders(&self, name: &str) -> usize {
        self.near.inspect(name).await.unwrap().holders.len()
    }

    /// Resolves when so many wait.
    async fn waiters(&self, name: &str, count: usize) {
        until("they wait", async || self.near.inspect(name).await.unwrap().waiters.len() == count).await;
    }

    /// Fails unless neither a lock nor a waiter stays behind.
    async fn nothing_left(&self, name: &str) {
        until("nothing is left", async || {
            let info = self.near.inspect(name).await.unwrap();
            info.holders.is_empty() && info.waiters.is_empty()
        })
        .await;
    }
}

/// Waits until the clients' threads have done what makes this true.
async fn until(what: &str, holds: impl AsyncFnMut() -> bool) {
    eventually(Duration::from_mins(1), what, holds).await;
}

/// Waits for what must come.
async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    tenure::contract::within(Duration::from_mins(1), what, future).await
}
