//! `etcdctl lock`, which comes with etcd: it and ours exclude each other on the same name.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tenure::contract::{eventually, within};
use tenure::{Break, BreakError, Wait};
use tenure_testkit::{Etcd, Process};

use crate::{LONG, PATIENCE, connect, waiters};

/// Time enough for it to come in if it can, so that its not coming says something.
const A_WHILE: Duration = Duration::from_millis(500);

/// An `etcdctl lock`, which holds until it is told to end.
fn lock(etcd: &Etcd, name: &str, then: &[&str]) -> Process {
    let mut command: Command = etcd.ctl_command();
    command.args(["lock", "--ttl=60", name]).args(then);
    Process::start("etcdctl lock", tempfile::tempdir().unwrap(), command)
}

/// It prints its key when it has the lock.
fn has_it(peer: &Process, name: &str) -> bool {
    peer.log().contains(&format!("{name}/"))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_etcdctl_holds_we_do_not_get_and_it_is_seen() {
    let etcd = Etcd::start();
    let client = connect(&etcd.url()).await;
    let mut peer = lock(&etcd, "orders/ä", &[]);
    eventually(PATIENCE, "it has the lock", async || has_it(&peer, "orders/ä")).await;
    assert!(client.lock("orders/ä").try_acquire().await.unwrap().is_none());
    assert!(client.lock("orders/ä").shared().try_acquire().await.unwrap().is_none(), "it is exclusive");
    let info = client.inspect("orders/ä").await.unwrap();
    assert!(info.holders[0].label.as_deref().unwrap().contains("another program"), "{info:?}");
    assert!(info.holders[0].token.is_some());
    let listed = client.list("orders/").await.unwrap();
    assert_eq!((listed.len(), listed[0].name.as_str()), (1, "orders/ä"));
    let asked = client.break_lock("orders/ä", Break::Ask).await;
    let Err(BreakError::HolderKeepsIt { holders, .. }) = asked else { panic!("{asked:?}") };
    assert_eq!(holders[0].grant, info.holders[0].grant);
    let waiting = tokio::spawn(client.lock("orders/ä").ttl(LONG).acquire());
    waiters(&client, "orders/ä", 1).await;
    peer.stop();
    let guard = within(PATIENCE, "it is woken when etcdctl lets go", waiting).await.unwrap().unwrap();
    assert!(guard.token() > info.holders[0].token);
    // And by force, it is free at once.
    drop(guard);
    let peer = lock(&etcd, "forced", &[]);
    eventually(PATIENCE, "it has the lock", async || has_it(&peer, "forced")).await;
    client.break_lock("forced", Break::Force).await.unwrap();
    drop(client.lock("forced").wait(Wait::Try).acquire().await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_we_hold_etcdctl_does_not_get() {
    let etcd = Etcd::start();
    let client = connect(&etcd.url()).await;
    for shared in [false, true] {
        let request = client.lock("a").ttl(LONG);
        let guard = if shared { request.shared() } else { request }.acquire().await.unwrap();
        let mut peer = lock(&etcd, "a", &[]);
        // It stands in the queue, and is seen there.
        waiters(&client, "a", 1).await;
        tokio::time::sleep(A_WHILE).await;
        assert!(!has_it(&peer, "a"), "it is in beside us");
        // Whoever comes later waits behind it, readers too.
        let waiting = tokio::spawn(client.lock("a").shared().ttl(LONG).acquire());
        waiters(&client, "a", 2).await;
        let _ = guard.release().await.unwrap();
        eventually(PATIENCE, "it gets the lock", async || has_it(&peer, "a")).await;
        assert!(!waiting.is_finished());
        peer.stop();
        drop(within(PATIENCE, "we get it after that", waiting).await.unwrap().unwrap());
        eventually(PATIENCE, "it is free", async || client.inspect("a").await.unwrap().holders.is_empty())
            .await;
    }
}

/// Adds one to a number in a file, in two steps that lose it if anybody else is at it too.
fn add_one(file: &Path) {
    let number: u32 = std::fs::read_to_string(file).unwrap().trim().parse().unwrap();
    std::thread::sleep(Duration::from_millis(2));
    std::fs::write(file, (number + 1).to_string()).unwrap();
}

/// Both add to a number that only the lock protects.
#[tokio::test(flavor = "multi_thread")]
async fn a_counter_that_both_increment_loses_nothing() {
    const EACH: usize = 25;
    const TASKS: usize = 4;
    let etcd = Etcd::start();
    let folder = tempfile::tempdir().unwrap();
    let file: PathBuf = folder.path().join("number");
    std::fs::write(&file, "0").unwrap();
    let script = folder.path().join("add");
    let text = "n=$(cat \"$1\"); sleep 0.002; echo $((n + 1)) > \"$1\"";
    std::fs::write(&script, text).unwrap();
    let mut peers = Vec::new();
    for _ in 0..TASKS {
        let mut commands: Vec<Command> = Vec::new();
        for _ in 0..EACH {
            let mut command = etcd.ctl_command();
            command.args(["lock", "--ttl=60", "both", "sh"]).args([&script, &file]);
            commands.push(command);
        }
        peers.push(tokio::task::spawn_blocking(move || {
            for mut command in commands {
                let ended = command.output().expect("etcdctl can be run");
                assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
            }
        }));
    }
    let mut ours = Vec::new();
    for _ in 0..TASKS {
        let (client, file) = (connect(&etcd.url()).await, file.clone());
        ours.push(tokio::spawn(async move {
            for _ in 0..EACH {
                let guard = client.lock("both").ttl(LONG).acquire().await.unwrap();
                add_one(&file);
                let _ = guard.release().await.unwrap();
            }
        }));
    }
    for task in ours.into_iter().chain(peers) {
        within(PATIENCE, "all get their turns", task).await.unwrap();
    }
    let number: usize = std::fs::read_to_string(&file).unwrap().trim().parse().unwrap();
    assert_eq!(number, 2 * TASKS * EACH);
}
