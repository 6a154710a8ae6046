//! What may become of a session that holds a lock, or is about to.

use sqlx::{Executor, Pool};
use tenure::Release;
use tenure::contract::within;
use tenure_testkit::eventually;

use super::{Database, LONG, PATIENCE, connect, session_recipes};

/// The row of the lock is locked on one connection, and the token counted on another one: in between, the first may end.
pub(crate) async fn a_row_whose_session_ended_before_its_token_was_counted_is_not_granted<D: Database>()
where
    for<'c> &'c mut <D::Driver as sqlx::Database>::Connection: Executor<'c, Database = D::Driver>,
{
    let server = D::start();
    let pool = Pool::<D::Driver>::connect(&server.url()).await.unwrap();
    let mut transaction = pool.begin().await.unwrap();
    let not_ours = server.connections();
    let url = server.recipe("row", "&timeout_ms=60000");
    let client = connect(&url).await;
    let _ = client.lock("a").acquire().await.unwrap().release().await.unwrap();

    transaction.execute(sqlx::raw_sql("SELECT token FROM tenure_lock_session FOR UPDATE")).await.unwrap();
    let asking = tokio::spawn(client.lock("a").ttl(LONG).acquire());
    let counts = eventually("it waits to count", || server.waiting().pop());
    let others = || server.connections().into_iter().filter(|one| *one != counts && !not_ours.contains(one));
    for connection in others() {
        server.end(&connection);
    }
    eventually("only the one that counts is left", || others().next().is_none());
    transaction.rollback().await.unwrap();

    let held = within(PATIENCE, "it has it in the end", asking).await.unwrap().unwrap();
    let other = connect(&url).await;
    assert!(other.lock("a").try_acquire().await.unwrap().is_none(), "nobody has it: {held:?}");
    assert_eq!(other.inspect("a").await.unwrap().holders[0].grant, held.grant());
    assert_eq!(held.release().await.unwrap(), Release::Released);
}

/// Whoever shares the tables shares the locks.
pub(crate) async fn tables_may_be_named_with_their_schema<D: Database>() {
    let server = D::start();
    for recipe in session_recipes::<D>() {
        let (plain, whole) = (server.recipe(recipe, ""), server.recipe(recipe, &server.same_table()));
        let (plain, whole) = (connect(&plain).await, connect(&whole).await);
        let held = plain.lock("a").ttl(LONG).acquire().await.unwrap();
        assert!(whole.lock("a").try_acquire().await.unwrap().is_none(), "{recipe}");
        assert_eq!(whole.inspect("a").await.unwrap().holders[0].grant, held.grant(), "{recipe}");
        let token = held.token();
        let _ = held.release().await.unwrap();
        assert!(whole.lock("a").acquire().await.unwrap().token() > token, "{recipe}");
    }
}
