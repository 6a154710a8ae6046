//! The common layer, on a clock that the test moves: renewal, jeopardy, deadlines, the background releaser.

use std::sync::Arc;
use std::time::Duration;

use tenure::clock::{Clock, ManualClock};
use tenure::contract::eventually;
use tenure::{
    AcquireError, Client, ConvertError, Ended, EngineError, Guard, GuardState, LostReason, Mode, Release,
    ReleaseError, Wait, WhenLost,
};

use crate::engine::{ReferenceEngine, Store};
use crate::fault::Fault;

/// An engine and a client whose time stands still.
pub(crate) struct Still {
    pub(crate) clock: ManualClock,
    pub(crate) store: Arc<Store>,
    pub(crate) client: Client,
}

pub(crate) const TTL: Duration = Duration::from_secs(30);

impl Still {
    pub(crate) fn new() -> Self {
        let clock = ManualClock::new();
        let store = Store::new(Fault::None);
        let client = Self::connect(&clock, &store);
        Self { clock, store, client }
    }

    pub(crate) fn connect(clock: &ManualClock, store: &Arc<Store>) -> Client {
        let store = store.clone();
        Client::with_engine_and_clock(Some(Arc::new(clock.clone())), |context| {
            Ok(ReferenceEngine::open(store, &context))
        })
        .unwrap()
    }

    pub(crate) async fn hold(&self, name: &str) -> Guard {
        self.client.lock(name).ttl(TTL).acquire().await.unwrap()
    }

    /// Whether a new owner could get it now.
    pub(crate) async fn is_free(&self, name: &str) -> bool {
        self.client.lock(name).try_acquire().await.unwrap().is_some()
    }
}

/// Waits until the client's thread has done what makes this true.
pub(crate) async fn until(what: &str, holds: impl AsyncFnMut() -> bool) {
    eventually(Duration::from_mins(1), what, holds).await;
}

#[tokio::test]
async fn a_lock_is_renewed_every_third_of_its_ttl_and_its_deadline_moves() {
    let still = Still::new();
    let guard = still.hold("a").await;
    let first = guard.deadline().unwrap();
    for _ in 0..10 {
        let before = guard.deadline().unwrap();
        still.clock.advance(TTL / 3);
        until("the deadline moves", async || guard.deadline().unwrap() > before).await;
    }
    assert!(guard.deadline().unwrap() > first + TTL * 2);
    assert_eq!(guard.state(), GuardState::Held);
}

#[tokio::test]
async fn a_failing_renewal_is_jeopardy_and_a_later_one_ends_it() {
    let still = Still::new();
    let guard = still.hold("a").await;
    let deadline = guard.deadline();
    still.store.set_unreachable(true);
    still.clock.advance(TTL / 3);
    until("jeopardy", async || guard.state() == GuardState::Jeopardy { until: deadline }).await;
    assert!(guard.check().is_ok(), "still safe");
    still.store.set_unreachable(false);
    until("held again", async || {
        still.clock.advance(Duration::from_millis(100));
        guard.state() == GuardState::Held
    })
    .await;
    assert!(guard.deadline() > deadline);
}

#[tokio::test]
async fn belief_ends_at_the_deadline_and_does_not_come_back() {
    let still = Still::new();
    let guard = still.hold("a").await;
    let deadline = guard.deadline().unwrap();
    still.store.set_unreachable(true);
    let now = still.clock.now();
    still.clock.advance((deadline - Duration::from_nanos(1)).since(now));
    assert!(guard.check().is_ok());
    still.clock.advance(Duration::from_nanos(1));
    assert_eq!(guard.check().unwrap_err().reason, LostReason::Expired);
    assert_eq!(guard.lost().await, LostReason::Expired);
    still.store.set_unreachable(false);
    still.clock.advance(TTL / 3);
    assert_eq!(guard.state(), GuardState::Lost(LostReason::Expired));
    assert_eq!(guard.release().await.unwrap(), Release::AlreadyLost(LostReason::Expired));
}

#[tokio::test]
async fn those_who_wait_for_the_loss_are_told_without_asking() {
    let still = Still::new();
    let guard = still.client.lock("a").ttl(TTL).renew(false).acquire().await.unwrap();
    let mut lost = Box::pin(guard.lost());
    assert!(futures_util::poll!(&mut lost).is_pending());
    still.clock.advance(TTL);
    assert_eq!(lost.await, LostReason::Expired);
}

#[tokio::test]
async fn a_process_that_slept_through_its_deadline_does_not_begin_to_work() {
    let still = Still::new();
    let guard = still.hold("a").await;
    still.clock.advance(TTL * 10);
    let mut worked = false;
    assert_eq!(guard.run(async { worked = true }).await.unwrap_err().reason, LostReason::Expired);
    assert!(!worked);
}

#[tokio::test]
async fn what_the_engine_forgot_is_lost_at_the_next_renewal() {
    let still = Still::new();
    let guard = still.hold("a").await;
    let grant = still.client.inspect("a").await.unwrap().holders[0].grant;
    let mut request = tenure::engine::AcquireRequest::new(guard.name().clone());
    request.grant = grant;
    still.client.engine().clone().release(request.granted(None)).await.unwrap();
    assert!(guard.check().is_ok(), "nobody has said anything yet");
    still.clock.advance(TTL / 3);
    assert_eq!(guard.lost().await, LostReason::Forgotten);
}

#[tokio::test]
async fn a_release_that_fails_goes_on_in_the_background() {
    let still = Still::new();
    let guard = still.hold("a").await;
    let deadline = guard.deadline().unwrap();
    still.store.set_unreachable(true);
    let error = guard.release().await.unwrap_err();
    assert!(matches!(error, ReleaseError::Engine(EngineError::Unreachable { .. })), "{error}");
    still.store.set_unreachable(false);
    until("released", async || {
        still.clock.advance(Duration::from_millis(10));
        still.is_free("a").await
    })
    .await;
    assert!(still.clock.now() < deadline, "it was the release that freed it, and not the end of its lease");
}

#[tokio::test]
async fn a_dropped_guard_of_an_engine_that_cannot_be_reached_is_released_when_it_can() {
    let still = Still::new();
    let guard = still.hold("a").await;
    let deadline = guard.deadline().unwrap();
    still.store.set_unreachable(true);
    drop(guard);
    still.clock.advance(Duration::from_millis(100));
    still.store.set_unreachable(false);
    until("released", async || {
        still.clock.advance(Duration::from_millis(10));
        still.is_free("a").await
    })
    .await;
    assert!(still.clock.now() < deadline, "it was the release that freed it, and not the end of its lease");
}

#[tokio::test]
async fn an_error_of_the_engine_is_not_a_busy_lock() {
    let still = Still::new();
    still.store.set_unreachable(true);
    let error = still.client.lock("a").try_acquire().await.unwrap_err();
    assert!(matches!(error, AcquireError::Engine(EngineError::Unreachable { .. })), "{error}");
    still.store.set_unreachable(false);
    assert!(still.is_free("a").await);
}

#[tokio::test]
async fn closing_says_what_could_not_be_confirmed() {
    let clock = ManualClock::new();
    let store = Store::new(Fault::None);
    let client = Still::connect(&clock, &store);
    let guard = client.lock("a").acquire().await.unwrap();
    store.set_unreachable(true);
    assert_eq!(client.close().await.unwrap_err().unconfirmed, 1);
    assert_eq!(guard.state(), GuardState::Lost(LostReason::Closed));
}

#[tokio::test]
async fn a_second_acquire_of_one_owner_waits_no_longer_than_it_says() {
    let still = Still::new();
    let _held = still.hold("a").await;
    let owner = still.client.owner();
    let first = tokio::spawn(owner.lock("a").acquire());
    until("the first waits", async || still.client.inspect("a").await.unwrap().waiters.len() == 1).await;
    assert!(owner.lock("a").try_acquire().await.unwrap().is_none());
    let second = tokio::spawn(owner.lock("a").wait(Wait::For(Duration::from_secs(1))).acquire());
    until("the second times out", async || {
        still.clock.advance(Duration::from_secs(1));
        second.is_finished()
    })
    .await;
    assert!(matches!(second.await.unwrap(), Err(AcquireError::TimedOut { .. })));
    first.abort();
    until("nobody waits", async || still.client.inspect("a").await.unwrap().waiters.is_empty()).await;
}

#[tokio::test]
async fn a_thousand_locks_are_renewed_by_one_keeper() {
    let still = Still::new();
    let mut guards = Vec::new();
    for n in 0..1000 {
        guards.push(still.hold(&n.to_string()).await);
    }
    let first: Vec<_> = guards.iter().map(|guard| guard.deadline().unwrap()).collect();
    still.clock.advance(TTL / 3);
    until("all deadlines move", async || {
        guards.iter().zip(&first).all(|(guard, first)| guard.deadline().unwrap() > *first)
    })
    .await;
    assert!(guards.iter().all(|guard| guard.state() == GuardState::Held));
}

#[tokio::test]
async fn a_conversion_that_others_rely_on_is_refused() {
    let still = Still::new();
    let owner = still.client.owner();
    let outer = owner.lock("a").acquire().await.unwrap();
    let inner = owner.lock("a").acquire().await.unwrap();
    let answer = inner.convert(Mode::Nl, Wait::Try).await;
    assert!(matches!(answer, Err(ConvertError::Reentered { held: Mode::Ex, .. })), "{answer:?}");
    assert!(!still.is_free("a").await);
    let _ = inner.release().await.unwrap();
    outer.convert(Mode::Nl, Wait::Try).await.unwrap();
    assert!(still.is_free("a").await);
}

#[tokio::test]
async fn a_lock_that_is_lost_while_it_waits_to_be_converted_is_not_converted() {
    let still = Still::new();
    let shared = || still.client.lock("a").shared().ttl(TTL);
    let guard = shared().max_hold(Duration::from_secs(5)).acquire().await.unwrap();
    let other = shared().acquire().await.unwrap();
    let (answer, ()) = tokio::join!(guard.convert(Mode::Ex, Wait::Forever), async {
        until("it waits", async || still.client.inspect("a").await.unwrap().waiters.len() == 1).await;
        still.clock.advance(Duration::from_secs(5));
    });
    assert!(matches!(answer, Err(ConvertError::Lost(_))), "{answer:?}");
    let _ = other.release().await.unwrap();
    until("nobody is left", async || still.is_free("a").await).await;
}

#[tokio::test]
async fn a_conversion_down_that_was_dropped_is_believed_to_have_happened() {
    let still = Still::new();
    let guard = still.hold("a").await;
    {
        let mut convert = Box::pin(guard.convert(Mode::Pr, Wait::Forever));
        let _ = futures_util::poll!(&mut convert);
    }
    until("it is done", async || still.client.lock("a").shared().try_acquire().await.unwrap().is_some())
        .await;
    assert_eq!(guard.mode(), Mode::Pr);
    assert!(matches!(guard.set_value("x").await, Err(tenure::ValueError::Mode { .. })));
}

#[tokio::test]
async fn a_conversion_does_not_lengthen_a_fixed_lease() {
    let still = Still::new();
    let guard = still.client.lock("a").shared().ttl(TTL).renew(false).acquire().await.unwrap();
    let deadline = guard.deadline();
    still.clock.advance(TTL / 2);
    guard.convert(Mode::Ex, Wait::Try).await.unwrap();
    assert_eq!(guard.deadline(), deadline);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_owner_that_holds_a_lock_always_reenters_it() {
    let still = Still::new();
    let owner = still.client.owner();
    let _held = owner.lock("a").ttl(TTL).acquire().await.unwrap();
    let tasks: Vec<_> = (0..2)
        .map(|_| {
            let owner = owner.clone();
            tokio::spawn(async move {
                for _ in 0..10_000 {
                    assert!(owner.lock("a").try_acquire().await.unwrap().is_some());
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test]
async fn the_earliest_limit_of_all_guards_counts() {
    let still = Still::new();
    let owner = still.client.owner();
    let outer = owner.lock("a").ttl(TTL).acquire().await.unwrap();
    let inner = owner.lock("a").max_hold(Duration::from_secs(3)).acquire().await.unwrap();
    still.clock.advance(Duration::from_secs(3));
    assert_eq!(inner.check().unwrap_err().reason, LostReason::MaxHold);
    assert_eq!(outer.check().unwrap_err().reason, LostReason::MaxHold);
    let none = still.client.lock("a").max_hold(Duration::ZERO).acquire().await;
    assert!(matches!(none, Err(AcquireError::MaxHold)), "{none:?}");
}

#[tokio::test]
async fn a_limit_on_several_locks_begins_when_all_are_held() {
    let still = Still::new();
    let blocker = still.hold("b").await;
    let all =
        tokio::spawn(still.client.lock_all(["a", "b"]).ttl(TTL).max_hold(Duration::from_secs(5)).acquire());
    until("it waits", async || still.client.inspect("b").await.unwrap().waiters.len() == 1).await;
    still.clock.advance(Duration::from_secs(6));
    let _ = blocker.release().await.unwrap();
    let set = all.await.unwrap().unwrap();
    set.check().unwrap();
    let lost = set.lost();
    still.clock.advance(Duration::from_secs(5));
    assert_eq!(lost.await.reason, LostReason::MaxHold);
}

#[tokio::test]
async fn a_watch_tells_release_from_loss_and_keeps_nothing() {
    let still = Still::new();
    let guard = still.hold("a").await;
    let watch = guard.watch();
    let _ = guard.release().await.unwrap();
    assert_eq!(watch.ended().await, Ended::Released);
    let guard = still.client.lock("a").ttl(TTL).renew(false).acquire().await.unwrap();
    let watch = guard.watch();
    still.clock.advance(TTL);
    assert_eq!(watch.ended().await, Ended::Lost(LostReason::Expired));
}

#[tokio::test]
async fn a_lock_that_is_to_be_kept_when_lost_is_released_with_its_last_guard() {
    let still = Still::new();
    let owner = still.client.owner();
    let request = owner.lock("a").ttl(TTL).max_hold(TTL / 2).when_lost(WhenLost::Keep);
    let (first, second) = (request.clone().acquire().await.unwrap(), request.acquire().await.unwrap());
    still.clock.advance(TTL / 2);
    assert_eq!(first.lost().await, LostReason::MaxHold);
    assert_eq!(first.release().await.unwrap(), Release::AlreadyLost(LostReason::MaxHold));
    assert!(!still.is_free("a").await, "the other guard stands for what must be stopped first");
    assert_eq!(second.release().await.unwrap(), Release::AlreadyLost(LostReason::MaxHold));
    assert!(still.is_free("a").await, "a release that says so has been made");

    let third = still.client.lock("a").max_hold(TTL / 2).when_lost(WhenLost::Keep).acquire().await.unwrap();
    still.clock.advance(TTL / 2);
    assert!(third.check().is_err());
    assert!(!still.is_free("a").await);
    drop(third);
    until("a dropped guard releases", async || still.is_free("a").await).await;
}

#[tokio::test]
async fn an_owner_does_not_meet_what_it_lost_and_keeps() {
    let still = Still::new();
    let owner = still.client.owner();
    let lost = owner.lock("a").max_hold(TTL / 2).when_lost(WhenLost::Keep).acquire().await.unwrap();
    still.clock.advance(TTL / 2);
    assert!(lost.check().is_err());
    assert!(owner.lock("a").try_acquire().await.unwrap().is_none(), "the engine still has the first grant");
    let token = lost.token();
    let _ = lost.release().await.unwrap();
    assert!(owner.lock("a").acquire().await.unwrap().token() > token);
}

#[tokio::test]
async fn a_client_that_is_closed_keeps_no_lost_lock() {
    let still = Still::new();
    let other = Still::connect(&still.clock, &still.store);
    let guard = other.lock("a").when_lost(WhenLost::Keep).acquire().await.unwrap();
    let request = other.lock("b").max_hold(TTL / 2).when_lost(WhenLost::Keep);
    let lost_before = request.acquire().await.unwrap();
    still.clock.advance(TTL / 2);
    assert!(lost_before.check().is_err());
    other.close().await.unwrap();
    assert!(still.is_free("a").await && still.is_free("b").await);
    assert_eq!(guard.state(), GuardState::Lost(LostReason::Closed));
}

#[tokio::test]
async fn a_watch_tells_when_the_deadline_moves() {
    let still = Still::new();
    let guard = still.hold("a").await;
    let mut watch = guard.watch();
    assert_eq!(watch.deadline(), guard.deadline());
    assert!(guard.deadline().is_some());
    let first = watch.deadline();
    still.clock.advance(TTL / 3);
    watch.moved().await;
    assert!(watch.deadline() > first);
    assert_eq!(watch.deadline(), guard.deadline());
}
