//! A wait lasts as long as it was asked to, also through an outage of the engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure::{AcquireError, ConvertError, EngineError, Mode, OncePerError, Release, Turn, Wait};

use crate::layer::{Still, TTL, until};

const MINUTE: Duration = Duration::from_mins(1);

/// Moves the clock until the task is done.
async fn advance_until_done<T>(still: &Still, task: &tokio::task::JoinHandle<T>) {
    until("the task is done", async || {
        still.clock.advance(Duration::from_millis(100));
        tokio::task::yield_now().await;
        task.is_finished()
    })
    .await;
}

#[tokio::test]
async fn a_wait_without_a_limit_lasts_through_an_outage() {
    let still = Still::new();
    still.store.set_unreachable(true);
    let waiting = tokio::spawn(still.client.lock("a").acquire());
    for _ in 0..100 {
        still.clock.advance(Duration::from_secs(1));
        tokio::task::yield_now().await;
    }
    assert!(!waiting.is_finished());
    still.store.set_unreachable(false);
    advance_until_done(&still, &waiting).await;
    assert_eq!(waiting.await.unwrap().unwrap().release().await.unwrap(), Release::Released);
}

#[tokio::test]
async fn an_outage_is_the_reason_if_the_wait_ends_in_it() {
    let still = Still::new();
    still.store.set_unreachable(true);
    let began = tenure::clock::Clock::now(&still.clock);
    let waiting = tokio::spawn(still.client.lock("a").wait(Wait::For(MINUTE)).acquire());
    advance_until_done(&still, &waiting).await;
    let error = waiting.await.unwrap().unwrap_err();
    assert!(matches!(error, AcquireError::Engine(EngineError::Unreachable { .. })), "{error}");
    assert!(tenure::clock::Clock::now(&still.clock).since(began) >= MINUTE, "the wait was cut short");
}

/// The first request was carried out, and its answer was lost: the second one is for the same grant.
#[tokio::test]
async fn a_request_that_is_repeated_finds_its_own_grant() {
    let still = Still::new();
    still.store.lose_answers_to_grants(1);
    let waiting = tokio::spawn(still.client.lock("a").ttl(TTL * 100).acquire());
    advance_until_done(&still, &waiting).await;
    let guard = waiting.await.unwrap().unwrap();
    assert_eq!(still.client.inspect("a").await.unwrap().holders[0].grant, guard.grant());
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    assert!(still.is_free("a").await);
}

/// An earlier copy of its request may arrive after its release, whether that is waited for, dropped, or done in the background.
#[tokio::test]
async fn a_grant_that_was_asked_for_twice_is_withdrawn_after_its_release() {
    let still = Still::new();
    for turn in 0..3 {
        still.store.lose_answers_to_grants(1);
        let waiting = tokio::spawn(still.client.lock("a").ttl(TTL * 100).acquire());
        advance_until_done(&still, &waiting).await;
        let guard = waiting.await.unwrap().unwrap();
        assert_eq!(still.store.withdrawals(), turn);
        match turn {
            0 => assert_eq!(guard.release().await.unwrap(), Release::Released),
            1 => {
                still.store.delay_releases(Duration::from_millis(10));
                assert!(tenure::contract::poll_times(guard.release(), 1).await.is_none());
            }
            _ => drop(guard),
        }
        until("it is withdrawn", async || still.store.withdrawals() == turn + 1).await;
        assert!(still.is_free("a").await);
    }
}

#[tokio::test]
async fn a_grant_whose_answer_was_lost_is_withdrawn_until_that_is_confirmed() {
    let still = Still::new();
    still.store.lose_answers_to_grants(1);
    still.store.lose_withdrawals(3);
    let tried = still.client.lock("a").ttl(MINUTE).wait(Wait::Try).acquire().await.unwrap_err();
    assert!(matches!(tried, AcquireError::Engine(EngineError::Unreachable { .. })), "{tried}");
    assert!(!still.is_free("a").await, "the engine has granted it");
    let began = tenure::clock::Clock::now(&still.clock);
    until("it is withdrawn", async || {
        still.clock.advance(Duration::from_millis(10));
        still.is_free("a").await
    })
    .await;
    assert!(tenure::clock::Clock::now(&still.clock).since(began) < MINUTE, "it was left to its lease");
}

#[tokio::test]
async fn a_waiter_that_is_cut_off_keeps_its_place() {
    let still = Still::new();
    let guard = still.client.lock("a").ttl(MINUTE * 100).acquire().await.unwrap();
    let waiting = tokio::spawn(still.client.lock("a").ttl(MINUTE).acquire());
    let waiters = async || still.client.inspect("a").await.map(|info| info.waiters);
    until("it waits", async || waiters().await.is_ok_and(|waiters| waiters.len() == 1)).await;
    let first = waiters().await.unwrap()[0].grant;
    still.store.set_unreachable(true);
    for _ in 0..10 {
        still.store.notify();
        still.clock.advance(Duration::from_secs(1));
        tokio::task::yield_now().await;
    }
    still.store.set_unreachable(false);
    let second = tokio::spawn(still.client.lock("a").ttl(MINUTE).acquire());
    until("both wait", async || waiters().await.is_ok_and(|waiters| waiters.len() == 2)).await;
    assert_eq!(waiters().await.unwrap()[0].grant, first);
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    advance_until_done(&still, &waiting).await;
    assert_eq!(waiting.await.unwrap().unwrap().grant(), first);
    drop(second);
}

/// However short a wait is, a lock that is free is got.
#[tokio::test]
async fn a_wait_of_no_time_asks_once() {
    let still = Still::new();
    let guard = still.client.lock("a").wait(Wait::For(Duration::ZERO)).acquire().await.unwrap();
    let error = still.client.lock("a").wait(Wait::For(Duration::ZERO)).acquire().await.unwrap_err();
    assert!(matches!(error, AcquireError::TimedOut { waited: Duration::ZERO, .. }), "{error}");
    assert_eq!(guard.release().await.unwrap(), Release::Released);
}

#[tokio::test]
async fn a_client_that_is_closed_in_an_outage_answers_closed_to_those_who_wait() {
    let still = Still::new();
    let owner = still.client.owner();
    let guard = owner.lock("released").acquire().await.unwrap();
    still.store.set_unreachable(true);
    drop(guard);
    let waits = [still.client.lock("a").acquire(), owner.lock("released").acquire()].map(tokio::spawn);
    // The second waits for the release of what its owner held, which cannot be done.
    until("both wait", async || {
        tokio::task::yield_now().await;
        format!("{:?}", still.client).contains("3 unfinished")
    })
    .await;
    assert_eq!(still.client.clone().close().await.unwrap_err().unconfirmed, 1);
    for wait in waits {
        let error = wait.await.unwrap().unwrap_err();
        assert!(matches!(error, AcquireError::Engine(EngineError::Closed)), "{error}");
    }
}

#[tokio::test]
async fn a_conversion_waits_through_an_outage() {
    let still = Still::new();
    let guard = still.client.lock("a").mode(Mode::Pr).ttl(TTL * 100).acquire().await.unwrap();
    still.store.set_unreachable(true);
    let tried = guard.convert(Mode::Ex, Wait::Try).await;
    assert!(matches!(tried, Err(ConvertError::Engine(EngineError::Unreachable { .. }))), "{tried:?}");
    let converting = tokio::spawn(async move {
        guard.convert(Mode::Ex, Wait::Forever).await.unwrap();
        guard
    });
    for _ in 0..10 {
        still.clock.advance(Duration::from_secs(1));
        tokio::task::yield_now().await;
    }
    assert!(!converting.is_finished());
    still.store.set_unreachable(false);
    advance_until_done(&still, &converting).await;
    assert_eq!(converting.await.unwrap().mode(), Mode::Ex);
}

#[tokio::test]
async fn a_turn_is_waited_for_through_an_outage() {
    let still = Still::new();
    still.store.set_unreachable(true);
    let tried = still.client.once_per("job", MINUTE).wait(Wait::Try).begin().await;
    assert!(matches!(tried, Err(OncePerError::Engine(EngineError::Unreachable { .. }))), "{tried:?}");
    let waiting = tokio::spawn(still.client.once_per("job", MINUTE).begin());
    for _ in 0..10 {
        still.clock.advance(Duration::from_secs(1));
        tokio::task::yield_now().await;
    }
    still.store.set_unreachable(false);
    advance_until_done(&still, &waiting).await;
    assert!(matches!(waiting.await.unwrap().unwrap(), Turn::Yours(_)));
}

#[tokio::test]
async fn a_schedule_runs_its_job_once_in_each_period_and_lasts_through_an_outage() {
    let still = Still::new();
    let runs = Arc::new(AtomicUsize::new(0));
    let schedules: Vec<_> = (0..3)
        .map(|_| {
            let (client, runs) = (still.client.clone(), runs.clone());
            tokio::spawn(async move {
                client
                    .every("job", MINUTE, |run| {
                        let runs = runs.clone();
                        async move {
                            runs.fetch_add(1, Ordering::Relaxed);
                            assert_eq!(run.succeeded().await.unwrap(), Release::Released);
                        }
                    })
                    .await
            })
        })
        .collect();
    let mut minutes = 0.0;
    while runs.load(Ordering::Relaxed) < 5 {
        still.clock.advance(MINUTE / 60);
        minutes += 1.0 / 60.0;
        tokio::time::sleep(Duration::from_millis(1)).await;
        still.store.set_unreachable((1.5..3.5).contains(&minutes));
        assert!(minutes < 60.0, "it ran {} times in an hour", runs.load(Ordering::Relaxed));
    }
    // A start stands for nine tenths of a period.
    assert!(minutes >= 4.0 * 0.9, "5 runs within {minutes} minutes");
    still.client.clone().close().await.unwrap();
    for schedule in schedules {
        let ended = schedule.await.unwrap();
        assert!(matches!(ended, OncePerError::Engine(EngineError::Closed)), "{ended}");
    }
}
