//! Time is the test's to move, for the store and its clients alike.

use std::time::Duration;

use tenure::clock::{Clock, ManualClock};
use tenure::contract::poll_times;
use tenure::memory::MemoryStore;
use tenure::{AcquireError, GuardState, LostReason, Mode, Record, Release, Turn, Value, Wait, blocking};

use super::{Still, TTL, soon, until};

#[tokio::test]
async fn belief_ends_first_and_then_the_lease() {
    let still = Still::new().await;
    let guard = still.far.lock("a").ttl(TTL).acquire().await.unwrap();
    let deadline = guard.deadline().unwrap();
    let ends = still.clock.now() + TTL;
    assert!(deadline < ends);
    // So that it is the lease that frees it, and nothing that the client sends.
    still.link.cut();
    let next = tokio::spawn(still.near.lock("a").ttl(TTL).acquire());
    still.waiters("a", 1).await;
    still.clock.advance((deadline - Duration::from_nanos(1)).since(still.clock.now()));
    assert!(guard.check().is_ok());
    still.clock.advance(Duration::from_nanos(1));
    assert_eq!(guard.check().unwrap_err().reason, LostReason::Expired);
    assert_eq!(still.near.inspect("a").await.unwrap().holders[0].grant, guard.grant(), "the store keeps it");
    still.clock.advance((ends - Duration::from_nanos(1)).since(still.clock.now()));
    assert_eq!(still.near.inspect("a").await.unwrap().holders[0].grant, guard.grant(), "to the last");
    assert!(!next.is_finished());
    still.clock.advance(Duration::from_nanos(1));
    let next = soon("the next one gets it", next).await.unwrap().unwrap();
    assert!(next.token() > guard.token());
    assert!(next.deadline().unwrap() > ends + TTL / 2, "it lives as long as its client's session");
    still.link.heal();
    assert_eq!(guard.release().await.unwrap(), Release::AlreadyLost(LostReason::Expired));
    assert!(next.check().is_ok());
}

#[tokio::test]
async fn what_is_over_is_over_for_whoever_asks_first() {
    let still = Still::new().await;
    let guard = still.far.lock("a").ttl(TTL).acquire().await.unwrap();
    guard.set_value("half done").await.unwrap();
    still.link.cut();
    still.clock.advance(TTL);
    // Nothing is waited for here.
    let next = still.near.lock("a").try_acquire().await.unwrap().expect("its lease is over");
    assert_eq!(
        next.value(),
        Value { bytes: "half done".into(), in_doubt: true },
        "its writer did not release"
    );
}

#[tokio::test]
async fn a_lock_is_renewed_and_outlives_its_ttl() {
    let still = Still::new().await;
    let guard = still.far.lock("a").ttl(TTL).acquire().await.unwrap();
    for _ in 0..10 {
        let before = guard.deadline().unwrap();
        still.clock.advance(TTL / 3);
        until("the deadline moves", async || guard.deadline().unwrap() > before).await;
    }
    assert_eq!(guard.state(), GuardState::Held);
    assert!(!still.is_free("a", Mode::Cr).await);
}

#[tokio::test]
async fn who_waits_does_not_expire_and_its_lease_begins_with_the_grant() {
    let still = Still::new().await;
    let day = Duration::from_hours(24);
    let held = still.near.lock("a").ttl(day).renew(false).acquire().await.unwrap();
    let waiting = tokio::spawn(still.far.lock("a").ttl(TTL).acquire());
    still.waiters("a", 1).await;
    still.clock.advance(TTL * 100);
    assert_eq!(still.near.inspect("a").await.unwrap().waiters.len(), 1);
    let _ = held.release().await.unwrap();
    let guard = soon("it is granted", waiting).await.unwrap().unwrap();
    assert!(guard.deadline().unwrap() > still.clock.now() + TTL * 9 / 10);
    still.clock.advance(TTL * 9 / 10);
    assert!(guard.check().is_ok());
}

#[tokio::test]
async fn a_wait_ends_by_the_clock() {
    let still = Still::new().await;
    let _held = still.near.lock("a").ttl(TTL).acquire().await.unwrap();
    let waiting = tokio::spawn(still.far.lock("a").wait(Wait::For(TTL / 2)).acquire());
    still.waiters("a", 1).await;
    still.clock.advance(TTL / 2);
    let answer = soon("the wait ends", waiting).await.unwrap();
    assert!(matches!(answer, Err(AcquireError::TimedOut { .. })), "{answer:?}");
    assert_eq!(still.near.inspect("a").await.unwrap().waiters.len(), 0);
}

#[tokio::test]
async fn a_job_runs_again_when_its_period_is_over() {
    let still = Still::new().await;
    let hour = Duration::from_hours(1);
    let begin = || still.far.once_per("report", hour).record(Record::AtStart).begin();
    let Turn::Yours(run) = begin().await.unwrap() else { panic!("nobody ran it") };
    let _ = run.succeeded().await.unwrap();
    still.clock.advance(hour / 2);
    let Turn::AlreadyRun { ago } = begin().await.unwrap() else { panic!("it runs twice") };
    assert_eq!(ago, hour / 2);
    still.clock.advance(hour / 2);
    let Turn::Yours(run) = begin().await.unwrap() else { panic!("an hour is over") };
    let _ = run.failed().await.unwrap();
}

#[tokio::test]
async fn dates_are_by_the_same_clock() {
    let still = Still::new().await;
    let day = Duration::from_hours(24);
    let _held = still.far.lock("a").ttl(day).acquire().await.unwrap();
    let since = still.clock.wall();
    still.clock.advance(TTL);
    let told = still.near.inspect("a").await.unwrap().holders[0].since.unwrap();
    // The table counts in milliseconds.
    assert!(since.duration_since(told).unwrap() < Duration::from_millis(2), "{told:?} for {since:?}");
}

#[test]
fn without_async_it_is_the_same() {
    let clock = ManualClock::new();
    let store = MemoryStore::with_clock(clock.clone());
    let (here, there) =
        (blocking::Client::connect(&store.url()).unwrap(), blocking::Client::connect(&store.url()).unwrap());
    let guard = here.lock("a").ttl(TTL).acquire().unwrap();
    assert!(there.lock("a").try_acquire().unwrap().is_none());
    clock.advance(TTL);
    assert!(guard.check().is_err());
    let next = there.lock("a").acquire().unwrap();
    assert_eq!(store.lose_now("a"), 1);
    assert!(next.check().is_err());
}

#[tokio::test]
async fn a_clock_of_its_own_is_every_clients() {
    let still = Still::new().await;
    let by_url = tenure::Client::connect(&still.store.url()).await.unwrap();
    for client in [&still.far, &still.near, &by_url] {
        assert_eq!(client.clock().now(), still.clock.now());
    }
    // Nothing happens while it stands still, however long that takes.
    let _held = still.near.lock("a").acquire().await.unwrap();
    assert!(poll_times(by_url.lock("a").wait(Wait::For(TTL)).acquire(), 5).await.is_none());
}
