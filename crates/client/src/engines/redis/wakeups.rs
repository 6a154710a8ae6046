//! How waiters are woken: one connection for all of a client's, on which Redis publishes whose turn it is.
//!
//! It is opened when the first waiter comes, and opened again when it breaks. A message may be lost, so nobody relies on it: each waiter
//! also looks by itself, rarely.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::fault::{Fault, What};
use super::link::Link;
use crate::engine::EngineContext;
use crate::ids::GrantId;
use crate::random;

/// The longest pause before the connection is opened again.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Those of one client who wait.
#[derive(Debug)]
pub(super) struct Wakeups {
    link: Arc<Link>,
    limit: Duration,
    context: EngineContext,
    /// What the client is called in the queue.
    client: String,
    waiting: Mutex<HashMap<GrantId, Arc<Notify>>>,
    state: watch::Sender<State>,
    closing: CancellationToken,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum State {
    /// Nobody has waited yet.
    NotBegun,
    /// It is being opened.
    Opening,
    /// Messages are heard.
    Open,
    /// It could not be opened, so often.
    Failed { times: u32 },
}

impl Wakeups {
    pub(super) fn new(link: Arc<Link>, limit: Duration, context: EngineContext) -> Arc<Self> {
        Arc::new(Self {
            link,
            limit,
            context,
            client: GrantId::random().to_string(),
            waiting: Mutex::default(),
            state: watch::Sender::new(State::NotBegun),
            closing: CancellationToken::new(),
        })
    }

    /// What the client is called in the queue.
    pub(super) fn client(&self) -> &str {
        &self.client
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<GrantId, Arc<Notify>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on, what is published for this grant wakes it. Resolves when messages are heard, or when it is known that they are not: the
    /// waiter then looks by itself.
    pub(super) async fn register(self: &Arc<Self>, grant: GrantId) -> Waiter {
        let woken = Arc::new(Notify::new());
        self.waiting().insert(grant, woken.clone());
        let waiter = Waiter { wakeups: self.clone(), grant, woken };
        let begun = self.state.send_if_modified(|state| {
            let begins = *state == State::NotBegun;
            if begins {
                *state = State::Opening;
            }
            begins
        });
        if begun {
            self.context.runtime.spawn(self.clone().listen());
        }
        // It is never dropped before this is.
        let _ = self.state.subscribe().wait_for(|state| *state != State::Opening).await;
        waiter
    }

    /// Whether messages are heard.
    pub(super) fn is_open(&self) -> bool {
        *self.state.borrow() == State::Open
    }

    /// Ends the connection, for good.
    pub(super) fn close(&self) {
        self.closing.cancel();
    }

    async fn listen(self: Arc<Self>) {
        let closing = self.closing.clone();
        closing.run_until_cancelled(self.listen_until_closed()).await;
        self.state.send_replace(State::Failed { times: 0 });
    }

    async fn listen_until_closed(&self) {
        let channel = format!("tenure:wake:{}", self.client);
        let mut failures = 0;
        loop {
            match self.link.subscribe(self.limit, &channel).await {
                Ok(mut messages) => {
                    failures = 0;
                    self.state.send_replace(State::Open);
                    // What was published meanwhile, nobody has heard.
                    self.wake_all();
                    let mut heard = messages.on_message();
                    while let Some(message) = heard.next().await {
                        self.wake(message.get_payload_bytes());
                    }
                    self.state.send_replace(State::Opening);
                }
                Err(Fault { what, error }) => {
                    failures += 1;
                    if failures == 1 {
                        let advice = if what == What::NoAnswer { "" } else { "; waiting polls" };
                        tracing::warn!(%error, "no messages from Redis{advice}");
                    }
                    self.state.send_replace(State::Failed { times: failures });
                }
            }
            let pause = Duration::from_millis(50) * failures.min(40);
            let until = self.context.clock.now() + random::jittered(pause.min(LONGEST_PAUSE));
            self.context.clock.sleep_until(until).await;
        }
    }

    fn wake(&self, payload: &[u8]) {
        let grant = str::from_utf8(payload).ok().and_then(|text| text.parse().ok());
        if let Some(woken) = grant.and_then(|grant: GrantId| self.waiting().get(&grant).cloned()) {
            woken.notify_one();
        }
    }

    fn wake_all(&self) {
        for woken in self.waiting().values() {
            woken.notify_one();
        }
    }
}

/// One who waits, until it is dropped.
#[derive(Debug)]
pub(super) struct Waiter {
    wakeups: Arc<Wakeups>,
    grant: GrantId,
    woken: Arc<Notify>,
}

impl Waiter {
    /// Resolves when it is to look.
    pub(super) async fn woken(&self) {
        self.woken.notified().await;
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.wakeups.waiting().remove(&self.grant);
    }
}
