//! What PostgreSQL does with locks of a session.

use tenure_testkit::{Postgres, eventually};

use crate::databases::{Database, LONG, PATIENCE, connect, session_recipes};

/// A lock that is granted just when the wait for it ends stays with the session, although the statement fails.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_ends_when_the_lock_comes_keeps_nothing() {
    let postgres = Postgres::start();
    let url = format!("{}?recipe=advisory", postgres.url());
    let (holder, other) = (connect(&url).await, connect(&url).await);
    let holds = tokio::spawn(async move {
        for _ in 0..500 {
            let _ = holder.lock("a").ttl(LONG).acquire().await.unwrap().release().await.unwrap();
        }
    });
    let tries = async {
        while !holds.is_finished() {
            if let Some(guard) = other.lock("a").ttl(LONG).try_acquire().await.unwrap() {
                let _ = guard.release().await.unwrap();
            }
        }
    };
    let ended = tokio::time::timeout(PATIENCE, tries).await;
    // Whoever has it, and what that connection was last asked for.
    let held = "SELECT pid, state, left(query, 40) FROM pg_locks JOIN pg_stat_activity USING (pid) \
                WHERE locktype = 'advisory' AND granted";
    assert!(ended.is_ok(), "not all get it: {}", postgres.sql(held));
    eventually("nobody has it any more", || postgres.sql(held).is_empty());
}

/// A cancelled wait ends its transaction once: PostgreSQL warns of a second `ROLLBACK`.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_is_given_up_causes_no_warning() {
    let postgres = Postgres::start();
    for recipe in session_recipes::<Postgres>() {
        let client = connect(&postgres.recipe(recipe, "")).await;
        let _held = client.lock("a").ttl(LONG).acquire().await.unwrap();
        let waiting = tokio::spawn(client.lock("a").ttl(LONG).acquire());
        eventually("it waits", || postgres.waiting().len() == 1);
        waiting.abort();
        eventually("it does not wait any more", || postgres.waiting().is_empty());
        client.close().await.unwrap();
        eventually("its connections are closed", || postgres.connections().is_empty());
    }
    let log = postgres.log();
    assert!(log.contains("canceling statement due to user request"), "{log}");
    assert!(!log.contains("WARNING"), "{log}");
}
