//! `PgBouncer` between the clients and the database.

use sqlx::ConnectOptions;
use sqlx::postgres::PgConnectOptions;
use tenure::contract::within;
use tenure_testkit::{PgBouncer, Pooling, Postgres};

use crate::databases::{LONG, PATIENCE, connect, refusal};

const RECIPES: [&str; 3] = ["table", "row", "advisory"];

/// Whoever locks in a session that is another's in the next moment has locked nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_pool_of_transactions_is_refused() {
    let postgres = Postgres::start();
    let pool = PgBouncer::before(&postgres, Pooling::Transactions);
    for recipe in RECIPES {
        is_refused(&pool, recipe).await;
        let client = connect(&format!("{}?recipe={recipe}", postgres.url())).await;
        drop(client.lock("a").acquire().await.unwrap());
    }
}

/// So that the pool has sessions to choose from.
#[tokio::test(flavor = "multi_thread")]
async fn a_pool_of_transactions_is_refused_while_others_use_it() {
    let postgres = Postgres::start();
    let pool = PgBouncer::before(&postgres, Pooling::Transactions);
    let mut others = tokio::task::JoinSet::new();
    for _ in 0..8 {
        // PgBouncer does not know the parameter that sqlx sends by default.
        let options = pool.url().parse::<PgConnectOptions>().unwrap().extra_float_digits(None);
        let mut other = options.connect().await.unwrap();
        others.spawn(async move {
            loop {
                sqlx::raw_sql("SELECT pg_sleep(0.001)").execute(&mut other).await.unwrap();
            }
        });
    }
    for _ in 0..5 {
        for recipe in RECIPES {
            is_refused(&pool, recipe).await;
        }
    }
    others.shutdown().await;
}

async fn is_refused(pool: &PgBouncer, recipe: &str) {
    let refused = refusal(&format!("{}?recipe={recipe}", pool.url())).await;
    for said in ["pools transactions", "the database itself", "pool sessions"] {
        assert!(refused.to_string().contains(said), "{recipe}, {said}: {refused}");
    }
}

/// What the refusal advises works: both see the same locks.
#[tokio::test(flavor = "multi_thread")]
async fn a_pool_of_sessions_is_as_good_as_the_database() {
    let postgres = Postgres::start();
    let pool = PgBouncer::before(&postgres, Pooling::Sessions);
    for recipe in RECIPES {
        let through = connect(&format!("{}?recipe={recipe}", pool.url())).await;
        let direct = connect(&format!("{}?recipe={recipe}", postgres.url())).await;
        let held = through.lock("a").ttl(LONG).acquire().await.unwrap();
        assert!(direct.lock("a").try_acquire().await.unwrap().is_none(), "{recipe}");
        let waiting = tokio::spawn(through.lock("a").ttl(LONG).acquire());
        let _ = held.release().await.unwrap();
        let next = within(PATIENCE, "the waiter gets it", waiting).await.unwrap().unwrap();
        let _ = next.release().await.unwrap();
        drop(within(PATIENCE, "the direct one gets it", direct.lock("a").acquire()).await.unwrap());
    }
}
