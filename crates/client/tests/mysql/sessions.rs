//! What MariaDB does with locks of a session.

use sqlx::{Connection, Executor, MySqlConnection, MySqlPool};
use tenure::contract::within;
use tenure::{AcquireError, EngineError, Release, Wait};
use tenure_testkit::{MariaDb, Proxy, eventually};

use crate::databases::{Database, LONG, PATIENCE, connect, session_recipes};

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_another_locks_is_refused_and_not_counted_in() {
    let server = MariaDb::start();
    for recipe in session_recipes::<MariaDb>() {
        let client = connect(&server.recipe(recipe, "")).await;
        let guard = client.lock("a").acquire().await.unwrap();
        let token = guard.token().unwrap();
        let _ = guard.release().await.unwrap();
        server.sql("UPDATE tenure_lock_session SET name = 'b'");
        let refused = client.lock("a").acquire().await.unwrap_err();
        assert!(
            matches!(&refused, AcquireError::Engine(EngineError::Refused { .. })),
            "{recipe}: {refused:?}"
        );
        assert!(refused.to_string().contains("the same key as `b`"), "{recipe}: {refused}");
        let kept = server.sql("SELECT token FROM tenure_lock_session");
        assert_eq!(kept, token.get().to_string(), "{recipe}");

        server.sql("UPDATE tenure_lock_session SET name = 'a'");
        let guard = client.lock("a").acquire().await.unwrap();
        assert!(guard.token() > Some(token), "{recipe}: {guard:?}");
        let _ = guard.release().await.unwrap();
        server.sql("DELETE FROM tenure_lock_session");
    }
}

/// Whoever holds goes on, and can release; a new session cannot make its statements, until there is room for them.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_room_for_a_prepared_statement_is_said_to_be() {
    let server = MariaDb::start();
    for recipe in session_recipes::<MariaDb>() {
        let url = server.recipe(recipe, "&timeout_ms=3000");
        let (holder, other) = (connect(&url).await, connect(&url).await);
        let held = holder.lock("a").ttl(LONG).acquire().await.unwrap();
        server.sql("SET GLOBAL max_prepared_stmt_count = 0");
        let refused = other.lock("b").wait(Wait::Try).acquire().await.unwrap_err();
        let is_silence = matches!(&refused, AcquireError::Engine(EngineError::Unreachable { .. }));
        assert!(
            is_silence && refused.to_string().contains("max_prepared_stmt_count"),
            "{recipe}: {refused:?}"
        );
        assert_eq!(held.release().await.unwrap(), Release::Released, "{recipe}");

        server.sql("SET GLOBAL max_prepared_stmt_count = DEFAULT");
        let next = other.lock("a").ttl(LONG).acquire().await.unwrap();
        assert!(other.inspect("b").await.unwrap().holders.is_empty(), "{recipe}");
        assert_eq!(next.release().await.unwrap(), Release::Released, "{recipe}");
    }
}

/// Whoever waits holds up nobody who works on the tables, or wants to stop all writing for a backup or a failover.
#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_a_named_lock_has_nothing_locked() {
    let server = MariaDb::start();
    let client = connect(&server.recipe("named", "")).await;
    let held = client.lock("a").ttl(LONG).acquire().await.unwrap();
    let waiting = tokio::spawn(client.lock("a").ttl(LONG).acquire());
    eventually("somebody waits", || server.waiting().len() == 1);
    server.assert_rows_locked("tenure_lock_session", 0);
    for statement in ["ALTER TABLE tenure_lock_session COMMENT = 'ours'", "FLUSH TABLES WITH READ LOCK"] {
        // In its time, or not at all.
        server.sql(&format!("SET STATEMENT lock_wait_timeout = 1 FOR {statement}"));
        assert_eq!(server.waiting().len(), 1, "it still waits");
    }
    let _ = held.release().await.unwrap();
    let next = within(PATIENCE, "the waiter gets it", waiting).await.unwrap().unwrap();
    assert_eq!(next.release().await.unwrap(), Release::Released);
}

/// The one that waits for the lock, or has it already, and waits to count.
#[tokio::test(flavor = "multi_thread")]
async fn a_statement_that_is_stopped_is_asked_again_and_holds_nothing_twice() {
    let server = MariaDb::start();
    let url = server.recipe("named", "&timeout_ms=60000");
    let (client, other) = (connect(&url).await, connect(&url).await);
    let held = client.lock("a").ttl(LONG).acquire().await.unwrap();
    let stop = || {
        let waiter = eventually("somebody waits", || server.waiting().pop());
        server.sql(&format!("KILL QUERY {waiter}"));
    };
    let waiting = tokio::spawn(client.lock("a").ttl(LONG).acquire());
    stop();
    eventually("it waits again", || server.waiting().len() == 1);
    let pool = MySqlPool::connect(&server.url()).await.unwrap();
    let mut transaction = pool.begin().await.unwrap();
    transaction.execute(sqlx::raw_sql("SELECT token FROM tenure_lock_session FOR UPDATE")).await.unwrap();
    let _ = held.release().await.unwrap();
    eventually("it has the lock", || {
        server.sql("SELECT IS_USED_LOCK(lock_key) FROM tenure_lock_session") != "NULL"
    });
    stop();
    transaction.rollback().await.unwrap();

    let next = within(PATIENCE, "the waiter gets it", waiting).await.unwrap().unwrap();
    assert!(other.lock("a").try_acquire().await.unwrap().is_none());
    let _ = next.release().await.unwrap();
    assert!(other.lock("a").try_acquire().await.unwrap().is_some(), "it is held once more");
}

/// The host of the waiter's session is silent, and its name leads to another server, where the session's number is another client's.
#[tokio::test(flavor = "multi_thread")]
async fn a_stop_after_a_failover_leaves_the_sessions_of_other_clients_alone() {
    for recipe in session_recipes::<MariaDb>() {
        let (old, new) = (MariaDb::start(), MariaDb::start());
        let proxy = Proxy::to(old.addr());
        // The new server has given out fewer numbers.
        while old.opened() < new.opened() + 100 {
            MySqlConnection::connect(&old.url()).await.unwrap().close().await.unwrap();
        }
        let holder = connect(&old.recipe(recipe, "")).await;
        let _held = holder.lock("a").ttl(LONG).acquire().await.unwrap();
        let url = old.recipe(recipe, "&timeout_ms=60000");
        let before = old.connections();
        let client = connect(&url.replace(&old.addr().to_string(), &proxy.addr().to_string())).await;
        let waiting = tokio::spawn(client.lock("a").ttl(LONG).acquire());
        let waiter = eventually("it waits", || old.waiting().pop());
        let number: u64 = waiter.parse().unwrap();
        let mut victim = MySqlConnection::connect(&new.url()).await.unwrap();
        let id = async |of: &mut MySqlConnection| {
            sqlx::query_scalar::<_, u64>("SELECT CAST(CONNECTION_ID() AS UNSIGNED)")
                .fetch_one(of)
                .await
                .unwrap()
        };
        while id(&mut victim).await < number {
            victim.close().await.unwrap();
            victim = MySqlConnection::connect(&new.url()).await.unwrap();
        }
        assert_eq!(id(&mut victim).await, number, "{recipe}");
        let working = tokio::spawn(async move { victim.execute("SELECT SLEEP(600)").await.map(drop) });

        // Connections for short requests go to the new server.
        for connection in old.connections().iter().filter(|one| **one != waiter && !before.contains(one)) {
            old.end(connection);
        }
        proxy.lead_new_ones_to(new.addr());
        proxy.cut_present();
        waiting.abort();
        eventually("the stop is sent several times", || {
            let sent = new.sql("SHOW GLOBAL STATUS LIKE 'Com_kill'");
            sent.split_whitespace().last().unwrap().parse::<u64>().unwrap() >= 3
        });
        assert!(!working.is_finished(), "{recipe}: the statement of another client was stopped");
        working.abort();
    }
}
