//! The queue of `redis:`: who is woken, who is served, and who is not waited for.

use std::time::Duration;

use tenure::contract::{Helper, Subject, run_helper, within};
use tenure::{Client, Wait};
use tenure_testkit::{Persistence, Redis, eventually};

use crate::contract::Fair;
use crate::{LONG, connect};

/// How long anything may take on a slow machine.
const PATIENCE: Duration = Duration::from_mins(2);

/// Not a test: what the test binary does when a test runs it as another process.
#[test]
fn helper_process() {
    run_helper::<Fair>();
}

async fn waiters(client: &Client, name: &str, count: usize) {
    let seen = async || client.inspect(name).await.unwrap().waiters.len() == count;
    tenure::contract::eventually(PATIENCE, "the waiters are seen", seen).await;
}

/// The first in line is stopped, killed, or cut off: the others get the lock all the same, in their order.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_that_does_not_come_is_not_waited_for() {
    let address = Fair.address();
    let client = connect(&address).await;
    for kill in [true, false] {
        let name = format!("queue/dead-{kill}");
        let held = client.lock(&name).ttl(LONG).acquire().await.unwrap();
        let mut first = Helper::start(concat!(module_path!(), "::x"), &address).await;
        first.tell(&format!("acquire {name} EX 600000"));
        waiters(&client, &name, 1).await;
        let second = tokio::spawn(client.lock(&name).ttl(LONG).label("second").acquire());
        waiters(&client, &name, 2).await;
        let third = tokio::spawn(client.lock(&name).ttl(LONG).label("third").acquire());
        waiters(&client, &name, 3).await;
        if kill {
            first.kill();
        } else {
            first.stop();
        }
        let _ = held.release().await.unwrap();
        let second = within(PATIENCE, "the second gets it", second).await.unwrap().unwrap();
        assert!(!third.is_finished(), "the third came before the second left");
        let _ = second.release().await.unwrap();
        let _ = within(PATIENCE, "the third gets it", third).await.unwrap().unwrap().release().await.unwrap();
        if !kill {
            // It has lost its place and nothing else: it gets the lock when it comes to itself.
            first.resume();
            assert!(first.answer().await.starts_with("got"));
            assert_eq!(first.ask(&format!("release {name}")).await, "Released");
        }
    }
}

/// Readers that wait together get in together, and a writer before them is not overtaken by those who come later.
#[tokio::test(flavor = "multi_thread")]
async fn in_a_fair_queue_readers_do_not_overtake_a_writer() {
    let client = connect(&Fair.address()).await;
    let name = "queue/readers";
    let reader = || client.lock(name).shared().ttl(LONG);
    let first = reader().acquire().await.unwrap();
    let writer = tokio::spawn(client.lock(name).ttl(LONG).acquire());
    waiters(&client, name, 1).await;
    assert!(reader().try_acquire().await.unwrap().is_none(), "a reader overtook the writer");
    assert_eq!(client.inspect(name).await.unwrap().holders.len(), 1);
    assert!(first.check().is_ok() && !writer.is_finished(), "the writer was handed a lock that is read");
    let readers: Vec<_> = (0..4).map(|_| tokio::spawn(reader().acquire())).collect();
    waiters(&client, name, 5).await;
    let _ = first.release().await.unwrap();
    let writer = within(PATIENCE, "the writer gets it", writer).await.unwrap().unwrap();
    assert!(readers.iter().all(|reader| !reader.is_finished()));
    let _ = writer.release().await.unwrap();
    let mut together = Vec::new();
    for reader in readers {
        together.push(within(PATIENCE, "the readers get in together", reader).await.unwrap().unwrap());
    }
    assert_eq!(client.inspect(name).await.unwrap().holders.len(), 4);
}

/// A writer that gives up lets those in who waited for it only.
#[tokio::test(flavor = "multi_thread")]
async fn a_writer_that_gives_up_is_in_nobodys_way() {
    let client = connect(&Fair.address()).await;
    let name = "queue/gives-up";
    let first = client.lock(name).shared().ttl(LONG).acquire().await.unwrap();
    let writer = tokio::spawn(client.lock(name).ttl(LONG).acquire());
    waiters(&client, name, 1).await;
    let reader = tokio::spawn(client.lock(name).shared().ttl(LONG).acquire());
    waiters(&client, name, 2).await;
    writer.abort();
    drop(within(PATIENCE, "the reader gets in beside the first", reader).await.unwrap().unwrap());
    assert!(first.check().is_ok());
}

/// In the plain recipe the queue says who is woken. Whoever finds the lock free takes it, and those who wait are not forgotten.
#[tokio::test(flavor = "multi_thread")]
async fn a_newcomer_may_barge_in_and_the_waiter_is_woken_after_it() {
    let client = connect(&Redis::shared().url()).await;
    let name = "queue/barge";
    let held = client.lock(name).ttl(LONG).acquire().await.unwrap();
    let waiting = tokio::spawn(client.lock(name).ttl(LONG).acquire());
    waiters(&client, name, 1).await;
    let mut held = Some(held);
    // It may be the waiter's turn at any time; each of the others lets go, and wakes it.
    for _ in 0..50 {
        if let Some(held) = held.take() {
            let _ = held.release().await.unwrap();
        }
        held = client.lock(name).ttl(LONG).wait(Wait::Try).try_acquire().await.unwrap();
    }
    drop(held);
    drop(within(PATIENCE, "the waiter gets it", waiting).await.unwrap().unwrap());
}

/// Those who wait do not ask Redis all the time.
#[tokio::test(flavor = "multi_thread")]
async fn waiting_costs_redis_next_to_nothing() {
    const WAITERS: usize = 20;
    let redis = Redis::start();
    let client = connect(&redis.url()).await;
    let held = client.lock("a").ttl(LONG).acquire().await.unwrap();
    let wait = || {
        let lock = client.lock("a").ttl(LONG);
        tokio::spawn(async { lock.acquire().await.map(drop) })
    };
    let waiting: Vec<_> = (0..WAITERS).map(|_| wait()).collect();
    eventually("all wait", || redis.command(&["LLEN", "tenure:queue:a"]) == WAITERS.to_string());
    redis.command(&["CONFIG", "RESETSTAT"]);
    // Whatever time passes here: each waiter looks about three times in ten seconds, and a poll of 50 ms would be 200 looks.
    let clock = client.clock();
    let began = clock.now();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let seconds = clock.now().since(began).as_secs_f64();
    #[expect(clippy::cast_precision_loss, reason = "counts of a test are far below 2^52")]
    let each_per_second = redis.calls("evalsha") as f64 / seconds / WAITERS as f64;
    assert!(each_per_second < 2.0, "each waiter asks {each_per_second} times a second");
    drop(held);
    for waiter in waiting {
        within(PATIENCE, "each gets it", waiter).await.unwrap().unwrap();
    }
}

/// One who is told that it must convert waits for nothing any more.
#[tokio::test(flavor = "multi_thread")]
async fn one_who_holds_less_leaves_the_queue() {
    let (first, second) = (connect(&Fair.address()).await, connect(&Fair.address()).await);
    let name = "queue/covered";
    let held = first.lock(name).ttl(LONG).acquire().await.unwrap();
    let owner = first.owner();
    let reader = tokio::spawn(owner.lock(name).shared().ttl(LONG).acquire());
    waiters(&first, name, 1).await;
    let writer = tokio::spawn(second.owner_with_id(owner.id()).lock(name).ttl(LONG).acquire());
    waiters(&first, name, 2).await;
    let _ = held.release().await.unwrap();
    let reader = within(PATIENCE, "the reader gets in", reader).await.unwrap().unwrap();
    let refused = within(PATIENCE, "the writer is told", writer).await.unwrap();
    assert!(matches!(refused, Err(tenure::AcquireError::NotCovered { .. })), "{refused:?}");
    let _ = reader.release().await.unwrap();
    assert!(
        first.lock(name).try_acquire().await.unwrap().is_some(),
        "somebody is in the queue who does not wait"
    );
}

/// A restart with all its data does not change who is next.
#[tokio::test(flavor = "multi_thread")]
async fn a_restart_keeps_the_queue() {
    let mut redis = Redis::builder().persistence(Persistence::AofAlways).start();
    let client = connect(&format!("{}?fair=true", redis.url())).await;
    let held = client.lock("a").ttl(LONG).acquire().await.unwrap();
    let (send, mut order) = tokio::sync::mpsc::unbounded_channel();
    for place in 0..5 {
        let (lock, send) = (client.lock("a").ttl(LONG), send.clone());
        tokio::spawn(async move {
            let guard = lock.acquire().await.unwrap();
            send.send(place).unwrap();
            let _ = guard.release().await.unwrap();
        });
        waiters(&client, "a", place + 1).await;
    }
    redis.restart();
    let _ = held.release().await.unwrap();
    for place in 0..5 {
        assert_eq!(within(PATIENCE, "the next one is served", order.recv()).await, Some(place));
    }
}

/// The entry of a waiter whose client does not hear, and whose place is kept until then (ms).
fn entry_of_nobody(until_ms: u64) -> String {
    let (owner, client) = ("1".repeat(32), "2".repeat(32));
    format!("{until_ms:013} EX {owner} {client} 5000 0 {{}}")
}

/// Those who died in the queue do not stay in it, however long others wait.
#[tokio::test(flavor = "multi_thread")]
async fn the_dead_do_not_pile_up() {
    let redis = Redis::start();
    let client = connect(&redis.url()).await;
    let _held = client.lock("a").ttl(LONG).acquire().await.unwrap();
    let _waits = tokio::spawn(client.lock("a").ttl(LONG).acquire());
    waiters(&client, "a", 1).await;
    for number in 0..40 {
        let dead = format!("{number:032x}");
        redis.command(&["RPUSH", "tenure:queue:a", &dead]);
        redis.command(&["HSET", "tenure:waiters:a", &dead, &entry_of_nobody(1)]);
    }
    eventually("they are gone", || redis.command(&["LLEN", "tenure:queue:a"]) == "1");
}

/// However many of the dead stand before it: whoever comes to wait has a place for as long as it was promised.
#[tokio::test(flavor = "multi_thread")]
async fn a_newcomer_does_not_lose_its_place_with_the_dead_before_it() {
    let redis = Redis::start();
    let client = connect(&redis.url()).await;
    let held = client.lock("a").ttl(LONG).acquire().await.unwrap();
    for number in 0..20 {
        let dead = format!("{number:032x}");
        redis.command(&["RPUSH", "tenure:queue:a", &dead]);
        redis.command(&["HSET", "tenure:waiters:a", &dead, &entry_of_nobody(1)]);
    }
    let keys = ["tenure:queue:a", "tenure:waiters:a"];
    let expire = |in_ms| keys.iter().for_each(|key| drop(redis.command(&["PEXPIRE", key, in_ms])));
    expire("60000");
    let wait = || {
        let waiting = client.lock("a").ttl(LONG).acquire();
        tokio::spawn(async { waiting.await.unwrap().release().await.unwrap() })
    };
    let waiting = wait();
    waiters(&client, "a", 1).await;
    // As it would be if they had last asked some seconds ago.
    expire("9000");
    let another = wait();
    waiters(&client, "a", 2).await;
    for key in keys {
        let left_ms = redis.command(&["PTTL", key]).parse::<i64>().unwrap();
        assert!(left_ms > 9_000, "{key} has {left_ms} ms");
    }
    let _ = held.release().await.unwrap();
    for waits in [waiting, another] {
        let _ = within(PATIENCE, "it gets it", waits).await.unwrap();
    }
}

/// Whoever is passed over keeps its place, but not for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_place_before_one_of_the_releasing_client_is_kept_and_ends() {
    let redis = Redis::start();
    let client = connect(&redis.url()).await;
    let held = client.lock("a").ttl(LONG).acquire().await.unwrap();
    let waiting = tokio::spawn(client.lock("a").ttl(LONG).acquire());
    waiters(&client, "a", 1).await;
    // One whose client does not hear, alone in the queue.
    let deaf = format!("{:032x}", 1);
    redis.command(&["DEL", "tenure:queue:a", "tenure:waiters:a"]);
    redis.command(&["RPUSH", "tenure:queue:a", &deaf]);
    redis.command(&["HSET", "tenure:waiters:a", &deaf, &entry_of_nobody(9_999_999_999_999)]);
    redis.command(&["PEXPIRE", "tenure:queue:a", "20000"]);
    redis.command(&["PEXPIRE", "tenure:waiters:a", "20000"]);
    let _ = held.release().await.unwrap();
    assert_eq!(redis.command(&["LINDEX", "tenure:queue:a", "0"]), deaf);
    assert_ne!(redis.command(&["PTTL", "tenure:queue:a"]), "-1", "it stays for ever");
    let _ = within(PATIENCE, "the waiter gets it", waiting).await.unwrap().unwrap().release().await.unwrap();
}

/// A queue that is lost is formed again: nobody stands beside it for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_queue_that_is_lost_is_formed_again() {
    let redis = Redis::start();
    let client = connect(&format!("{}?fair=true", redis.url())).await;
    let held = client.lock("a").ttl(LONG).acquire().await.unwrap();
    let waiting = [1, 2].map(|_| {
        let waiting = client.lock("a").ttl(LONG).acquire();
        tokio::spawn(async { waiting.await.unwrap().release().await.unwrap() })
    });
    waiters(&client, "a", 2).await;
    redis.command(&["DEL", "tenure:queue:a"]);
    waiters(&client, "a", 2).await;
    assert!(redis.command(&["PTTL", "tenure:queue:a"]).parse::<i64>().unwrap() > 0, "it stays");
    let _ = held.release().await.unwrap();
    for waits in waiting {
        let _ = within(PATIENCE, "both get it", waits).await.unwrap();
    }
    assert_eq!(redis.command(&["EXISTS", "a", "tenure:queue:a", "tenure:waiters:a"]), "0");
}

/// A lock that was handed over is like any other: its holder is seen, its token is the larger one, and it lives as long as was asked for.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_handed_over_is_a_whole_one() {
    let redis = Redis::start();
    let client = connect(&redis.url()).await;
    let held = client.lock("a").ttl(LONG).acquire().await.unwrap();
    let waiting = tokio::spawn(client.lock("a").ttl(LONG).label("the next").acquire());
    waiters(&client, "a", 1).await;
    // As after a failover to a replica that has not seen the last grants.
    redis.command(&["DEL", "tenure:sequence"]);
    redis.command(&["XADD", "tenure:sequence", "MAXLEN", "0", "1000000000000-1", "t", "1"]);
    let before = held.token().unwrap();
    let _ = held.release().await.unwrap();
    let next = within(PATIENCE, "the next one gets it", waiting).await.unwrap().unwrap();
    assert!(next.token().unwrap() > before, "{:?} is not above {before:?}", next.token());
    let seen = client.inspect("a").await.unwrap();
    assert_eq!(seen.holders.len(), 1);
    assert_eq!((seen.holders[0].token, seen.holders[0].label.as_deref()), (next.token(), Some("the next")));
    assert!(seen.waiters.is_empty());
    let left_ms = || redis.command(&["PTTL", "a"]).parse::<u128>().unwrap();
    eventually("it is renewed", || left_ms() > LONG.as_millis() / 2);
    assert!(next.check().is_ok());
    let _ = next.release().await.unwrap();
    assert_eq!(redis.command(&["EXISTS", "a"]), "0");
}

/// A lease that nobody renews is not made of a short one.
#[tokio::test(flavor = "multi_thread")]
async fn a_fixed_lease_is_not_shorter_for_one_who_waited() {
    let redis = Redis::start();
    let client = connect(&redis.url()).await;
    let held = client.lock("a").ttl(LONG).acquire().await.unwrap();
    let waiting = tokio::spawn(client.lock("a").ttl(LONG).renew(false).acquire());
    waiters(&client, "a", 1).await;
    let _ = held.release().await.unwrap();
    let next = within(PATIENCE, "the next one gets it", waiting).await.unwrap().unwrap();
    let left_ms = redis.command(&["PTTL", "a"]).parse::<u128>().unwrap();
    assert!(left_ms > LONG.as_millis() / 2, "{left_ms} ms are left");
    assert!(next.check().is_ok());
}

/// What is published may be old, or come from whoever may publish: only what answers the last request is a grant.
#[tokio::test(flavor = "multi_thread")]
async fn a_message_of_another_time_is_no_grant() {
    let redis = Redis::start();
    let client = connect(&redis.url()).await;
    let held = client.lock("a").ttl(LONG).acquire().await.unwrap();
    let waiting = tokio::spawn(client.lock("a").ttl(LONG).acquire());
    waiters(&client, "a", 1).await;
    let grant = redis.command(&["LINDEX", "tenure:queue:a", "0"]);
    let entry = || redis.command(&["HGET", "tenure:waiters:a", &grant]);
    let before = entry();
    let mut words = before.split(' ');
    let channel = format!("tenure:wake:{}", words.nth(3).unwrap());
    let stamp: u64 = words.nth(1).unwrap().parse().unwrap();
    let earlier = format!("{grant} 9000000000000000 {} 5000", stamp - 1);
    assert_eq!(redis.command(&["PUBLISH", &channel, &earlier]), "1");
    eventually("it asks", || entry() != before);
    assert!(!waiting.is_finished(), "two hold");
    let before = held.token();
    let _ = held.release().await.unwrap();
    let next = within(PATIENCE, "the next one gets it", waiting).await.unwrap().unwrap();
    assert!(next.token() > before && next.token().unwrap().get() < 9_000_000_000_000_000);
}

/// While it waits for another program's lock, the first in line looks more often than the others. If it goes away, the next one does.
#[tokio::test(flavor = "multi_thread")]
async fn when_the_first_in_line_gives_up_the_next_one_looks_at_a_foreign_lock() {
    let redis = Redis::start();
    let client = connect(&redis.url()).await;
    redis.command(&["SET", "a", "another program's"]);
    let first = tokio::spawn(client.lock("a").ttl(LONG).acquire());
    waiters(&client, "a", 1).await;
    let second = tokio::spawn(client.lock("a").ttl(LONG).acquire());
    waiters(&client, "a", 2).await;
    let grant = redis.command(&["LINDEX", "tenure:queue:a", "1"]);
    let messages = redis.calls("publish");
    first.abort();
    waiters(&client, "a", 1).await;
    assert_eq!(redis.command(&["LINDEX", "tenure:queue:a", "0"]), grant);
    assert_eq!(redis.calls("publish"), messages + 1, "the next one is told that it is first");
    redis.command(&["DEL", "a"]);
    drop(within(PATIENCE, "the next one gets it", second).await.unwrap().unwrap());
}

/// The same if the first in line was killed: its place ends when it has not asked again for a while.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_waiter_does_not_stay_first_in_line_for_a_foreign_lock() {
    let redis = Redis::start();
    let client = connect(&redis.url()).await;
    redis.command(&["SET", "a", "another program's"]);
    let waiting = tokio::spawn(client.lock("a").ttl(LONG).acquire());
    waiters(&client, "a", 1).await;
    let (dead, grant) = (format!("{:032x}", 1), redis.command(&["LINDEX", "tenure:queue:a", "0"]));
    redis.command(&["HSET", "tenure:waiters:a", &dead, &entry_of_nobody(1)]);
    redis.command(&["LPUSH", "tenure:queue:a", &dead]);
    eventually("the other one is first", || redis.command(&["LINDEX", "tenure:queue:a", "0"]) == grant);
    redis.command(&["DEL", "a"]);
    drop(within(PATIENCE, "it gets it", waiting).await.unwrap().unwrap());
}

/// When a lock has been handed on for long enough, it is free for a moment: for other programs, and for requests that do not wait.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_was_handed_on_for_long_is_offered_to_others_and_then_to_the_first_in_line() {
    for fair in [false, true] {
        let redis = Redis::start();
        let client = connect(&format!("{}?fair={fair}", redis.url())).await;
        let other = connect(&redis.url()).await;
        let held = client.lock("a").ttl(LONG).acquire().await.unwrap();
        let second = tokio::spawn(client.lock("a").ttl(LONG).acquire());
        waiters(&client, "a", 1).await;
        let _ = held.release().await.unwrap();
        let second = within(PATIENCE, "the second gets it", second).await.unwrap().unwrap();
        let third = tokio::spawn(client.lock("a").ttl(LONG).acquire());
        waiters(&client, "a", 1).await;
        // As it would be after some seconds.
        let text = redis.command(&["GET", "a"]);
        let (before, after) =
            text.split_once("{\"yields_at\":").expect("a lock that was handed over says it");
        let (_, after) = after.split_once(',').unwrap();
        redis.command(&["SET", "a", &format!("{before}{{\"yields_at\":1,{after}"), "KEEPTTL"]);
        let messages = redis.calls("publish");
        let _ = second.release().await.unwrap();
        assert_eq!(redis.calls("publish"), messages + 1, "the first in line is told when to come");
        // The offer lasts until the test ends it, or is over already on a slow machine.
        if redis.command(&["SET", "tenure:next:a", "*", "XX", "PX", "600000"]) == "OK"
            && redis.command(&["EXISTS", "a"]) == "0"
        {
            let comes = tokio::spawn(client.lock("a").ttl(LONG).acquire());
            waiters(&client, "a", 2).await;
            assert!(!comes.is_finished() && !third.is_finished(), "a request that waits has taken it");
            let tried = other.lock("a").try_acquire().await.unwrap().expect("it is free for others");
            let _ = tried.release().await.unwrap();
            match client.lock("a").try_acquire().await.unwrap() {
                Some(_) if fair => panic!("with `fair`, it came before the first in line"),
                Some(tried) => drop(tried.release().await.unwrap()),
                None => assert!(fair, "it is free for others"),
            }
            assert_eq!(redis.command(&["SET", "a", "another program's", "NX"]), "OK");
            redis.command(&["DEL", "a", "tenure:next:a"]);
            let third = within(PATIENCE, "the first in line gets it", third).await.unwrap().unwrap();
            assert!(!comes.is_finished(), "two have it");
            let _ = third.release().await.unwrap();
            let _ = within(PATIENCE, "the next one gets it", comes)
                .await
                .unwrap()
                .unwrap()
                .release()
                .await
                .unwrap();
        } else {
            let _ = within(PATIENCE, "the first in line gets it", third)
                .await
                .unwrap()
                .unwrap()
                .release()
                .await
                .unwrap();
        }
        assert_eq!(redis.command(&["EXISTS", "a", "tenure:queue:a", "tenure:waiters:a"]), "0");
    }
}
