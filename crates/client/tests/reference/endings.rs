//! How guards and clients end: what is freed when a release or a drop returns.

use std::time::Duration;

use tenure::clock::{BootTime, ManualClock};
use tenure::{Capability, Ended, GuardState, LostReason, Release, ReleaseError, Wait, blocking};

use crate::engine::Store;
use crate::fault::Fault;
use crate::layer::{Still, TTL, until};

/// Long enough that a caller that does not wait for the release is far ahead of it.
const SLOW: Duration = Duration::from_millis(100);

#[tokio::test]
async fn a_lost_lock_is_free_when_its_release_returns() {
    let still = Still::new();
    let guard = still.client.lock("a").max_hold(TTL / 2).acquire().await.unwrap();
    still.store.delay_releases(SLOW);
    still.clock.advance(TTL / 2);
    assert_eq!(guard.lost().await, LostReason::MaxHold);
    assert_eq!(guard.release().await.unwrap(), Release::AlreadyLost(LostReason::MaxHold));
    assert!(still.is_free("a").await);
}

#[tokio::test]
async fn the_owner_of_a_lost_lock_may_have_it_again_when_its_release_returns() {
    let still = Still::new();
    let owner = still.client.owner();
    let guard = owner.lock("a").max_hold(TTL / 2).acquire().await.unwrap();
    still.store.delay_releases(SLOW);
    still.clock.advance(TTL / 2);
    assert_eq!(guard.release().await.unwrap(), Release::AlreadyLost(LostReason::MaxHold));
    assert!(owner.lock("a").try_acquire().await.unwrap().is_some());
}

#[tokio::test]
async fn the_release_of_a_lost_lock_says_if_the_engine_may_still_hold_it() {
    let still = Still::new();
    let guard = still.client.lock("a").max_hold(TTL / 2).acquire().await.unwrap();
    still.store.set_unreachable(true);
    still.clock.advance(TTL / 2);
    let error = guard.release().await.unwrap_err();
    assert!(matches!(error, ReleaseError::Engine(_)), "{error}");
    still.store.set_unreachable(false);
    until("the release goes on in the background", async || {
        still.clock.advance(Duration::from_millis(10));
        still.is_free("a").await
    })
    .await;
}

#[tokio::test]
async fn the_drop_of_the_last_client_finishes_its_releases() {
    let (clock, store) = (ManualClock::new(), Store::new(Fault::None));
    let client = Still::connect(&clock, &store);
    let other = Still::connect(&clock, &store);
    let guard = client.lock("a").ttl(TTL).acquire().await.unwrap();
    store.delay_releases(SLOW);
    drop(guard);
    drop(client);
    assert!(other.lock("a").try_acquire().await.unwrap().is_some());
}

/// The drop of the last client waits for two seconds. After `close` has waited in vain, it must not.
#[tokio::test]
async fn a_client_that_could_not_be_closed_does_not_wait_again_when_it_is_dropped() {
    let still = Still::new();
    let guard = still.hold("a").await;
    still.store.set_unreachable(true);
    assert_eq!(still.client.clone().close().await.unwrap_err().unconfirmed, 1);
    drop(guard);
    let before = BootTime::now();
    drop(still);
    assert!(BootTime::now() < before + Duration::from_secs(2));
}

#[test]
fn the_drop_of_a_blocking_guard_releases() {
    let (clock, store) = (ManualClock::new(), Store::new(Fault::None));
    let client = blocking::Client::from_async(Still::connect(&clock, &store));
    let guard = client.lock("a").ttl(TTL).acquire().unwrap();
    let set = client.lock_all(["b", "c"]).ttl(TTL).acquire().unwrap();
    store.delay_releases(SLOW);
    drop(guard);
    assert!(client.lock("a").try_acquire().unwrap().is_some());
    drop(set);
    assert!(client.lock_all(["b", "c"]).try_acquire().unwrap().is_some());
}

#[tokio::test]
async fn a_blocking_guard_that_is_dropped_in_async_code_releases_in_the_background() {
    let still = Still::new();
    let client = blocking::Client::from_async(still.client.clone());
    let guard = std::thread::spawn(move || client.lock("a").ttl(TTL).acquire().unwrap()).join().unwrap();
    drop(guard);
    until("released", async || still.is_free("a").await).await;
}

#[test]
fn a_blocking_watch_waits_no_longer_than_it_is_told() {
    let (clock, store) = (ManualClock::new(), Store::new(Fault::None));
    let client = blocking::Client::from_async(Still::connect(&clock, &store));
    let guard = client.lock("a").ttl(TTL).acquire().unwrap();
    let watch = guard.watch();
    assert_eq!(watch.wait_timeout(Duration::from_millis(10)), None);
    assert_eq!(guard.release().unwrap(), Release::Released);
    assert_eq!(watch.wait_timeout(Duration::from_mins(1)), Some(Ended::Released));
}

#[tokio::test]
async fn jeopardy_can_be_awaited() {
    let still = Still::new();
    let guard = still.hold("a").await;
    let mut jeopardy = Box::pin(guard.jeopardy());
    assert!(futures_util::poll!(&mut jeopardy).is_pending());
    still.store.set_unreachable(true);
    still.clock.advance(TTL / 3);
    assert_eq!(jeopardy.await, guard.deadline());
    assert!(matches!(guard.state(), GuardState::Jeopardy { .. }));
}

#[tokio::test]
async fn the_work_of_a_set_ends_with_the_first_lock_that_is_lost() {
    let still = Still::new();
    let set = still.client.lock_all(["a", "b"]).max_hold(TTL / 2).acquire().await.unwrap();
    assert_eq!(set.run(async { 7 }).await.unwrap(), 7);
    let work = set.run(std::future::pending::<()>());
    let (ended, ()) = tokio::join!(work, async { still.clock.advance(TTL / 2) });
    assert_eq!(ended.unwrap_err().reason, LostReason::MaxHold);
}

#[tokio::test]
async fn a_required_token_is_there() {
    let still = Still::new();
    let guard = still.client.lock("a").require(Capability::Fencing).acquire().await.unwrap();
    assert_eq!(guard.fencing_token().ok(), guard.token());
    assert!(guard.token().is_some());
}

#[tokio::test]
async fn an_error_says_whether_another_owner_holds_the_lock_and_whether_to_try_again() {
    let still = Still::new();
    let _held = still.hold("a").await;
    let busy = still.client.lock("a").wait(Wait::Try).acquire().await.unwrap_err();
    assert!(busy.is_busy() && busy.is_retryable(), "{busy}");
    still.store.set_unreachable(true);
    let unreachable = still.client.lock("a").wait(Wait::Try).acquire().await.unwrap_err();
    assert!(!unreachable.is_busy() && unreachable.is_retryable(), "{unreachable}");
    let bad = still.client.lock("").acquire().await.unwrap_err();
    assert!(!bad.is_busy() && !bad.is_retryable(), "{bad}");
}
