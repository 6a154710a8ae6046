//! What stands for a server: the state of a store behind one door, and the time by which it goes.
//!
//! Every step is done under one short lock, at one instant: what is over by then is ended first. What others are to be told by it is sent when
//! the lock is free again, since it may run code of theirs; but for those from whom a lock is taken, who hear of it before it is.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use tokio::sync::watch;

use super::registry;
use super::state::State;
use crate::clock::{self, BootTime, Clock, ManualClock};

/// So long a request may take.
pub(super) const REQUEST_LIMIT: Duration = Duration::from_secs(5);

/// A link to a store. It can be cut, and answers can get lost on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LinkId(pub(super) usize);

impl LinkId {
    /// The one that nothing happens to.
    pub(super) const DIRECT: Self = Self(0);
}

/// By what a store goes.
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
    /// Told when something may have begun to get through.
    opened: watch::Sender<()>,
    /// When a lease ends, for those who see to that. Only changed while the state is locked.
    alarm: watch::Sender<Option<BootTime>>,
}

/// A request that got through.
pub(super) enum Delivery<T> {
    Answered(T),
    /// It was done, and its answer is lost.
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

    /// The clock by which its clients go, if that is not the system's.
    pub(super) fn clock(&self) -> Option<Arc<dyn Clock>> {
        match &self.time {
            Time::System => None,
            Time::Moved(clock) => Some(Arc::new(clock.clone())),
        }
    }

    /// Does something at one instant, and tells whom it concerns.
    pub(super) fn work<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        // What panics in here is a log of the test's own, before the table was told anything; or the table, of which nothing better is to be had.
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

    /// Does what a request asks for, if it gets through; else it is given back.
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

    /// Changes what gets through, and has those look who wait at the door.
    pub(super) fn change(&self, change: impl FnOnce(&mut State)) {
        self.work(change);
        self.opened.send_replace(());
    }

    /// Told when something may have begun to get through, from now on.
    pub(super) fn opened(&self) -> watch::Receiver<()> {
        self.opened.subscribe()
    }

    /// Ends what is over, and sets the alarm to what ends next.
    fn end_what_is_over(&self) {
        self.work(|state| {
            let next = state.next_end();
            // Nobody need be woken: those who see to it look here before they sleep.
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

/// Ends leases when they are over, for as long as the store is there. Each client has one such task: those who wait are served also when the
/// others are gone. A client that asks for something needs none.
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
