//! The holders of a lock can be observed without repeated requests.

use super::{Subject, Trial};
use crate::{GrantId, InspectError, Observation};

/// Waits until exactly these grants hold the lock.
async fn until_held_by<S: Subject>(trial: &Trial<S>, seen: &mut Observation, grants: &[GrantId]) {
    let held = async {
        loop {
            let info = seen.next().await.expect("the engine answers");
            if info.holders.iter().map(|holder| holder.grant).eq(grants.iter().copied()) {
                return;
            }
        }
    };
    trial.soon("the holders are seen", held).await;
}

/// An observer sees the current holder, and each holder that follows, for every kind of end.
pub async fn the_holders_are_seen_as_they_change<S: Subject>(trial: Trial<S>) {
    let name = trial.name("observed");
    if !trial.capabilities().observes {
        let answer = trial.client().observe(&name);
        assert!(
            matches!(answer, Err(InspectError::Engine(crate::EngineError::Unsupported(_)))),
            "{answer:?}"
        );
        return;
    }
    let observer = trial.another_client().await;
    let mut seen = observer.observe(&name).unwrap();
    until_held_by(&trial, &mut seen, &[]).await;
    for _ in 0..3 {
        let guard = trial.holder(&name).await;
        until_held_by(&trial, &mut seen, &[guard.grant()]).await;
        let next = tokio::spawn(trial.client().lock(&name).ttl(Trial::<S>::LONG).acquire());
        trial.waiters(&name, 1).await;
        let _ = guard.release().await.unwrap();
        let next = trial.soon("the next one gets it", next).await.unwrap().unwrap();
        until_held_by(&trial, &mut seen, &[next.grant()]).await;
        let mut late = trial.client().observe(&name).unwrap();
        until_held_by(&trial, &mut late, &[next.grant()]).await;
        let _ = next.release().await.unwrap();
        until_held_by(&trial, &mut seen, &[]).await;
    }
}

/// The end of a lease is reported as a change. A dropped observer does not disturb others.
pub async fn the_end_of_a_lease_is_seen<S: Subject>(trial: Trial<S>) {
    if !trial.capabilities().observes {
        return;
    }
    let name = trial.name("expired");
    let mut seen = trial.client().observe(&name).unwrap();
    drop(trial.client().observe(&name).unwrap());
    let guard = trial.client().lock(&name).ttl(Trial::<S>::SHORT).renew(false).acquire().await.unwrap();
    until_held_by(&trial, &mut seen, &[guard.grant()]).await;
    until_held_by(&trial, &mut seen, &[]).await;
}

/// A closed client ends its observations with an error.
pub async fn a_closed_client_ends_the_observation<S: Subject>(trial: Trial<S>) {
    if !trial.capabilities().observes {
        return;
    }
    let client = trial.another_client().await;
    let mut seen = client.observe(trial.name("closed")).unwrap();
    seen.next().await.unwrap();
    let (closed, next) = futures_util::future::join(client.close(), seen.next()).await;
    closed.unwrap();
    assert!(matches!(next, Err(InspectError::Engine(crate::EngineError::Closed))), "{next:?}");
}
