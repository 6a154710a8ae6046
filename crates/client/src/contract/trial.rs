//! The environment of a case.

use std::future::Future;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tokio::sync::Notify;

use super::{Helper, Network, Subject};
use crate::capabilities::{Capabilities, Expiry, Reach};
use crate::random;
use crate::{Client, Guard};

/// The engine, names and files of one case.
pub struct Trial<S: Subject> {
    subject: S,
    module: &'static str,
    client: Client,
    files: tempfile::TempDir,
    run: String,
}

impl<S: Subject> Trial<S> {
    /// A time longer than any case: a TTL, wait or lock-delay of this length cannot end during one.
    pub const LONG: Duration = Duration::from_mins(10);
    /// A TTL that expires soon, for a case that waits for the expiry.
    pub const SHORT: Duration = S::TTL;
    /// A TTL that is renewed in time even on a slow machine, for a case that waits longer than the TTL.
    pub const KEPT: Duration = S::TTL.saturating_mul(3);
    /// A wait longer than a TTL of [`KEPT`](Trial::KEPT).
    pub const BEYOND_KEPT: Duration = S::TTL.saturating_mul(4);

    pub(super) async fn new(subject: S, module: &'static str) -> Self {
        let client = S::connect(&subject.address()).await;
        let files = tempfile::tempdir().expect("a folder for the test's files can be made");
        let run = random::grant_id().to_string();
        Self { subject, module, client, files, run }
    }

    /// Returns the case's client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Connects another client to the same engine.
    pub async fn another_client(&self) -> Client {
        S::connect(&self.subject.address()).await
    }

    /// Connects clients to the same engine with its other recipes.
    pub async fn other_recipes(&self) -> Vec<Client> {
        let mut clients = Vec::new();
        for address in self.subject.other_recipes() {
            clients.push(S::connect(&address).await);
        }
        clients
    }

    /// Returns a network to the engine with failures under the case's control, if the subject has one.
    pub fn network(&self) -> Option<Box<dyn Network>> {
        self.subject.network()
    }

    /// Returns the engine's declared capabilities.
    pub fn capabilities(&self) -> &Capabilities {
        self.client.capabilities()
    }

    /// Returns a name that no other case uses, even in a shared engine.
    pub fn name(&self, tag: impl std::fmt::Display) -> String {
        format!("contract/{}/{tag}", self.run)
    }

    /// Returns a folder for the case's files.
    pub fn files(&self) -> &Path {
        self.files.path()
    }

    /// Whether other processes can reach the engine.
    pub fn reaches_processes(&self) -> bool {
        self.capabilities().reach >= Reach::Host
    }

    /// Returns the TTL for a holder that will be killed. It is short if the lease must expire. Otherwise the engine notices the death in
    /// another way, and the TTL is so long that an expiry cannot be the reason.
    pub fn ttl_of_the_killed(&self) -> Duration {
        match self.capabilities().expiry {
            Expiry::Lease => Self::SHORT,
            Expiry::Connection | Expiry::Kernel => Self::LONG,
        }
    }

    /// Starts another process with a client of the same engine.
    pub async fn helper(&self) -> Helper {
        Helper::start(self.module, &self.subject.address()).await
    }

    /// Acquires the lock for a new owner, and waits for it if necessary.
    pub async fn holder(&self, name: &str) -> Guard {
        self.client.lock(name).ttl(Self::LONG).acquire().await.expect("the lock is got")
    }

    /// Whether another owner cannot acquire the lock now.
    pub async fn is_busy(&self, name: &str) -> bool {
        let other = self.client.lock(name).try_acquire().await.expect("the engine answers");
        match other {
            Some(guard) => {
                let _ = guard.release().await.expect("what was got is released");
                false
            }
            None => true,
        }
    }

    /// Waits until a condition holds. Panics if that takes longer than the subject's patience.
    pub async fn eventually(&self, what: &str, holds: impl AsyncFnMut() -> bool) {
        eventually(S::PATIENCE, what, holds).await;
    }

    /// Waits for a future. Panics if it takes longer than the subject's patience.
    pub async fn soon<F: Future>(&self, what: &str, future: F) -> F::Output {
        within(S::PATIENCE, what, future).await
    }

    /// Waits until the lock has neither a holder nor a waiter. Panics if that takes longer than the subject's patience.
    pub async fn assert_nothing_left(&self, name: &str) {
        self.eventually("the lock is free", async || !self.is_busy(name).await).await;
        self.eventually("nobody holds the lock or waits for it", async || {
            let info = self.client.inspect(name).await.expect("the engine answers");
            info.present_holders().next().is_none() && info.waiters.is_empty()
        })
        .await;
    }

    /// Waits until the engine shows this number of waiters. Returns at once if the engine does not show waiters.
    pub async fn waiters(&self, name: &str, count: usize) {
        if self.capabilities().visible_waiters {
            self.eventually("the waiters are seen", async || {
                self.client.inspect(name).await.expect("the engine answers").waiters.len() == count
            })
            .await;
        }
    }
}

/// Waits until a condition holds. Panics if that takes longer than `patience`.
pub async fn eventually(patience: Duration, what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let look = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within(patience, what, look).await;
}

/// Waits for a future. Panics if it takes longer than `patience`.
pub async fn within<F: Future>(patience: Duration, what: &str, future: F) -> F::Output {
    let in_time = tokio::time::timeout(patience, future).await;
    in_time.unwrap_or_else(|_| panic!("not within {patience:?}: {what}"))
}

/// Polls a future at most `times` times, each time after a wake or a short pause, and then drops it. Returns its output if it was ready.
pub async fn poll_times<F: Future>(future: F, times: usize) -> Option<F::Output> {
    struct Woken(Notify);
    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.notify_one();
        }
    }

    let woken = Arc::new(Woken(Notify::new()));
    let waker = Waker::from(woken.clone());
    let mut future = pin!(future);
    for _ in 0..times {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Some(output);
        }
        // A future that waits for another holder's release is never woken, and is then dropped in its wait.
        let _ = tokio::time::timeout(Duration::from_millis(30), woken.0.notified()).await;
    }
    None
}
