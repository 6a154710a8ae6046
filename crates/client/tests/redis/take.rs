//! Locks that are taken without a script: nothing is missing of them, and nothing is left of what could not be finished.

use std::time::Duration;

use tenure::contract::within;
use tenure::{AcquireError, Wait};
use tenure_testkit::{Redis, eventually};

use crate::{LONG, connect};

/// How long anything may take on a slow machine.
const PATIENCE: Duration = Duration::from_mins(2);

#[tokio::test(flavor = "multi_thread")]
async fn a_free_lock_costs_no_script_and_its_token_is_soon_written_down() {
    let redis = Redis::start();
    let client = connect(&redis.url()).await;
    // The connection has its first script behind it.
    let _ = client.lock("a").acquire().await.unwrap().release().await.unwrap();
    let before = redis.calls("evalsha");
    let held = client.lock("a").ttl(LONG).acquire().await.unwrap();
    assert_eq!(redis.calls("evalsha"), before);
    let token = held.token().unwrap();
    eventually("it is written down", || redis.command(&["GET", "a"]).contains(&format!(" {token} EX ")));
    assert!(redis.command(&["PTTL", "a"]).parse::<u128>().unwrap() > LONG.as_millis() / 2);
    let _ = held.release().await.unwrap();
}

/// Who looks in the first moments sees the token all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_young_lock_is_seen_with_its_token() {
    let redis = Redis::start();
    let client = connect(&redis.url()).await;
    for _ in 0..20 {
        let held = client.lock("a").acquire().await.unwrap();
        assert_eq!(client.inspect("a").await.unwrap().holders[0].token, held.token());
        let _ = held.release().await.unwrap();
    }
}

/// Redis has forgotten the sequence, and nobody connects anew.
#[tokio::test(flavor = "multi_thread")]
async fn a_sequence_that_is_gone_starts_again_at_the_date() {
    let redis = Redis::start();
    let client = connect(&redis.url()).await;
    let first = client.lock("a").acquire().await.unwrap();
    // Within the same millisecond, it would begin with the same token.
    let date_ms = || {
        let date = redis.command(&["TIME"]);
        let (seconds, micros) = date.split_once('\n').unwrap();
        seconds.trim().parse::<u64>().unwrap() * 1000 + micros.trim().parse::<u64>().unwrap() / 1000
    };
    let given_ms = first.token().unwrap().get() / 1000;
    eventually("that millisecond is over", || date_ms() > given_ms);
    redis.command(&["DEL", "tenure:sequence"]);
    let other = client.lock("b").acquire().await.unwrap();
    assert!(other.token() > first.token());
}

/// The date of Redis was set back by years, so the last ID is ahead of it: tokens rise by one, beyond a thousand of one millisecond too.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_rise_while_the_sequence_is_ahead_of_the_date() {
    const AHEAD_MS: u64 = 4_000_000_000_000;
    let redis = Redis::start();
    let client = connect(&redis.url()).await;
    let last = format!("{AHEAD_MS}-990");
    redis.command(&["XADD", "tenure:sequence", "MAXLEN", "0", &last, "t", "1"]);
    for wait in [Wait::Forever, Wait::Try] {
        let mut before = None;
        for _ in 0..1_020 {
            let guard = client.lock("a").wait(wait).acquire().await.unwrap();
            assert!(guard.token() > before, "{:?} after {before:?}", guard.token());
            before = guard.token();
            let _ = guard.release().await.unwrap();
        }
        let token = before.unwrap().get();
        assert!((AHEAD_MS * 1000..(AHEAD_MS + 5) * 1000).contains(&token), "{token}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_taken_and_cannot_be_counted_is_given_back() {
    let redis = Redis::start();
    let client = connect(&redis.url()).await;
    let _ = client.lock("a").acquire().await.unwrap().release().await.unwrap();
    redis.command(&["DEL", "tenure:sequence"]);
    redis.command(&["RPUSH", "tenure:sequence", "no stream"]);
    let error = client.lock("a").acquire().await.unwrap_err();
    assert!(matches!(error, AcquireError::Engine(_)), "{error:?}");
    eventually("it is free", || redis.command(&["EXISTS", "a"]) == "0");
}

/// A lock that was freed for one who was told to ask is not taken by a newcomer who finds it free.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_kept_for_another_is_given_back() {
    let redis = Redis::start();
    let client = connect(&redis.url()).await;
    redis.command(&["SET", "tenure:next:a", "0123456789abcdef0123456789abcdef", "PX", "600000"]);
    let newcomer = client.lock("a").wait(Wait::For(Duration::from_millis(300))).acquire().await;
    assert!(matches!(newcomer, Err(AcquireError::TimedOut { .. })), "{newcomer:?}");
    assert_eq!(redis.command(&["EXISTS", "a"]), "0");
    redis.command(&["DEL", "tenure:next:a"]);
    drop(within(PATIENCE, "it is free", client.lock("a").acquire()).await.unwrap());
}

/// What is for those of the client that releases comes with the answer; the others are told by a message.
#[tokio::test(flavor = "multi_thread")]
async fn who_waits_beside_the_one_who_releases_needs_no_message() {
    let redis = Redis::start();
    let (client, other) = (connect(&redis.url()).await, connect(&redis.url()).await);
    let queued = |count: &str| {
        eventually("they wait", || redis.command(&["LLEN", "tenure:queue:a"]) == count);
    };
    let held = client.lock("a").ttl(LONG).acquire().await.unwrap();
    let beside = tokio::spawn(client.lock("a").ttl(LONG).acquire());
    queued("1");
    let elsewhere = tokio::spawn(other.lock("a").ttl(LONG).acquire());
    queued("2");
    let before = redis.calls("publish");
    let _ = held.release().await.unwrap();
    let beside = within(PATIENCE, "the first gets it", beside).await.unwrap().unwrap();
    assert_eq!(redis.calls("publish"), before);
    let _ = beside.release().await.unwrap();
    drop(within(PATIENCE, "the second gets it", elsewhere).await.unwrap().unwrap());
    assert_eq!(redis.calls("publish"), before + 1);
}

/// What the text of a lock says of more that there may be to it.
#[derive(Debug, PartialEq, Eq)]
enum Mark {
    Nothing,
    /// Somebody may wait.
    Waiters,
    /// And it may have a value.
    Value,
}

fn mark(redis: &Redis, key: &str) -> Mark {
    let text = redis.command(&["GET", key]);
    match text.len() - text.trim_end().len() {
        0 => Mark::Nothing,
        1 => Mark::Waiters,
        _ => Mark::Value,
    }
}

/// A release looks for those who wait, and for a value, only if somebody has said that there may be such.
#[tokio::test(flavor = "multi_thread")]
async fn who_comes_to_wait_or_writes_a_value_leaves_a_mark() {
    let redis = Redis::start();
    let (client, other) = (connect(&redis.url()).await, connect(&redis.url()).await);
    let held = client.lock("a").ttl(LONG).acquire().await.unwrap();
    assert_eq!(mark(&redis, "a"), Mark::Nothing);
    let looks = redis.calls("exists");
    let _ = held.release().await.unwrap();
    assert_eq!(redis.calls("exists"), looks);

    let held = client.lock("a").ttl(LONG).acquire().await.unwrap();
    let waiting = tokio::spawn(other.lock("a").ttl(LONG).acquire());
    eventually("it waits", || redis.command(&["LLEN", "tenure:queue:a"]) == "1");
    assert_eq!(mark(&redis, "a"), Mark::Waiters);
    assert!(redis.command(&["PTTL", "a"]).parse::<u128>().unwrap() > LONG.as_millis() / 2);
    let messages = redis.calls("publish");
    let _ = held.release().await.unwrap();
    let held = within(PATIENCE, "it gets it", waiting).await.unwrap().unwrap();
    assert_eq!(redis.calls("publish"), messages + 1);
    let _ = held.release().await.unwrap();

    let held = client.lock("b").ttl(LONG).acquire().await.unwrap();
    held.set_value("what was written").await.unwrap();
    assert_eq!(mark(&redis, "b"), Mark::Value);
    let _ = held.release().await.unwrap();
    let value = other.lock("b").acquire().await.unwrap().value();
    assert_eq!((&*value.bytes, value.in_doubt), (&b"what was written"[..], false));
}

/// Who waits beside the one who writes is not handed the lock without what was written.
#[tokio::test(flavor = "multi_thread")]
async fn who_waits_beside_one_who_writes_gets_the_value() {
    let redis = Redis::start();
    let client = connect(&redis.url()).await;
    let held = client.lock("a").ttl(LONG).acquire().await.unwrap();
    let waiting = tokio::spawn(client.lock("a").ttl(LONG).acquire());
    eventually("it waits", || redis.command(&["LLEN", "tenure:queue:a"]) == "1");
    assert_eq!(mark(&redis, "a"), Mark::Waiters);
    held.set_value("what was written").await.unwrap();
    assert_eq!(mark(&redis, "a"), Mark::Value);
    let _ = held.release().await.unwrap();
    let next = within(PATIENCE, "it gets it", waiting).await.unwrap().unwrap();
    assert_eq!(&*next.value().bytes, b"what was written");
    assert_eq!(mark(&redis, "a"), Mark::Value);
}

/// A newcomer who takes what a dead one held tells those who were there before it when it lets go.
#[tokio::test(flavor = "multi_thread")]
async fn who_takes_a_lock_that_others_wait_for_leaves_a_mark() {
    let redis = Redis::start();
    let client = connect(&redis.url()).await;
    redis.command(&["RPUSH", "tenure:queue:a", "0123456789abcdef0123456789abcdef"]);
    let held = client.lock("a").ttl(LONG).acquire().await.unwrap();
    assert_eq!(mark(&redis, "a"), Mark::Value);
    let _ = held.release().await.unwrap();
    // It looked, and found one whose time is over.
    assert_eq!(redis.command(&["EXISTS", "tenure:queue:a"]), "0");
}
