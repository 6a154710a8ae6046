//! Three members, of which one or two fail.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure::clock::BootTime;
use tenure::contract::{Inside, eventually, within};
use tenure::{AcquireError, EngineError, Release, Wait};
use tenure_testkit::{Etcd, EtcdCluster, Proxy};

use crate::{LONG, PATIENCE, connect, waiters};

/// The leader is killed, again and again, while many increment a counter that only the lock protects: nothing is lost, and all get their
/// turns.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_killed_costs_no_increment_and_no_waiter() {
    const TASKS: usize = 12;
    const KILLS: usize = 3;
    let mut cluster = EtcdCluster::start();
    let folder = tempfile::tempdir().unwrap();
    let inside = Arc::new(Inside::new(folder.path()));
    let enough = Arc::new(AtomicBool::new(false));
    let url = format!("{}?timeout_ms=60000", cluster.url());
    let mut tasks = Vec::new();
    for _ in 0..TASKS {
        let (client, inside, enough) = (connect(&url).await, inside.clone(), enough.clone());
        tasks.push(tokio::spawn(async move {
            let mut done = 0_u64;
            while !enough.load(Ordering::Relaxed) {
                let guard = client.lock("a").ttl(Duration::from_mins(1)).acquire().await.unwrap();
                inside.increment(Duration::ZERO).unwrap();
                done += 1;
                assert_eq!(guard.release().await.unwrap(), Release::Released);
            }
            done
        }));
    }
    for _ in 0..KILLS {
        let before = inside.count();
        eventually(PATIENCE, "it goes on", async || inside.count() > before + 20).await;
        let leader = cluster.leader();
        cluster.member_mut(leader).kill();
        let before = inside.count();
        eventually(PATIENCE, "it goes on without that one", async || inside.count() > before + 20).await;
        cluster.member_mut(leader).restart();
        cluster.wait_until_all_serve();
    }
    enough.store(true, Ordering::Relaxed);
    let mut told = 0;
    for task in tasks {
        told += within(PATIENCE, "all get their turns", task).await.unwrap();
    }
    assert_eq!(inside.count(), told);
    let client = connect(&url).await;
    let info = client.inspect("a").await.unwrap();
    assert!(info.holders.is_empty() && info.waiters.is_empty(), "{info:?}");
}

/// A holder and a waiter outlast the death of the leader, whichever member they speak to.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_and_a_waiter_outlast_the_leader() {
    let mut cluster = EtcdCluster::start();
    let url = format!("{}?timeout_ms=20000", cluster.url());
    let (holder, client) = (connect(&url).await, connect(&url).await);
    let guard = holder.lock("a").ttl(Duration::from_secs(20)).acquire().await.unwrap();
    guard.set_value("kept").await.unwrap();
    let waiting = tokio::spawn(client.lock("a").ttl(LONG).acquire());
    waiters(&holder, "a", 1).await;
    let leader = cluster.leader();
    cluster.member_mut(leader).kill();
    let killed = guard.deadline();
    eventually(PATIENCE, "it is renewed", async || guard.deadline() > killed).await;
    assert!(!waiting.is_finished());
    let token = guard.token();
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    let next = within(PATIENCE, "the waiter gets it", waiting).await.unwrap().unwrap();
    assert!(next.token() > token);
    assert_eq!((&*next.value().bytes, next.value().in_doubt), (&b"kept"[..], false));
}

/// Without a majority nothing is granted, and that is said in time. With one again, it goes on.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_majority_it_is_said_and_with_one_it_goes_on() {
    let mut cluster = EtcdCluster::start();
    let client = connect(&format!("{}?timeout_ms=4000", cluster.url())).await;
    let _ = client.lock("a").acquire().await.unwrap().release().await.unwrap();
    let guard = client.lock("held").ttl(Duration::from_secs(9)).acquire().await.unwrap();
    cluster.member_mut(0).kill();
    cluster.member_mut(1).kill();
    for wait in [Wait::Try, Wait::For(Duration::from_millis(100)), Wait::For(Duration::from_secs(5))] {
        let error = client.lock("a").wait(wait).acquire();
        let error = within(PATIENCE, "it ends", error).await.unwrap_err();
        assert!(matches!(error, AcquireError::Engine(EngineError::Unreachable { .. })), "{error:?}");
    }
    within(PATIENCE, "a holder stops to believe", guard.lost()).await;
    cluster.member_mut(0).restart();
    cluster.leader();
    let acquired = async || client.lock("a").ttl(LONG).acquire().await;
    eventually(PATIENCE, "it goes on", async || acquired().await.is_ok()).await;
    eventually(PATIENCE, "what was lost is free", async || {
        client.lock("held").try_acquire().await.is_ok_and(|guard| guard.is_some())
    })
    .await;
}

/// Of three members one does not answer, and is not dead: whoever spoke to it goes on with another.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_is_silent_is_left_for_another() {
    let mut cluster = EtcdCluster::start();
    let url = format!("{}?timeout_ms=15000", cluster.url());
    let (client, other) = (connect(&url).await, connect(&url).await);
    let guard = client.lock("a").ttl(Duration::from_secs(30)).acquire().await.unwrap();
    // One of them is the one that it speaks to.
    for silent in 0..3 {
        let held = other.lock("b").ttl(LONG).acquire().await.unwrap();
        let waiting = tokio::spawn(client.lock("b").ttl(LONG).acquire());
        waiters(&other, "b", 1).await;
        cluster.member_mut(silent).pause();
        let deadline = guard.deadline();
        eventually(PATIENCE, "it is renewed", async || guard.deadline() > deadline).await;
        drop(within(PATIENCE, "it locks", client.lock("c").acquire()).await.unwrap());
        let _ = within(PATIENCE, "it is released", held.release()).await.unwrap();
        drop(within(PATIENCE, "the waiter hears of it", waiting).await.unwrap().unwrap());
        cluster.member_mut(silent).resume();
        cluster.wait_until_all_serve();
    }
    assert_eq!(guard.release().await.unwrap(), Release::Released);
}

/// A leader that is stopped, and runs on when it is none any more: whoever spoke to it alone believes no longer than the new leader
/// lets it.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_stood_still_prolongs_nothing() {
    let mut cluster = EtcdCluster::start();
    let leader = cluster.leader();
    let alone = connect(&format!("etcd://{}?timeout_ms=3000", cluster.member(leader).addr())).await;
    let others: Vec<_> =
        (0..3).filter(|index| *index != leader).map(|index| cluster.member(index).addr()).collect();
    let others = connect(&format!("etcd://{},{}", others[0], others[1])).await;
    let guard = alone.lock("a").ttl(Duration::from_secs(5)).acquire().await.unwrap();
    let waiting = tokio::spawn({
        let lock = others.lock("a").ttl(LONG);
        async move { (lock.acquire().await.unwrap(), BootTime::now()) }
    });
    waiters(&alone, "a", 1).await;
    cluster.member_mut(leader).pause();
    let mut deadline = guard.deadline().unwrap();
    eventually(PATIENCE, "the one who is alone knows", async || {
        deadline = guard.deadline().unwrap_or(deadline);
        guard.check().is_err()
    })
    .await;
    cluster.member_mut(leader).resume();
    let (next, granted) = within(PATIENCE, "the next one gets it", waiting).await.unwrap();
    assert!(granted >= deadline, "granted at {granted:?}, while the first believed until {deadline:?}");
    assert!(guard.check().is_err() && next.check().is_ok());
    let _ = within(PATIENCE, "it ends", guard.release()).await.unwrap();
    assert!(
        others.lock("a").try_acquire().await.unwrap().is_none(),
        "the late release freed the next one's lock"
    );
}

/// A request is held back on its way to one member, is sent again to another, and done; then it arrives after all. It finds that it was
/// given up, and does nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_arrives_when_all_is_over_does_nothing() {
    let etcd = Etcd::start();
    let other = connect(&etcd.url()).await;
    let ways = [Proxy::to(etcd.addr()), Proxy::to(etcd.addr())];
    let client = connect(&format!("etcd://{},{}?timeout_ms=9000", ways[0].addr(), ways[1].addr())).await;
    let _ = client.lock("before").ttl(LONG).acquire().await.unwrap().release().await.unwrap();
    // It goes one of two ways, and turns to the other.
    for turn in 0..8 {
        let way = &ways[turn % 2];
        let name = format!("late {turn}");
        way.cut();
        match turn / 2 {
            0 | 1 => {
                let guard = client.lock(&name).ttl(LONG).acquire().await.unwrap();
                assert_eq!(guard.release().await.unwrap(), Release::Released);
            }
            2 => {
                let held = other.lock(&name).ttl(LONG).acquire().await.unwrap();
                let tried = client.lock(&name).ttl(LONG).wait(Wait::Try).acquire().await;
                assert!(matches!(tried, Err(AcquireError::Busy { .. })), "{tried:?}");
                let _ = held.release().await.unwrap();
            }
            _ => {
                let held = other.lock(&name).ttl(LONG).acquire().await.unwrap();
                let waiting = tokio::spawn(client.lock(&name).ttl(LONG).acquire());
                waiters(&other, &name, 1).await;
                waiting.abort();
                waiters(&other, &name, 0).await;
                let _ = held.release().await.unwrap();
            }
        }
        assert!(other.inspect(&name).await.unwrap().holders.is_empty());
        way.heal();
        // That it does not come is seen only by giving it the time to come.
        tokio::time::sleep(Duration::from_millis(500)).await;
        let info = other.inspect(&name).await.unwrap();
        assert!(info.holders.is_empty(), "turn {turn}: {info:?}");
    }
}
