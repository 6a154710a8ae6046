//! A lock that is handed from one holder to the next, under contention: exclusion, rising tokens, and nothing lost or left behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure::contract::{Inside, poll_times, within};
use tenure::{AcquireError, Client, FencingToken, Guard, Release, Wait};
use tenure_testkit::{Redis, eventually};

use crate::{LONG, connect};

/// How long anything may take on a slow machine.
const PATIENCE: Duration = Duration::from_mins(2);

async fn release(guard: Guard) {
    assert_eq!(guard.release().await.unwrap(), Release::Released);
}

/// The lengths of the queue and of the table of waiters.
fn places(redis: &Redis) -> (usize, usize) {
    let number = |command, key| redis.command(&[command, key]).parse().unwrap();
    (number("LLEN", "tenure:queue:a"), number("HLEN", "tenure:waiters:a"))
}

fn nothing_is_left(redis: &Redis) {
    let keys = ["EXISTS", "a", "tenure:queue:a", "tenure:waiters:a", "tenure:next:a"];
    eventually("nothing is left", || redis.command(&keys) == "0");
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_of_two_clients_are_served_in_the_order_of_the_queue() {
    const WAITERS: usize = 40;
    let redis = Redis::start();
    let (client, other) = (connect(&redis.url()).await, connect(&redis.url()).await);
    let held = client.lock("a").ttl(LONG).acquire().await.unwrap();
    let mut waiting = Vec::new();
    for number in 0..WAITERS {
        let client = if number % 5 == 3 { &other } else { &client };
        waiting.push(tokio::spawn(client.lock("a").ttl(LONG).acquire()));
        eventually("it waits", || places(&redis).0 == number + 1);
    }
    let mut token = held.token();
    release(held).await;
    for next in waiting {
        let guard = within(PATIENCE, "the next in line gets the lock", next).await.unwrap().unwrap();
        assert!(guard.check().is_ok());
        assert!(guard.token() > token, "{:?} after {token:?}", guard.token());
        token = guard.token();
        release(guard).await;
    }
    nothing_is_left(&redis);
}

/// Many tasks of two clients, others of a third that is fair, and a program that knows nothing of Tenure.
#[tokio::test(flavor = "multi_thread")]
async fn never_are_two_inside() {
    const TASKS: usize = 30;
    const TIMES: usize = 20;
    let redis = Redis::start();
    let folder = tempfile::tempdir().unwrap();
    let inside = Arc::new(Inside::new(folder.path()));
    let mut tasks = Vec::new();
    for url in [redis.url(), redis.url(), format!("{}?fair=true", redis.url())] {
        let client = connect(&url).await;
        for _ in 0..TASKS {
            let (client, inside) = (client.clone(), inside.clone());
            tasks.push(tokio::spawn(async move {
                let mut last: Option<FencingToken> = None;
                for time in 0..TIMES {
                    let guard = client.lock("a").ttl(LONG).acquire().await.unwrap();
                    assert!(guard.token() > last);
                    last = guard.token();
                    inside.increment(Duration::ZERO).unwrap();
                    // Some do not wait for the answer.
                    if time % 3 == 0 { drop(guard) } else { release(guard).await }
                }
            }));
        }
    }
    let done = AtomicBool::new(false);
    let foreign = std::thread::scope(|scope| {
        let foreign = scope.spawn(|| {
            let mut times = 0;
            while !done.load(Ordering::Relaxed) {
                if redis.command(&["SET", "a", "another program's", "NX", "PX", "600000"]) == "OK" {
                    inside.increment(Duration::ZERO).unwrap();
                    times += 1;
                    redis.command(&["DEL", "a"]);
                }
            }
            times
        });
        tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(async {
                for task in tasks {
                    within(PATIENCE, "each gets its turns", task).await.unwrap();
                }
            });
        });
        done.store(true, Ordering::Relaxed);
        foreign.join().unwrap()
    });
    assert_eq!(inside.count(), (3 * TASKS * TIMES) as u64 + foreign);
    nothing_is_left(&redis);
}

/// Whenever a waiter goes away: in the queue, while the lock is on its way to it, or as its holder.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_goes_away_is_passed_over_and_leaves_nothing() {
    const TASKS: usize = 40;
    const TIMES: usize = 25;
    let redis = Redis::start();
    let client = connect(&redis.url()).await;
    let mut tasks = Vec::new();
    for task in 0..TASKS {
        let client = client.clone();
        tasks.push(tokio::spawn(async move {
            for time in 0..TIMES {
                match (task + time) % 5 {
                    0 => drop(poll_times(client.lock("a").ttl(LONG).acquire(), time % 7 + 1).await),
                    1 => {
                        let moment = Duration::from_micros(((task * 7 + time) * 97 % 4000) as u64);
                        let short = client.lock("a").ttl(LONG).wait(Wait::For(moment)).acquire().await;
                        assert!(matches!(short, Ok(_) | Err(AcquireError::TimedOut { .. })), "{short:?}");
                    }
                    _ => {
                        let guard = client.lock("a").ttl(LONG).acquire().await.unwrap();
                        assert!(guard.check().is_ok());
                        release(guard).await;
                    }
                }
            }
        }));
    }
    for task in tasks {
        within(PATIENCE, "each gets its turns", task).await.unwrap();
    }
    client.close().await.unwrap();
    nothing_is_left(&redis);
}

/// Redis stands still for longer than a request may take: a request that has ended by then has no place when Redis goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_gives_up_on_a_paused_redis_has_no_place_when_it_resumes() {
    const WAITERS: usize = 40;
    let mut redis = Redis::start();
    let patient = connect(&format!("{}?timeout_ms=60000", redis.url())).await;
    let client = connect(&format!("{}?timeout_ms=3000", redis.url())).await;
    let held = patient.lock("a").ttl(LONG).acquire().await.unwrap();
    let wait = |client: &Client| tokio::spawn(client.lock("a").ttl(LONG).acquire());
    // It asks again and again, so the queue does not end by itself.
    let stays = wait(&patient);
    let mut waiting: Vec<_> = (0..WAITERS).map(|_| wait(&client)).collect();
    eventually("all wait", || places(&redis) == (WAITERS + 1, WAITERS + 1));
    redis.pause();
    waiting.extend((0..10).map(|_| wait(&client)));
    // By then the requests of the waiters have gone unanswered too, and are repeated.
    for _ in 0..2 {
        within(PATIENCE, "a look goes unanswered", client.inspect("a")).await.unwrap_err();
    }
    for one in waiting {
        assert!(!one.is_finished(), "the outage ended a wait");
        one.abort();
    }
    redis.resume();
    eventually("all that gave up are gone", || places(&redis) == (1, 1));
    release(held).await;
    release(within(PATIENCE, "the other one gets it", stays).await.unwrap().unwrap()).await;
}
