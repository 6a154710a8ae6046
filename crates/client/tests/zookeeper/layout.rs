//! What is in ZooKeeper's tree, and what becomes of it: nodes go when they are not needed, or by somebody's hand.

use std::collections::BTreeSet;
use std::time::Duration;

use tenure::contract::Inside;
use tenure::{LostReason, Mode, Release};
use tenure_testkit::ZooKeeper;

use crate::tree::Tree;
use crate::{A_WHILE, LONG, RECIPES, connect, eventually, is_busy, soon};

#[tokio::test(flavor = "multi_thread")]
async fn a_root_keeps_two_applications_apart() {
    let at = |root: &str| format!("{}/roots/{root}?tick_ms=500", ZooKeeper::shared().url());
    let (one, two) = (connect(&at("one")).await, connect(&at("two")).await);
    let held = one.lock("a").ttl(LONG).acquire().await.unwrap();
    let beside = two.lock("a").ttl(LONG).acquire().await.unwrap();
    drop(two.lock("b").ttl(LONG).acquire().await.unwrap());
    for (client, guard) in [(&one, &held), (&two, &beside)] {
        let listed = client.list("").await.unwrap();
        let [lock] = &listed[..] else { panic!("one lock is seen: {listed:?}") };
        assert_eq!((lock.name.as_str(), lock.holders[0].grant), ("a", guard.grant()));
    }
    // It is a path, as everything here: one above it sees it.
    let above = connect(&format!("{}/roots?tick_ms=500", ZooKeeper::shared().url())).await;
    assert!(is_busy(&above, "one/a").await && !is_busy(&above, "a").await);
    assert_eq!(held.release().await.unwrap(), Release::Released);
    assert!(beside.check().is_ok() && !is_busy(&above, "one/a").await && is_busy(&above, "two/a").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_empty_goes_and_what_is_needed_stays() {
    let server = ZooKeeper::builder().containers_checked_every(Duration::from_millis(20)).start();
    let tree = Tree::at(server.addr()).await;
    for (root, option) in [("by-itself", "true"), ("by-us", "false")] {
        let client = connect(&format!("{}/{root}?containers={option}&tick_ms=500", server.url())).await;
        let there = async |path: &str| tree.has(&format!("/{root}/{path}")).await;
        // Of those above a lock, only the servers know whether they are needed.
        let gone = async |path: &str, above: &str| {
            let goes = if option == "true" { above } else { path };
            eventually(&format!("{root}: {goes} goes"), async || !there(goes).await).await;
            assert!(option == "true" || there(above).await, "{root}: {above} is gone");
        };
        let deep = client.lock("a/b/c").ttl(LONG).acquire().await.unwrap();
        let beside = client.lock("a/x").ttl(LONG).acquire().await.unwrap();
        let waiting = tokio::spawn(client.lock("a/x").ttl(LONG).acquire());
        eventually("one waits", async || client.inspect("a/x").await.unwrap().waiters.len() == 1).await;
        tokio::time::sleep(A_WHILE).await;
        assert!(there("a/b/c").await && there("a/x").await, "{root}: somebody holds by it");
        let _ = deep.release().await.unwrap();
        gone("a/b/c", "a/b").await;
        let _ = beside.release().await.unwrap();
        let next = soon("the waiter gets it", waiting).await.unwrap().unwrap();
        tokio::time::sleep(A_WHILE).await;
        assert!(there("a/x").await && next.check().is_ok(), "{root}: somebody holds by it");
        drop(next);
        gone("a/x", "a").await;
        assert!(tree.has(&format!("/{root}")).await, "the root is not ours to take away");

        let writer = client.lock("v/w").ttl(LONG).acquire().await.unwrap();
        writer.set_value("kept").await.unwrap();
        let _ = writer.release().await.unwrap();
        tokio::time::sleep(A_WHILE).await;
        let reader = client.lock("v/w").ttl(LONG).acquire().await.unwrap();
        assert_eq!(reader.value().bytes, "kept", "{root}");
        reader.set_value("").await.unwrap();
        let _ = reader.release().await.unwrap();
        gone("v/w", "v").await;
    }
}

/// The nodes above an entry may go at any moment before it is made.
#[tokio::test(flavor = "multi_thread")]
async fn who_locks_while_nodes_go_is_not_disturbed() {
    let server = ZooKeeper::builder().containers_checked_every(Duration::from_millis(1)).start();
    for (recipe, option) in
        RECIPES.into_iter().flat_map(|recipe| ["true", "false"].map(|option| (recipe, option)))
    {
        let url = format!("{}/busy?recipe={recipe}&containers={option}&tick_ms=500", server.url());
        let folder = tempfile::tempdir().unwrap();
        let workers: Vec<_> = (0..4)
            .map(|worker| {
                let (url, inside) = (url.clone(), Inside::new(folder.path()));
                tokio::spawn(async move {
                    let client = connect(&url).await;
                    for turn in 0..40_u64 {
                        let guard = client.lock("a/b/c").ttl(LONG).acquire().await.unwrap();
                        inside.increment(Duration::ZERO).unwrap();
                        let _ = guard.release().await.unwrap();
                        // Now and then nobody is there, and the nodes go.
                        tokio::time::sleep(Duration::from_millis(turn * 7 % 20 + worker)).await;
                    }
                })
            })
            .collect();
        for worker in workers {
            soon("a worker comes through", worker).await.unwrap();
        }
        assert_eq!(Inside::new(folder.path()).count(), 160, "{recipe}, {option}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_that_somebody_deletes_is_missed() {
    let server = ZooKeeper::shared();
    let tree = Tree::at(server.addr()).await;
    let client = connect(&format!("{}/by-hand?tick_ms=500", server.url())).await;
    let held = client.lock("a").ttl(Duration::from_secs(6)).acquire().await.unwrap();
    let entry = tree.only_child("/by-hand/a").await;
    let waiting = tokio::spawn(client.lock("a").ttl(LONG).acquire());
    let seen = async || tree.children("/by-hand/a").await.into_iter().find(|child| !entry.ends_with(child));
    let mut waiter = String::new();
    eventually("one waits", async || {
        waiter = seen().await.unwrap_or_default();
        !waiter.is_empty()
    })
    .await;

    tree.delete(&format!("/by-hand/a/{waiter}")).await;
    // It looks when the one before it goes: there is nothing to miss before.
    tree.delete(&entry).await;
    assert_eq!(soon("the holder is told", held.lost()).await, LostReason::Forgotten);
    let next = soon("the waiter queues again", waiting).await.unwrap().unwrap();
    assert!(next.token() > held.token());
    assert_ne!(tree.only_child("/by-hand/a").await, format!("/by-hand/a/{waiter}"));
    assert_eq!(held.release().await.unwrap(), Release::AlreadyLost(LostReason::Forgotten));
    assert!(
        next.check().is_ok() && is_busy(&client, "a").await,
        "the late release freed the next one's lock"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn any_name_is_a_lock_of_its_own() {
    const NAMES: [&str; 44] = [
        "a",
        "A",
        "a/b",
        "a//b",
        "a/b/",
        "/a",
        "//a",
        "/",
        "//",
        "a/",
        " ",
        " a",
        "a ",
        "a /b",
        ".",
        "..",
        "...",
        "a/.",
        "a/..",
        "a/../b",
        "%",
        "%25",
        "%2E",
        "a%2Fb",
        "%/a",
        "a/%/b",
        "🔒",
        "🔒/🔑",
        "%F0%9F%94%92",
        "ä",
        "a\u{308}",
        "\u{e000}",
        "\u{feff}",
        "\u{fffd}",
        "zookeeper",
        "zookeeper/quota",
        "%7Aookeeper",
        "x__lock__0000000001",
        "x/y__lock__0000000001",
        "lock-0000000001",
        "a/~%value",
        "%lock",
        "~%start",
        "%clock",
    ];
    let server = ZooKeeper::start();
    let long = "🔒".repeat(128);
    let names: BTreeSet<&str> = NAMES.into_iter().chain([long.as_str()]).collect();
    assert_eq!(names.len(), NAMES.len() + 1);
    for (root, recipe) in ["", "/names"].into_iter().flat_map(|root| RECIPES.map(|recipe| (root, recipe))) {
        let client = connect(&format!("{}{root}?recipe={recipe}&tick_ms=500", server.url())).await;
        let mut guards = Vec::new();
        for name in &names {
            let guard = soon("nobody else has it", client.lock(name).ttl(LONG).acquire()).await;
            guards.push(guard.unwrap_or_else(|error| panic!("{recipe}: {name:?}: {error}")));
        }
        let listed = client.list("").await.unwrap();
        let listed: Vec<_> = listed.iter().map(|lock| lock.name.as_str()).collect();
        assert_eq!(listed, names.iter().copied().collect::<Vec<_>>(), "{recipe}, {root}");
        for guard in guards {
            let (name, grant) = (guard.name().clone(), guard.grant());
            let info = client.inspect(&name).await.unwrap();
            assert_eq!(info.holders.iter().map(|holder| holder.grant).collect::<Vec<_>>(), [grant], "{name}");
            assert!(is_busy(&client, name.as_str()).await, "{recipe}: {name}");
            assert_eq!(guard.release().await.unwrap(), Release::Released, "{recipe}: {name}");
            assert!(!is_busy(&client, name.as_str()).await, "{recipe}: {name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_with_different_names_for_their_entries_share_one_queue() {
    let url = format!("{}/naming?tick_ms=500", ZooKeeper::shared().url());
    let clients = [connect(&format!("{url}&names=curator")).await, connect(&url).await];
    for [one, other] in [[0, 1], [1, 0]].map(|pair| pair.map(|at| &clients[at])) {
        let guard = one.lock("a").mode(Mode::Pr).ttl(LONG).acquire().await.unwrap();
        assert!(is_busy(other, "a").await);
        let beside = other.lock("a").mode(Mode::Pr).ttl(LONG).acquire().await.unwrap();
        let waiting = tokio::spawn(other.lock("a").ttl(LONG).acquire());
        eventually("it waits", async || one.inspect("a").await.unwrap().waiters.len() == 1).await;
        let holders = one.inspect("a").await.unwrap().holders;
        assert_eq!(
            holders.iter().map(|holder| holder.grant).collect::<Vec<_>>(),
            [guard.grant(), beside.grant()]
        );
        let _ = guard.release().await.unwrap();
        let _ = beside.release().await.unwrap();
        let _ = soon("it gets the lock", waiting).await.unwrap().unwrap().release().await.unwrap();
    }
}
