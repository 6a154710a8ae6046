//! Very many locks and waiters, by etcd's own counters.

use std::time::Duration;

use tenure::contract::{eventually, within};
use tenure_testkit::Etcd;

use crate::{LONG, PATIENCE, connect};

const WAITERS: u32 = 1000;
const RELEASES: usize = 20;

/// What etcd counted: messages to those who watch, transactions, and other reads.
fn counted(etcd: &Etcd) -> [f64; 3] {
    [
        etcd.metric(r#"grpc_server_msg_sent_total{grpc_method="Watch""#),
        etcd.metric(r#"grpc_server_started_total{grpc_method="Txn""#),
        etcd.metric(r#"grpc_server_started_total{grpc_method="Range""#),
    ]
}

/// All are kept alive by one lease, and each is told by its watch if it is lost.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_thousand_held_locks_cost_does_not_grow_with_their_number() {
    let etcd = Etcd::start();
    let (client, operator) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let ttl = Duration::from_secs(3);
    let names = (0..WAITERS).map(|lock| format!("lock-{lock}"));
    let guards = client.lock_all(names).ttl(ttl).acquire().await.unwrap();
    eventually(PATIENCE, "all are watched", async || {
        etcd.metric("etcd_debugging_mvcc_watcher_total") >= f64::from(WAITERS)
    })
    .await;
    let some = guards.get("lock-7").unwrap();
    let [_, transactions, reads] = counted(&etcd);
    let deadline = some.deadline().unwrap();
    eventually(PATIENCE, "they are kept alive", async || some.deadline().unwrap() > deadline + ttl * 2).await;
    let [_, transactions, reads] = [0.0, counted(&etcd)[1] - transactions, counted(&etcd)[2] - reads];
    assert!(
        transactions + reads < 100.0,
        "{transactions} transactions and {reads} reads for {WAITERS} locks"
    );
    operator.break_lock("lock-7", tenure::Break::Ask).await.unwrap();
    assert_eq!(within(PATIENCE, "its holder is told", some.lost()).await, tenure::LostReason::Broken);
    operator.break_lock("lock-8", tenure::Break::Force).await.unwrap();
    let forced = guards.get("lock-8").unwrap().lost();
    assert_eq!(within(PATIENCE, "its holder is told", forced).await, tenure::LostReason::Forgotten);
    assert!(guards.get("lock-9").unwrap().check().is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_wakes_one_of_a_thousand() {
    let etcd = Etcd::start();
    // A thousand come at once.
    let url = format!("{}?timeout_ms=60000", etcd.url());
    let (holder, client) = (connect(&url).await, connect(&url).await);
    let mut held = holder.lock("a").ttl(LONG).acquire().await.unwrap();
    let (send, mut granted) = tokio::sync::mpsc::unbounded_channel();
    for _ in 0..WAITERS {
        let (wait, send) = (client.lock("a").ttl(LONG).acquire(), send.clone());
        tokio::spawn(async move {
            // The last ones end with their client, and nobody takes them.
            if let Ok(guard) = wait.await {
                let _ = send.send(guard);
            }
        });
    }
    eventually(PATIENCE, "all wait", async || {
        holder.inspect("a").await.unwrap().waiters.len() == WAITERS as usize
    })
    .await;
    eventually(PATIENCE, "all watch", async || {
        etcd.metric("etcd_debugging_mvcc_watcher_total") >= f64::from(WAITERS)
    })
    .await;
    let mut fewest = [f64::MAX; 3];
    for _ in 0..RELEASES {
        let before = counted(&etcd);
        let _ = held.release().await.unwrap();
        held = within(PATIENCE, "the next one gets it", granted.recv()).await.unwrap();
        // That others are not woken is seen only by giving them the time to be.
        tokio::time::sleep(Duration::from_millis(100)).await;
        for ((fewest, after), before) in fewest.iter_mut().zip(counted(&etcd)).zip(before) {
            *fewest = fewest.min(after - before);
        }
    }
    // The best of some releases: beside those who are woken there may be some whose turn it is to look, as a backstop. One is told that the
    // key is gone, and that it does not watch any more; the release and the look are one transaction each.
    let [messages, transactions, reads] = fewest;
    assert!(messages >= 1.0, "somebody was told");
    assert!(messages <= 4.0 && transactions <= 10.0 && reads <= 4.0, "{fewest:?} for one release");
    // All the others leave at once.
    drop(granted);
    drop(held);
    client.close().await.unwrap();
    eventually(PATIENCE, "nobody is left", async || {
        let info = holder.inspect("a").await.unwrap();
        info.holders.is_empty() && info.waiters.is_empty()
    })
    .await;
}

/// Those who go together are woken together.
#[tokio::test(flavor = "multi_thread")]
async fn readers_come_in_together() {
    const READERS: usize = 50;
    let etcd = Etcd::start();
    let (holder, client) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let held = holder.lock("a").ttl(LONG).acquire().await.unwrap();
    let waiting: Vec<_> =
        (0..READERS).map(|_| tokio::spawn(client.lock("a").shared().ttl(LONG).acquire())).collect();
    crate::waiters(&holder, "a", READERS).await;
    let _ = held.release().await.unwrap();
    let mut readers = Vec::new();
    for reader in waiting {
        readers.push(within(PATIENCE, "each gets it", reader).await.unwrap().unwrap());
    }
    assert!(readers.iter().all(|reader| reader.check().is_ok()));
}
