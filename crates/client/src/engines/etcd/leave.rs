//! Removal of a grant or of a place in the queue, even if it is unknown whether it ever existed.

use std::sync::Arc;
use std::time::Duration;

use tenure_table::GrantId;

use super::api::{Compare, Delete, Put, Step, Txn};
use super::fault::{Fault, What};
use super::keys;
use super::lease::{Keeper, Lease};
use super::link::{Answer, Link};
use crate::engines::kept_value::KeptValue;
use crate::engines::session::HasSession;
use crate::wait::Backoff;

/// The shortest and the longest pause between two attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The time after which a withdrawn request does not arrive any more.
const ARRIVED_AFTER: Duration = Duration::from_mins(5);

/// A lock's value as a release leaves it.
#[derive(Debug)]
pub(super) struct Left {
    /// The key of the value.
    pub(super) at: String,
    pub(super) value: KeptValue,
    /// The token of the key that has marked the value: the value of another grant is not touched.
    pub(super) token: i64,
}

/// Builds a transaction that deletes a key, and puts the key `gone` if given. If the deleted key is the one that marked the value, the
/// value is written without the mark.
fn leaving(key: &str, left: Option<&Left>, gone: Option<(&str, i64)>) -> Txn {
    let mut always: Vec<Step> = vec![Delete::key(key).into()];
    if let Some((gone, lease)) = gone {
        always.push(Put::new(gone, Vec::new()).under(lease).into());
    }
    let mut steps = always.clone();
    let mut stands = Compare::exists(key);
    if let Some(Left { at, value, token }) = left {
        stands = Compare::created_at(key, *token);
        let value = value.clone().unmarked();
        steps.push(if value == KeptValue::default() {
            Delete::key(at.as_str()).into()
        } else {
            Put::new(at.as_str(), value.text()).into()
        });
    }
    Txn::new().when([stands]).and_then(steps).or_else(always)
}

/// Deletes a key, and writes the value without the mark. Returns whether the key existed. A repeated request that finds nothing succeeded
/// at its first attempt.
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
            // The database is too full for a write. The lock is freed all the same.
            Err(fault) if fault.what == What::Full => link.delete(key).await,
            left => left,
        }
    };
    match left {
        Ok(Answer { answer, repeated }) => Ok(answer || repeated),
        // The keys of the lease are gone.
        Err(fault) if fault.what == What::LeaseGone => Ok(false),
        Err(fault) => Err(fault),
    }
}

impl Keeper {
    /// Frees the key of a grant, and retries until it is gone. When the client is closed, the lease ends and its keys with it.
    pub(super) async fn free(self: Arc<Self>, lease: Arc<Lease>, grant: GrantId, key: String) {
        let freeing = async {
            let clock = &self.context.clock;
            let mut pauses = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
            // The keys of a lease that has ended are gone.
            while !lease.session().ended().is_cancelled()
                && self.leave(&lease, grant, &key, None).await.is_err()
            {
                clock.sleep_until(pauses.next(clock.now())).await;
            }
        };
        self.closing.run_until_cancelled(freeing).await;
    }

    /// Deletes a grant's key, and writes the value without the mark. Returns whether the key existed. A request for it that still arrives
    /// has no effect.
    pub(super) async fn leave(
        self: &Arc<Self>,
        lease: &Arc<Lease>,
        grant: GrantId,
        key: &str,
        value: Option<&Left>,
    ) -> Result<bool, Fault> {
        let gone = lease.is_arriving(grant).then(|| keys::gone(&self.prefix, grant));
        let left = leave(&self.link, key, value, gone.as_deref().map(|gone| (gone, lease.id))).await?;
        lease.settle(grant);
        if let Some(gone) = gone {
            let forgetting = self.clone().forget(lease.clone(), gone);
            self.undoing.spawn_on(forgetting, &self.context.runtime);
        }
        Ok(left)
    }

    /// Deletes the key that records a withdrawal, after the time in which the request could arrive.
    async fn forget(self: Arc<Self>, lease: Arc<Lease>, gone: String) {
        let clock = &self.context.clock;
        tokio::select! {
            () = self.closing.cancelled() => return,
            () = lease.session().ended().cancelled() => return,
            () = clock.sleep_until(clock.now() + ARRIVED_AFTER) => {}
        }
        if let Err(fault) = self.link.delete(&gone).await {
            tracing::debug!(error = %fault.error, "a key stays until its lease ends");
        }
    }
}
