//! Where a crowd of one client waits, newcomers are put into the queue together: all of them, once, and nobody who has gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure::contract::within;
use tenure::{AcquireError, Client, EngineError, Wait};
use tenure_testkit::{Redis, eventually};
use tokio::task::JoinHandle;

use crate::{LONG, connect};

/// How long anything may take on a slow machine.
const PATIENCE: Duration = Duration::from_mins(2);

/// More than are needed for a crowd.
const CROWD: usize = 40;

/// One who waits, gets it, and lets go.
fn wait_for_turn(client: &Client, label: usize, turns: &Arc<AtomicUsize>) -> JoinHandle<()> {
    let (waiting, turns) = (client.lock("a").ttl(LONG).label(label.to_string()).acquire(), turns.clone());
    tokio::spawn(async move {
        let guard = waiting.await.unwrap();
        assert!(guard.check().is_ok());
        turns.fetch_add(1, Ordering::Relaxed);
        guard.release().await.unwrap();
    })
}

fn places(redis: &Redis) -> (usize, usize) {
    let number = |command, key| redis.command(&[command, key]).parse().unwrap();
    (number("LLEN", "tenure:queue:a"), number("HLEN", "tenure:waiters:a"))
}

#[tokio::test]
async fn newcomers_to_a_crowd_queue_together_are_seen_and_served_in_their_order() {
    const NEWCOMERS: usize = 60;
    let redis = Redis::start();
    let client = connect(&redis.url()).await;
    let held = client.lock("a").ttl(LONG).acquire().await.unwrap();
    let turns = Arc::new(AtomicUsize::new(0));
    let mut waiting: Vec<_> = (0..CROWD).map(|label| wait_for_turn(&client, label, &turns)).collect();
    let seen = async |count: usize| client.inspect("a").await.unwrap().waiters.len() == count;
    tenure::contract::eventually(PATIENCE, "a crowd waits", async || seen(CROWD).await).await;
    redis.command(&["CONFIG", "RESETSTAT"]);
    waiting.extend((CROWD..CROWD + NEWCOMERS).map(|label| wait_for_turn(&client, label, &turns)));
    tenure::contract::eventually(PATIENCE, "all wait", async || seen(CROWD + NEWCOMERS).await).await;
    // Who asks again keeps its place, and is not counted.
    let queued = redis.calls("rpush");
    assert!((1..NEWCOMERS / 2).contains(&queued), "{NEWCOMERS} newcomers queued by {queued} commands");
    let waiters = client.inspect("a").await.unwrap().waiters;
    let last: Vec<_> = waiters[CROWD..].iter().map(|waiter| waiter.label.clone()).collect();
    let newcomers: Vec<_> = (CROWD..CROWD + NEWCOMERS).map(|label| Some(label.to_string())).collect();
    assert_eq!(last, newcomers);
    held.release().await.unwrap();
    for waits in waiting {
        within(PATIENCE, "each gets its turn", waits).await.unwrap();
    }
    assert_eq!(turns.load(Ordering::Relaxed), CROWD + NEWCOMERS);
    assert_eq!(redis.command(&["EXISTS", "a", "tenure:queue:a", "tenure:waiters:a"]), "0");
}

/// Whenever it goes: before it is put there, while, or after that; by its own will, or because its time is over.
#[tokio::test(flavor = "multi_thread")]
async fn who_goes_away_from_a_crowd_has_no_place_in_it() {
    const ROUNDS: u64 = 100;
    let redis = Redis::start();
    let (holder, client) = (connect(&redis.url()).await, connect(&redis.url()).await);
    let held = holder.lock("a").ttl(LONG).acquire().await.unwrap();
    let turns = Arc::new(AtomicUsize::new(0));
    let mut waiting: Vec<_> = (0..CROWD).map(|label| wait_for_turn(&client, label, &turns)).collect();
    eventually("a crowd waits", || places(&redis) == (CROWD, CROWD));
    for round in 0..ROUNDS {
        let moment = Duration::from_micros(10_000 + round % 20 * 150);
        let gone: Vec<_> = (0..4).map(|label| wait_for_turn(&client, label, &turns)).collect();
        let late = client.lock("a").ttl(LONG).wait(Wait::For(moment)).acquire();
        let soon_gone: Vec<_> = (0..2).map(|label| wait_for_turn(&client, label, &turns)).collect();
        tokio::task::yield_now().await;
        for one in soon_gone {
            one.abort();
        }
        if round % 8 == 0 {
            waiting.push(wait_for_turn(&client, CROWD, &turns));
        }
        assert!(matches!(late.await, Err(AcquireError::TimedOut { .. })));
        for one in gone {
            one.abort();
        }
    }
    let left = waiting.len();
    eventually("those who went have no place, and the others have theirs", || places(&redis) == (left, left));
    for waits in waiting {
        waits.abort();
    }
    // It waits until nothing is left of what was begun: a place that is still there would stay.
    client.close().await.unwrap();
    assert_eq!(places(&redis), (0, 0));
    assert_eq!(turns.load(Ordering::Relaxed), 0);
    held.release().await.unwrap();
    assert_eq!(redis.command(&["EXISTS", "a", "tenure:queue:a", "tenure:waiters:a"]), "0");
}

/// Nobody of ours will wake them, and another program's lock may end at any time: each looks for itself.
#[tokio::test(flavor = "multi_thread")]
async fn newcomers_find_out_for_themselves_who_holds_a_lock_that_is_not_ours() {
    let redis = Redis::start();
    let client = connect(&redis.url()).await;
    let held = client.lock("a").ttl(LONG).acquire().await.unwrap();
    let turns = Arc::new(AtomicUsize::new(0));
    let mut waiting: Vec<_> = (0..CROWD).map(|label| wait_for_turn(&client, label, &turns)).collect();
    eventually("a crowd waits", || places(&redis) == (CROWD, CROWD));
    redis.command(&["SET", "a", "another program's", "PX", "600000"]);
    waiting.extend((0..10).map(|label| wait_for_turn(&client, label, &turns)));
    eventually("all wait", || places(&redis) == (CROWD + 10, CROWD + 10));
    redis.command(&["DEL", "a"]);
    for waits in waiting {
        within(PATIENCE, "each gets its turn", waits).await.unwrap();
    }
    drop(held);
}

/// Redis stands still while they come, and they do not wait for it: when it goes on, it hears of their going after their coming.
#[tokio::test(flavor = "multi_thread")]
async fn who_goes_while_redis_stands_still_is_not_there_when_it_goes_on() {
    let mut redis = Redis::start();
    let client = connect(&redis.url()).await;
    let held = client.lock("a").ttl(LONG).acquire().await.unwrap();
    let turns = Arc::new(AtomicUsize::new(0));
    let waiting: Vec<_> = (0..CROWD).map(|label| wait_for_turn(&client, label, &turns)).collect();
    eventually("a crowd waits", || places(&redis) == (CROWD, CROWD));
    redis.pause();
    let gone: Vec<_> = (0..10).map(|label| wait_for_turn(&client, label, &turns)).collect();
    let late = client.lock("a").ttl(LONG).wait(Wait::For(Duration::from_millis(15))).acquire();
    let late = tokio::spawn(late);
    // Whether they have come that far or not, what is seen at the end is the same.
    client.clock().sleep_until(client.clock().now() + Duration::from_millis(20)).await;
    for one in gone {
        one.abort();
        assert!(one.await.unwrap_err().is_cancelled());
    }
    redis.resume();
    assert!(late.await.unwrap().is_err());
    eventually("they have gone", || places(&redis) == (CROWD, CROWD));
    held.release().await.unwrap();
    for waits in waiting {
        within(PATIENCE, "each gets its turn", waits).await.unwrap();
    }
    assert_eq!(turns.load(Ordering::Relaxed), CROWD, "one who went away had a turn");
}

/// It stands still for longer than anybody waits for an answer: whoever has given up by then is gone all the same.
#[tokio::test(flavor = "multi_thread")]
async fn who_gives_up_on_a_redis_that_stands_still_has_no_place_when_it_goes_on() {
    let mut redis = Redis::start();
    let patient = connect(&format!("{}?timeout_ms=60000", redis.url())).await;
    let client = connect(&format!("{}?timeout_ms=2000", redis.url())).await;
    let held = patient.lock("a").ttl(LONG).acquire().await.unwrap();
    let wait = |client: &Client| tokio::spawn(client.lock("a").ttl(LONG).acquire());
    // One who asks again and again: the queue does not end by itself.
    let stays = wait(&patient);
    let crowd: Vec<_> = (0..CROWD).map(|_| wait(&client)).collect();
    eventually("a crowd waits", || places(&redis) == (CROWD + 1, CROWD + 1));
    redis.pause();
    let newcomers: Vec<_> = (0..10).map(|_| wait(&client)).collect();
    for one in crowd.into_iter().chain(newcomers) {
        let gave_up = within(PATIENCE, "it gives up", one).await.unwrap().unwrap_err();
        assert!(matches!(gave_up, AcquireError::Engine(EngineError::Unreachable { .. })), "{gave_up}");
    }
    redis.resume();
    eventually("all who gave up are gone", || places(&redis) == (1, 1));
    held.release().await.unwrap();
    within(PATIENCE, "the one who stayed gets it", stays).await.unwrap().unwrap().release().await.unwrap();
}
