//! How a grant or a place in the queue is given up, also one of which it is not known whether it was ever taken.

use std::sync::Arc;
use std::time::Duration;

use tenure_table::GrantId;
use tokio_util::sync::CancellationToken;

use super::api::{Compare, Delete, Put, Step, Txn};
use super::fault::{Fault, What};
use super::keys;
use super::lease::{Keeper, Lease};
use super::link::{Answer, Link};
use crate::engine::EngineContext;
use crate::engines::kept_value::KeptValue;
use crate::engines::session::HasSession;
use crate::random;

/// The pauses between two tries: ever longer ones.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// After so long, a request that was given up does not arrive any more.
const ARRIVED_AFTER: Duration = Duration::from_mins(5);

/// A lock's value as it is left by one who lets go: the key, and what it holds.
pub(super) type Left = (String, KeptValue);

/// Deletes a key and leaves the value in one step, if that key is there.
fn leaving(key: &str, value: Option<&Left>, gone: Option<(&str, i64)>) -> Txn {
    let mut always: Vec<Step> = Vec::new();
    if let Some((gone, lease)) = gone {
        always.push(Put::new(gone, Vec::new()).under(lease).into());
    }
    let mut steps = always.clone();
    steps.push(Delete::key(key).into());
    if let Some((at, kept)) = value {
        let left = kept.clone().unmarked();
        steps.push(if left == KeptValue::default() {
            Delete::key(at.as_str()).into()
        } else {
            Put::new(at.as_str(), left.text()).into()
        });
    }
    Txn::new().when([Compare::exists(key)]).and_then(steps).or_else(always)
}

/// Deletes a key, and leaves the value; whether it was there. One that was sent a second time and finds nothing has done it the first time.
pub(super) async fn leave(
    link: &Link,
    key: &str,
    value: Option<&Left>,
    gone: Option<(&str, i64)>,
) -> Result<bool, Fault> {
    let left = if value.is_none() && gone.is_none() {
        link.delete(key).await
    } else {
        let left = link.txn(leaving(key, value, gone)).await;
        match left.map(|Answer { answer, repeated }| Answer { answer: answer.succeeded, repeated }) {
            // There is no room to write anything. The lock is freed all the same.
            Err(fault) if fault.what == What::Full => link.delete(key).await,
            left => left,
        }
    };
    match left {
        Ok(Answer { answer, repeated }) => Ok(answer || repeated),
        // What stood under it is gone.
        Err(fault) if fault.what == What::LeaseGone => Ok(false),
        Err(fault) => Err(fault),
    }
}

/// A request of which nothing is to be left.
pub(super) struct Undo {
    link: Arc<Link>,
    context: EngineContext,
    closing: CancellationToken,
    lease: Arc<Lease>,
    key: String,
    value: Option<Left>,
    /// What says that it was given up, if it may still arrive.
    gone: Option<String>,
}

impl Undo {
    /// Of the key of a grant, which is there, or was.
    pub(super) fn leaving(keeper: &Keeper, lease: Arc<Lease>, key: String, grant: GrantId) -> Self {
        let arriving = lease.is_arriving(grant);
        let undo = Self {
            link: keeper.link.clone(),
            context: keeper.context.clone(),
            closing: keeper.closing.clone(),
            lease,
            key,
            value: None,
            gone: None,
        };
        if arriving { undo.that_may_arrive(&keeper.prefix, grant) } else { undo }
    }

    /// With a value that may be marked as its own.
    pub(super) fn with_value(self, value: Option<Left>) -> Self {
        Self { value, ..self }
    }

    /// Of a key that may be put there later, by a request that is still under way.
    pub(super) fn that_may_arrive(self, prefix: &str, grant: GrantId) -> Self {
        Self { gone: Some(keys::gone(prefix, grant)), ..self }
    }

    pub(super) const fn may_arrive(&self) -> bool {
        self.gone.is_some()
    }

    /// Whether it is done.
    pub(super) async fn once(&self) -> bool {
        // What stood under a lease that has ended is gone, and nothing more can be put there.
        if self.lease.session().ended().is_cancelled() {
            return true;
        }
        self.leave().await.is_ok()
    }

    /// Whether it was there.
    pub(super) async fn leave(&self) -> Result<bool, Fault> {
        let gone = self.gone.as_deref().map(|gone| (gone, self.lease.id));
        leave(&self.link, &self.key, self.value.as_ref(), gone).await
    }

    /// Until it is done. When the client is closed, the lease ends and takes everything along.
    pub(super) async fn go_on(self) {
        let closing = self.closing.clone();
        closing.run_until_cancelled(self.until_done()).await;
    }

    async fn until_done(self) {
        let clock = &self.context.clock;
        let mut pause = FIRST_PAUSE;
        while !self.once().await {
            clock.sleep_until(clock.now() + random::jittered(pause)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        self.forget().await;
    }

    /// What is left to do when it is done.
    pub(super) async fn rest(self) {
        let closing = self.closing.clone();
        closing.run_until_cancelled(self.forget()).await;
    }

    /// What says that it was given up is not kept for ever.
    async fn forget(&self) {
        let Some(gone) = &self.gone else { return };
        let clock = &self.context.clock;
        tokio::select! {
            () = self.lease.session().ended().cancelled() => return,
            () = clock.sleep_until(clock.now() + ARRIVED_AFTER) => {}
        }
        if let Err(fault) = self.link.delete(gone).await {
            tracing::debug!(error = %fault.error, "a key stays until its lease ends");
        }
    }
}
