//! How many connections a client opens, and how many it has at once.

use std::time::Duration;

use futures_util::future::join_all;
use tenure::Wait;
use tenure::contract::within;
use tenure_testkit::eventually;

use super::{Database, LONG, PATIENCE, connect, session_recipes};

/// What a client may have open if the URL does not say.
const CONNECTIONS: u64 = 16;

/// A dropped guard is released on the client's own runtime, and the next acquire is on the caller's.
pub(crate) async fn dropped_guards_reuse_connections<D: Database>() {
    const TASKS: usize = 32;
    let server = D::start();
    let before = server.opened();
    let client = connect(&server.url()).await;
    let tasks = (0..TASKS).map(|task| {
        let client = client.clone();
        tokio::spawn(async move {
            for round in 0..20 {
                let guard = client.lock(format!("{task}/{round}")).ttl(LONG).acquire().await.unwrap();
                tokio::time::sleep(Duration::from_millis(5)).await;
                drop(guard);
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        within(LONG, "all get their locks", task).await.unwrap();
    }
    client.close().await.unwrap();
    eventually("the connections are closed", || server.connections().is_empty());
    let opened = server.opened() - before;
    // Each may be replaced once by one of the client's own runtime; the rest is what this test itself opens.
    assert!(opened <= 4 * CONNECTIONS, "{opened} connections were opened");
}

/// The connection of a wait that is dropped counts for as long as the database keeps it.
pub(crate) async fn waits_that_are_dropped_stay_within_the_bound<D: Database>() {
    const MOST: usize = 6;
    let server = D::start();
    for recipe in session_recipes::<D>() {
        let holder = connect(&server.recipe(recipe, "")).await;
        let _held = holder.lock("a").ttl(LONG).acquire().await.unwrap();
        let of_holder = server.connections();
        let client = connect(&server.recipe(recipe, &format!("&connections={MOST}"))).await;
        let tasks: Vec<_> = (0..8)
            .map(|task| {
                let client = client.clone();
                tokio::spawn(async move {
                    for round in 0..8 {
                        let patience = Duration::from_millis(10 + (task * 37 + round * 53) % 150);
                        let waiting = client.lock("a").ttl(LONG).wait(Wait::Forever).acquire();
                        assert!(
                            tokio::time::timeout(patience, waiting).await.is_err(),
                            "{recipe}: it is held"
                        );
                    }
                })
            })
            .collect();
        let mut most = 0;
        while !tasks.iter().all(tokio::task::JoinHandle::is_finished) {
            let open = server.connections().iter().filter(|one| !of_holder.contains(one)).count();
            most = most.max(open);
            tokio::task::yield_now().await;
        }
        for task in join_all(tasks).await {
            task.unwrap();
        }
        // One more may be opened for a moment, where the one for short requests is in use.
        assert!(most <= MOST + 1, "{recipe}: {most} connections at once");
        // No wait is left behind.
        within(PATIENCE, "the client is closed", client.close()).await.unwrap();
        eventually("no statement waits", || server.waiting().is_empty());
    }
}
