//! What a case has at hand.

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

/// One case's engine, names and files.
pub struct Trial<S: Subject> {
    subject: S,
    module: &'static str,
    client: Client,
    files: tempfile::TempDir,
    run: String,
}

impl<S: Subject> Trial<S> {
    /// Longer than any case waits: nothing that a case sees can be due to its end.
    pub const LONG: Duration = Duration::from_mins(10);
    /// A lease that runs out soon, for a case that waits for its end.
    pub const SHORT: Duration = S::TTL;
    /// A lease that is renewed in time on a slow machine too, for a case that waits until it would have run out.
    pub const KEPT: Duration = S::TTL.saturating_mul(3);
    /// A wait that ends after a lease of [`KEPT`](Trial::KEPT) would have run out.
    pub const BEYOND_KEPT: Duration = S::TTL.saturating_mul(4);

    pub(super) async fn new(subject: S, module: &'static str) -> Self {
        let client = S::connect(&subject.address()).await;
        let files = tempfile::tempdir().expect("a folder for the test's files can be made");
        let run = random::grant_id().to_string();
        Self { subject, module, client, files, run }
    }

    /// The case's own client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Another client of the same engine.
    pub async fn another_client(&self) -> Client {
        S::connect(&self.subject.address()).await
    }

    /// Clients of the same engine by its other recipes.
    pub async fn other_recipes(&self) -> Vec<Client> {
        let mut clients = Vec::new();
        for address in self.subject.other_recipes() {
            clients.push(S::connect(&address).await);
        }
        clients
    }

    /// A network to the engine that can be made to fail, if the subject has one.
    pub fn network(&self) -> Option<Box<dyn Network>> {
        self.subject.network()
    }

    /// What the engine says that it can do.
    pub fn capabilities(&self) -> &Capabilities {
        self.client.capabilities()
    }

    /// A name that no other case uses, also not in an engine that is shared.
    pub fn name(&self, tag: impl std::fmt::Display) -> String {
        format!("contract/{}/{tag}", self.run)
    }

    /// A folder for the case's own files.
    pub fn files(&self) -> &Path {
        self.files.path()
    }

    /// Whether other processes can reach the engine.
    pub fn reaches_processes(&self) -> bool {
        self.capabilities().reach >= Reach::Host
    }

    /// The ttl of a holder that is going to be killed. Where its lease has to run out, this is soon; where its death is noticed in
    /// another way, this is so long that it cannot be the reason.
    pub fn ttl_of_the_killed(&self) -> Duration {
        match self.capabilities().expiry {
            Expiry::Lease => Self::SHORT,
            Expiry::Connection | Expiry::Kernel => Self::LONG,
        }
    }

    /// Another process with a client of the same engine.
    pub async fn helper(&self) -> Helper {
        Helper::start(self.module, &self.subject.address()).await
    }

    /// The lock, got by a new owner that does not wait long for it.
    pub async fn holder(&self, name: &str) -> Guard {
        self.client.lock(name).ttl(Self::LONG).acquire().await.expect("the lock is got")
    }

    /// Whether somebody else cannot get the lock now.
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

    /// Waits until a condition holds, and fails if it does not within the subject's patience.
    pub async fn eventually(&self, what: &str, holds: impl AsyncFnMut() -> bool) {
        eventually(S::PATIENCE, what, holds).await;
    }

    /// Waits for a future, and fails if it is not ready within the subject's patience.
    pub async fn soon<F: Future>(&self, what: &str, future: F) -> F::Output {
        within(S::PATIENCE, what, future).await
    }

    /// Fails unless neither a lock nor a waiter stays behind.
    pub async fn assert_nothing_left(&self, name: &str) {
        self.eventually("the lock is free", async || !self.is_busy(name).await).await;
        self.eventually("nobody holds the lock or waits for it", async || {
            let info = self.client.inspect(name).await.expect("the engine answers");
            info.present_holders().next().is_none() && info.waiters.is_empty()
        })
        .await;
    }

    /// Resolves when the engine shows so many waiters; at once where it does not show them.
    pub async fn waiters(&self, name: &str, count: usize) {
        if self.capabilities().visible_waiters {
            self.eventually("the waiters are seen", async || {
                self.client.inspect(name).await.expect("the engine answers").waiters.len() == count
            })
            .await;
        }
    }
}

/// Waits until a condition holds, and fails if it does not within that time.
pub async fn eventually(patience: Duration, what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let look = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    within(patience, what, look).await;
}

/// Waits for a future, and fails if it is not ready within that time.
pub async fn within<F: Future>(patience: Duration, what: &str, future: F) -> F::Output {
    let in_time = tokio::time::timeout(patience, future).await;
    in_time.unwrap_or_else(|_| panic!("not within {patience:?}: {what}"))
}

/// Polls a future at most so many times, each time when it was woken or after a short while, and then drops it; its
/// output, if it was ready before.
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
        // A future that waits for another's release is not woken at all: it is then dropped where it waits.
        let _ = tokio::time::timeout(Duration::from_millis(30), woken.0.notified()).await;
    }
    None
}
