//! Requests whose answers did not come, and how they are withdrawn: behind the request, on the connection that it was sent on, if that stands.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tenure_table::GrantId;

use super::RedisEngine;
use super::fault::What;
use super::link::Repeat;
use super::scripts::{self, Call};
use super::way::{Connected, Way};
use crate::engine::{Grant, Withdrawn};
use crate::error::EngineError;

/// How long a connection has to answer before another one is tried: the runtime that drives it may stand still.
const HEAD_START: Duration = Duration::from_millis(500);

/// The limit of the list. Requests beyond it are left to their leases if they arrive late.
const MOST: usize = 10_000;

/// The connections on which requests were sent that were not answered. None, if there were several.
#[derive(Debug, Default)]
pub(super) struct Unanswered {
    requests: Mutex<HashMap<GrantId, Option<Weak<Connected>>>>,
}

impl Unanswered {
    fn requests(&self) -> MutexGuard<'_, HashMap<GrantId, Option<Weak<Connected>>>> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request was sent on this connection, and was not answered.
    pub(super) fn note(&self, grant: GrantId, way: &Way) {
        let sent_on = Way::downgrade(way);
        let mut requests = self.requests();
        let other = requests
            .get(&grant)
            .is_some_and(|before| before.as_ref().is_none_or(|before| !Weak::ptr_eq(before, &sent_on)));
        if other || requests.len() < MOST {
            requests.insert(grant, (!other).then_some(sent_on));
        }
    }

    /// A request was sent on a connection that broke.
    pub(super) fn note_broken(&self, grant: GrantId) {
        let mut requests = self.requests();
        if requests.len() < MOST {
            requests.insert(grant, None);
        }
    }

    /// Whether a request for this grant may still arrive.
    pub(super) fn has(&self, grant: GrantId) -> bool {
        self.requests().contains_key(&grant)
    }
}

impl RedisEngine {
    pub(super) async fn withdraw_request(&self, grant: &Grant) -> Result<Withdrawn, EngineError> {
        let script = scripts::release(&self.key(&grant.name)?, grant.id);
        let Some(sent_on) = self.unanswered.requests().get(&grant.id).cloned() else {
            // All its requests were answered.
            self.release_once(&script).await?;
            return Ok(Withdrawn::ForGood);
        };
        let is_behind = match sent_on.and_then(|way| way.upgrade()) {
            Some(way) => {
                let clock = &self.context.clock;
                tokio::select! {
                    biased;
                    answer = self.link.undo_behind::<u8>(&way, self.limit, &script) => answer.is_some(),
                    () = clock.sleep_until(clock.now() + HEAD_START) => false,
                }
            }
            None => false,
        };
        if !is_behind {
            self.release_once(&script).await?;
        }
        self.unanswered.requests().remove(&grant.id);
        Ok(if is_behind { Withdrawn::ForGood } else { Withdrawn::ForNow })
    }

    async fn release_once(&self, script: &Call) -> Result<(), EngineError> {
        match self.link.script::<u8>(self.limit, Repeat::Harmless, script).await {
            // What stands there is no lock.
            Err(fault) if fault.what != What::WrongType => Err(fault.error),
            _ => Ok(()),
        }
    }
}
