//! Notices: a holder that asked for them is notified when a conflicting request waits. A notice does not end the grant.

use futures_util::FutureExt;

use super::{Subject, Trial};
use crate::{Guard, Mode, Wait};

async fn holder<S: Subject>(trial: &Trial<S>, name: &str) -> Guard {
    let request = trial.client().lock(name).ttl(Trial::<S>::LONG).notify(true);
    request.acquire().await.expect("the lock is got")
}

/// A holder is notified when a request queues behind it, and in which mode.
pub async fn a_holder_is_told_that_another_waits<S: Subject>(trial: Trial<S>) {
    if !trial.capabilities().notices {
        return;
    }
    let name = trial.name("wanted");
    let held = holder(&trial, &name).await;
    assert!(trial.is_busy(&name).await);
    assert!(held.wanted().now_or_never().is_none(), "a request that does not wait is no reason");
    let waiting = tokio::spawn(trial.another_client().await.lock(&name).ttl(Trial::<S>::LONG).acquire());
    assert_eq!(trial.soon("the holder is told", held.wanted()).await, Mode::Ex);
    assert!(held.check().is_ok() && !waiting.is_finished(), "a notice took the lock away");
    let wanted = held.wanted();
    let _ = held.release().await.unwrap();
    let _ = trial.soon("the other one gets it", waiting).await.unwrap().unwrap().release().await.unwrap();
    assert!(wanted.now_or_never().is_none(), "a lock that is released is not wanted");
}

/// A holder that is granted a lock while other requests wait behind it is notified of them.
pub async fn the_next_holder_is_told_of_those_behind_it<S: Subject>(trial: Trial<S>) {
    if !trial.capabilities().notices {
        return;
    }
    let name = trial.name("behind");
    let held = trial.holder(&name).await;
    let request = trial.client().lock(&name).ttl(Trial::<S>::LONG);
    let next = tokio::spawn(request.clone().notify(true).acquire());
    trial.waiters(&name, 1).await;
    let last = tokio::spawn(request.acquire());
    trial.waiters(&name, 2).await;
    assert!(held.wanted().now_or_never().is_none(), "it did not ask");
    let _ = held.release().await.unwrap();
    let next = trial.soon("the next one gets it", next).await.unwrap().unwrap();
    assert_eq!(trial.soon("it is told", next.wanted()).await, Mode::Ex);
    let _ = next.release().await.unwrap();
    let _ = trial.soon("the last one gets it", last).await.unwrap().unwrap().release().await.unwrap();
}

/// Only a conflicting mode causes a notice. A conversion changes which modes conflict.
pub async fn a_notice_is_of_a_mode_that_conflicts<S: Subject>(trial: Trial<S>) {
    let capabilities = trial.capabilities();
    if !capabilities.notices || !capabilities.conversion || !capabilities.modes.contains(Mode::Pr) {
        return;
    }
    let name = trial.name("conflict");
    let held = holder(&trial, &name).await;
    let request = |mode| trial.client().lock(&name).mode(mode).ttl(Trial::<S>::LONG);
    let reader = tokio::spawn(request(Mode::Pr).acquire());
    assert_eq!(trial.soon("the holder is told", held.wanted()).await, Mode::Pr);
    held.convert(Mode::Pr, Wait::Try).await.unwrap();
    let reader = trial.soon("the reader gets it", reader).await.unwrap().unwrap();
    assert!(held.wanted().now_or_never().is_none(), "both are readers");
    let writer = tokio::spawn(request(Mode::Ex).acquire());
    assert_eq!(trial.soon("the holder is told", held.wanted()).await, Mode::Ex);
    let _ = (held.release().await.unwrap(), reader.release().await.unwrap());
    let _ = trial.soon("the writer gets it", writer).await.unwrap().unwrap().release().await.unwrap();
}
