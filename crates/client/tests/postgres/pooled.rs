//! `PgBouncer` between the clients and the database.

use tenure::contract::within;
use tenure_testkit::{PgBouncer, Pooling, Postgres};

use crate::databases::{LONG, PATIENCE, connect, refusal};

/// Whoever locks in a session that is another's in the next moment has locked nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_pool_of_transactions_is_refused_where_a_session_holds_the_lock() {
    let postgres = Postgres::start();
    let pool = PgBouncer::before(&postgres, Pooling::Transactions);
    for turn in 0..3 {
        let refused = refusal(&format!("{}?recipe=advisory", pool.url())).await;
        for said in ["pools transactions", "the database itself", "pool sessions"] {
            assert!(refused.contains(said), "{turn}, {said}: {refused}");
        }
    }
    let client = connect(&format!("{}?recipe=advisory", postgres.url())).await;
    drop(client.lock("a").acquire().await.unwrap());
}

/// What the refusal advises works: both see the same locks.
#[tokio::test(flavor = "multi_thread")]
async fn a_pool_of_sessions_is_as_good_as_the_database() {
    let postgres = Postgres::start();
    let pool = PgBouncer::before(&postgres, Pooling::Sessions);
    for recipe in ["table", "row", "advisory"] {
        let through = connect(&format!("{}?recipe={recipe}", pool.url())).await;
        let direct = connect(&format!("{}?recipe={recipe}", postgres.url())).await;
        let held = through.lock("a").ttl(LONG).acquire().await.unwrap();
        assert!(direct.lock("a").try_acquire().await.unwrap().is_none(), "{recipe}");
        let waiting = tokio::spawn(through.lock("a").ttl(LONG).acquire());
        held.release().await.unwrap();
        let next = within(PATIENCE, "the waiter gets it", waiting).await.unwrap().unwrap();
        next.release().await.unwrap();
        drop(within(PATIENCE, "the direct one gets it", direct.lock("a").acquire()).await.unwrap());
    }
}
