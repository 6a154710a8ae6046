//! The lease of a session, which many grants share. The engine keeps the session alive, whatever the number of its grants. Guards read
//! their deadline from it.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::clock::BootTime;
use crate::hold::Hold;

/// The lease of a session. Clones share it.
#[derive(Clone)]
pub struct SessionLease(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    deadline: BootTime,
    in_jeopardy: bool,
    /// The holds whose watches are notified when the deadline moves.
    watched: Vec<Weak<Hold>>,
}

impl SessionLease {
    /// Creates the lease of a session that is valid until this instant.
    pub fn new(deadline: BootTime) -> Self {
        Self(Arc::new(Mutex::new(State { deadline, ..State::default() })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the session was kept alive without interruption: all its grants are valid until this instant.
    pub fn confirm(&self, deadline: BootTime) {
        let mut state = self.state();
        // Responses may arrive out of order.
        state.deadline = state.deadline.max(deadline);
        state.in_jeopardy = false;
        Self::show(state);
    }

    /// Records that the session could not be kept alive so far. The engine continues to try.
    pub fn doubt(&self) {
        let mut state = self.state();
        state.in_jeopardy = true;
        Self::show(state);
    }

    /// Returns the instant until which the session's grants are valid.
    pub fn deadline(&self) -> BootTime {
        self.state().deadline
    }

    pub(crate) fn is_in_jeopardy(&self) -> bool {
        self.state().in_jeopardy
    }

    /// Adds a hold whose watches are notified when the deadline moves.
    pub(crate) fn watch(&self, hold: &Arc<Hold>) {
        self.state().watched.push(Arc::downgrade(hold));
    }

    fn show(mut state: MutexGuard<'_, State>) {
        state.watched.retain(|hold| hold.strong_count() > 0);
        let watched: Vec<_> = state.watched.iter().filter_map(Weak::upgrade).collect();
        // Unlocked first, since a hold reads its session.
        drop(state);
        for hold in watched {
            hold.session_has_changed();
        }
    }
}

impl PartialEq for SessionLease {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for SessionLease {}

impl fmt::Debug for SessionLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let State { deadline, in_jeopardy, .. } = &*self.state();
        f.debug_struct("SessionLease").field("deadline", deadline).field("in_jeopardy", in_jeopardy).finish()
    }
}
