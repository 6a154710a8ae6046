//! The sessions of a client: one for each TTL, which keeps alive all of the client's renewed grants.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::MemoryEngine;
use super::acquire::NoAnswer;
use super::state::{Given, SessionRef};
use crate::clock::BootTime;
use crate::engine::Granted;
use crate::lease::{Term, Ttl};
use crate::random;
use crate::session_lease::SessionLease;

/// The longest pause after a request that kept no session alive.
const LONGEST_RETRY: Duration = Duration::from_secs(1);

/// A session, as its client sees it.
#[derive(Debug)]
pub(super) struct Session {
    id: u128,
    ttl: Ttl,
    /// Whether a request has named the session to the store, which opens it then. Once it has ended, it is not opened again.
    is_open: AtomicBool,
    lease: SessionLease,
}

impl Session {
    /// Returns the reference by which a request names the session, and records it as named.
    pub(super) fn name(&self) -> SessionRef {
        SessionRef { id: self.id, ttl: self.ttl.get(), may_open: !self.is_open.swap(true, Ordering::AcqRel) }
    }

    /// Returns a grant with the session's lease as its term, if it was granted in the session.
    pub(super) fn granted(&self, given: Given) -> Granted {
        let in_session = given.in_session;
        let granted = Granted::from(given);
        if !in_session {
            return granted;
        }
        self.confirm(&granted.term);
        Granted { term: Term::Session(self.lease.clone()), ..granted }
    }

    fn confirm(&self, term: &Term) {
        if let Some(deadline) = term.deadline() {
            self.lease.confirm(deadline);
        }
    }
}

/// The sessions of one client.
#[derive(Debug, Default)]
pub(super) struct Sessions {
    present: Mutex<HashMap<Ttl, Arc<Session>>>,
}

impl Sessions {
    fn present(&self) -> MutexGuard<'_, HashMap<Ttl, Arc<Session>>> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes a session that the store has ended: the next grant opens another one.
    pub(super) fn forget(&self, session: &Session) {
        self.present().retain(|_, present| present.id != session.id);
    }
}

impl MemoryEngine {
    /// Returns the session of this TTL, and starts to keep it alive if it is new.
    pub(super) fn session(self: &Arc<Self>, ttl: Ttl) -> Arc<Session> {
        let mut present = self.sessions.present();
        let new = || {
            let session = Arc::new(Session {
                id: random::grant_id().as_u128(),
                ttl,
                is_open: AtomicBool::new(false),
                lease: SessionLease::new(BootTime::default()),
            });
            let first = self.context.clock.now() + random::slightly_below(ttl.renewal_interval());
            self.context.runtime.spawn(keep_alive(Arc::downgrade(self), session.clone(), first));
            session
        };
        present.entry(ttl).or_insert_with(new).clone()
    }
}

/// Keeps a session alive until the store or its client ends it.
async fn keep_alive(engine: Weak<MemoryEngine>, session: Arc<Session>, mut next: BootTime) {
    let Some(clock) = engine.upgrade().map(|engine| engine.context.clock.clone()) else { return };
    let interval = session.ttl.renewal_interval();
    loop {
        clock.sleep_until(next).await;
        let Some(engine) = engine.upgrade() else { return };
        let sent_at = clock.now();
        // The task does not wait long for a lost response: renewing twice does no harm.
        let answer = tokio::select! {
            biased;
            answer = engine.ask(None, |state| state.keep_session(session.id)) => answer,
            () = clock.sleep_until(sent_at + interval / 2) => Err(NoAnswer::Unanswered),
        };
        next = match answer {
            Ok(Some(term)) => {
                session.confirm(&term);
                sent_at + random::slightly_below(interval)
            }
            // The session has no grant yet.
            Ok(None) if !session.is_open.load(Ordering::Acquire) => {
                clock.now() + random::slightly_below(interval)
            }
            Ok(None) | Err(NoAnswer::Closed) => return engine.sessions.forget(&session),
            Err(NoAnswer::NotSent | NoAnswer::Unanswered) => {
                session.lease.doubt();
                clock.now() + random::jittered((interval / 4).min(LONGEST_RETRY))
            }
        };
    }
}
