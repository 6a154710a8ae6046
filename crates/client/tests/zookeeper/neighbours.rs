//! A tree that others use, too.

use std::time::Duration;

use tenure::{AcquireError, Client, EngineError, Wait};
use tenure_testkit::ZooKeeper;
use zookeeper_client::{Acl, Acls, AuthId, CreateMode, Permission};

use crate::{LONG, PATIENCE, connect, eventually, soon};

async fn by_hand(server: &ZooKeeper, login: &str) -> zookeeper_client::Client {
    let connector = zookeeper_client::Client::connector().with_auth("digest", login.as_bytes());
    // What it asks by itself may take long on a slow machine.
    let connector = connector.with_session_timeout(LONG);
    connector.connect(&server.addr().to_string()).await.unwrap()
}

async fn make(hand: &zookeeper_client::Client, path: &str, acls: Acls<'_>) {
    hand.create(path, b"", &CreateMode::Persistent.with_acls(acls)).await.unwrap();
}

async fn names(client: &Client, prefix: &str) -> Vec<String> {
    client.list(prefix).await.unwrap().into_iter().map(|lock| lock.name.to_string()).collect()
}

/// Locks at the top of the tree are listed, and what is not a lock is not.
#[tokio::test]
async fn the_whole_tree_is_listed() {
    let server = ZooKeeper::start();
    let hand = by_hand(&server, "admin:secret").await;
    make(&hand, "/orders-of-others", Acls::anyone_all()).await;
    let client = connect(&format!("{}?tick_ms=500", server.url())).await;
    let _held = client.lock_all(["orders", "orders/42", "zookeeper"]).acquire().await.unwrap();
    assert_eq!(names(&client, "").await, ["orders", "orders/42", "zookeeper"]);
    assert_eq!(names(&client, "ord").await, ["orders", "orders/42"]);
    assert_eq!(names(&client, "orders/").await, ["orders/42"]);
}

/// Many nodes are listed without many requests, each in its own time.
#[tokio::test]
async fn a_large_tree_is_listed() {
    const NODES: usize = 20_000;
    let server = ZooKeeper::builder().property("zookeeper.forceSync", "no").start();
    let client = connect(&format!("{}/locks?tick_ms=500&timeout_ms=60000", server.url())).await;
    let _held = client.lock("a").acquire().await.unwrap();
    let hand = by_hand(&server, "admin:secret").await;
    let made = (0..NODES).map(|number| async move { format!("/locks/{number}") });
    for some in futures_util::future::join_all(made).await.chunks(1000) {
        futures_util::future::join_all(some.iter().map(|path| make(&hand, path, Acls::anyone_all()))).await;
    }
    let before = server.counter("zk_packets_received");
    assert_eq!(names(&client, "").await, ["a"]);
    let requests = server.counter("zk_packets_received") - before;
    assert!(requests < 1000, "{requests} requests for {NODES} nodes");
}

/// The root may lie below nodes that only an administrator may change.
#[tokio::test]
async fn what_is_above_the_root_need_not_be_ours() {
    let server = ZooKeeper::start();
    let hand = by_hand(&server, "admin:secret").await;
    make(&hand, "/apps", Acls::anyone_all()).await;
    make(&hand, "/apps/locks", Acls::anyone_all()).await;
    let only_admin_changes =
        [Acl::new(Permission::ALL, AuthId::new("auth", "")), Acl::new(Permission::READ, AuthId::anyone())];
    for path in ["/apps", "/"] {
        hand.set_acl(path, &only_admin_changes, None).await.unwrap();
    }
    let client =
        connect(&format!("zookeeper://user:password@{}/apps/locks?tick_ms=500", server.addr())).await;
    let guard = client.lock("deep/below").try_acquire().await.unwrap().expect("it is free");
    let _ = guard.release().await.unwrap();
}

/// What we may not read does not keep us from seeing the rest, and what is empty and not ours stays.
#[tokio::test]
async fn other_peoples_nodes_are_left_alone() {
    let server = ZooKeeper::start();
    let hand = by_hand(&server, "admin:secret").await;
    make(&hand, "/locks", Acls::anyone_all()).await;
    make(&hand, "/locks/theirs", Acls::anyone_all()).await;
    make(&hand, "/locks/secret", Acls::creator_all()).await;
    make(&hand, "/locks/y", Acls::anyone_all()).await;
    let entry = CreateMode::EphemeralSequential.with_acls(Acls::creator_all());
    let (_, sequence) = hand.create("/locks/y/abc__lock__", b"", &entry).await.unwrap();
    let client = connect(&format!("{}/locks?tick_ms=500&containers=false", server.url())).await;
    let guard = client.lock("theirs/x").acquire().await.unwrap();
    assert_eq!(names(&client, "").await, ["theirs/x", "y"]);
    let _ = guard.release().await.unwrap();
    // ZooKeeper does not tell that a node is gone to one who may not read it: better to be refused than to wait for ever.
    let refused = client.lock("y").wait(Wait::For(PATIENCE)).acquire().await;
    let Err(AcquireError::Engine(EngineError::Denied { message, .. })) = refused else {
        panic!("{refused:?}")
    };
    assert!(message.contains("log in"), "{message}");
    hand.delete(&format!("/locks/y/abc__lock__{sequence}"), None).await.unwrap();
    let _ = client.lock("y").acquire().await.unwrap().release().await.unwrap();
    assert!(hand.check_stat("/locks/theirs").await.unwrap().is_some(), "an empty node of others is gone");
}

/// A label is for people to read, and never too long for a server.
#[tokio::test]
async fn a_long_label_is_shortened() {
    let server = ZooKeeper::start();
    let client = connect(&format!("{}/locks?tick_ms=500", server.url())).await;
    let _held = client.lock("x").label("ä".repeat(1_000_000)).acquire().await.unwrap();
    let label = client.inspect("x").await.unwrap().holders.remove(0).label.unwrap();
    assert!(label.len() <= 1024 && label.starts_with("ää"));
}

/// ZooKeeper tells nobody of the end of a node who may not read it by then: a waiter finds out all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_watch_does_not_fire_gets_the_lock() {
    let server = ZooKeeper::start();
    let hand = by_hand(&server, "admin:secret").await;
    let client = connect(&format!("{}/locks?tick_ms=500", server.url())).await;
    make(&hand, "/locks", Acls::anyone_all()).await;
    make(&hand, "/locks/x", Acls::anyone_all()).await;
    let entry = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let (_, sequence) = hand.create("/locks/x/other__lock__", b"", &entry).await.unwrap();
    let entry = format!("/locks/x/other__lock__{sequence}");
    let waiting = tokio::spawn(client.lock("x").ttl(Duration::from_secs(2)).acquire());
    eventually("it watches", async || server.counter("zk_watch_count") == 1).await;
    let own = Acl::new(Permission::ALL, AuthId::authed());
    hand.set_acl(&entry, &[own], None).await.unwrap();
    hand.delete(&entry, None).await.unwrap();
    drop(soon("it gets the lock", waiting).await.unwrap().unwrap());
}
