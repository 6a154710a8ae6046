//! What PostgreSQL does with locks of a session.

use tenure_testkit::{Postgres, eventually};

use crate::databases::{LONG, PATIENCE, connect};

/// A lock that is granted just when the wait for it ends stays with the session, although the statement fails.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_ends_when_the_lock_comes_keeps_nothing() {
    let postgres = Postgres::start();
    let url = format!("{}?recipe=advisory", postgres.url());
    let (holder, other) = (connect(&url).await, connect(&url).await);
    let holds = tokio::spawn(async move {
        for _ in 0..500 {
            holder.lock("a").ttl(LONG).acquire().await.unwrap().release().await.unwrap();
        }
    });
    let tries = async {
        while !holds.is_finished() {
            if let Some(guard) = other.lock("a").ttl(LONG).try_acquire().await.unwrap() {
                guard.release().await.unwrap();
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
