//! More who want to lock than a server has connections.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{join_all, select_all};
use sqlx::{Executor, Pool};
use tenure::contract::{Inside, within};
use tenure::{AcquireError, EngineError, Wait};
use tenure_testkit::eventually;

use super::{Database, LONG, PATIENCE, connect, lines, recipes, refusal};

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
                let _ = guard.release().await.unwrap();
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
    const ADVICE: &str = "; raise its limit of connections, or lower `connections=`";
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
    assert!(message.to_lowercase().contains("too many") && message.contains(ADVICE), "{message}");
    for recipe in recipes::<D>() {
        let refused = refusal(&server.recipe(recipe, "")).await.to_string();
        assert!(refused.contains(ADVICE), "{recipe}: {refused}");
    }
    assert!(held.iter().all(|guard| guard.check().is_ok()), "those who hold have theirs");
    for guard in held {
        let _ = guard.release().await.unwrap();
    }
    greedy.close().await.unwrap();
    let client = connect(&server.recipe("row", "")).await;
    drop(client.lock("0").acquire().await.unwrap());
}

/// Without messages, a lock is handed on by waiters that look now and then: that costs more than one connection less for requests.
pub(crate) async fn clients_that_fill_a_server_make_room_for_messages<D: Database>() {
    let mut server = D::start_small();
    connect(&server.url()).await.close().await.unwrap();
    // The server keeps some connections for its administrators, by which this test looks.
    server.add_user("locker", "pw");
    server.let_use_tables("locker");
    let login = server.login("locker:pw", &server.database());
    let (one, other) = (connect(&login).await, connect(&login).await);
    for client in [&one, &other] {
        // Some may find no connection; those that are opened stay open.
        join_all((0..40).map(|_| client.inspect("a"))).await;
    }
    let held = one.lock("a").ttl(LONG).acquire().await.unwrap();
    let waiting = [&one, &other].map(|client| tokio::spawn(client.lock("a").ttl(LONG).acquire()));
    // A client makes room by closing an idle connection of its own. One of the two may have none.
    eventually("a client hears messages", || {
        // The administrators' connection of the last look may not have ended yet.
        let heard_by = server.try_sql("SELECT client FROM tenure_lock_waiter WHERE client <> ''");
        heard_by.is_ok_and(|clients| !lines(&clients).is_empty())
    });
    let _ = held.release().await.unwrap();
    // The other one may have to wait until the server has a connection for it.
    let (guard, ..) = within(PATIENCE, "a waiter gets its turn", select_all(waiting)).await;
    let _ = guard.unwrap().unwrap().release().await.unwrap();
}

/// Somebody's transaction stands still and has a row locked, so that whoever asks for that lock keeps a connection for long.
pub(crate) async fn a_holder_is_renewed_while_others_have_all_connections<D: Database>()
where
    for<'c> &'c mut <D::Driver as sqlx::Database>::Connection: Executor<'c, Database = D::Driver>,
{
    let server = D::start();
    let (other, pool) =
        (connect(&server.url()).await, Pool::<D::Driver>::connect(&server.url()).await.unwrap());
    let client = connect(&server.recipe("table", "&connections=2&timeout_ms=60000")).await;
    let jammed = other.lock("jammed").ttl(LONG).acquire().await.unwrap();
    let mut held = Vec::new();
    for name in ["a", "b", "c"] {
        held.push(client.lock(name).ttl(Duration::from_secs(3)).acquire().await.unwrap());
    }
    let turn = || {
        let request = client.lock("jammed").ttl(LONG);
        tokio::spawn(async move { request.acquire().await.unwrap().release().await.unwrap() })
    };
    let mut turns = vec![turn()];
    let seen = async || other.inspect("jammed").await.unwrap().waiters.len() == 1;
    tenure::contract::eventually(PATIENCE, "the first waiter is seen", seen).await;

    let mut transaction = pool.begin().await.unwrap();
    transaction
        .execute(sqlx::raw_sql("SELECT name FROM tenure_lock WHERE name = 'jammed' FOR UPDATE"))
        .await
        .unwrap();
    turns.extend((0..20).map(|_| turn()));
    eventually("one has the connection that is not kept for renewals", || server.waiting().len() == 1);
    for _ in 0..4 {
        for guard in &held {
            let deadline = guard.deadline();
            eventually("it is renewed", || {
                guard.check().unwrap();
                guard.deadline() > deadline
            });
        }
    }
    assert_eq!(server.waiting().len(), 1, "the others did not have it all the time");
    transaction.rollback().await.unwrap();

    let _ = jammed.release().await.unwrap();
    for turn in turns {
        let _ = within(LONG, "all get their turn", turn).await.unwrap();
    }
    assert!(held.iter().all(|guard| guard.check().is_ok()));
}
