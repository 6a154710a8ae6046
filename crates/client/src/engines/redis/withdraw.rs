//! Requests without an answer, and their withdrawal: behind the request, on the connection that it was sent on, if that is still open.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tenure_table::GrantId;

use super::RedisEngine;
use super::connection::{Connection, ConnectionCell};
use super::fault::What;
use super::link::Repeat;
use super::scripts::{self, Call};
use crate::clock::BootTime;
use crate::engine::{AcquireRequest, Grant, Withdrawn};
use crate::error::EngineError;

/// How long a connection has to answer before another one is tried: the runtime that drives it may be blocked.
const HEAD_START: Duration = Duration::from_millis(500);

/// How long after its TTL the connection of an unanswered request is remembered.
const GIVE_UP_AFTER: Duration = Duration::from_mins(1);

/// The unanswered requests, and the connections on which they were sent.
#[derive(Debug, Default)]
pub(super) struct Unanswered {
    requests: Mutex<HashMap<GrantId, Sent>>,
}

/// An unanswered request.
#[derive(Clone, Debug)]
struct Sent {
    /// The connection that the request was sent on. `None` if there were several, or if a release was already sent behind the request.
    connection: Option<Weak<ConnectionCell>>,
    /// After this instant, no effect of the request remains.
    until: BootTime,
}

impl Unanswered {
    fn requests(&self) -> MutexGuard<'_, HashMap<GrantId, Sent>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a request was sent on this connection, or with `None` on several.
    fn note(&self, grant: GrantId, connection: Option<&Connection>, now: BootTime, until: BootTime) {
        let mut requests = self.requests();
        let sent_on = connection.map(Arc::downgrade);
        let is_other = requests.get(&grant).is_some_and(|before| match (&before.connection, &sent_on) {
            (Some(before), Some(sent_on)) => !Weak::ptr_eq(before, sent_on),
            _ => true,
        });
        if requests.len().is_power_of_two() {
            requests.retain(|_, sent| sent.until > now);
        }
        requests.insert(grant, Sent { connection: sent_on.filter(|_| !is_other), until });
    }
}

impl RedisEngine {
    /// Records that a request was sent on this connection, or with `None` on several, and was not answered.
    pub(super) fn note_unanswered(&self, request: &AcquireRequest, connection: Option<&Connection>) {
        request.events.unanswered();
        let now = self.now();
        self.unanswered.note(request.grant, connection, now, now + request.ttl.get() + GIVE_UP_AFTER);
    }

    pub(super) async fn withdraw_request(&self, grant: &Grant) -> Result<Withdrawn, EngineError> {
        // No request was sent for a name that is refused.
        let Ok(key) = self.key(&grant.name) else { return Ok(Withdrawn::ForGood) };
        let script = scripts::release(&key, grant.id);
        // Without an entry, all requests of this grant were answered, unless `may_arrive` says otherwise.
        let sent = self.unanswered.requests().get(&grant.id).cloned();
        let may_arrive = grant.may_arrive || sent.is_some();
        let is_behind = match sent.and_then(|sent| sent.connection?.upgrade()) {
            Some(connection) => {
                let clock = &self.context.clock;
                tokio::select! {
                    biased;
                    answer = self.link.undo_behind::<u8>(&connection, self.limit, &script) => answer.is_some(),
                    () = clock.sleep_until(clock.now() + HEAD_START) => false,
                }
            }
            None => false,
        };
        if !is_behind {
            if let Some(sent) = self.unanswered.requests().get_mut(&grant.id) {
                sent.connection = None;
            }
            self.release_once(&script).await?;
        }
        self.unanswered.requests().remove(&grant.id);
        Ok(if may_arrive && !is_behind { Withdrawn::ForNow } else { Withdrawn::ForGood })
    }

    async fn release_once(&self, script: &Call) -> Result<(), EngineError> {
        match self.link.script::<u8>(self.limit, Repeat::Harmless, script).await {
            // A key of another type is no lock.
            Err(fault) if fault.what != What::WrongType => Err(fault.error),
            _ => Ok(()),
        }
    }
}
