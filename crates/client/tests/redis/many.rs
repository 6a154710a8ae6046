//! Many requests at once: they go by one connection, and each hears of its own.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use tenure::{AcquireError, Client, Guard, LostReason, Release, Wait};
use tenure_testkit::{Proxy, Redis, eventually, eventually_within};
use tokio::task::unconstrained;

use crate::{LONG, connect};

const MANY: usize = 250;

fn name(number: usize) -> String {
    format!("lock/{number}")
}

/// So many locks, got at once.
async fn all(client: &Client, many: usize) -> Vec<Guard> {
    let got = join_all((0..many).map(|number| client.lock(name(number)).ttl(LONG).acquire())).await;
    got.into_iter().map(Result::unwrap).collect()
}

/// All of them, released at once.
async fn release(guards: Vec<Guard>) -> Vec<Release> {
    join_all(guards.into_iter().map(Guard::release)).await.into_iter().map(Result::unwrap).collect()
}

async fn at_once(client: &Client, many: usize) {
    let released = release(all(client, many).await).await;
    assert!(released.iter().all(|released| *released == Release::Released), "{released:?}");
}

/// So many ask, each has asked once, and all go away, in one step of a runtime that has one thread.
fn ask_and_go_away(client: &Client, many: usize) {
    let asking = join_all((0..many).map(|number| client.lock(name(number)).ttl(LONG).acquire()));
    assert!(unconstrained(asking).now_or_never().is_none(), "nobody has been answered");
}

#[tokio::test(flavor = "multi_thread")]
async fn many_go_by_one_connection() {
    let redis = Redis::start();
    let client = connect(&redis.url()).await;
    for _ in 0..10 {
        at_once(&client, MANY).await;
    }
    let all = redis.command(&["CLIENT", "LIST", "TYPE", "normal"]);
    // This runtime's, and that of who asks; and that of the client's own thread, if it had to do anything.
    assert!(all.lines().count() <= 3, "{all}");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_of_many_hears_of_its_own() {
    let redis = Redis::start();
    let (client, other) = (connect(&redis.url()).await, connect(&redis.url()).await);
    let is_taken = |number: usize| number % 7 == 3;
    let mut taken = Vec::new();
    for number in (0..MANY).filter(|number| is_taken(*number)) {
        taken.push(other.lock(name(number)).ttl(LONG).acquire().await.unwrap());
    }
    let lock =
        |number| client.lock(name(number)).ttl(LONG).wait(Wait::For(Duration::from_millis(50))).acquire();
    let (mut guards, mut tokens) = (Vec::new(), BTreeSet::new());
    for (number, got) in join_all((0..MANY).map(lock)).await.into_iter().enumerate() {
        match got {
            Ok(guard) if !is_taken(number) => {
                assert!(redis.command(&["GET", &name(number)]).contains(&guard.grant().to_string()));
                assert!(tokens.insert(guard.token().unwrap()), "no two have the same");
                guards.push(guard);
            }
            Err(AcquireError::TimedOut { .. }) if is_taken(number) => {}
            got => panic!("{number}: {got:?}"),
        }
    }
    assert!(release(guards).await.iter().all(|released| *released == Release::Released));
    assert!(release(taken).await.iter().all(|released| *released == Release::Released));
    assert_eq!(redis.command(&["KEYS", "lock/*"]), "");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_many_that_somebody_waits_for_is_handed_over() {
    let redis = Redis::start();
    let (client, other) = (connect(&redis.url()).await, connect(&redis.url()).await);
    let guards = all(&client, MANY).await;
    let waiting: Vec<_> = (0..MANY)
        .step_by(50)
        .map(|number| tokio::spawn(other.lock(name(number)).ttl(LONG).acquire()))
        .collect();
    for number in (0..MANY).step_by(50) {
        while client.inspect(name(number)).await.unwrap().waiters.is_empty() {
            tokio::task::yield_now().await;
        }
    }
    let messages = redis.calls("publish");
    assert!(release(guards).await.iter().all(|released| *released == Release::Released));
    assert_eq!(redis.calls("publish"), messages + waiting.len(), "each of them is told");
    for got in waiting {
        let _ = got.await.unwrap().unwrap().release().await.unwrap();
    }
    eventually("all are free", || redis.command(&["KEYS", "lock/*"]).is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn of_many_only_those_are_released_that_are_still_held() {
    let redis = Redis::start();
    let client = connect(&redis.url()).await;
    let guards = all(&client, MANY).await;
    redis.command(&["DEL", &name(100)]);
    redis.command(&["DEL", &name(150)]);
    redis.command(&["RPUSH", &name(150), "no lock"]);
    redis.command(&["SET", &name(200), "somebody else's"]);
    for (number, released) in release(guards).await.into_iter().enumerate() {
        match number {
            100 | 150 | 200 => assert_eq!(released, Release::AlreadyLost(LostReason::Forgotten), "{number}"),
            _ => assert_eq!(released, Release::Released, "{number}"),
        }
    }
    let left = redis.command(&["KEYS", "lock/*"]);
    assert_eq!(left.lines().collect::<BTreeSet<_>>(), BTreeSet::from(["lock/150", "lock/200"]));
}

/// A connection is a line.
#[tokio::test]
async fn who_asks_after_many_is_served_after_them() {
    let redis = Redis::start();
    let client = connect(&redis.url()).await;
    let lock_last = || client.lock(name(MANY - 1)).wait(Wait::Try).acquire();
    // Redis knows the script.
    let _ = lock_last().await.unwrap().release().await.unwrap();
    let last = async { lock_last().await.map(drop) };
    // All in one step, the many first.
    let (guards, last) = unconstrained(async { tokio::join!(all(&client, MANY), last) }).await;
    assert!(matches!(last, Err(AcquireError::Busy { .. })), "{last:?}");
    release(guards).await;
}

/// What takes them back does not overtake them.
#[tokio::test]
async fn many_who_go_away_at_once_leave_nothing() {
    let redis = Redis::start();
    let client = connect(&redis.url()).await;
    at_once(&client, 1).await;
    for _ in 0..20 {
        ask_and_go_away(&client, MANY);
        tokio::task::yield_now().await;
    }
    client.close().await.unwrap();
    eventually("nothing is left", || redis.command(&["KEYS", "*lock/*"]).is_empty());
}

/// They asked on a runtime that then stands still. When it goes on, nothing of what it still sends is left.
#[test]
fn many_who_go_away_from_a_runtime_that_stands_still_leave_nothing() {
    /// More than are handed to a connection before it has sent any.
    const MORE: usize = 1500;
    let redis = Redis::start();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (here, elsewhere) = (runtime(), runtime());
    let client = here.block_on(connect(&format!("{}?timeout_ms=3000", redis.url())));
    elsewhere.block_on(at_once(&client, MANY));
    let scripts = redis.calls("evalsha");
    elsewhere.block_on(async { ask_and_go_away(&client, MORE) });
    // Each of them is taken back three times by another connection: at once, and when it may have arrived.
    eventually("they are given up", || redis.calls("evalsha") >= scripts + 3 * MORE);
    // Behind all of them.
    let _ = elsewhere.block_on(async { client.lock("a").acquire().await.unwrap().release().await.unwrap() });
    assert_eq!(redis.command(&["KEYS", "lock/*"]), "");
}

#[test]
fn many_can_lock_on_a_runtime_without_drivers() {
    let redis = Redis::start();
    let here = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let client = here.block_on(connect(&redis.url()));
    let bare = tokio::runtime::Builder::new_current_thread().build().unwrap();
    bare.block_on(at_once(&client, MANY));
    // Whoever asks connects anew.
    redis.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    bare.block_on(at_once(&client, MANY));
    assert_eq!(redis.command(&["KEYS", "lock/*"]), "");
}

/// The runtime ends that drives their connection.
#[tokio::test(flavor = "multi_thread")]
async fn many_whose_runtime_ends_leave_nothing() {
    /// Sooner than the time of a request is over: nobody waits for who does not answer any more.
    const SOON: Duration = Duration::from_secs(45);
    let redis = Redis::start();
    let client = connect(&format!("{}?timeout_ms=60000", redis.url())).await;
    for _ in 0..5 {
        let elsewhere =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        elsewhere.spawn({
            let client = client.clone();
            async move {
                loop {
                    at_once(&client, MANY).await;
                }
            }
        });
        eventually("they are at it", || !redis.command(&["KEYS", "lock/*"]).is_empty());
        elsewhere.shutdown_background();
        eventually_within(SOON, "nothing is left", || redis.command(&["KEYS", "*lock/*"]).is_empty());
    }
    at_once(&client, MANY).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_connection_breaks_under_many_nobody_notices() {
    let redis = Redis::start();
    let client = connect(&redis.url()).await;
    for _ in 0..5 {
        let working = tokio::spawn({
            let client = client.clone();
            async move {
                for _ in 0..20 {
                    at_once(&client, MANY).await;
                }
            }
        });
        redis.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        working.await.expect("each of them is got and released");
    }
    eventually("nothing is left", || redis.command(&["KEYS", "lock/*"]).is_empty());
}

/// Whoever is refused by a master that was demoted finds the new one.
#[tokio::test(flavor = "multi_thread")]
async fn a_demoted_master_is_left_by_many() {
    let (old, new) = (Redis::start(), Redis::start());
    let network = Proxy::to(old.addr());
    let client = connect(&format!("redis://{}", network.addr())).await;
    at_once(&client, MANY).await;
    network.lead_new_ones_to(new.addr());
    old.command(&["REPLICAOF", "127.0.0.1", &new.port().to_string()]);
    let guards = all(&client, MANY).await;
    for (number, guard) in guards.iter().enumerate() {
        assert!(new.command(&["GET", &name(number)]).contains(&guard.grant().to_string()), "{number}");
    }
    release(guards).await;
    assert_eq!(new.command(&["KEYS", "lock/*"]), "");
}
