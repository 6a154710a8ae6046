//! Release, renewal and conversion name the grant, so they never affect another grant. Tokens increase.

use std::time::Duration;

use super::{Subject, Trial};
use crate::capabilities::Expiry;
use crate::engine::AcquireRequest;
use crate::error::{ReleaseError, RenewError, ValueError};
use crate::{
    AcquireError, Break, BreakError, EngineError, InspectError, LockName, LostReason, OncePerError, Ttl,
};

/// Releasing an ended grant, even repeatedly, does not affect the next holder.
pub async fn a_late_release_cannot_free_the_next_holder<S: Subject>(trial: Trial<S>) {
    let name = trial.name("late-release");
    let engine = trial.client().engine().clone();
    let request = AcquireRequest::new(LockName::parse(&name).unwrap());
    let granted = engine.clone().acquire(request.clone()).await.unwrap();
    let grant = request.granted(granted.token);
    engine.clone().release(grant.clone()).await.unwrap();
    let next = trial.holder(&name).await;
    for _ in 0..2 {
        let late = engine.clone().release(grant.clone()).await;
        assert!(matches!(late, Err(ReleaseError::NotHeld(_))), "{late:?}");
    }
    assert!(trial.is_busy(&name).await, "the late release freed the next holder's lock");
    assert!(next.check().is_ok());
}

/// An ended grant cannot be renewed, and the next holder keeps the lock.
pub async fn a_late_renewal_cannot_revive_a_grant<S: Subject>(trial: Trial<S>) {
    let name = trial.name("late-renewal");
    let engine = trial.client().engine().clone();
    let request = AcquireRequest::new(LockName::parse(&name).unwrap());
    let granted = engine.clone().acquire(request.clone()).await.unwrap();
    let grant = request.granted(granted.token);
    engine.clone().renew(grant.clone()).await.unwrap();
    engine.clone().release(grant.clone()).await.unwrap();
    let late = engine.clone().renew(grant.clone()).await;
    assert!(matches!(late, Err(RenewError::Lost(_))), "{late:?}");
    let next = trial.holder(&name).await;
    let late = engine.clone().renew(grant).await;
    assert!(matches!(late, Err(RenewError::Lost(_))), "{late:?}");
    assert!(trial.is_busy(&name).await);
    let _ = next.release().await.unwrap();
    trial.assert_nothing_left(&name).await;
}

/// A request that is sent again, as after a lost answer, takes effect once.
pub async fn the_same_request_twice_is_one_grant<S: Subject>(trial: Trial<S>) {
    let name = trial.name("twice");
    let engine = trial.client().engine().clone();
    let request = AcquireRequest::new(LockName::parse(&name).unwrap());
    let first = engine.clone().acquire(request.clone()).await.unwrap();
    let again = engine.clone().acquire(request.clone()).await.unwrap();
    assert_eq!(first.token, again.token);
    engine.clone().release(request.granted(first.token)).await.unwrap();
    trial.assert_nothing_left(&name).await;
}

/// Closing a client releases its locks and ends its waits. All that is done when the call returns.
pub async fn closing_releases_everything<S: Subject>(trial: Trial<S>) {
    let (held, waited_for) = (trial.name("held"), trial.name("waited-for"));
    let client = trial.another_client().await;
    let guard = client.lock(&held).ttl(Trial::<S>::LONG).acquire().await.unwrap();
    let mine = trial.holder(&waited_for).await;
    let waiting = tokio::spawn(client.lock(&waited_for).ttl(Trial::<S>::LONG).acquire());
    trial.waiters(&waited_for, 1).await;
    client.clone().close().await.unwrap();
    assert!(!trial.is_busy(&held).await, "closed, and still held");
    assert_eq!(guard.check().unwrap_err().reason, LostReason::Closed);
    assert!(waiting.await.unwrap().is_err(), "closed, and still waiting");
    assert!(client.lock(&held).acquire().await.is_err(), "closed, and still granting");
    let _ = mine.release().await.unwrap();
    trial.assert_nothing_left(&waited_for).await;
}

/// Every operation of a closed client answers `Closed`, also through a clone.
pub async fn a_closed_client_answers_closed<S: Subject>(trial: Trial<S>) {
    let name = trial.name("closed");
    let client = trial.another_client().await;
    let owner = client.owner();
    client.clone().close().await.unwrap();
    let closed = |what: &str, error: Option<EngineError>| {
        assert!(matches!(error, Some(EngineError::Closed)), "{what} answered {error:?}");
    };
    let acquire = |error| match error {
        AcquireError::Engine(error) => Some(error),
        _ => None,
    };
    let inspect = |error| match error {
        InspectError::Engine(error) => Some(error),
        _ => None,
    };
    closed("acquire", client.lock(&name).acquire().await.err().and_then(acquire));
    closed("try_acquire", client.lock(&name).try_acquire().await.err().and_then(acquire));
    closed("an owner's acquire", owner.lock(&name).acquire().await.err().and_then(acquire));
    closed("lock_all", client.lock_all([&name]).acquire().await.err().and_then(acquire));
    closed("inspect", client.inspect(&name).await.err().and_then(inspect));
    closed("list", client.list("").await.err().and_then(inspect));
    let break_lock = match client.break_lock(&name, Break::Ask).await {
        Err(BreakError::Engine(error)) => Some(error),
        _ => None,
    };
    closed("break_lock", break_lock);
    if trial.capabilities().remembers {
        let once_per = match client.once_per(&name, Duration::from_mins(1)).begin().await {
            Err(OncePerError::Engine(error)) => Some(error),
            _ => None,
        };
        closed("once_per", once_per);
    }
}

/// Every grant has a larger token than all grants before it, in every client.
pub async fn tokens_rise_from_grant_to_grant<S: Subject>(trial: Trial<S>) {
    if !trial.capabilities().fencing {
        return;
    }
    let name = trial.name("tokens");
    let other = trial.another_client().await;
    let mut last = None;
    for turn in 0..20 {
        let client = if turn % 2 == 0 { trial.client() } else { &other };
        let guard = client.lock(&name).ttl(Trial::<S>::LONG).acquire().await.unwrap();
        assert!(guard.token() > last, "{:?} after {last:?}", guard.token());
        last = guard.token();
        if turn % 3 == 0 {
            drop(guard);
            trial.eventually("a dropped guard's lock is free", async || !trial.is_busy(&name).await).await;
        } else {
            let _ = guard.release().await.unwrap();
        }
    }
}

/// A grant whose lease expired cannot release, renew or write once the next holder has the lock.
pub async fn an_expired_grant_touches_nothing<S: Subject>(trial: Trial<S>) {
    if trial.capabilities().expiry != Expiry::Lease {
        return;
    }
    let name = trial.name("expired");
    let engine = trial.client().engine().clone();
    let mut request = AcquireRequest::new(LockName::parse(&name).unwrap());
    request.ttl = Ttl::new(Trial::<S>::SHORT).unwrap();
    let granted = engine.clone().acquire(request.clone()).await.unwrap();
    let grant = request.granted(granted.token);
    let other = trial.another_client().await;
    let next =
        trial.soon("the lease runs out", other.lock(&name).ttl(Trial::<S>::LONG).acquire()).await.unwrap();
    let renewed = engine.clone().renew(grant.clone()).await;
    assert!(matches!(renewed, Err(RenewError::Lost(_))), "{renewed:?}");
    if trial.capabilities().value {
        let written = engine.clone().set_value(grant.clone(), "too late".into()).await;
        assert!(matches!(written, Err(ValueError::Lost(_))), "{written:?}");
    }
    let released = engine.release(grant).await;
    assert!(matches!(released, Err(ReleaseError::NotHeld(_))), "{released:?}");
    assert!(next.check().is_ok());
    assert!(trial.is_busy(&name).await, "the late release freed the next holder's lock");
}

/// A request whose answer was lost is undone by its id alone, because its caller does not know the token.
pub async fn a_lost_answer_can_be_undone<S: Subject>(trial: Trial<S>) {
    let name = trial.name("lost-answer");
    let engine = trial.client().engine().clone();
    let request = AcquireRequest::new(LockName::parse(&name).unwrap());
    let _lost = engine.clone().acquire(request.clone()).await.unwrap();
    engine.clone().release(request.granted(None)).await.unwrap();
    trial.assert_nothing_left(&name).await;
    // If the request itself was lost, there is nothing to undo, and no other grant is affected.
    let next = trial.holder(&name).await;
    let never_sent = AcquireRequest::new(LockName::parse(&name).unwrap());
    let undone = engine.release(never_sent.granted(None)).await;
    assert!(matches!(undone, Err(ReleaseError::NotHeld(_))), "{undone:?}");
    assert!(next.check().is_ok());
    assert!(trial.is_busy(&name).await);
}
