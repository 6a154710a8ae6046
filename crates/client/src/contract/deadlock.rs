//! A wait that could never end is refused, if the engine detects deadlocks.

use super::{Subject, Trial};
use crate::AcquireError;

/// If two owners wait for each other, one gets an error with the whole cycle, and the other continues.
pub async fn two_who_wait_for_each_other_are_told<S: Subject>(trial: Trial<S>) {
    if !trial.capabilities().deadlock_detection {
        return;
    }
    let (left, right) = (trial.name("left"), trial.name("right"));
    let (a, b) = (trial.client().owner(), trial.another_client().await.owner());
    let acquire =
        async |owner: &crate::Owner, name: &str| owner.lock(name).ttl(Trial::<S>::LONG).acquire().await;
    let (a_left, b_right) = (acquire(&a, &left).await.unwrap(), acquire(&b, &right).await.unwrap());
    let waiting = tokio::spawn({
        let (a, right) = (a.clone(), right.clone());
        async move { a.lock(right).ttl(Trial::<S>::LONG).label("a").acquire().await }
    });
    trial.waiters(&right, 1).await;
    let victim = trial.soon("the deadlock is seen", acquire(&b, &left)).await;
    let Err(AcquireError::Deadlock { cycle, .. }) = victim else { panic!("{victim:?}") };
    let mut members: Vec<_> =
        cycle.iter().map(|member| (member.name.to_string(), member.member.owner)).collect();
    members.sort();
    let mut expected = vec![(right.clone(), a.id()), (left.clone(), b.id())];
    expected.sort();
    assert_eq!(members, expected, "the cycle names both, with what each waits for");
    assert!(b_right.check().is_ok() && a_left.check().is_ok(), "locks that were granted stay");
    let _ = b_right.release().await.unwrap();
    let _ = trial.soon("the other goes on", waiting).await.unwrap().unwrap().release().await.unwrap();
}

/// A queue is not a deadlock. Neither is an owner that waits for another that does not wait.
pub async fn no_deadlock_is_told_where_there_is_none<S: Subject>(trial: Trial<S>) {
    if !trial.capabilities().deadlock_detection {
        return;
    }
    let name = trial.name("queue");
    let guard = trial.holder(&name).await;
    let mut waiting = Vec::new();
    for place in 0..5 {
        let owner = trial.client().owner();
        // No other request waits for this second lock.
        let beside = owner.lock(trial.name(place)).ttl(Trial::<S>::LONG).acquire().await.unwrap();
        let queued = owner.lock(&name).ttl(Trial::<S>::LONG);
        waiting.push(tokio::spawn(async move {
            let got = queued.acquire().await;
            drop(beside);
            got.map(drop)
        }));
        trial.waiters(&name, place + 1).await;
    }
    let _ = guard.release().await.unwrap();
    for waiter in waiting {
        trial.soon("each is served", waiter).await.unwrap().unwrap();
    }
}
