//! What happens when etcd is not as it should be: each either works, or says what is wrong.

use std::time::Duration;

use tenure::contract::{eventually, within};
use tenure::{AcquireError, Client, ConnectError, EngineError, Guard, GuardState, LostReason, Release, Wait};
use tenure_testkit::{Etcd, Proxy};

use crate::{LONG, PATIENCE, connect, refusal, waiters};

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_costs_nothing() {
    let mut etcd = Etcd::start();
    // It may be away for longer than requests usually wait.
    let client = connect(&format!("{}?timeout_ms=60000", etcd.url())).await;
    let guard = client.lock("a").ttl(Duration::from_mins(1)).acquire().await.unwrap();
    guard.set_value("kept").await.unwrap();
    let waiting = tokio::spawn(client.lock("a").ttl(LONG).acquire());
    waiters(&client, "a", 1).await;
    etcd.kill();
    etcd.restart();
    assert!(guard.check().is_ok());
    assert!(!waiting.is_finished());
    let token = guard.token();
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    let next = within(PATIENCE, "the waiter gets it", waiting).await.unwrap().unwrap();
    assert!(next.token() > token);
    assert_eq!(next.value().bytes, "kept");
    assert!(!next.value().in_doubt);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_etcd_that_is_gone_is_said_to_be() {
    let mut etcd = Etcd::start();
    let url = format!("{}?timeout_ms=3000", etcd.url());
    let client = connect(&url).await;
    let guard = client.lock("a").ttl(Duration::from_secs(6)).acquire().await.unwrap();
    etcd.kill();
    let error = client.lock("b").wait(Wait::Try).acquire().await.unwrap_err();
    assert!(matches!(error, AcquireError::Engine(EngineError::Unreachable { .. })), "{error:?}");
    assert!(error.to_string().contains(&etcd.addr().to_string()), "where it looked: {error}");
    assert!(client.inspect("a").await.is_err());
    eventually(PATIENCE, "the holder is in danger", async || {
        matches!(guard.state(), GuardState::Jeopardy { .. } | GuardState::Lost(_))
    })
    .await;
    assert_eq!(within(PATIENCE, "it is lost", guard.lost()).await, LostReason::Expired);
    let connected = Client::connect(&url).await.unwrap_err();
    assert!(matches!(connected, ConnectError::Engine(EngineError::Unreachable { .. })), "{connected:?}");
}

/// The watch is begun again where it was, and that was compacted meanwhile: whoever waits finds out by itself.
#[tokio::test(flavor = "multi_thread")]
async fn a_compaction_during_a_wait_costs_nobody_the_lock() {
    let etcd = Etcd::start();
    let network = Proxy::to(etcd.addr());
    let (holder, client) = (connect(&etcd.url()).await, connect(&format!("etcd://{}", network.addr())).await);
    let guard = holder.lock("a").ttl(LONG).acquire().await.unwrap();
    let waiting = tokio::spawn(client.lock("a").ttl(LONG).acquire());
    waiters(&holder, "a", 1).await;
    for turn in 0..3 {
        for number in 0..10 {
            etcd.ctl(&["put", "other", &format!("{turn} {number}")]);
        }
        let now: i64 = revision(&etcd);
        etcd.ctl(&["compact", &now.to_string(), "--physical"]);
        network.sever();
        // It watches again, from what is compacted, and is refused: then it looks.
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert!(!waiting.is_finished(), "it neither gives up nor comes in");
    }
    let _ = guard.release().await.unwrap();
    drop(within(PATIENCE, "the waiter gets it", waiting).await.unwrap().unwrap());
}

/// The revision of the last change.
fn revision(etcd: &Etcd) -> i64 {
    let answer = etcd.ctl(&["get", "other", "-w", "json"]);
    let (_, rest) = answer.split_once("\"mod_revision\":").expect("the key is there");
    rest.split(',').next().and_then(|number| number.parse().ok()).expect("a revision is a number")
}

/// The lease of whoever is called so, which is that of its key.
fn lease_of(etcd: &Etcd, key: &str) -> String {
    let answer = etcd.ctl(&["get", "--prefix", key, "-w", "json"]);
    let (_, rest) = answer.split_once("\"lease\":").unwrap_or_else(|| panic!("no lease: {answer}"));
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    format!("{:x}", digits.parse::<i64>().expect("a lease is a number"))
}

fn key_of(guard: &Guard) -> String {
    format!("{}/{}", guard.name(), guard.grant())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_somebody_revokes_is_told_to_its_holders() {
    let etcd = Etcd::start();
    let (client, other) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let held = client.lock("a").ttl(Duration::from_secs(9)).acquire().await.unwrap();
    let beside = client.lock("b").ttl(Duration::from_secs(9)).acquire().await.unwrap();
    let waiting = tokio::spawn(other.lock("a").ttl(LONG).acquire());
    waiters(&client, "a", 1).await;
    etcd.ctl(&["lease", "revoke", &lease_of(&etcd, &key_of(&held))]);
    let next = within(PATIENCE, "the next one gets it", waiting).await.unwrap().unwrap();
    assert!(next.token() > held.token(), "storage that compares tokens refuses the first");
    for guard in [held, beside] {
        let lost = within(PATIENCE, "the holder is told", guard.lost()).await;
        assert!(matches!(lost, LostReason::Forgotten | LostReason::Disconnected), "{lost:?}");
        assert_eq!(guard.release().await.unwrap(), Release::AlreadyLost(lost));
    }
    assert!(next.check().is_ok());
    assert!(client.lock("a").try_acquire().await.unwrap().is_none());
    // And the client has a new lease.
    drop(client.lock("b").ttl(Duration::from_secs(9)).acquire().await.unwrap());
}

/// The flaw that Jepsen found in 2020: whoever waited looked only at those before it, and came in although its own lease had ended. Here it is
/// cut off while its lease is revoked, the one before it leaves, and another comes in. When it hears of all this, it must not come in too.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_lease_was_revoked_does_not_come_in_by_its_old_key() {
    let etcd = Etcd::start();
    let network = Proxy::to(etcd.addr());
    let first = connect(&etcd.url()).await;
    let cut_off = connect(&format!("etcd://{}?timeout_ms=60000", network.addr())).await;
    let held = first.lock("a").ttl(LONG).acquire().await.unwrap();
    let mut waiting = tokio::spawn(cut_off.lock("a").label("cut off").ttl(LONG).acquire());
    waiters(&first, "a", 1).await;
    let waiter = first.inspect("a").await.unwrap().waiters.remove(0);
    let lease = lease_of(&etcd, &format!("a/{}", waiter.grant));
    network.cut();
    etcd.ctl(&["lease", "revoke", &lease]);
    let token = held.token();
    let _ = held.release().await.unwrap();
    let next = first.lock("a").ttl(LONG).wait(Wait::Try).acquire().await.unwrap();
    assert!(next.token() > token);
    // Now it hears that the one is gone for which it waited.
    network.heal();
    eventually(PATIENCE, "it queues again", async || {
        assert!(!waiting.is_finished(), "two are in");
        first.inspect("a").await.is_ok_and(|info| info.waiters.len() == 1)
    })
    .await;
    assert!(tokio::time::timeout(Duration::from_secs(1), &mut waiting).await.is_err(), "two are in");
    let again = first.inspect("a").await.unwrap().waiters.remove(0);
    assert_eq!((again.grant, again.label.as_deref()), (waiter.grant, Some("cut off")), "it queues again");
    let token = next.token();
    let _ = next.release().await.unwrap();
    let late = within(PATIENCE, "it gets it when its turn comes", waiting).await.unwrap().unwrap();
    assert!(late.token() > token, "{:?} after {token:?}", late.token());
}

/// The same, where its turn has come just when its lease ends: the key by which it would hold is gone.
#[tokio::test(flavor = "multi_thread")]
async fn who_loses_its_place_queues_again() {
    let etcd = Etcd::start();
    let (first, second) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let held = first.lock("a").ttl(LONG).acquire().await.unwrap();
    let waiting = tokio::spawn(second.lock("a").ttl(Duration::from_secs(9)).acquire());
    waiters(&first, "a", 1).await;
    let waiter = first.inspect("a").await.unwrap().waiters.remove(0);
    etcd.ctl(&["lease", "revoke", &lease_of(&etcd, &format!("a/{}", waiter.grant))]);
    // It may be there again already.
    waiters(&first, "a", 1).await;
    let _ = held.release().await.unwrap();
    let next = within(PATIENCE, "it gets it", waiting).await.unwrap().unwrap();
    let holders = first.inspect("a").await.unwrap().holders;
    assert_eq!((holders.len(), holders[0].grant, holders[0].token), (1, next.grant(), next.token()));
}

/// Somebody deletes the key of a holder: the next one comes in, and the holder is told when it next renews.
#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_somebody_deletes_is_told_to_its_holder() {
    let etcd = Etcd::start();
    let client = connect(&etcd.url()).await;
    let held = client.lock("a").ttl(Duration::from_secs(6)).acquire().await.unwrap();
    etcd.ctl(&["del", "--prefix", &key_of(&held)]);
    assert_eq!(within(PATIENCE, "it is told", held.lost()).await, LostReason::Forgotten);
    drop(client.lock("a").acquire().await.unwrap());
}

/// The release is done and its answer lost: that is no lost lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_whose_answer_is_lost_has_released() {
    let etcd = Etcd::start();
    let network = Proxy::to(etcd.addr());
    let (client, other) = (connect(&format!("etcd://{}", network.addr())).await, connect(&etcd.url()).await);
    let guard = client.lock("a").ttl(LONG).acquire().await.unwrap();
    network.drop_answers(true);
    let releasing = tokio::spawn(guard.release());
    eventually(PATIENCE, "it is freed", async || other.inspect("a").await.unwrap().holders.is_empty()).await;
    network.drop_answers(false);
    assert_eq!(releasing.await.unwrap().unwrap(), Release::Released);
}

/// The database is full: nothing new is granted, and that is said. What is held is kept alive, and can be released.
#[tokio::test(flavor = "multi_thread")]
async fn a_full_database_is_said_and_what_is_held_is_kept_and_released() {
    let etcd = Etcd::builder().args(["--quota-backend-bytes=2000000"]).start();
    let client = connect(&etcd.url()).await;
    let guard = client.lock("a").ttl(Duration::from_secs(6)).acquire().await.unwrap();
    let valued = client.lock("valued").ttl(Duration::from_secs(6)).acquire().await.unwrap();
    valued.set_value("kept").await.unwrap();
    let large = "x".repeat(100_000);
    let filled = (0..100).find_map(|number| etcd.try_ctl(&["put", &format!("large {number}"), &large]).err());
    assert!(filled.is_some_and(|error| error.contains("space")));
    let refused = client.lock("b").acquire().await.unwrap_err();
    assert!(matches!(refused, AcquireError::Engine(EngineError::Refused { .. })), "{refused:?}");
    assert!(refused.to_string().contains("full"), "{refused}");
    let deadline = guard.deadline();
    eventually(PATIENCE, "it is renewed all the same", async || guard.deadline() > deadline).await;
    assert!(valued.set_value("new").await.unwrap_err().to_string().contains("full"));
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    assert_eq!(valued.release().await.unwrap(), Release::Released);
    let info = client.inspect("valued").await.unwrap();
    assert!(info.holders.is_empty());
    assert_eq!(info.value.bytes, "kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_etcd_is_refused_with_a_word() {
    // Nobody listens there.
    let nobody = format!("etcd://127.0.0.1:{}?timeout_ms=1000", tenure_testkit::free_port());
    let refused = refusal(&nobody).await;
    assert_eq!(refused.matches("onnection refused").count(), 1, "{refused}");
    let redis = tenure_testkit::Redis::start();
    let refused = refusal(&format!("etcd://{}?timeout_ms=2000", redis.addr())).await;
    assert!(refused.contains(&redis.addr().to_string()), "{refused}");
    let listens = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("etcd://{}?timeout_ms=1000", listens.local_addr().unwrap());
    assert!(refusal(&silent).await.contains("did not answer"), "{}", refusal(&silent).await);
}

/// Well before the time limit, since no other member can be asked.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_does_not_exist_is_reported_at_once() {
    let url = "etcd://nowhere.invalid?timeout_ms=60000";
    let refused = tokio::time::timeout(Duration::from_secs(30), Client::connect(url));
    let error = refused.await.expect("it is said before the time limit").unwrap_err();
    assert!(matches!(error, ConnectError::Engine(EngineError::NotFound { .. })), "{error:?}");
    let text = error.to_string();
    assert!(text.contains("nowhere.invalid:2379"), "{text}");
    assert_eq!(text.matches("lookup").count(), 1, "{text}");
}

/// An acquire that nobody polls any more holds up no other on its runtime.
#[test]
fn an_acquire_that_is_not_polled_is_in_nobodys_way() {
    let etcd = Etcd::start();
    let client = tenure::blocking::Client::connect(&etcd.url()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut first = Box::pin(client.as_async().lock("a").acquire());
        assert!(futures_util::poll!(&mut first).is_pending(), "it needs a lease");
        drop(client.as_async().lock("b").wait(Wait::Try).acquire().await.unwrap());
        drop(first.await.unwrap());
    });
}

/// A runtime that has neither I/O nor timers can lock all the same, and wait: the client's own does all that.
#[test]
fn a_runtime_without_drivers_can_lock() {
    let etcd = Etcd::start();
    let client = tenure::blocking::Client::connect(&etcd.url()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let guard = client.as_async().lock("a").acquire().await.unwrap();
        assert!(client.as_async().lock("a").try_acquire().await.unwrap().is_none());
        let waits = client.as_async().lock("a").wait(Wait::For(Duration::from_millis(200)));
        assert!(matches!(waits.acquire().await, Err(AcquireError::TimedOut { .. })));
        guard.set_value("x").await.unwrap();
        let _ = guard.release().await.unwrap();
    });
}

/// A program that drops an acquire at any moment and closes its client leaves neither a holder nor a waiter.
#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_acquire_is_undone_when_the_client_is_closed() {
    let etcd = Etcd::start();
    let other = connect(&etcd.url()).await;
    for is_held in [false, true] {
        let held = if is_held { Some(other.lock("a").ttl(LONG).acquire().await.unwrap()) } else { None };
        for step in 0..40 {
            let client = connect(&etcd.url()).await;
            let after = Duration::from_micros(250) * step;
            let _ = tokio::time::timeout(after, client.lock("a").acquire()).await;
            client.close().await.unwrap();
            let info = other.inspect("a").await.unwrap();
            let left = (info.holders.len(), info.waiters.len());
            assert_eq!(left, (usize::from(is_held), 0), "dropped after {after:?}: {info:?}");
        }
        drop(held);
    }
}
