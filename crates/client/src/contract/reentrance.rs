//! Only the same owner re-enters, and only if the held mode covers the requested one.

use std::time::Duration;

use super::{Subject, Trial, poll_times};
use crate::random;
use crate::{AcquireError, Mode, Release, Wait};

/// The same owner acquires its lock again with the same token. The last guard releases the lock.
pub async fn the_same_owner_reenters<S: Subject>(trial: Trial<S>) {
    let name = trial.name("same");
    let owner = trial.client().owner();
    let outer = owner.lock(&name).ttl(Trial::<S>::LONG).acquire().await.unwrap();
    let inner = owner.lock(&name).wait(Wait::Try).acquire().await.unwrap();
    assert_eq!(outer.token(), inner.token());
    assert_eq!(outer.release().await.unwrap(), Release::StillHeld);
    assert!(inner.check().is_ok());
    assert!(trial.is_busy(&name).await);
    assert_eq!(inner.release().await.unwrap(), Release::Released);
    trial.assert_nothing_left(&name).await;
    // The same again after the release.
    drop(owner.lock(&name).acquire().await.unwrap());
    trial.assert_nothing_left(&name).await;
}

/// Another owner waits, even in the same client.
pub async fn another_owner_does_not<S: Subject>(trial: Trial<S>) {
    let name = trial.name("another");
    let _held = trial.client().owner().lock(&name).acquire().await.unwrap();
    let other = trial.client().owner().lock(&name).try_acquire().await.unwrap();
    assert!(other.is_none());
    assert!(trial.is_busy(&name).await);
}

/// A reader that asks for a stronger mode gets an error that advises a conversion, and keeps its lock.
pub async fn what_is_not_covered_is_refused<S: Subject>(trial: Trial<S>) {
    if !trial.capabilities().modes.contains(Mode::SHARED) {
        return;
    }
    let name = trial.name("covered");
    let owner = trial.client().owner();
    let reader = owner.lock(&name).shared().acquire().await.unwrap();
    let answer = owner.lock(&name).acquire().await;
    let Err(error @ AcquireError::NotCovered { held: Mode::Pr, asked: Mode::Ex, .. }) = answer else {
        panic!("{answer:?}")
    };
    assert!(error.to_string().contains("convert"), "{error}");
    assert!(reader.check().is_ok());
    let _ = reader.release().await.unwrap();
    let writer = owner.lock(&name).acquire().await.unwrap();
    assert!(owner.lock(&name).shared().try_acquire().await.unwrap().is_some(), "EX covers PR");
    drop(writer);
    trial.assert_nothing_left(&name).await;
}

/// Tasks that acquire through one owner at the same time share one grant.
pub async fn tasks_of_one_owner_share_a_grant<S: Subject>(trial: Trial<S>) {
    let name = trial.name("tasks");
    let owner = trial.client().owner();
    let acquire = || owner.lock(&name).ttl(Trial::<S>::LONG).acquire();
    let (a, b, c) = trial.soon("all get it", async { tokio::join!(acquire(), acquire(), acquire()) }).await;
    let guards = [a.unwrap(), b.unwrap(), c.unwrap()];
    assert!(guards.iter().all(|guard| guard.grant() == guards[0].grant()));
    drop(guards);
    trial.assert_nothing_left(&name).await;
}

/// The same owner re-enters from another client, if the engine has shared owners.
pub async fn an_owner_reenters_from_another_client<S: Subject>(trial: Trial<S>) {
    let name = trial.name("clients");
    let here = trial.client().owner();
    let there = trial.another_client().await.owner_with_id(here.id());
    let first = here.lock(&name).ttl(Trial::<S>::LONG).acquire().await.unwrap();
    let second = there.lock(&name).ttl(Trial::<S>::LONG).try_acquire().await.unwrap();
    if !trial.capabilities().shared_owners {
        assert!(second.is_none(), "owners are not declared to be shared");
        return;
    }
    let second = second.expect("the same owner re-enters");
    assert_eq!(first.token(), second.token());
    // The order of the releases does not matter: the lock is held until the last one.
    let _ = first.release().await.unwrap();
    assert!(second.check().is_ok());
    assert!(trial.is_busy(&name).await);
    let third = here.lock(&name).try_acquire().await.unwrap().expect("the same owner re-enters");
    let _ = second.release().await.unwrap();
    assert!(trial.is_busy(&name).await);
    let _ = third.release().await.unwrap();
    trial.assert_nothing_left(&name).await;
}

/// The same owner re-enters from another process. The grant of a dead process ends when all the others have released.
pub async fn an_owner_reenters_from_another_process<S: Subject>(trial: Trial<S>) {
    if !trial.reaches_processes() || !trial.capabilities().shared_owners {
        return;
    }
    let name = trial.name("processes");
    let owner = trial.client().owner();
    let guard = owner.lock(&name).ttl(Trial::<S>::LONG).acquire().await.unwrap();
    let mut helper = trial.helper().await;
    let ttl_ms = trial.ttl_of_the_killed().as_millis();
    let stranger = helper.ask(&format!("reenter {name} {} {ttl_ms}", random::owner_id())).await;
    assert!(stranger.starts_with("error"), "{stranger}");
    let got = helper.ask(&format!("reenter {name} {} {ttl_ms}", owner.id())).await;
    let token = guard.token().map_or(0, crate::FencingToken::get);
    assert_eq!(got, format!("got {token}"));
    let _ = guard.release().await.unwrap();
    assert!(trial.is_busy(&name).await, "free, although the owner's other process holds it");
    helper.kill();
    drop(trial.soon("the next one gets it", trial.client().lock(&name).acquire()).await.unwrap());
    trial.assert_nothing_left(&name).await;
}

/// A lock that an owner has just dropped does not block its next request.
pub async fn what_an_owner_dropped_is_not_in_its_own_way<S: Subject>(trial: Trial<S>) {
    if !trial.capabilities().modes.contains(Mode::SHARED) {
        return;
    }
    let name = trial.name("dropped");
    let owner = trial.client().owner();
    for _ in 0..30 {
        drop(owner.lock(&name).shared().ttl(Trial::<S>::LONG).acquire().await.unwrap());
        drop(owner.lock(&name).ttl(Trial::<S>::LONG).acquire().await.unwrap());
        let waiting = owner.lock(&name).shared().ttl(Trial::<S>::LONG).acquire();
        drop(poll_times(waiting, 1).await);
    }
    trial.assert_nothing_left(&name).await;
}

/// A wait behind a holder that re-entered can be cancelled, and times out like any other.
pub async fn a_wait_behind_a_joined_holder_ends<S: Subject>(trial: Trial<S>) {
    if !trial.capabilities().shared_owners {
        return;
    }
    let name = trial.name("joined");
    let first = trial.client().owner();
    let second = trial.another_client().await.owner_with_id(first.id());
    let outer = first.lock(&name).ttl(Trial::<S>::LONG).acquire().await.unwrap();
    let joined = second.lock(&name).ttl(Trial::<S>::LONG).acquire().await.unwrap();
    let _ = outer.release().await.unwrap();
    let wait = Wait::For(Duration::from_millis(100));
    let answer = trial.soon("the wait ends", trial.client().lock(&name).wait(wait).acquire()).await;
    assert!(matches!(answer, Err(AcquireError::TimedOut { .. })), "{answer:?}");
    assert!(poll_times(trial.client().lock(&name).acquire(), 10).await.is_none());
    trial.waiters(&name, 0).await;
    let next = tokio::spawn(trial.client().lock(&name).ttl(Trial::<S>::LONG).acquire());
    trial.waiters(&name, 1).await;
    let _ = joined.release().await.unwrap();
    drop(trial.soon("the next one gets it", next).await.unwrap().unwrap());
    trial.assert_nothing_left(&name).await;
}
