//! What becomes of grants and places in the queue with their sessions.

use std::time::Duration;

use tenure::contract::eventually;
use tenure::{AcquireError, Client, EngineError, Wait};
use tenure_testkit::{Proxy, ZooKeeper, ZooKeeperCluster};

use crate::tree::Tree;
use crate::{PATIENCE, RECIPES, connect};

const SECOND: Duration = Duration::from_secs(1);

async fn waiters(client: &Client, name: &str) -> usize {
    client.inspect(name).await.map_or(0, |info| info.waiters.len())
}

/// One who waits, and outlasts its session: the servers may keep that one for longer than its client does, with an entry of the same grant
/// that is further ahead. It is not the waiter's any more, and goes when the servers say so.
#[tokio::test(flavor = "multi_thread")]
async fn an_entry_of_an_earlier_session_is_nobodys() {
    let mut server = ZooKeeper::start();
    let url = format!("{}/locks?tick_ms=500&timeout_ms=3000", server.url());
    let (holder, short, long) = (connect(&url).await, connect(&url).await, connect(&url).await);
    let held = holder.lock("x").ttl(SECOND * 2).acquire().await.unwrap();
    let first = tokio::spawn(short.lock("x").ttl(SECOND * 8).wait(Wait::Forever).acquire());
    eventually(PATIENCE, "the first waits", async || waiters(&holder, "x").await == 1).await;
    let second = tokio::spawn(long.lock("x").ttl(SECOND * 60).wait(Wait::Forever).acquire());
    eventually(PATIENCE, "the second waits", async || waiters(&holder, "x").await == 2).await;
    server.kill();
    // Longer than the first one's client believes in its session, and shorter than the second one's. The servers count anew when they are back.
    tokio::time::sleep(SECOND * 13).await;
    server.restart();
    // Its session is over for the server, too, in the end. Whoever has the lock before that has it by an entry of its own.
    let (first, second) = tokio::join!(tokio::time::timeout(SECOND * 12, first), second);
    let second = second.unwrap().unwrap();
    if let Ok(first) = first {
        let first = first.unwrap().unwrap();
        assert!(first.check().is_err() || second.check().is_err(), "two hold");
    }
    assert!(held.check().is_err());
}

/// The client has given up a session that the server still keeps, since requests arrive and answers do not. The client closes it when answers
/// arrive again, so that nobody waits until the server ends it.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_the_client_has_given_up_is_closed() {
    let server = ZooKeeper::start();
    let (proxy, tree) = (Proxy::to(server.addr()), Tree::at(server.addr()).await);
    let client = connect(&format!("zookeeper://{}/locks?tick_ms=500", proxy.addr())).await;
    let guard = client.lock("x").ttl(SECOND * 10).acquire().await.unwrap();
    let session = tree.session_of(&tree.only_child("/locks/x").await).await;
    proxy.drop_answers(true);
    guard.lost().await;
    // The client gives it up after 7/5 of its timeout.
    tokio::time::sleep(SECOND * 8).await;
    assert_eq!(tree.children("/locks/x").await.len(), 1, "the server keeps it");
    proxy.drop_answers(false);
    eventually(PATIENCE, "it is closed", async || tree.children("/locks/x").await.is_empty()).await;
    assert!(!server.log().contains(&format!("Expiring session 0x{session:x}")), "the server had to end it");
}

/// So many wait in one client that their watches do not fit one message: a connection that breaks costs none of them its place.
#[tokio::test(flavor = "multi_thread")]
async fn many_who_wait_outlast_their_connection() {
    const WAITERS: usize = 400;
    let server = ZooKeeper::start();
    let proxy = Proxy::to(server.addr());
    let client = connect(&format!("zookeeper://{}/locks?tick_ms=500", proxy.addr())).await;
    let direct = connect(&format!("{}/locks?tick_ms=500", server.url())).await;
    let name = "n".repeat(400);
    let held = direct.lock(&name).ttl(SECOND * 50).acquire().await.unwrap();
    let (send, mut got) = tokio::sync::mpsc::unbounded_channel();
    for _ in 0..WAITERS {
        let (lock, send) = (client.lock(&name).ttl(SECOND * 8).acquire(), send.clone());
        tokio::spawn(async move { send.send(lock.await.unwrap()) });
    }
    eventually(PATIENCE, "all wait", async || waiters(&direct, &name).await == WAITERS).await;
    let places = direct.inspect(&name).await.unwrap().waiters;
    proxy.sever();
    // The client believes in a session for 7/5 of its time: were one lost, its waiters would have queued again by then.
    tokio::time::sleep(SECOND * 14).await;
    let now = direct.inspect(&name).await.unwrap().waiters;
    let grants = |all: &[tenure::Member]| all.iter().map(|member| member.grant).collect::<Vec<_>>();
    assert_eq!(grants(&now), grants(&places), "they keep their places");
    let _ = held.release().await.unwrap();
    for place in places.iter().take(3) {
        let guard = got.recv().await.unwrap();
        assert_eq!(guard.grant(), place.grant, "and are served in their order");
        let _ = guard.release().await.unwrap();
    }
}

/// The same by the recipe `simple`, where those who wait for different locks watch different nodes.
#[tokio::test(flavor = "multi_thread")]
async fn many_who_watch_one_node_each_cost_their_client_no_session() {
    const WAITERS: i64 = 400;
    let server = ZooKeeper::start();
    let proxy = Proxy::to(server.addr());
    let options = "?recipe=simple&tick_ms=500";
    let client = connect(&format!("zookeeper://{}/locks{options}", proxy.addr())).await;
    let direct = connect(&format!("{}/locks{options}", server.url())).await;
    let names: Vec<_> = (0..WAITERS).map(|i| format!("{i}{}", "n".repeat(400))).collect();
    // Locks that are not renewed are not watched.
    let busy = names.iter().map(|name| direct.lock(name).ttl(SECOND * 60).renew(false).acquire());
    let mut busy = futures_util::future::try_join_all(busy).await.unwrap();
    let held = client.lock("held").ttl(SECOND * 8).acquire().await.unwrap();
    let mut waiting: Vec<_> =
        names.iter().map(|name| tokio::spawn(client.lock(name).ttl(SECOND * 8).acquire())).collect();
    let watches = || server.counter("zk_watch_count");
    eventually(PATIENCE, "all wait, and a lock is held", async || watches() == WAITERS + 1).await;
    proxy.sever();
    // As above: were a session lost, the client would know by then.
    tokio::time::sleep(SECOND * 14).await;
    held.check().expect("its session has outlasted the connection");
    assert_eq!(watches(), WAITERS + 1, "and so have the watches");
    let (freed, waits) = (busy.remove(0), waiting.remove(0));
    let _ = freed.release().await.unwrap();
    let _ = waits.await.unwrap().unwrap().release().await.unwrap();
}

/// A ttl that leaves little to be used is renewed often, but not all the time.
#[tokio::test(flavor = "multi_thread")]
async fn a_short_ttl_is_not_renewed_without_a_pause() {
    let server = ZooKeeper::builder().tick(SECOND * 2).start();
    let client = connect(&format!("{}/locks", server.url())).await;
    let written = || {
        let text = server.command("srvr");
        let zxid =
            text.lines().find_map(|line| line.strip_prefix("Zxid: 0x")).expect("it says what it has written");
        u64::from_str_radix(zxid, 16).unwrap()
    };
    let guard = client.lock("x").ttl(SECOND * 3).acquire().await.unwrap();
    let before = written();
    tokio::time::sleep(SECOND * 4).await;
    let writes = written() - before;
    assert!(writes < 200, "{writes} writes in 4 s by one who holds and does nothing");
    drop(guard);
}

/// A session that was silent for almost its time and is kept all the same proves nothing at first: who is next is not turned away for that.
#[tokio::test(flavor = "multi_thread")]
async fn who_is_next_after_a_long_silence_gets_it() {
    let mut server = ZooKeeper::start();
    let proxy = Proxy::to(server.addr());
    let client = connect(&format!("zookeeper://{}/locks?tick_ms=500", proxy.addr())).await;
    let direct = connect(&format!("{}/locks?tick_ms=500", server.url())).await;
    let held = direct.lock("x").ttl(SECOND * 50).acquire().await.unwrap();
    let next = tokio::spawn(client.lock("x").ttl(SECOND * 8).acquire());
    eventually(PATIENCE, "it waits", async || waiters(&direct, "x").await == 1).await;
    proxy.cut();
    tokio::time::sleep(SECOND * 3).await;
    // A server that is started gives all sessions their whole time.
    server.kill();
    server.restart();
    // It is released in the background, as soon as its session finds the server again.
    let grant = held.grant();
    drop(held);
    let is_released = async || {
        direct.inspect("x").await.is_ok_and(|info| info.holders.iter().all(|holder| holder.grant != grant))
    };
    eventually(PATIENCE, "it is released", is_released).await;
    tokio::time::sleep(SECOND * 4).await;
    proxy.heal();
    let next = tokio::time::timeout(PATIENCE, next).await.unwrap().unwrap();
    assert!(next.unwrap().check().is_ok());
}

/// A client whose session has ended closes at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_client_without_a_session_closes_at_once() {
    let server = ZooKeeper::start();
    let proxy = Proxy::to(server.addr());
    let client = connect(&format!("zookeeper://{}/locks?tick_ms=500&timeout_ms=60000", proxy.addr())).await;
    let guard = client.lock("x").ttl(SECOND * 2).acquire().await.unwrap();
    proxy.cut();
    guard.lost().await;
    let other = connect(&format!("{}/locks?tick_ms=500", server.url())).await;
    drop(other.lock("x").acquire().await.unwrap());
    proxy.heal();
    eventually(PATIENCE, "the client is back", async || client.inspect("x").await.is_ok()).await;
    drop(guard);
    tokio::time::timeout(PATIENCE / 2, client.close())
        .await
        .expect("much sooner than a request may take")
        .unwrap();
}

/// A session that is local to one server cannot hold anything: it is refused with what to do, and nobody goes on asking.
#[tokio::test(flavor = "multi_thread")]
async fn a_local_session_is_refused() {
    let cluster = ZooKeeperCluster::builder().setting("localSessionsEnabled", "true").start();
    let client = connect(&format!("{}/locks?tick_ms=500", cluster.url())).await;
    let answer = client.lock("x").try_acquire().await;
    let Err(AcquireError::Engine(EngineError::Refused { message, .. })) = answer else {
        panic!("{answer:?}")
    };
    assert!(message.contains("localSessionsUpgradingEnabled"), "{message}");
    let asked = || cluster.members().iter().map(|member| member.counter("zk_packets_received")).sum::<i64>();
    let before = asked();
    tokio::time::sleep(SECOND * 2).await;
    assert!(asked() - before < 100, "it goes on asking");
}

/// A program that drops an acquire at any moment and closes its client leaves neither a holder nor a waiter.
#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_acquire_is_undone_when_the_client_is_closed() {
    let server = ZooKeeper::shared();
    for recipe in RECIPES {
        let url = format!("{}/dropped-{recipe}?recipe={recipe}&tick_ms=500", server.url());
        let (other, tree) = (connect(&url).await, Tree::at(server.addr()).await);
        for is_held in [false, true] {
            let held = if is_held { Some(other.lock("a").acquire().await.unwrap()) } else { None };
            for step in 0..40 {
                let client = connect(&url).await;
                let after = Duration::from_micros(250) * step;
                let _ = tokio::time::timeout(after, client.lock("a").acquire()).await;
                client.close().await.unwrap();
                let left = tree.children(&format!("/dropped-{recipe}/a")).await;
                assert_eq!(left.len(), usize::from(is_held), "{recipe}, dropped after {after:?}: {left:?}");
            }
            drop(held);
            eventually(PATIENCE, "it is free", async || other.inspect("a").await.unwrap().holders.is_empty())
                .await;
        }
    }
}
