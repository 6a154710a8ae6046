//! How waiters are woken: one connection for all of a client's, on which Redis publishes whose turn it is.
//!
//! It is opened when the first waiter comes, and opened again when it breaks. A message may be lost, so nobody relies on it: each waiter
//! also looks by itself, rarely.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use tenure_table::{GrantId, LockName};
use tokio_util::sync::CancellationToken;

use super::fault::Fault;
use super::handed::WakeMessage;
use super::link::Link;
use crate::engine::EngineContext;
use crate::engines::waiting::{Waiter, Waiting};
use crate::random;

/// The pauses before the connection is opened again: ever longer ones.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// Those of one client who wait.
#[derive(Debug)]
pub(super) struct Wakeups {
    link: Arc<Link>,
    limit: Duration,
    context: EngineContext,
    /// What the client is called in the queue.
    client: String,
    waiting: Arc<Waiting<WakeMessage>>,
    /// Whether the first waiter has come.
    begun: AtomicBool,
    /// Whether messages are heard.
    open: AtomicBool,
    closing: CancellationToken,
}

impl Wakeups {
    pub(super) fn new(link: Arc<Link>, limit: Duration, context: EngineContext) -> Arc<Self> {
        Arc::new(Self {
            link,
            limit,
            context,
            client: random::grant_id().to_string(),
            waiting: Arc::default(),
            begun: AtomicBool::new(false),
            open: AtomicBool::new(false),
            closing: CancellationToken::new(),
        })
    }

    /// What the client is called in the queue.
    pub(super) fn client(&self) -> &str {
        &self.client
    }

    /// From now on, what is published for this grant wakes it; also when messages begin to be heard, which is when it can queue.
    pub(super) fn register(self: &Arc<Self>, grant: GrantId, name: &LockName) -> Waiter<WakeMessage> {
        let waiter = self.waiting.register(grant, name);
        if !self.begun.swap(true, Ordering::AcqRel) {
            self.context.runtime.spawn(self.clone().listen());
        }
        waiter
    }

    /// Whether somebody here waits for this lock: whoever comes next will have to wait, too.
    pub(super) fn anybody_waits_for(&self, name: &LockName) -> bool {
        self.is_open() && self.waiting.how_many_for(name) > 0
    }

    /// Whether messages are heard.
    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// Ends the connection, for good.
    pub(super) fn close(&self) {
        self.closing.cancel();
    }

    async fn listen(self: Arc<Self>) {
        let closing = self.closing.clone();
        closing.run_until_cancelled(self.listen_until_closed()).await;
        self.open.store(false, Ordering::Release);
    }

    async fn listen_until_closed(&self) {
        let channel = format!("tenure:wake:{}", self.client);
        let clock = &self.context.clock;
        let mut failures = 0;
        loop {
            let began = clock.now();
            match self.link.subscribe(self.limit, &channel).await {
                Ok(mut messages) => {
                    self.open.store(true, Ordering::Release);
                    // What was published meanwhile, nobody has heard.
                    self.waiting.wake_all();
                    let mut heard = messages.on_message();
                    while let Some(message) = heard.next().await {
                        self.wake(message.get_payload_bytes());
                    }
                    self.open.store(false, Ordering::Release);
                }
                Err(Fault { what, error }) => {
                    if failures == 0 {
                        let advice = if what.is_silence() { "" } else { "; waiting polls" };
                        tracing::warn!(%error, "no messages from Redis{advice}");
                    }
                }
            }
            // One that is closed as soon as it is open is as bad as one that does not open.
            failures = if clock.now().since(began) > LONGEST_PAUSE { 1 } else { failures + 1 };
            let pause = (FIRST_PAUSE * failures).min(LONGEST_PAUSE);
            clock.sleep_until(clock.now() + random::jittered(pause)).await;
        }
    }

    /// Tells a waiter what a message says.
    pub(super) fn wake(&self, payload: &[u8]) {
        let Ok(text) = str::from_utf8(payload) else { return };
        let (grant, message) = text.split_once(' ').unwrap_or((text, ""));
        if let Ok(grant) = grant.parse() {
            // A request that does not wait any more gives back what it may have got by itself.
            self.waiting.tell(grant, WakeMessage::parse(message));
        }
    }
}
