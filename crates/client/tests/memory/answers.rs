//! What is done and not answered is withdrawn, or resolved: each kind of request once.

use std::time::Duration;

use tenure::memory::MemoryStore;
use tenure::{
    AcquireError, ConvertError, EngineError, LostReason, Mode, OncePerError, Record, Release, ReleaseError,
    ValueError, Wait,
};

use super::{Still, TTL, soon, until};

/// Moves the clock to the end of a request that was done and has no answer.
async fn time_out<T>(still: &Still, asking: impl Future<Output = T>) -> T {
    let mut asking = Box::pin(asking);
    // It is sent when it is first polled.
    assert!(futures_util::poll!(&mut asking).is_pending());
    still.clock.advance(MemoryStore::REQUEST_LIMIT);
    soon("it ends", asking).await
}

#[tokio::test]
async fn an_acquire_is_withdrawn() {
    let still = Still::new().await;
    for wait in [Wait::Try, Wait::For(MemoryStore::REQUEST_LIMIT)] {
        still.link.lose_answers(1);
        let answer = time_out(&still, still.far.lock("a").ttl(TTL).wait(wait).acquire()).await;
        assert!(matches!(answer, Err(AcquireError::Engine(EngineError::Unreachable { .. }))), "{answer:?}");
        until("it is withdrawn", async || still.holders("a").await == 0).await;
        let _ = still.far.lock("a").acquire().await.unwrap().release().await.unwrap();
    }
}

#[tokio::test]
async fn a_wait_keeps_its_place_and_is_withdrawn_when_it_is_dropped() {
    let still = Still::new().await;
    let held = still.near.lock("a").acquire().await.unwrap();
    still.link.lose_answers(1);
    let mut asking = Box::pin(still.far.lock("a").acquire());
    assert!(futures_util::poll!(&mut asking).is_pending());
    still.waiters("a", 1).await;
    still.clock.advance(MemoryStore::REQUEST_LIMIT);
    // The wait goes on, and the next request is not yet due.
    assert!(futures_util::poll!(&mut asking).is_pending());
    assert_eq!(still.near.inspect("a").await.unwrap().waiters.len(), 1);
    drop(asking);
    still.waiters("a", 0).await;
    let _ = held.release().await.unwrap();
    still.nothing_left("a").await;
}

#[tokio::test]
async fn an_acquire_is_withdrawn_however_many_answers_are_lost() {
    let still = Still::new().await;
    still.link.lose_answers(usize::MAX);
    let answer = time_out(&still, still.far.lock("a").ttl(TTL).wait(Wait::Try).acquire()).await;
    assert!(answer.is_err());
    until("the withdrawal gets through, too", async || still.holders("a").await == 0).await;
    // And it does not come back to undo what others have since.
    let next = still.near.lock("a").ttl(TTL * 10).acquire().await.unwrap();
    still.link.lose_answers(0);
    still.clock.advance(MemoryStore::REQUEST_LIMIT);
    still.far.clone().close().await.unwrap();
    assert!(next.check().is_ok());
    assert_eq!(still.holders("a").await, 1);
}

#[tokio::test]
async fn a_dropped_acquire_is_withdrawn() {
    let still = Still::new().await;
    still.link.lose_answers(1);
    let mut asking = Box::pin(still.far.lock("a").acquire());
    assert!(futures_util::poll!(&mut asking).is_pending());
    assert_eq!(still.holders("a").await, 1, "done, and not answered");
    drop(asking);
    still.nothing_left("a").await;
}

#[tokio::test]
async fn a_release_is_done() {
    let still = Still::new().await;
    let guard = still.far.lock("a").ttl(TTL).acquire().await.unwrap();
    still.link.lose_answers(1);
    let answer = time_out(&still, guard.release()).await;
    assert!(matches!(answer, Err(ReleaseError::Engine(EngineError::Unreachable { .. }))), "{answer:?}");
    let next = still.near.lock("a").ttl(TTL * 10).try_acquire().await.unwrap().expect("it is free");
    // It is tried again in the background, and does the next holder no harm.
    still.far.clone().close().await.unwrap();
    assert!(next.check().is_ok());
    assert_eq!(still.holders("a").await, 1);
}

#[tokio::test]
async fn a_value_is_written() {
    let still = Still::new().await;
    let guard = still.far.lock("a").ttl(TTL).acquire().await.unwrap();
    still.link.lose_answers(1);
    let answer = time_out(&still, guard.set_value("perhaps")).await;
    assert!(matches!(answer, Err(ValueError::Engine(EngineError::Unreachable { .. }))), "{answer:?}");
    assert_eq!(guard.value().bytes, "", "nobody has confirmed it");
    assert_eq!(still.near.inspect("a").await.unwrap().value.bytes, "perhaps");
    guard.set_value("surely").await.unwrap();
    assert_eq!(guard.release().await.unwrap(), Release::Released);
}

#[tokio::test]
async fn a_conversion_up_is_undone() {
    let still = Still::new().await;
    let guard = still.far.lock("a").shared().ttl(TTL).acquire().await.unwrap();
    still.link.lose_answers(1);
    let answer = time_out(&still, guard.convert(Mode::Ex, Wait::Try)).await;
    assert!(matches!(answer, Err(ConvertError::Engine(EngineError::Unreachable { .. }))), "{answer:?}");
    assert_eq!(guard.mode(), Mode::Pr);
    assert!(still.is_free("a", Mode::Pr).await, "the old mode stands");
    assert!(!still.is_free("a", Mode::Ex).await);
    guard.convert(Mode::Ex, Wait::Try).await.unwrap();
    assert!(!still.is_free("a", Mode::Pr).await);
}

#[tokio::test]
async fn a_conversion_up_is_undone_later_and_only_that_one() {
    let still = Still::new().await;
    let guard = still.far.lock("a").shared().ttl(TTL * 10).acquire().await.unwrap();
    still.link.lose_answers(1);
    let mut asking = Box::pin(guard.convert(Mode::Ex, Wait::Try));
    assert!(futures_util::poll!(&mut asking).is_pending());
    still.link.cut();
    still.clock.advance(MemoryStore::REQUEST_LIMIT);
    assert!(soon("it ends", asking).await.is_err());
    assert!(!still.is_free("a", Mode::Pr).await, "nobody could undo it yet");
    assert!(guard.check().is_ok());
    // Another one may come before that is done, and stands.
    let mut again = Box::pin(guard.convert(Mode::Ex, Wait::Try));
    assert!(futures_util::poll!(&mut again).is_pending());
    still.link.heal();
    soon("it is converted", again).await.unwrap();
    guard.set_value("in EX").await.unwrap();
    assert!(!still.is_free("a", Mode::Pr).await);
    assert_eq!(guard.mode(), Mode::Ex);
}

#[tokio::test]
async fn a_conversion_down_is_undone_if_nobody_came_in() {
    let still = Still::new().await;
    let guard = still.far.lock("a").ttl(TTL).acquire().await.unwrap();
    still.link.lose_answers(1);
    let answer = time_out(&still, guard.convert(Mode::Pr, Wait::Try)).await;
    assert!(matches!(answer, Err(ConvertError::Engine(EngineError::Unreachable { .. }))), "{answer:?}");
    assert_eq!(guard.mode(), Mode::Ex);
    assert!(!still.is_free("a", Mode::Pr).await, "the old mode stands");
}

#[tokio::test]
async fn a_conversion_down_stands_if_somebody_came_in() {
    let still = Still::new().await;
    let guard = still.far.lock("a").ttl(TTL).acquire().await.unwrap();
    let reader = tokio::spawn(still.near.lock("a").shared().ttl(TTL).acquire());
    still.waiters("a", 1).await;
    still.link.lose_answers(1);
    let mut asking = Box::pin(guard.convert(Mode::Pr, Wait::Try));
    assert!(futures_util::poll!(&mut asking).is_pending());
    let reader = soon("a reader is in", reader).await.unwrap().unwrap();
    still.clock.advance(MemoryStore::REQUEST_LIMIT);
    soon("it is resolved", asking).await.unwrap();
    assert_eq!(guard.mode(), Mode::Pr);
    assert!(guard.check().is_ok() && reader.check().is_ok());
}

#[tokio::test]
async fn a_conversion_of_which_nothing_is_known_costs_the_lock_if_others_may_be_in() {
    let still = Still::new().await;
    // So long that no renewal is due, whose answer would be lost too.
    let ttl = TTL * 10;
    for (from, to) in [(Mode::Ex, Mode::Pr), (Mode::Pr, Mode::Cw)] {
        let guard = still.far.lock("a").mode(from).ttl(ttl).acquire().await.unwrap();
        still.link.lose_answers(2);
        let answer = time_out(&still, guard.convert(to, Wait::Try)).await;
        let Err(ConvertError::Lost(lost)) = answer else { panic!("{from} to {to}: {answer:?}") };
        assert_eq!(lost.reason, LostReason::Disconnected);
        assert!(guard.check().is_err());
        still.nothing_left("a").await;
    }
}

#[tokio::test]
async fn a_conversion_sideways_reads_the_value() {
    let still = Still::new().await;
    let writer = still.near.lock("a").ttl(TTL).acquire().await.unwrap();
    writer.set_value("7").await.unwrap();
    let _ = writer.release().await.unwrap();
    let guard = still.far.lock("a").mode(Mode::Pr).ttl(TTL).acquire().await.unwrap();
    let before = guard.token();
    guard.convert(Mode::Cw, Wait::Try).await.unwrap();
    assert_eq!(guard.value().bytes, "7");
    assert!(guard.token() > before);
}

#[tokio::test]
async fn a_start_is_in_doubt() {
    let still = Still::new().await;
    let hour = Duration::from_hours(1);
    let mut begin = Box::pin(still.far.once_per("report", hour).record(Record::AtStart).begin());
    // It looks for a start, gets the lock, and records the start: the third request is the one.
    let held = still.near.lock("report").acquire().await.unwrap();
    assert!(futures_util::poll!(&mut begin).is_pending());
    still.link.lose_answers(1);
    let _ = held.release().await.unwrap();
    until("the start is recorded", async || {
        let _ = futures_util::poll!(&mut begin);
        let name = tenure::LockName::parse("report").unwrap();
        still.near.engine().clone().recall(name, hour).await.unwrap().is_some()
    })
    .await;
    still.clock.advance(MemoryStore::REQUEST_LIMIT);
    let answer = soon("it ends", begin).await;
    assert!(matches!(answer, Err(OncePerError::StartInDoubt { .. })), "{answer:?}");
    still.nothing_left("report").await;
}

#[tokio::test]
async fn a_renewal_that_is_not_answered_is_tried_again() {
    let still = Still::new().await;
    let guard = still.far.lock("a").ttl(TTL).acquire().await.unwrap();
    let before = guard.deadline();
    still.link.lose_answers(1);
    still.clock.advance(TTL / 3);
    until("another one is answered", async || {
        still.clock.advance(TTL / 100);
        guard.deadline() > before
    })
    .await;
    assert!(guard.check().is_ok());
}
