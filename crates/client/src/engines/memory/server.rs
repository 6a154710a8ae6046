//! The server side of a store: its state behind one lock, and its clock.
//!
//! Every step runs under one short lock, at one instant, and ends first what is over by then. Messages to other clients are sent after the
//! lock is released, since they may run those clients' code. The exception is a lock that is broken by force: its holders are notified
//! before it is taken from them.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use tokio::sync::watch;

use super::registry;
use super::state::State;
use crate::clock::{self, BootTime, Clock, ManualClock};

/// The longest time that a request may take.
pub(super) const REQUEST_LIMIT: Duration = Duration::from_secs(5);

/// A link to a store. It can be cut, and responses can get lost on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LinkId(pub(super) usize);

impl LinkId {
    /// The link that never fails.
    pub(super) const DIRECT: Self = Self(0);
}

/// The clock of a store.
#[derive(Clone, Debug)]
pub(super) enum Time {
    System,
    Moved(ManualClock),
}

impl Time {
    pub(super) fn now(&self) -> BootTime {
        match self {
            Self::System => BootTime::now(),
            Self::Moved(clock) => clock.now(),
        }
    }

    pub(super) fn wall(&self) -> SystemTime {
        match self {
            Self::System => clock::wall_now(),
            Self::Moved(clock) => clock.wall(),
        }
    }
}

/// A store, as its clients reach it.
#[derive(Debug)]
pub(super) struct Server {
    name: String,
    time: Time,
    state: Mutex<State>,
    /// Notified when requests may have begun to get through.
    opened: watch::Sender<()>,
    /// The next end of a lease, for the tasks that end leases. Only changed while the state is locked.
    alarm: watch::Sender<Option<BootTime>>,
}

/// The result of a request that got through.
pub(super) enum Delivery<T> {
    Answered(T),
    /// The request was done, and its response is lost.
    Unanswered,
}

impl Server {
    pub(super) fn new(name: String, time: Time) -> Arc<Self> {
        Arc::new(Self {
            name,
            state: Mutex::new(State::new(time.clone())),
            time,
            opened: watch::Sender::new(()),
            alarm: watch::Sender::new(None),
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn url(&self) -> String {
        format!("memory:{}", self.name)
    }

    /// Returns the clock of the store's clients, if that is not the system's.
    pub(super) fn clock(&self) -> Option<Arc<dyn Clock>> {
        match &self.time {
            Time::System => None,
            Time::Moved(clock) => Some(Arc::new(clock.clone())),
        }
    }

    /// Runs one step at one instant, and sends the messages that result from it.
    pub(super) fn work<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        // A panic in here comes from the test's logger, before the table was changed, or from the table, for which no better state exists.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.begin_step();
        let result = work(&mut state);
        let next = state.next_end();
        self.alarm.send_if_modified(|alarm| {
            let earlier = next.is_some_and(|next| alarm.is_none_or(|alarm| next < alarm));
            if earlier {
                *alarm = next;
            }
            earlier
        });
        let messages = state.take_messages();
        drop(state);
        for message in messages {
            message.send();
        }
        result
    }

    /// Runs a request if it gets through; otherwise returns it.
    pub(super) fn pass<T, R>(&self, link: LinkId, request: R) -> Result<Delivery<T>, R>
    where
        R: FnOnce(&mut State) -> T,
    {
        self.work(|state| {
            if !state.is_open(link) {
                return Err(request);
            }
            let answer = request(state);
            Ok(if state.loses_answer(link) { Delivery::Unanswered } else { Delivery::Answered(answer) })
        })
    }

    /// Changes the links or the pause, and makes the clients try their unsent requests again.
    pub(super) fn change(&self, change: impl FnOnce(&mut State)) {
        self.work(change);
        self.opened.send_replace(());
    }

    /// Returns a receiver that is notified, from now on, when requests may have begun to get through.
    pub(super) fn opened(&self) -> watch::Receiver<()> {
        self.opened.subscribe()
    }

    /// Ends what is over, and sets the alarm to the next end.
    fn end_what_is_over(&self) {
        self.work(|state| {
            let next = state.next_end();
            // No task need be woken: each one reads the alarm here before it sleeps.
            self.alarm.send_if_modified(|alarm| {
                *alarm = next;
                false
            });
        });
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        registry::forget_the_gone();
    }
}

/// Ends leases when they are over, for as long as the store exists. Each client has one such task, so that its waiters are granted locks
/// after other clients are gone. Requests do not depend on this task.
pub(super) async fn end_leases(server: Weak<Server>, clock: Arc<dyn Clock>) {
    let Some(mut alarm) = server.upgrade().map(|server| server.alarm.subscribe()) else { return };
    loop {
        let at = *alarm.borrow_and_update();
        let due = async {
            match at {
                Some(at) => clock.sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = due => match server.upgrade() {
                Some(server) => server.end_what_is_over(),
                None => return,
            },
            changed = alarm.changed() => {
                if changed.is_err() {
                    return;
                }
            }
        }
    }
}
