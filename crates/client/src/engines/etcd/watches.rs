//! The watches of this client, each for one change of a key or a prefix, all on one stream.
//!
//! The stream is opened for the first watch, and again after it breaks. Each watch names its first revision, so no event is missed, and no
//! waiter has to check because of that. Only a watch that etcd refuses, for instance because its revision was compacted, makes its waiter
//! check.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tonic::Streaming;

use super::api::{Watch, WatchAnswer};
use super::fault::Fault;
use super::link::{Connection, Link};
use super::rpc::Calls;
use crate::engine::EngineContext;
use crate::random;

/// The shortest and the longest pause before the stream is opened again.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The events that a watch reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interest {
    Deletion,
    AnyChange,
    /// Any change of a key with this prefix.
    AnyChangeBelow,
}

/// The reason why a waiter is woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Woken {
    /// The key was changed or deleted.
    Changed,
    /// The watch reports nothing: the waiter has to check.
    Look,
}

#[derive(Debug)]
pub(super) struct Watches {
    link: Arc<Link>,
    context: EngineContext,
    state: Mutex<State>,
    /// Notified when there is something to send.
    changed: Notify,
    closing: CancellationToken,
}

#[derive(Debug, Default)]
struct State {
    begun: bool,
    last: i64,
    present: HashMap<i64, Watching>,
    /// The watches that etcd has yet to create, and to cancel.
    came: Vec<i64>,
    left: Vec<i64>,
}

#[derive(Debug)]
struct Watching {
    key: String,
    /// The first revision.
    from: i64,
    interest: Interest,
    wake: oneshot::Sender<Woken>,
}

impl Watches {
    pub(super) fn new(link: Arc<Link>, context: EngineContext, closing: CancellationToken) -> Arc<Self> {
        Arc::new(Self { link, context, state: Mutex::default(), changed: Notify::new(), closing })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches for this event of this key, at this revision or later.
    pub(super) fn watch(self: &Arc<Self>, key: String, from: i64, interest: Interest) -> Watched {
        let (wake, woken) = oneshot::channel();
        let mut state = self.state();
        state.last += 1;
        let id = state.last;
        state.present.insert(id, Watching { key, from, interest, wake });
        state.came.push(id);
        if !std::mem::replace(&mut state.begun, true) {
            self.context.runtime.spawn(self.clone().listen());
        }
        drop(state);
        self.changed.notify_one();
        Watched { watches: self.clone(), id, woken }
    }

    async fn listen(self: Arc<Self>) {
        let closing = self.closing.clone();
        closing.run_until_cancelled(self.listen_until_closed()).await;
    }

    async fn listen_until_closed(&self) {
        let clock = &self.context.clock;
        let mut failures = 0;
        loop {
            // Without waiters, no stream is needed.
            while self.state().present.is_empty() {
                self.changed.notified().await;
            }
            let began = clock.now();
            if let Err(fault) = self.listen_once().await {
                if failures == 0 {
                    tracing::debug!(error = %fault.error, "the stream of watches is opened again");
                }
                if !fault.what.is_silence() {
                    self.wake_all();
                }
            }
            // A stream that ends right after it opened counts as one that did not open.
            failures = if clock.now().since(began) > LONGEST_PAUSE { 1 } else { failures + 1 };
            let pause = (FIRST_PAUSE * failures).min(LONGEST_PAUSE);
            clock.sleep_until(clock.now() + random::jittered(pause)).await;
        }
    }

    /// Runs one stream until it breaks.
    async fn listen_once(&self) -> Result<(), Fault> {
        let connection = self.link.connection();
        let ends = self.context.clock.now() + self.link.limit();
        let opened = self.link.attempt(&connection, ends, Box::pin(self.open(&connection))).await?;
        let Some(Calls { requests, answers }) = opened else { return Ok(()) };
        tokio::select! {
            () = self.send(requests) => Ok(()),
            ended = self.hear(&connection, answers) => ended,
            // All other requests use another connection from now on, since this one is silent.
            () = self.link.turned_from(&connection) => Ok(()),
        }
    }

    async fn open(&self, connection: &Connection) -> Result<Option<Calls<Watch, WatchAnswer>>, Fault> {
        let first = {
            let mut state = self.state();
            state.left.clear();
            state.came = state.present.keys().copied().collect();
            state.came.pop().and_then(|id| state.watching(id))
        };
        // All waiters have left meanwhile.
        let Some(first) = first else { return Ok(None) };
        let stream = connection.client.watch(first).await;
        Ok(Some(stream.map_err(|error| Fault::of(&connection.at, &error))?))
    }

    /// Sends new and cancelled watches to etcd for as long as the stream exists.
    async fn send(&self, requests: mpsc::Sender<Watch>) {
        loop {
            loop {
                let (came, left) = {
                    let mut state = self.state();
                    (state.came.pop().map(|id| state.watching(id)), state.left.pop())
                };
                if (&came, &left) == (&None, &None) {
                    break;
                }
                for request in came.flatten().into_iter().chain(left.map(Watch::cancel)) {
                    if requests.send(request).await.is_err() {
                        return;
                    }
                }
            }
            self.changed.notified().await;
        }
    }

    async fn hear(&self, connection: &Connection, mut answers: Streaming<WatchAnswer>) -> Result<(), Fault> {
        let fault = |error| Fault::of(&connection.at, &error);
        while let Some(answer) = answers.message().await.map_err(fault)? {
            self.heed(&answer);
            let refused = ["permission denied", "auth token"];
            if answer.canceled && refused.iter().any(|why| answer.cancel_reason.contains(why)) {
                // etcd also refuses a watch when it no longer knows the login with which the stream was opened.
                connection.renew_login().await?;
                return Ok(());
            }
        }
        Ok(())
    }

    fn heed(&self, answer: &WatchAnswer) {
        let woken = match (answer.canceled, answer.events.is_empty()) {
            (true, _) => Woken::Look,
            (false, false) => Woken::Changed,
            (false, true) => return,
        };
        let mut state = self.state();
        match state.present.remove(&answer.watch_id) {
            Some(watching) => {
                if woken == Woken::Changed {
                    // A watch reports once, and is then cancelled.
                    state.left.push(answer.watch_id);
                    self.changed.notify_one();
                }
                drop(state);
                let _ = watching.wake.send(woken);
            }
            // A watch that was dropped is cancelled already, or will be. But a refusal may lack the id of its watch.
            None if answer.canceled && answer.watch_id < 0 => {
                drop(state);
                self.wake_all();
            }
            None => {}
        }
    }

    fn wake_all(&self) {
        let present = std::mem::take(&mut self.state().present);
        for watching in present.into_values() {
            let _ = watching.wake.send(Woken::Look);
        }
    }
}

impl State {
    /// Returns the request for a watch that still exists.
    fn watching(&self, id: i64) -> Option<Watch> {
        let watching = self.present.get(&id)?;
        Some(match watching.interest {
            Interest::Deletion => Watch::deletion(id, watching.key.as_str(), watching.from),
            Interest::AnyChange => Watch::any_change(id, watching.key.as_str(), watching.from),
            Interest::AnyChangeBelow => Watch::any_change_below(id, watching.key.as_str(), watching.from),
        })
    }
}

/// A watch, until it is dropped.
#[derive(Debug)]
pub(super) struct Watched {
    watches: Arc<Watches>,
    id: i64,
    woken: oneshot::Receiver<Woken>,
}

impl Watched {
    /// Waits until the waiter is to check.
    pub(super) async fn woken(&mut self) -> Woken {
        (&mut self.woken).await.unwrap_or(Woken::Look)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let mut state = self.watches.state();
        if state.present.remove(&self.id).is_some() {
            state.left.push(self.id);
            drop(state);
            self.watches.changed.notify_one();
        }
    }
}
