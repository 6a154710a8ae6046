//! A lock whose holder expired stays unavailable for its lock-delay, because writes of that holder may still be under way.

use std::time::Duration;

use tenure_table::LockName;

use super::{Subject, Trial};
use crate::clock::BootTime;
use crate::engine::{AcquireRequest, Grant};
use crate::{Break, Ttl};

/// Acquires a grant that is never renewed or released. Returns the instant before the request, too.
async fn abandoned<S: Subject>(trial: &Trial<S>, name: &str, lock_delay: Duration) -> (BootTime, Grant) {
    let mut request = AcquireRequest::new(LockName::parse(name).unwrap());
    request.ttl = Ttl::new(Trial::<S>::SHORT).unwrap();
    request.lock_delay = lock_delay;
    let asked = trial.client().clock().now();
    let granted = trial.client().engine().clone().acquire(request.clone()).await.expect("it is free");
    (asked, request.granted(granted.token))
}

/// After the lease has expired, the lock becomes free when the lock-delay ends, and not before.
pub async fn an_expired_lock_is_kept_for_its_delay<S: Subject>(trial: Trial<S>) {
    if !trial.capabilities().lock_delay {
        return;
    }
    let (name, delay) = (trial.name("delayed"), Trial::<S>::SHORT * 2);
    let (asked, _) = abandoned(&trial, &name, delay).await;
    let request = trial.client().lock(&name).ttl(Trial::<S>::LONG);
    let next = trial.soon("the delay ends", request.acquire()).await.unwrap();
    let waited = trial.client().clock().now().since(asked);
    assert!(waited >= Trial::<S>::SHORT + delay, "it was got after {waited:?}");
    let _ = next.release().await.unwrap();
}

/// A released lock has no lock-delay, whatever the request asked for.
pub async fn a_released_lock_has_no_delay<S: Subject>(trial: Trial<S>) {
    if !trial.capabilities().lock_delay {
        return;
    }
    let name = trial.name("released");
    let (_, grant) = abandoned(&trial, &name, Trial::<S>::LONG).await;
    trial.client().engine().clone().release(grant).await.unwrap();
    assert!(!trial.is_busy(&name).await);
}

/// A lock-delay is visible, and an operator can end it by force.
pub async fn a_delay_is_seen_and_can_be_broken<S: Subject>(trial: Trial<S>) {
    if !trial.capabilities().lock_delay {
        return;
    }
    let name = trial.name("broken");
    let (_, grant) = abandoned(&trial, &name, Trial::<S>::LONG).await;
    trial
        .eventually("the delay is seen", async || {
            let info = trial.client().inspect(&name).await.unwrap();
            let delays: Vec<_> = info.lock_delays.iter().map(|delay| delay.grant).collect();
            info.holders.is_empty() && delays == [grant.id]
        })
        .await;
    assert!(trial.is_busy(&name).await);
    assert_eq!(trial.client().list(&name).await.unwrap().len(), 1, "it is in use");
    let broken = trial.client().break_lock(&name, Break::Force).await.unwrap();
    assert!(broken.is_empty(), "{broken:?} held it");
    assert!(!trial.is_busy(&name).await);
}
