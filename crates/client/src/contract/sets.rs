//! Several locks at once: all or none.

use std::time::Duration;

use super::{Subject, Trial, poll_times};
use crate::{AcquireError, Wait};

/// If one of the locks is held by another owner, none is acquired. If not, all are.
pub async fn all_or_nothing<S: Subject>(trial: Trial<S>) {
    let [a, b, c] = ["a", "b", "c"].map(|tag| trial.name(tag));
    let held = trial.holder(&b).await;
    let all = || trial.client().lock_all([&c, &a, &b]).ttl(Trial::<S>::LONG);
    let tried = all().wait(Wait::Try).acquire().await;
    assert!(matches!(tried, Err(AcquireError::Busy { .. })), "{tried:?}");
    let waited = all().wait(Wait::For(Duration::from_millis(100))).acquire().await;
    assert!(matches!(waited, Err(AcquireError::TimedOut { .. })), "{waited:?}");
    trial.assert_nothing_left(&a).await;
    trial.assert_nothing_left(&c).await;
    let _ = held.release().await.unwrap();
    let set = trial.soon("all are got", all().acquire()).await.unwrap();
    set.check().unwrap();
    assert_eq!(set.iter().map(|guard| guard.name().as_str()).collect::<Vec<_>>(), [&a, &b, &c]);
    assert!(set.get(&b).is_some() && set.get("d").is_none());
    for name in [&a, &b, &c] {
        assert!(trial.is_busy(name).await);
    }
    assert_eq!(set.release().await.unwrap().len(), 3);
    for name in [&a, &b, &c] {
        trial.assert_nothing_left(name).await;
    }
}

/// Callers that name the same locks in opposite orders all get them.
pub async fn opposite_orders_do_not_deadlock<S: Subject>(trial: Trial<S>) {
    let [a, b] = ["left", "right"].map(|tag| trial.name(tag));
    let other = trial.another_client().await;
    let turns = |client: crate::Client, names: [String; 2]| async move {
        for _ in 0..20 {
            let set = client.lock_all(&names).ttl(Trial::<S>::LONG).acquire().await.unwrap();
            set.release().await.unwrap();
        }
    };
    let here = Box::pin(turns(trial.client().clone(), [a.clone(), b.clone()]));
    let there = Box::pin(turns(other, [b, a]));
    trial.soon("both get through", async { tokio::join!(here, there) }).await;
}

/// While one of the locks is held by another owner, none of the others is held. All are granted when it is free.
pub async fn none_is_held_while_one_is_awaited<S: Subject>(trial: Trial<S>) {
    if !trial.capabilities().atomic_sets {
        return;
    }
    let [a, b] = ["first", "second"].map(|tag| trial.name(tag));
    let held = trial.holder(&b).await;
    let set = tokio::spawn(trial.client().lock_all([&a, &b]).ttl(Trial::<S>::LONG).acquire());
    trial.waiters(&b, 1).await;
    assert!(
        trial.client().inspect(&a).await.unwrap().holders.is_empty(),
        "one was held while the other was not"
    );
    let _ = held.release().await.unwrap();
    let set = trial.soon("all are got", set).await.unwrap().unwrap();
    let tokens: Vec<_> = set.iter().map(crate::Guard::token).collect();
    assert!(tokens[0] != tokens[1], "{tokens:?}");
    // Each guard can be released separately.
    let mut guards = set.into_iter();
    let (first, second) = (guards.next().unwrap(), guards.next().unwrap());
    let _ = first.release().await.unwrap();
    trial.assert_nothing_left(&a).await;
    assert!(second.check().is_ok() && trial.is_busy(&b).await);
    let _ = second.release().await.unwrap();
    trial.assert_nothing_left(&b).await;
}

/// A request for several locks, free or held, that is dropped after 0, 1, 2, … polls leaves nothing behind.
pub async fn a_dropped_set_leaves_nothing<S: Subject>(trial: Trial<S>) {
    for polls in 0..12 {
        let [a, b] = ["a", "b"].map(|tag| trial.name(format_args!("{tag}-{polls}")));
        let set = || trial.client().lock_all([&a, &b]).ttl(Trial::<S>::LONG).acquire();
        drop(poll_times(set(), polls).await);
        trial.assert_nothing_left(&a).await;
        let held = trial.holder(&b).await;
        assert!(poll_times(set(), polls).await.is_none(), "got in spite of its holder");
        trial.waiters(&b, 0).await;
        let _ = held.release().await.unwrap();
        for name in [&a, &b] {
            trial.assert_nothing_left(name).await;
        }
    }
}

/// If the answer to a request for several locks is lost, the request is repeated, and the locks are acquired.
pub async fn a_set_whose_answer_is_lost_is_got<S: Subject>(trial: Trial<S>) {
    let Some(network) = trial.network() else { return };
    if !trial.capabilities().atomic_sets {
        return;
    }
    let client = S::connect(&network.address()).await;
    let [a, b] = ["lost-a", "lost-b"].map(|tag| trial.name(tag));
    network.lose_answers(true);
    let set = tokio::spawn(client.lock_all([&a, &b]).ttl(Trial::<S>::LONG).acquire());
    trial.eventually("it is granted", async || trial.is_busy(&a).await).await;
    network.lose_answers(false);
    let set = trial.soon("it is got", set).await.unwrap().unwrap();
    set.check().unwrap();
    set.release().await.unwrap();
    for name in [&a, &b] {
        trial.assert_nothing_left(name).await;
    }
}
