//! What lies in Redis: the layout that docs/engines/redis.md describes, and that other programs may rely on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure::{AcquireError, Break, BreakError, Client, EngineError, Wait};
use tenure_testkit::{Redis, eventually};

use crate::{LONG, connect};

/// All keys, with how long each lives yet in ms.
fn keys(redis: &Redis) -> Vec<(String, i64)> {
    let keys = redis.command(&["KEYS", "*"]);
    let ttl = |key: &str| redis.command(&["PTTL", key]).parse().expect("a number");
    keys.lines().filter(|key| !key.is_empty()).map(|key| (key.to_owned(), ttl(key))).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_key_of_a_lock_is_ever_without_a_ttl() {
    let redis = Redis::start();
    let (client, other) = (connect(&redis.url()).await, connect(&format!("{}?fair=true", redis.url())).await);
    let mut guards = Vec::new();
    for name in ["alone", "waited-for", "valued"] {
        guards.push(client.lock(name).ttl(LONG).acquire().await.unwrap());
    }
    guards[2].set_value("stays").await.unwrap();
    for _ in 0..3 {
        guards.push(client.lock("read").shared().ttl(LONG).acquire().await.unwrap());
    }
    let owner = client.owner();
    guards.push(owner.lock("joined").ttl(LONG).acquire().await.unwrap());
    guards.push(other.owner_with_id(owner.id()).lock("joined").ttl(LONG).acquire().await.unwrap());
    let waiting = tokio::spawn(other.lock("waited-for").ttl(LONG).acquire());
    eventually("the waiter is seen", || redis.command(&["EXISTS", "tenure:queue:waited-for"]) == "1");
    client.break_lock("alone", Break::Ask).await.unwrap();

    let found = keys(&redis);
    for key in ["read", "joined", "tenure:members:read", "tenure:until:joined", "tenure:waiters:waited-for"] {
        assert!(found.iter().any(|(found, _)| found == key), "{key} is not among {found:?}");
    }
    for (key, ttl_ms) in &found {
        let stays = key == "tenure:sequence" || key.starts_with("tenure:value:");
        assert_eq!(*ttl_ms == -1, stays, "{key} lives for {ttl_ms} ms");
        assert!(stays || *ttl_ms <= i64::try_from(LONG.as_millis()).unwrap() + 61_000, "{key}: {ttl_ms} ms");
    }
    waiting.abort();
    drop(guards);
    eventually("nothing is left but what stays", || {
        let left: Vec<_> = keys(&redis).into_iter().map(|(key, _)| key).collect();
        left.iter().all(|key| {
            key.starts_with("tenure:value:") || key.starts_with("tenure:break:") || key == "tenure:sequence"
        })
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_is_the_name_and_its_value_is_another_one_for_each_grant() {
    let redis = Redis::start();
    let client = connect(&redis.url()).await;
    let mut values = Vec::new();
    for _ in 0..2 {
        let guard = client.lock("orders/ä 42").ttl(LONG).acquire().await.unwrap();
        let text = || redis.command(&["GET", "orders/ä 42"]);
        eventually("its token is written down", || text().contains(&guard.token().unwrap().to_string()));
        assert!(text().contains(&guard.grant().to_string()), "{}", text());
        values.push(text());
        let _ = guard.release().await.unwrap();
        assert_eq!(redis.command(&["EXISTS", "orders/ä 42"]), "0");
    }
    assert_ne!(values[0], values[1]);
    let prefixed = connect(&format!("{}/3?prefix=lock%3A", redis.url())).await;
    let guard = prefixed.lock("a").ttl(LONG).acquire().await.unwrap();
    let mut there = redis.connect().unwrap();
    there.command(&["SELECT", "3"]).unwrap();
    assert_eq!(there.command(&["EXISTS", "lock:a"]).unwrap(), "1");
    assert_eq!(prefixed.list("").await.unwrap().len(), 1);
    assert!(client.inspect("lock:a").await.unwrap().holders.is_empty(), "another database, and other locks");
    let _ = guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn scripts_that_redis_forgot_are_sent_again() {
    let redis = Redis::start();
    let client = connect(&redis.url()).await;
    let guard = client.lock("a").ttl(Duration::from_secs(3)).acquire().await.unwrap();
    for _ in 0..3 {
        redis.command(&["SCRIPT", "FLUSH"]);
        client.inspect("a").await.unwrap();
    }
    redis.command(&["SCRIPT", "FLUSH"]);
    let deadline = guard.deadline();
    eventually("it is renewed", || guard.deadline() > deadline);
    redis.command(&["SCRIPT", "FLUSH"]);
    let _ = guard.release().await.unwrap();
}

/// Redis may forget a script between two commands: what was not known the first time is sent whole.
#[tokio::test(flavor = "multi_thread")]
async fn scripts_that_redis_forgets_all_the_time_are_run_all_the_same() {
    let redis = Redis::start();
    let client = connect(&redis.url()).await;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let mut connection = redis.connect().unwrap();
                while !done.load(Ordering::Relaxed) {
                    connection.command(&["SCRIPT", "FLUSH"]).unwrap();
                }
            });
        }
        let locking = async || -> Result<(), Box<dyn std::error::Error>> {
            for _ in 0..300 {
                let _ = client.lock("a").ttl(LONG).wait(Wait::Try).acquire().await?.release().await?;
                let _ = client.lock("a").ttl(LONG).shared().acquire().await?.release().await?;
                client.inspect("a").await?;
            }
            Ok(())
        };
        let locked = tokio::task::block_in_place(|| tokio::runtime::Handle::current().block_on(locking()));
        done.store(true, Ordering::Relaxed);
        locked.unwrap();
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_no_lock_is_refused_and_left_alone() {
    let redis = Redis::start();
    let client = connect(&redis.url()).await;
    redis.command(&["RPUSH", "jobs", "one", "two"]);
    let refused = client.lock("jobs").acquire().await;
    let Err(AcquireError::Engine(error @ EngineError::Refused { .. })) = refused else {
        panic!("{refused:?}")
    };
    assert!(error.to_string().contains("prefix"), "{error}");
    let seen = client.inspect("jobs").await.unwrap();
    assert!(seen.holders[0].label.as_deref().unwrap().contains("list"), "{seen:?}");
    assert!(client.list("").await.unwrap().is_empty());
    let own = client.lock("tenure:sequence").acquire().await;
    assert!(matches!(own, Err(AcquireError::Engine(EngineError::Refused { .. }))), "{own:?}");
    // One that becomes something else while it is held is lost, and the rest is not ours to touch.
    let guard = client.lock("a").ttl(Duration::from_secs(3)).acquire().await.unwrap();
    redis.command(&["DEL", "a"]);
    redis.command(&["SADD", "a", "member"]);
    assert_eq!(guard.lost().await, tenure::LostReason::Forgotten);
    client.close().await.unwrap();
    assert_eq!(redis.command(&["LRANGE", "jobs", "0", "-1"]), "one\ntwo");
    assert_eq!(redis.command(&["SCARD", "a"]), "1");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_of_another_program_is_respected_and_broken_only_by_force() {
    let redis = Redis::start();
    let client = connect(&redis.url()).await;
    // For ever, as some do it.
    redis.command(&["SET", "a", "somebody"]);
    assert!(client.lock("a").try_acquire().await.unwrap().is_none());
    let seen = client.inspect("a").await.unwrap();
    assert!(seen.holders[0].label.as_deref().unwrap().contains("somebody"), "{seen:?}");
    let asked = client.break_lock("a", Break::Ask).await;
    assert!(matches!(asked, Err(BreakError::HolderKeepsIt { .. })), "{asked:?}");
    assert_eq!(redis.command(&["GET", "a"]), "somebody");
    let waiting = tokio::spawn(client.lock("a").acquire());
    eventually("the waiter is seen", || redis.command(&["EXISTS", "tenure:queue:a"]) == "1");
    assert_eq!(client.break_lock("a", Break::Force).await.unwrap().len(), 1);
    drop(waiting.await.unwrap().unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn all_waiters_of_a_client_share_one_subscription() {
    const WAITERS: usize = 25;
    let redis = Redis::start();
    let (holder, client) = (connect(&redis.url()).await, connect(&redis.url()).await);
    let mut held = Vec::new();
    for lock in ["a", "b", "c"] {
        held.push(holder.lock(lock).ttl(LONG).acquire().await.unwrap());
    }
    let waiting: Vec<_> = (0..WAITERS)
        .map(|number| {
            let lock = client.lock(["a", "b", "c"][number % 3]).ttl(LONG);
            tokio::spawn(async { lock.acquire().await.map(drop) })
        })
        .collect();
    eventually("all wait", || {
        let queues = ["a", "b", "c"].map(|lock| redis.command(&["LLEN", &format!("tenure:queue:{lock}")]));
        queues.iter().map(|count| count.parse::<usize>().unwrap()).sum::<usize>() == WAITERS
    });
    let subscribed = redis.command(&["CLIENT", "LIST", "TYPE", "pubsub"]);
    assert_eq!(subscribed.lines().filter(|line| !line.is_empty()).count(), 1, "{subscribed}");
    held.clear();
    for waiter in waiting {
        waiter.await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_died_keeps_nobody_out_beyond_its_lease() {
    let redis = Redis::start();
    let (client, other) = (connect(&redis.url()).await, connect(&redis.url()).await);
    // One that is renewed all the time, and one that is not.
    let lives = client.lock("a").shared().ttl(Duration::from_secs(3)).acquire().await.unwrap();
    let dies = other.lock("a").shared().ttl(Duration::from_secs(2)).renew(false).acquire().await.unwrap();
    std::mem::forget(dies);
    eventually("the dead one is gone", || redis.command(&["ZCARD", "tenure:until:a"]) == "1");
    assert!(lives.check().is_ok());
    let _ = lives.release().await.unwrap();
    drop(other.lock("a").wait(Wait::Try).acquire().await.unwrap());
}

/// The last lease may end while a script runs. Whoever joined before that holds the lock, so its key is there.
#[tokio::test(flavor = "multi_thread")]
async fn whoever_joins_when_the_last_lease_ends_holds_the_lock() {
    // A lease of a few milliseconds, and so many of the dead that to sweep them takes longer.
    const LAST_LEASE: &str = "
        for dead = 1, 30000 do redis.call('ZADD', 'tenure:until:a', 1, 'dead' .. dead) end
        local now = redis.call('TIME')
        redis.call('ZADD', 'tenure:until:a', now[1] * 1000 + math.floor(now[2] / 1000) + 15 + ARGV[1], 'last')
        redis.call('SET', 'a', 'tenure1 many PR - -', 'PX', 60000)";
    let redis = Redis::start();
    let client = connect(&redis.url()).await;
    let _ = client.lock("b").shared().acquire().await.unwrap().release().await.unwrap();
    for round in 0..10 {
        redis.command(&["EVAL", LAST_LEASE, "0", &(round * 5).to_string()]);
        let held = client.lock("a").shared().ttl(LONG).acquire().await.unwrap();
        assert_eq!(redis.command(&["EXISTS", "a"]), "1", "round {round}");
        assert!(client.lock("a").try_acquire().await.unwrap().is_none(), "round {round}");
        let _ = held.release().await.unwrap();
    }
}

/// Those who look at a lock with readers see them all, and a writer that waits.
#[tokio::test(flavor = "multi_thread")]
async fn readers_and_the_writer_behind_them_are_seen() {
    let redis = Redis::start();
    let client: Client = connect(&redis.url()).await;
    let first = client.lock("a").shared().label("first").ttl(LONG).acquire().await.unwrap();
    let second = client.lock("a").shared().label("second").ttl(LONG).acquire().await.unwrap();
    let writer = tokio::spawn(client.lock("a").label("writer").ttl(LONG).acquire());
    eventually("the writer waits", || redis.command(&["EXISTS", "tenure:queue:a"]) == "1");
    let seen = client.inspect("a").await.unwrap();
    let labels = |members: &[tenure::Member]| -> Vec<_> {
        members.iter().map(|member| member.label.clone().unwrap_or_default()).collect()
    };
    let mut holders = labels(&seen.holders);
    holders.sort();
    assert_eq!(
        (holders, labels(&seen.waiters)),
        (vec!["first".into(), "second".into()], vec!["writer".into()])
    );
    assert_eq!(seen.last_token, second.token());
    drop((first, second));
    drop(writer.await.unwrap().unwrap());
}

/// Whatever stands in the key keeps us out, also if it begins as ours do.
#[tokio::test(flavor = "multi_thread")]
async fn what_only_looks_like_a_lock_of_ours_is_another_ones() {
    let redis = Redis::start();
    let client = connect(&redis.url()).await;
    let (grant, owner) = ("1".repeat(32), "2".repeat(32));
    let cut = format!("tenure1 {grant} {owner} 5");
    let without_owner = format!("tenure1 {grant} - 5 EX {{}}");
    let owner_of_ours = client.owner();
    for text in [
        "",
        "x",
        "tenure1 ",
        "tenure1 x y 5 z",
        "tenure1 zz zz ? q",
        "tenure1 many2 x 5 y",
        &cut,
        &without_owner,
    ] {
        redis.command(&["SET", "a", text, "PX", "600000"]);
        for lock in [client.lock("a"), owner_of_ours.lock("a"), client.lock("a").shared()] {
            let got = lock.ttl(LONG).wait(Wait::Try).acquire().await;
            assert!(matches!(got, Err(AcquireError::Busy { .. })), "{text:?}: {got:?}");
        }
        assert_eq!(redis.command(&["GET", "a"]), text);
    }
}
