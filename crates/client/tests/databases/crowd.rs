//! More who want to lock than a server has connections.

use std::sync::Arc;
use std::time::Duration;

use tenure::contract::{Inside, within};
use tenure::{AcquireError, EngineError, Wait};

use super::{Database, LONG, connect, recipes, refusal};

const CLIENTS: usize = 3;
const REQUESTS: u64 = 200;

pub(crate) async fn two_hundred_get_their_turn_on_a_server_with_twenty_connections<D: Database>() {
    let server = D::start_small();
    for recipe in recipes::<D>() {
        let (folder, mut clients) = (tempfile::tempdir().unwrap(), Vec::new());
        for _ in 0..CLIENTS {
            clients.push(connect(&server.recipe(recipe, "&connections=4&timeout_ms=30000")).await);
        }
        let inside = Arc::new(Inside::new(folder.path()));
        let turns = (0..REQUESTS).zip(clients.iter().cycle()).map(|(_, client)| {
            let (request, inside) = (client.lock("crowded").ttl(LONG).wait(Wait::Forever), inside.clone());
            tokio::spawn(async move {
                let guard = request.acquire().await.unwrap();
                inside.increment(Duration::ZERO).unwrap();
                guard.release().await.unwrap();
            })
        });
        for turn in turns.collect::<Vec<_>>() {
            within(LONG, recipe, turn).await.unwrap();
        }
        assert_eq!(inside.count(), REQUESTS, "{recipe}");
        for client in clients {
            client.close().await.unwrap();
        }
    }
}

pub(crate) async fn a_server_without_a_connection_left_is_said_to_be<D: Database>() {
    const ADVICE: &str = "has no connection left: raise its limit, or lower `connections=`";
    let server = D::start_small();
    // Each lock takes one.
    let greedy = connect(&server.recipe("row", "&connections=50")).await;
    let mut held = Vec::new();
    let refused = loop {
        match greedy.lock(format!("{}", held.len())).ttl(LONG).wait(Wait::Try).acquire().await {
            Ok(guard) => held.push(guard),
            Err(error) => break error,
        }
        assert!(held.len() < 25, "the server has more connections than it was told to");
    };
    let AcquireError::Engine(EngineError::Unreachable { message, .. }) = &refused else {
        panic!("{refused:?}")
    };
    assert!(message.contains(ADVICE), "{message}");
    for recipe in recipes::<D>() {
        let refused = refusal(&server.recipe(recipe, "")).await;
        assert!(refused.contains(ADVICE), "{recipe}: {refused}");
    }
    assert!(held.iter().all(|guard| guard.check().is_ok()), "those who hold have theirs");
    for guard in held {
        guard.release().await.unwrap();
    }
    greedy.close().await.unwrap();
    let client = connect(&server.recipe("row", "")).await;
    drop(client.lock("0").acquire().await.unwrap());
}
