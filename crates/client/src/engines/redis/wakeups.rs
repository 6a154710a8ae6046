//! How waiters are woken: one connection for all of a client's, on which Redis publishes whose turn it is.
//!
//! It is opened when the first waiter comes, and opened again when it breaks. A message may be lost, so nobody relies on it: each waiter
//! also looks by itself, rarely.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::fault::Fault;
use super::link::Link;
use crate::engine::EngineContext;
use crate::ids::GrantId;
use crate::name::LockName;
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
    waiting: Mutex<Waiting>,
    /// Whether the first waiter has come.
    begun: AtomicBool,
    /// Whether messages are heard.
    open: AtomicBool,
    closing: CancellationToken,
}

#[derive(Debug, Default)]
struct Waiting {
    woken: HashMap<GrantId, Arc<Notify>>,
    /// How many wait for each lock.
    names: HashMap<LockName, usize>,
}

impl Wakeups {
    pub(super) fn new(link: Arc<Link>, limit: Duration, context: EngineContext) -> Arc<Self> {
        Arc::new(Self {
            link,
            limit,
            context,
            client: GrantId::random().to_string(),
            waiting: Mutex::default(),
            begun: AtomicBool::new(false),
            open: AtomicBool::new(false),
            closing: CancellationToken::new(),
        })
    }

    /// What the client is called in the queue.
    pub(super) fn client(&self) -> &str {
        &self.client
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on, what is published for this grant wakes it; also when messages begin to be heard, which is when it can queue.
    pub(super) fn register(self: &Arc<Self>, grant: GrantId, name: &LockName) -> Waiter {
        let woken = Arc::new(Notify::new());
        let mut waiting = self.waiting();
        waiting.woken.insert(grant, woken.clone());
        *waiting.names.entry(name.clone()).or_default() += 1;
        drop(waiting);
        if !self.begun.swap(true, Ordering::AcqRel) {
            self.context.runtime.spawn(self.clone().listen());
        }
        Waiter { wakeups: self.clone(), grant, name: name.clone(), woken }
    }

    /// Whether somebody here waits for this lock: whoever comes next will have to wait, too.
    pub(super) fn anybody_waits_for(&self, name: &LockName) -> bool {
        self.is_open() && self.waiting().names.contains_key(name)
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
                    self.wake_all();
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

    fn wake(&self, payload: &[u8]) {
        let grant = str::from_utf8(payload).ok().and_then(|text| text.parse().ok());
        if let Some(woken) = grant.and_then(|grant: GrantId| self.waiting().woken.get(&grant).cloned()) {
            woken.notify_one();
        }
    }

    fn wake_all(&self) {
        for woken in self.waiting().woken.values() {
            woken.notify_one();
        }
    }
}

/// One who waits, until it is dropped.
#[derive(Debug)]
pub(super) struct Waiter {
    wakeups: Arc<Wakeups>,
    grant: GrantId,
    name: LockName,
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
        let mut waiting = self.wakeups.waiting();
        waiting.woken.remove(&self.grant);
        if let Entry::Occupied(mut count) = waiting.names.entry(self.name.clone()) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}
