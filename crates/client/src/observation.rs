//! Observation of the holders of a lock as they change.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use tenure_table::{GrantId, LockName, Mode};

use crate::error::{EngineError, InspectError};
use crate::info::LockInfo;
use crate::inner::ClientInner;
use crate::random;

/// The pause after an error, so that an engine that cannot be reached is not asked without a break.
const PAUSE: Duration = Duration::from_millis(200);

/// The holders of a lock as they change: from [`Client::observe`](crate::Client::observe).
pub struct Observation {
    shared: Arc<ClientInner>,
    name: LockName,
    changes: BoxStream<'static, Result<LockInfo, InspectError>>,
    /// The holders and the lock-delays of the last result.
    seen: Option<Vec<(GrantId, Option<Mode>)>>,
    failed: bool,
}

impl Observation {
    pub(crate) fn new(shared: Arc<ClientInner>, name: LockName) -> Self {
        let changes = shared.engine.clone().observe(name.clone());
        Self { shared, name, changes, seen: None, failed: false }
    }

    /// Returns the name of the observed lock.
    pub fn name(&self) -> &LockName {
        &self.name
    }

    /// Returns the lock as it is at the first call, and then the lock after it has changed. Changes that follow each other closely may be
    /// reported as one; the last state is never missed. An error does not end the observation: the next call continues after a short pause.
    ///
    /// # Cancellation safety
    /// May be dropped at any point: no change is missed.
    ///
    /// # Errors
    /// The engine cannot be reached, or the client was closed.
    pub async fn next(&mut self) -> Result<LockInfo, InspectError> {
        if self.failed {
            let clock = &self.shared.clock;
            let pause = clock.sleep_until(clock.now() + random::jittered(PAUSE));
            self.shared.closing.run_until_cancelled(pause).await;
            self.failed = false;
        }
        loop {
            let next = self.shared.closing.run_until_cancelled(self.changes.next()).await;
            let next = next.flatten().unwrap_or_else(|| Err(EngineError::Closed.into()));
            self.failed = next.is_err();
            let info = next.inspect_err(|_| self.seen = None)?;
            let holders = info.holders.iter().map(|holder| (holder.grant, Some(holder.mode)));
            let seen = holders.chain(info.lock_delays.iter().map(|delay| (delay.grant, None))).collect();
            // Some engines report changes among the waiters too.
            if self.seen.as_ref() != Some(&seen) {
                self.seen = Some(seen);
                return Ok(info);
            }
        }
    }
}

impl fmt::Debug for Observation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Observation").field(&self.name).finish()
    }
}
