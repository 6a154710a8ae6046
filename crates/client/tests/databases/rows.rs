//! What the recipe `row` locks, as the server itself sees it.

use tenure::contract::within;
use tenure_testkit::eventually;

use super::{Database, LONG, PATIENCE, connect};

pub(crate) async fn a_row_is_locked_and_nothing_else<D: Database>() {
    let server = D::start();
    let (client, other) =
        (connect(&server.recipe("row", "")).await, connect(&server.recipe("row", "")).await);
    let first = client.lock("b").ttl(LONG).acquire().await.unwrap();
    server.assert_rows_locked("tenure_lock_row", 1);
    let waiting = tokio::spawn(client.lock("b").ttl(LONG).acquire());
    eventually("somebody waits", || server.waiting().len() == 1);
    // Names before and after it, none of which has a row yet.
    let mut others = Vec::new();
    for name in ["a", "c", "bb"] {
        let guard = within(PATIENCE, "another name is free", other.lock(name).ttl(LONG).acquire());
        others.push(guard.await.unwrap());
    }
    assert!(!waiting.is_finished());
    drop(first);
    let next = within(PATIENCE, "the waiter gets it", waiting).await.unwrap().unwrap();
    server.assert_rows_locked("tenure_lock_row", 4);
    for guard in others {
        let _ = guard.release().await.unwrap();
    }
    server.assert_rows_locked("tenure_lock_row", 1);
    let _ = next.release().await.unwrap();
    server.assert_rows_locked("tenure_lock_row", 0);
}
