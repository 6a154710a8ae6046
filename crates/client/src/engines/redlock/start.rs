//! The last start of a job, for `once_per`: a majority of the instances remembers it, each by its own clock.
//!
//! - **More than half of the instances record a start, and more than half are asked for it.** So at least one of the instances that are
//!   asked has it.
//! - **An instance records a start only for the value that it holds for the grant.** A holder that has lost its majority records none.
//! - **A start that any instance shows counts.** A start that less than a majority recorded was in doubt, so the job did not run, and does
//!   not run within the window.

use std::sync::Arc;
use std::time::Duration;

use tenure_table::LockName;

use super::RedlockEngine;
use crate::engine::{Grant, Remembered, Start};
use crate::engines::redis::link::{Link, Repeat};
use crate::engines::redis::scripts::{self, Call};
use crate::engines::redis::whole_ms;
use crate::error::{EngineError, Lost, LostReason, RememberError};
use crate::random;

impl RedlockEngine {
    /// Returns how long ago the last start was, if that is less than the window.
    pub(super) async fn started_ago(
        &self,
        name: &LockName,
        window: Duration,
    ) -> Result<Option<Duration>, EngineError> {
        let (key, limit) = (self.key(name)?, self.look_limit());
        let ask = |link: Arc<Link>| {
            let key = key.clone();
            async move {
                let script = Call::new(&scripts::RECALL, &key);
                link.script::<Option<u64>>(limit, Repeat::Harmless, &script).await
            }
        };
        let ago = self.instances.ask_majority(ask).await?.into_iter().flatten().min();
        Ok(ago.map(Duration::from_millis).filter(|ago| *ago < window))
    }

    pub(super) async fn record_start(
        &self,
        grant: &Grant,
        start: Start,
    ) -> Result<Remembered, RememberError> {
        let lost = || Lost { name: grant.name.clone(), reason: LostReason::Forgotten };
        let (key, attempt) = (self.key(&grant.name)?, self.attempt(grant.id).ok_or_else(lost)?);
        let _one_at_a_time = attempt.starting.lock().await;
        // Asked first, so that no start is recorded beside one that prevents it: no other grant records one while this grant has its
        // majority.
        if let Some(ago) = self.started_ago(&grant.name, start.window.max(start.ago)).await? {
            return Ok(Remembered::Already { ago });
        }
        let mut script = Call::new(&scripts::REMEMBER, &key);
        script.arg(attempt.value.to_string()).arg(whole_ms(start.ago)).arg(whole_ms(start.window));
        // An instance may get the request twice: this id identifies its record.
        script.arg(random::grant_id().to_string());
        let (script, limit) = (Arc::new(script), self.limit(grant.ttl));
        let ask = |link: Arc<Link>| {
            let script = script.clone();
            async move { link.script::<Option<i64>>(limit, Repeat::Harmless, &script).await }
        };
        let answers = self.instances.ask_majority(ask).await?;
        if let Some(ago) = answers.iter().flatten().filter_map(|ago| u64::try_from(*ago).ok()).min() {
            // An instance reports it that was silent just before.
            return Ok(Remembered::Already { ago: Duration::from_millis(ago) });
        }
        let instances = self.instances.links().len();
        let (recorded, quorum) = (answers.iter().flatten().count(), instances / 2 + 1);
        if recorded >= quorum {
            return Ok(Remembered::Recorded);
        }
        if recorded == 0 && answers.len() > instances - quorum {
            return Err(lost().into());
        }
        let message = format!(
            "{recorded} of {instances} instances recorded the start, and {quorum} must: \
             the others did not answer, or do not have the lock's key any more"
        );
        Err(EngineError::Unreachable { engine: "redlock", message, cause: None }.into())
    }
}
