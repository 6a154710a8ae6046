//! The fence in a database, at both of the isolation levels that people use. The tests are the same on both databases.

use std::time::Duration;

use sqlx::{Connection, Executor, MySql, Pool, Postgres};
use tenure::LockName;
use tenure::fence::{Dialect, FenceError, FenceStore, SqlFence, TableName};
use tenure_testkit::MariaDb;

use crate::{LONG, stale, token, wait_for};

const ISOLATIONS: [&str; 2] = ["READ COMMITTED", "REPEATABLE READ"];

/// What is different about each database.
macro_rules! suite {
    (
        $module:ident, $server:ty, $database:ty, $dialect:expr,
        isolation: $isolation:literal,
        waiting: $waiting:literal,
        timeout: $timeout:literal, $set_timeout:literal,
        largest: $largest:expr,
        user: $user:literal
    ) => {
        mod $module {
            use super::*;

            async fn pool(isolation: &'static str) -> Pool<$database> {
                let options =
                    sqlx::pool::PoolOptions::<$database>::new().after_connect(move |connection, _| {
                        let set = sqlx::AssertSqlSafe(format!($isolation, isolation));
                        Box::pin(async move { connection.execute(set).await.map(drop) })
                    });
                options.connect(&<$server>::shared().url()).await.unwrap()
            }

            fn sql(statement: &str) -> String {
                <$server>::shared().sql(statement)
            }

            async fn fence(table: &str) -> SqlFence {
                let fence = SqlFence::in_table(TableName::parse(table).unwrap()).lock_timeout(LONG);
                fence.create_table(&mut pool("READ COMMITTED").await.acquire().await.unwrap()).await.unwrap();
                fence
            }

            /// A fence, and beside it a table with one row for data: the token of who wrote last.
            async fn fence_and_data(table: &str) -> SqlFence {
                sql(&format!("CREATE TABLE {table}_data (value DECIMAL(20))"));
                sql(&format!("INSERT INTO {table}_data VALUES (0)"));
                fence(table).await
            }

            fn data(table: &str) -> String {
                sql(&format!("SELECT value FROM {table}_data"))
            }

            /// A fenced write, again from its start if another transaction was in the way.
            async fn write(
                fence: &SqlFence,
                pool: &Pool<$database>,
                resource: &str,
                table: &str,
                number: u64,
            ) -> Result<(), FenceError> {
                loop {
                    let mut transaction = pool.begin().await.unwrap();
                    match fence.guard(&mut transaction, (resource, token(number))).await {
                        Err(FenceError::Contended { .. }) => continue,
                        passed => passed?,
                    }
                    let update = format!("UPDATE {table}_data SET value = {number}");
                    transaction.execute(sqlx::AssertSqlSafe(update)).await.unwrap();
                    transaction.commit().await.unwrap();
                    return Ok(());
                }
            }

            /// Until somebody waits in a statement about that table.
            async fn until_one_waits(table: &'static str) {
                let ask = format!($waiting, table);
                wait_for("the second transaction to wait for the first", move || sql(&ask) != "0").await;
            }

            #[tokio::test]
            async fn an_older_token_is_refused_and_an_equal_one_is_not() {
                let fence = fence_and_data("order_of").await;
                for isolation in ISOLATIONS {
                    let pool = pool(isolation).await;
                    let write = async |number| write(&fence, &pool, isolation, "order_of", number).await;
                    write(7).await.unwrap();
                    write(7).await.unwrap();
                    write(9).await.unwrap();
                    assert_eq!(stale(write(8).await), 9);
                    assert_eq!(stale(write(0).await), 9);
                    assert_eq!(data("order_of"), "9");
                    write(10).await.unwrap();
                    assert_eq!(data("order_of"), "10");
                }
            }

            #[tokio::test]
            async fn the_largest_tokens_are_compared_exactly_and_what_does_not_fit_is_said() {
                let (fence, pool) = (fence("largest").await, pool("READ COMMITTED").await);
                let guard = async |number| {
                    let mut transaction = pool.begin().await.unwrap();
                    let answer = fence.guard(&mut transaction, ("r", token(number))).await;
                    transaction.commit().await.unwrap();
                    answer
                };
                let largest: u64 = $largest;
                let mut steps = vec![0, (1 << 53) - 1, 1 << 53, i64::MAX.unsigned_abs() - 1, largest - 1];
                // On one of the databases the last two are the same.
                steps.dedup();
                for smaller in steps {
                    let larger = smaller + 1;
                    guard(smaller).await.unwrap();
                    guard(smaller).await.unwrap();
                    guard(larger).await.unwrap();
                    guard(larger).await.unwrap();
                    assert_eq!(stale(guard(smaller).await), larger);
                    assert_eq!(sql("SELECT token FROM largest"), larger.to_string());
                }
                assert_eq!(stale(guard(0).await), largest);
                if let Some(too_large) = largest.checked_add(1) {
                    for number in [too_large, u64::MAX] {
                        let answer = guard(number).await;
                        assert!(matches!(answer, Err(FenceError::TooLarge { .. })), "{answer:?}");
                    }
                }
            }

            #[tokio::test]
            async fn a_write_that_is_rolled_back_takes_its_token_along() {
                let fence = fence_and_data("rolled_back").await;
                for isolation in ISOLATIONS {
                    let pool = pool(isolation).await;
                    for before in [None, Some(5)] {
                        if let Some(before) = before {
                            write(&fence, &pool, isolation, "rolled_back", before).await.unwrap();
                        }
                        let mut transaction = pool.begin().await.unwrap();
                        fence.guard(&mut transaction, (isolation, token(9))).await.unwrap();
                        transaction.rollback().await.unwrap();
                    }
                    write(&fence, &pool, isolation, "rolled_back", 6).await.unwrap();
                    assert_eq!(data("rolled_back"), "6");
                }
            }

            #[tokio::test]
            async fn the_second_waits_until_the_first_has_committed() {
                let fence = fence_and_data("one_by_one").await;
                for (isolation, resource_is_new) in
                    ISOLATIONS.into_iter().flat_map(|isolation| [(isolation, true), (isolation, false)])
                {
                    let pool = pool(isolation).await;
                    let resource = format!("{isolation}, new: {resource_is_new}");
                    if !resource_is_new {
                        write(&fence, &pool, &resource, "one_by_one", 1).await.unwrap();
                    }
                    // The newer one is first, and the older one is refused as soon as it knows.
                    let mut first = pool.begin().await.unwrap();
                    fence.guard(&mut first, (&resource, token(7))).await.unwrap();
                    let late = write(&fence, &pool, &resource, "one_by_one", 6);
                    let commit = async {
                        until_one_waits("one_by_one").await;
                        first.execute("UPDATE one_by_one_data SET value = 7").await.unwrap();
                        first.commit().await.unwrap();
                    };
                    let (late, ()) = tokio::join!(late, commit);
                    assert_eq!(stale(late), 7, "{resource}");
                    assert_eq!(data("one_by_one"), "7", "{resource}");

                    // The older one is first: both write, one after the other, and the newer one is last.
                    let mut first = pool.begin().await.unwrap();
                    fence.guard(&mut first, (&resource, token(7))).await.unwrap();
                    let next = write(&fence, &pool, &resource, "one_by_one", 8);
                    let commit = async {
                        until_one_waits("one_by_one").await;
                        first.execute("UPDATE one_by_one_data SET value = 7").await.unwrap();
                        first.commit().await.unwrap();
                    };
                    let (next, ()) = tokio::join!(next, commit);
                    next.unwrap();
                    assert_eq!(data("one_by_one"), "8", "{resource}");

                    // The first is rolled back: the second may be older than what never was.
                    let mut first = pool.begin().await.unwrap();
                    fence.guard(&mut first, (&resource, token(99))).await.unwrap();
                    let next = write(&fence, &pool, &resource, "one_by_one", 9);
                    let undo = async {
                        until_one_waits("one_by_one").await;
                        first.rollback().await.unwrap();
                    };
                    let (next, ()) = tokio::join!(next, undo);
                    next.unwrap();
                    assert_eq!(data("one_by_one"), "9", "{resource}");
                }
            }

            /// Another transaction has passed the fence, and does not end.
            #[tokio::test]
            async fn a_check_waits_no_longer_than_its_limit_or_that_of_the_session() {
                let (fence, pool) = (fence("limit").await, pool("READ COMMITTED").await);
                for resource_is_new in [true, false] {
                    let resource = format!("new: {resource_is_new}");
                    if !resource_is_new {
                        let mut before = pool.begin().await.unwrap();
                        fence.guard(&mut before, (&resource, token(1))).await.unwrap();
                        before.commit().await.unwrap();
                    }
                    let mut first = pool.begin().await.unwrap();
                    fence.guard(&mut first, (&resource, token(7))).await.unwrap();
                    for (of_fence, of_session) in [(Duration::from_millis(50), None), (LONG, Some(1))] {
                        // On a connection of its own, since a setting may outlive the transaction.
                        let mut connection = pool.acquire().await.unwrap().detach();
                        let mut next = connection.begin().await.unwrap();
                        if let Some(seconds) = of_session {
                            let set = sqlx::AssertSqlSafe(format!($set_timeout, seconds));
                            next.execute(set).await.unwrap();
                        }
                        let fence = fence.clone().lock_timeout(of_fence);
                        let answer = fence.guard(&mut next, (&resource, token(8))).await;
                        assert!(matches!(answer, Err(FenceError::TimedOut { .. })), "{resource}: {answer:?}");
                        next.rollback().await.unwrap();
                    }
                    first.rollback().await.unwrap();
                }
            }

            #[tokio::test]
            async fn a_check_leaves_the_time_limit_of_the_transaction_as_it_was() {
                let (fence, pool) = (fence("limit_after").await, pool("READ COMMITTED").await);
                let mut transaction = pool.begin().await.unwrap();
                let before: String = sqlx::query_scalar($timeout).fetch_one(&mut *transaction).await.unwrap();
                for number in [7, 8] {
                    fence.guard(&mut transaction, ("r", token(number))).await.unwrap();
                    let after: String =
                        sqlx::query_scalar($timeout).fetch_one(&mut *transaction).await.unwrap();
                    assert_eq!(after, before);
                }
            }

            #[tokio::test]
            async fn an_old_snapshot_does_not_hide_a_newer_token() {
                let fence = fence_and_data("snapshot").await;
                for (isolation, resource_is_new) in
                    ISOLATIONS.into_iter().flat_map(|isolation| [(isolation, true), (isolation, false)])
                {
                    let pool = pool(isolation).await;
                    let resource = format!("{isolation}, new: {resource_is_new}");
                    if !resource_is_new {
                        write(&fence, &pool, &resource, "snapshot", 5).await.unwrap();
                    }
                    // It has looked, as one should not before the fence, and then comes somebody newer.
                    let mut late = pool.begin().await.unwrap();
                    late.fetch_all("SELECT * FROM snapshot_data").await.unwrap();
                    late.fetch_all("SELECT * FROM snapshot").await.unwrap();
                    write(&fence, &pool, &resource, "snapshot", 7).await.unwrap();
                    let answer = fence.guard(&mut late, (&resource, token(6))).await;
                    // PostgreSQL says of a snapshot that is too old only that it is.
                    let refused =
                        matches!(answer, Err(FenceError::Stale { .. } | FenceError::Contended { .. }));
                    assert!(refused, "{resource}: {answer:?}");
                    late.rollback().await.unwrap();
                    let again = write(&fence, &pool, &resource, "snapshot", 6).await;
                    assert_eq!(stale(again), 7, "{resource}");
                }
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn of_many_at_once_the_newest_is_the_last_to_write() {
                let fence = fence_and_data("many").await;
                for isolation in ISOLATIONS.into_iter().chain(["SERIALIZABLE"]) {
                    let pool = pool(isolation).await;
                    for round in 0..10 {
                        let resource = format!("{isolation} {round}");
                        let tasks = (1..=8).map(|number| {
                            let (fence, pool, resource) = (fence.clone(), pool.clone(), resource.clone());
                            tokio::spawn(async move {
                                match write(&fence, &pool, &resource, "many", number).await {
                                    Ok(()) | Err(FenceError::Stale { .. }) => {}
                                    Err(error) => panic!("{number}: {error:?}"),
                                }
                            })
                        });
                        for task in tasks.collect::<Vec<_>>() {
                            task.await.unwrap();
                        }
                        assert_eq!(data("many"), "8", "{resource}");
                    }
                }
            }

            #[tokio::test]
            async fn resources_are_told_apart_byte_by_byte() {
                let (fence, pool) = (fence("bytes").await, pool("READ COMMITTED").await);
                let long = "é".repeat(256);
                let other_long = format!("{}è", "é".repeat(255));
                let resources = [
                    "orders",
                    "Orders",
                    "orders ",
                    " orders",
                    "ordérs",
                    "orde\u{301}rs",
                    "straße",
                    "strasse",
                    "ß",
                    "ss",
                    "a'b\"c`d\\",
                    "%",
                    "_",
                    "日本",
                    "🔒",
                    &long,
                    &other_long,
                ];
                let mut transaction = pool.begin().await.unwrap();
                for (number, resource) in (100..).zip(resources) {
                    fence.guard(&mut transaction, (resource, token(number))).await.unwrap();
                }
                for (number, resource) in (100..).zip(resources) {
                    let answer = fence.guard(&mut transaction, (resource, token(number - 1))).await;
                    assert_eq!(stale(answer), number, "{resource:?}");
                }
                let answer = fence.guard(&mut transaction, ("x".repeat(513), token(1))).await;
                assert!(matches!(answer, Err(FenceError::Resource(_))), "{answer:?}");
            }

            #[tokio::test]
            async fn the_table_may_have_any_name_and_be_made_by_somebody_else() {
                let pool = pool("READ COMMITTED").await;
                sql("CREATE SCHEMA elsewhere");
                let names = [
                    TableName::parse("elsewhere.tokens").unwrap(),
                    TableName::literal("we\"ird`na.me; DROP TABLE x; -- ?$1").unwrap(),
                    TableName::in_schema("elsewhere", "Ünïcode sel\"ect").unwrap(),
                ];
                for name in names {
                    let fence = SqlFence::in_table(name);
                    let text = fence.create_table_sql($dialect);
                    pool.execute(sqlx::AssertSqlSafe(text)).await.unwrap();
                    let mut connection = pool.acquire().await.unwrap();
                    fence.create_table(&mut connection).await.unwrap();
                    // A connection of one's own will do, if one begins the transaction oneself.
                    connection.execute("BEGIN").await.unwrap();
                    fence.guard(&mut *connection, ("r", token(7))).await.unwrap();
                    connection.execute("COMMIT").await.unwrap();
                    let mut transaction = connection.begin().await.unwrap();
                    assert_eq!(stale(fence.guard(&mut transaction, ("r", token(6))).await), 7);
                }
            }

            #[tokio::test]
            async fn a_store_that_has_refused_leaves_nothing_locked() {
                let store = fence("refused").await.store(pool("READ COMMITTED").await);
                let resource = LockName::parse("r").unwrap();
                store.accept(&resource, token(7)).await.unwrap();
                assert_eq!(stale(store.accept(&resource, token(6)).await), 7);
                // Not even until the next await.
                sql("UPDATE refused SET token = 0");
                store.accept(&resource, token(1)).await.unwrap();
            }

            #[tokio::test]
            async fn three_rights_on_its_table_are_enough() {
                let fence = fence("rights").await;
                sql($user);
                sql("GRANT SELECT, INSERT, UPDATE ON rights TO fencer");
                let url = <$server>::shared().url();
                let (_, rest) = url.split_once('@').unwrap();
                let url = format!("{}://fencer@{rest}", <$database as sqlx::Database>::URL_SCHEMES[0]);
                let pool = Pool::<$database>::connect(&url).await.unwrap();
                let mut transaction = pool.begin().await.unwrap();
                fence.guard(&mut transaction, ("r", token(7))).await.unwrap();
                assert_eq!(stale(fence.guard(&mut transaction, ("r", token(6))).await), 7);
                transaction.commit().await.unwrap();

                let other = SqlFence::in_table(TableName::parse("not_its_own").unwrap());
                let refused = other.create_table(&mut pool.acquire().await.unwrap()).await;
                let error = refused.expect_err("it may not create tables").to_string();
                assert!(error.contains("not_its_own") && error.contains("create_table_sql"), "{error}");
            }

            #[tokio::test]
            async fn a_missing_table_is_said_and_many_may_create_it_at_once() {
                let pool = pool("READ COMMITTED").await;
                let fence = SqlFence::in_table(TableName::parse("late_table").unwrap());
                let mut transaction = pool.begin().await.unwrap();
                let answer = fence.guard(&mut transaction, ("r", token(7))).await;
                let Err(FenceError::NoTable { ref table, .. }) = answer else { panic!("{answer:?}") };
                assert_eq!(table, "late_table");
                transaction.rollback().await.unwrap();

                let make = || {
                    let (fence, pool) = (fence.clone(), pool.clone());
                    tokio::spawn(async move {
                        fence.create_table(&mut pool.acquire().await.unwrap()).await.unwrap();
                    })
                };
                for task in (0..8).map(|_| make()).collect::<Vec<_>>() {
                    task.await.unwrap();
                }
                let mut transaction = pool.begin().await.unwrap();
                fence.guard(&mut transaction, ("r", token(7))).await.unwrap();
            }
        }
    };
}

suite!(
    postgres, tenure_testkit::Postgres, Postgres, Dialect::Postgres,
    isolation: "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {}",
    waiting: "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%{}%'",
    timeout: "SHOW lock_timeout", "SET LOCAL lock_timeout = '{}s'",
    largest: i64::MAX.unsigned_abs(),
    user: "CREATE ROLE fencer LOGIN"
);

suite!(
    mariadb, MariaDb, MySql, Dialect::MySql,
    isolation: "SET SESSION TRANSACTION ISOLATION LEVEL {}",
    // The views of InnoDB are cached, and not refreshed while they are read often.
    waiting: "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE COMMAND = 'Execute' AND INFO LIKE '%{}%'",
    timeout: "SELECT CAST(@@innodb_lock_wait_timeout AS CHAR)", "SET SESSION innodb_lock_wait_timeout = {}",
    largest: u64::MAX,
    user: "CREATE USER fencer"
);

/// MariaDB 11.6 and later come so: a transaction may not write what was changed since it first looked.
#[tokio::test]
async fn mariadb_with_snapshot_isolation_does_not_hide_a_newer_token_either() {
    let pool = sqlx::MySqlPool::connect(&MariaDb::shared().url()).await.unwrap();
    let fence = SqlFence::in_table(TableName::parse("strict_snapshot").unwrap());
    fence.create_table(&mut pool.acquire().await.unwrap()).await.unwrap();
    let mut connection = pool.acquire().await.unwrap();
    connection.execute("SET SESSION innodb_snapshot_isolation = ON").await.unwrap();

    let mut newer = pool.begin().await.unwrap();
    fence.guard(&mut newer, ("r", token(5))).await.unwrap();
    newer.commit().await.unwrap();

    let mut late = connection.begin().await.unwrap();
    late.fetch_all("SELECT * FROM strict_snapshot").await.unwrap();
    let mut newer = pool.begin().await.unwrap();
    fence.guard(&mut newer, ("r", token(7))).await.unwrap();
    newer.commit().await.unwrap();
    let answer = fence.guard(&mut late, ("r", token(6))).await;
    assert!(matches!(answer, Err(FenceError::Contended { .. })), "{answer:?}");
    late.rollback().await.unwrap();

    let mut again = connection.begin().await.unwrap();
    assert_eq!(stale(fence.guard(&mut again, ("r", token(6))).await), 7);
}
