//! What a test can make go wrong, and what a program then sees.

use std::time::Duration;

use tenure::clock::Clock;
use tenure::contract::poll_times;
use tenure::memory::MemoryStore;
use tenure::{
    AcquireError, ConvertError, EngineError, GuardState, LostReason, Mode, Release, Value, Wait, WhenLost,
};

use super::{Still, TTL, soon, until};

const LIMIT: Duration = MemoryStore::REQUEST_LIMIT;

fn is_unreachable<T>(answer: &Result<T, AcquireError>) -> bool {
    matches!(answer, Err(AcquireError::Engine(EngineError::Unreachable { .. })))
}

#[tokio::test]
async fn a_lock_that_is_lost_goes_to_the_next() {
    let still = Still::new().await;
    let guard = still.far.lock("a").ttl(TTL).acquire().await.unwrap();
    guard.set_value("half done").await.unwrap();
    let next = tokio::spawn(still.near.lock("a").ttl(TTL).acquire());
    still.waiters("a", 1).await;
    assert_eq!(still.store.lose_now("a"), 1);
    assert_eq!(
        guard.check().unwrap_err().reason,
        LostReason::Broken,
        "it is told before anybody else has it"
    );
    assert_eq!(soon("and those who wait for it", guard.lost()).await, LostReason::Broken);
    let next = soon("the next one gets it", next).await.unwrap().unwrap();
    assert!(next.token() > guard.token());
    assert_eq!(next.value(), Value { bytes: "half done".into(), in_doubt: true });
    assert_eq!(guard.release().await.unwrap(), Release::AlreadyLost(LostReason::Broken));
    assert!(next.check().is_ok());
    assert_eq!(still.holders("a").await, 1);
}

#[tokio::test]
async fn all_who_hold_it_lose_it() {
    let still = Still::new().await;
    let (one, other) = (still.far.lock("a").shared(), still.near.lock("a").shared());
    let (one, other) = (one.acquire().await.unwrap(), other.acquire().await.unwrap());
    let elsewhere = still.far.lock("b").acquire().await.unwrap();
    assert_eq!(still.store.lose_now("a"), 2);
    assert!(one.check().is_err() && other.check().is_err());
    assert!(elsewhere.check().is_ok());
    assert_eq!(still.store.lose_now("a"), 0, "nobody holds it any more");
    assert_eq!(still.store.lose_now(""), 0, "nobody holds what is not a name");
}

#[tokio::test]
async fn one_that_is_cut_off_hears_of_its_loss_when_it_can() {
    let still = Still::new().await;
    let guard = still.far.lock("a").ttl(TTL).acquire().await.unwrap();
    still.link.cut();
    assert_eq!(still.store.lose_now("a"), 1);
    assert!(guard.check().is_ok(), "nobody could tell it: this is what fencing is for");
    let next = still.near.lock("a").try_acquire().await.unwrap().expect("it is free");
    assert!(next.token() > guard.token());
    still.link.heal();
    assert_eq!(guard.check().unwrap_err().reason, LostReason::Broken);
}

#[tokio::test]
async fn a_lost_lock_is_kept_for_its_guard_if_that_was_asked_for() {
    let still = Still::new().await;
    let guard =
        still.far.lock("a").when_lost(WhenLost::Keep).max_hold(TTL / 2).ttl(TTL).acquire().await.unwrap();
    still.clock.advance(TTL / 2);
    assert_eq!(soon("it is told", guard.lost()).await, LostReason::MaxHold);
    assert!(!still.is_free("a", Mode::Ex).await, "the holder has not let go yet");
    drop(guard);
    still.nothing_left("a").await;
}

#[tokio::test]
async fn a_store_that_stands_still_answers_nobody_and_does_nothing() {
    let still = Still::new().await;
    let guard = still.far.lock("a").ttl(TTL).acquire().await.unwrap();
    let waiting = tokio::spawn(still.near.lock("a").ttl(TTL).acquire());
    still.waiters("a", 1).await;
    still.store.pause();
    let mut asked = Box::pin(still.near.lock("b").try_acquire());
    assert!(futures_util::poll!(&mut asked).is_pending());
    drop(guard);
    still.clock.advance(LIMIT);
    let answer = soon("it gives up", asked).await;
    assert!(is_unreachable(&answer), "{answer:?}");
    assert!(!waiting.is_finished());
    still.store.resume();
    assert_eq!(still.holders("b").await, 0, "it was not done");
    // What waited at the door gets in, or what is tried again does.
    until("the next one gets it", async || {
        still.clock.advance(Duration::from_millis(10));
        waiting.is_finished()
    })
    .await;
    let _ = waiting.await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_request_that_does_not_wait_long_is_done_when_the_store_goes_on() {
    let still = Still::new().await;
    still.store.pause();
    let mut asked = Box::pin(still.near.lock("a").try_acquire());
    assert!(futures_util::poll!(&mut asked).is_pending());
    still.clock.advance(LIMIT * 9 / 10);
    assert!(futures_util::poll!(&mut asked).is_pending());
    still.store.resume();
    drop(soon("it is done", asked).await.unwrap().expect("it is free"));
}

#[tokio::test]
async fn leases_that_end_while_the_store_stands_still_are_over_when_it_goes_on() {
    let still = Still::new().await;
    let guard = still.far.lock("a").ttl(TTL).acquire().await.unwrap();
    let waiting = tokio::spawn(still.near.lock("a").ttl(TTL).acquire());
    still.waiters("a", 1).await;
    let ends = still.clock.now() + TTL;
    still.store.pause();
    still.clock.advance(TTL / 3);
    until("renewals that were due wait at the door", async || {
        still.clock.advance(TTL / 100);
        matches!(guard.state(), GuardState::Jeopardy { .. })
    })
    .await;
    still.clock.advance(ends.since(still.clock.now()));
    assert!(guard.check().is_err());
    assert!(!waiting.is_finished(), "nobody is told");
    still.store.resume();
    let next = soon("the next one gets it", waiting).await.unwrap().unwrap();
    assert!(next.check().is_ok());
    assert!(next.deadline().unwrap() > still.clock.now() + TTL / 2, "its lease begins now");
}

#[tokio::test]
async fn a_partition_that_is_shorter_than_the_lease_costs_nothing() {
    let still = Still::new().await;
    let guard = still.far.lock("a").ttl(TTL).acquire().await.unwrap();
    let token = guard.token();
    still.link.cut();
    still.clock.advance(TTL / 3);
    until("its renewals do not get through", async || {
        still.clock.advance(TTL / 100);
        matches!(guard.state(), GuardState::Jeopardy { .. })
    })
    .await;
    assert!(guard.check().is_ok(), "in danger, and not lost");
    assert!(still.near.lock("b").try_acquire().await.unwrap().is_some(), "others go on");
    still.link.heal();
    until("the danger is over", async || {
        still.clock.advance(TTL / 100);
        guard.state() == GuardState::Held
    })
    .await;
    assert_eq!(guard.token(), token);
    assert_eq!(guard.release().await.unwrap(), Release::Released);
}

#[tokio::test]
async fn a_partition_that_is_longer_than_the_lease_costs_the_lock_and_nobody_elses() {
    let still = Still::new().await;
    let guard = still.far.lock("a").ttl(TTL).acquire().await.unwrap();
    still.link.cut();
    still.clock.advance(TTL);
    assert_eq!(soon("it knows", guard.lost()).await, LostReason::Expired);
    let next = still.near.lock("a").ttl(TTL).acquire().await.unwrap();
    still.link.heal();
    assert_eq!(guard.release().await.unwrap(), Release::AlreadyLost(LostReason::Expired));
    still.far.clone().close().await.unwrap();
    assert!(next.check().is_ok());
    assert_eq!(still.holders("a").await, 1);
}

#[tokio::test]
async fn one_that_is_cut_off_while_it_waits_keeps_its_place() {
    let still = Still::new().await;
    let held = still.near.lock("a").acquire().await.unwrap();
    let far = tokio::spawn(still.far.lock("a").ttl(TTL).acquire());
    still.waiters("a", 1).await;
    let near = tokio::spawn(still.near.lock("a").ttl(TTL).acquire());
    still.waiters("a", 2).await;
    still.link.cut();
    let _ = held.release().await.unwrap();
    assert!(!near.is_finished() && !far.is_finished());
    still.clock.advance(TTL / 2);
    still.link.heal();
    let guard = soon("it hears of its turn", far).await.unwrap().unwrap();
    assert!(guard.check().is_ok());
    let _ = guard.release().await.unwrap();
    drop(soon("the next one gets it", near).await.unwrap().unwrap());
}

#[tokio::test]
async fn one_that_is_cut_off_when_its_turn_comes_has_it_for_a_lease_and_asks_again() {
    let still = Still::new().await;
    let held = still.near.lock("a").acquire().await.unwrap();
    let far = tokio::spawn(still.far.lock("a").ttl(TTL).acquire());
    still.waiters("a", 1).await;
    let near = tokio::spawn(still.near.lock("a").ttl(TTL * 10).acquire());
    still.waiters("a", 2).await;
    still.link.cut();
    let _ = held.release().await.unwrap();
    still.clock.advance(TTL);
    let next = soon("the next one gets it", near).await.unwrap().unwrap();
    still.link.heal();
    still.waiters("a", 1).await;
    assert!(next.check().is_ok());
    let _ = next.release().await.unwrap();
    let _ = soon("the first one gets it after all", far).await.unwrap().unwrap().release().await.unwrap();
    still.nothing_left("a").await;
}

#[tokio::test]
async fn one_that_gives_up_while_it_is_cut_off_leaves_nothing() {
    let still = Still::new().await;
    for (turn, wait) in [Wait::For(TTL / 10), Wait::Forever].into_iter().enumerate() {
        let name = format!("a{turn}");
        let held = still.near.lock(&name).acquire().await.unwrap();
        let waiting = tokio::spawn(still.far.lock(&name).ttl(TTL).wait(wait).acquire());
        still.waiters(&name, 1).await;
        still.link.cut();
        if wait == Wait::Forever {
            waiting.abort();
        } else {
            still.clock.advance(TTL / 10);
            // The store is asked once more when the wait is over.
            until("it ends", async || {
                still.clock.advance(LIMIT / 10);
                waiting.is_finished()
            })
            .await;
            let answer = waiting.await.unwrap();
            assert!(is_unreachable(&answer), "{answer:?}");
        }
        assert_eq!(still.near.inspect(&name).await.unwrap().waiters.len(), 1, "nobody could be told");
        still.link.heal();
        still.waiters(&name, 0).await;
        let _ = held.release().await.unwrap();
        still.nothing_left(&name).await;
    }
}

/// Whatever is dropped, wherever it waits, leaves nothing.
#[tokio::test]
async fn what_is_dropped_at_any_point_leaves_nothing() {
    let still = Still::new().await;
    for polls in 0..6 {
        for cut in [false, true] {
            let name = format!("a{polls}{cut}");
            let held = still.near.lock(&name).acquire().await.unwrap();
            let wait = still.far.lock(&name).acquire();
            let dropping = poll_times(wait, polls);
            if cut {
                still.link.cut();
            }
            assert!(dropping.await.is_none());
            still.link.heal();
            still.waiters(&name, 0).await;
            let _ = held.release().await.unwrap();
            // A free lock.
            if cut {
                still.link.cut();
            }
            drop(poll_times(still.far.lock(&name).acquire(), polls).await);
            still.link.heal();
            still.nothing_left(&name).await;
            // A conversion, and then the release of its lock.
            let [guard, other] =
                [&still.far, &still.near].map(|client| client.lock(&name).shared().acquire());
            let (guard, other) = (guard.await.unwrap(), other.await.unwrap());
            if cut {
                still.link.cut();
            }
            assert!(poll_times(guard.convert(Mode::Ex, Wait::Forever), polls).await.is_none());
            still.link.heal();
            still.waiters(&name, 0).await;
            assert_eq!(guard.mode(), Mode::Pr);
            let _ = other.release().await.unwrap();
            drop(poll_times(guard.release(), polls).await);
            still.nothing_left(&name).await;
        }
    }
}

#[tokio::test]
async fn a_deadlock_names_everybody_in_it() {
    let still = Still::new().await;
    let (a, b) = (still.far.owner(), still.near.owner());
    let _left = a.lock("left").acquire().await.unwrap();
    let right = b.lock("right").acquire().await.unwrap();
    let waiting = tokio::spawn(a.lock("right").label("the shipper").acquire());
    still.waiters("right", 1).await;
    let error = b.lock("left").label("the biller").acquire().await.unwrap_err();
    let AcquireError::Deadlock { name, cycle } = &error else { panic!("{error}") };
    assert_eq!(name.as_str(), "left");
    let told: Vec<_> = cycle
        .iter()
        .map(|one| (one.name.as_str(), one.member.owner, one.member.label.as_deref(), one.place))
        .collect();
    assert_eq!(told, [("left", b.id(), Some("the biller"), 0), ("right", a.id(), Some("the shipper"), 0)]);
    let text = error.to_string();
    assert!(text.contains("the shipper waits for EX `right`"), "{text}");
    let _ = right.release().await.unwrap();
    drop(soon("the other goes on", waiting).await.unwrap().unwrap());
}

#[tokio::test]
async fn two_who_convert_over_each_other_are_told() {
    let still = Still::new().await;
    let (a, b) = (still.far.lock("a").shared(), still.near.lock("a").shared());
    let (a, b) = (a.label("a").acquire().await.unwrap(), b.label("b").acquire().await.unwrap());
    let (first, second) = tokio::join!(a.convert(Mode::Ex, Wait::Forever), async {
        still.waiters("a", 1).await;
        let refused = b.convert(Mode::Ex, Wait::Forever).await;
        let _ = b.release().await.unwrap();
        refused
    });
    first.unwrap();
    let Err(ConvertError::Deadlock { cycle, .. }) = second else { panic!("{second:?}") };
    let labels: Vec<_> = cycle.iter().map(|one| one.member.label.as_deref().unwrap()).collect();
    assert_eq!(labels, ["b", "a"]);
}

#[tokio::test]
async fn a_long_label_is_told_as_far_as_it_goes() {
    let still = Still::new().await;
    let _held = still.far.lock("a").label("ü".repeat(1000)).acquire().await.unwrap();
    let told = still.near.inspect("a").await.unwrap().holders[0].label.clone().unwrap();
    assert_eq!(told, "ü".repeat(128));
}

#[tokio::test]
async fn a_conversion_ends_with_its_lock() {
    let still = Still::new().await;
    let (a, b) = (still.far.lock("a").shared(), still.near.lock("a").shared());
    let (a, _b) = (a.ttl(TTL).acquire().await.unwrap(), b.ttl(TTL * 10).acquire().await.unwrap());
    let (answer, ()) = tokio::join!(a.convert(Mode::Ex, Wait::Forever), async {
        still.waiters("a", 1).await;
        still.link.cut();
        still.clock.advance(TTL);
        assert_eq!(still.near.inspect("a").await.unwrap().waiters.len(), 0, "it ended with its lease");
        still.link.heal();
    });
    assert!(matches!(answer, Err(ConvertError::Lost(_))), "{answer:?}");
}
