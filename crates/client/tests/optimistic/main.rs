//! Optimistic locking on real databases. The tests are the same on both.

use sqlx::{Executor, MySql, Pool, Postgres, Row};
use tenure::optimistic::{Changes, Conflict, ReadError, TableName, UpdateError, Versioned, WriteError};
use tenure_testkit::MariaDb;

const ISOLATIONS: [&str; 2] = ["READ COMMITTED", "REPEATABLE READ"];

/// What a closure in these tests can fail with.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum Mine {
    #[error("not enough: {0}")]
    NotEnough(i64),
}

/// What is different about each database.
macro_rules! suite {
    ($module:ident, $server:ty, $database:ty, isolation: $isolation:literal, quote: $quote:literal) => {
        mod $module {
            use super::*;

            async fn pool(isolation: &'static str) -> Pool<$database> {
                let options = sqlx::pool::PoolOptions::<$database>::new().after_connect(move |connection, _| {
                    let set = sqlx::AssertSqlSafe(format!($isolation, isolation));
                    Box::pin(async move { connection.execute(set).await.map(drop) })
                });
                options.connect(&<$server>::shared().url()).await.unwrap()
            }

            fn sql(statement: &str) -> String {
                <$server>::shared().sql(statement)
            }

            /// A table of counters with one row: number 1, at 0.
            fn counters(table: &str) -> Versioned {
                sql(&format!(
                    "CREATE TABLE {table} (id INT PRIMARY KEY, n BIGINT NOT NULL, note VARCHAR(20), version INT)"
                ));
                sql(&format!("INSERT INTO {table} VALUES (1, 0, 'first', 0)"));
                Versioned::table(table).unwrap()
            }

            fn one_more(
                row: &<$database as sqlx::Database>::Row,
            ) -> Result<Changes<$database>, sqlx::Error> {
                let n: i64 = row.try_get("n")?;
                Ok(Changes::new().set("n", n + 1))
            }

            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn no_increment_is_lost() {
                let counters = counters("increments").attempts(u32::MAX);
                for (round, isolation) in (1..).zip(ISOLATIONS.into_iter().chain(["SERIALIZABLE"])) {
                    let pool = pool(isolation).await;
                    let tasks = (0..16).map(|_| {
                        let (counters, pool) = (counters.clone(), pool.clone());
                        tokio::spawn(async move {
                            let mut attempts = 0;
                            for _ in 0..25 {
                                attempts += counters.update(&pool, 1, one_more).await.unwrap().attempts;
                            }
                            attempts
                        })
                    });
                    let mut attempts = 0;
                    for task in tasks.collect::<Vec<_>>() {
                        attempts += task.await.unwrap();
                    }
                    let all = (400 * round).to_string();
                    assert_eq!(sql("SELECT n FROM increments"), all, "{isolation}");
                    assert_eq!(sql("SELECT version FROM increments"), all, "{isolation}");
                    assert!(attempts > 400, "nobody was ever in the way, so nothing was tested");
                }
            }

            #[tokio::test]
            async fn the_bound_gives_the_conflict_and_nothing_is_written() {
                let counters = counters("bound");
                for isolation in ISOLATIONS {
                    let pool = pool(isolation).await;
                    for bound in [1, 3] {
                        let before: i64 = sql("SELECT version FROM bound").parse().unwrap();
                        // Each time between reading and writing, somebody else writes.
                        let counters = counters.clone().attempts(bound);
                        let answer = counters.update(&pool, 1, |row| {
                            sql("UPDATE bound SET note = 'other', version = version + 1");
                            one_more(row)
                        });
                        let error = answer.await.expect_err("somebody was in the way each time");
                        let UpdateError::Conflict(Conflict { attempts, version, ref key, .. }) = error else {
                            panic!("{error:?}");
                        };
                        assert_eq!((attempts, key.as_str()), (bound, "1"), "{isolation}");
                        assert_eq!(version, before + i64::from(bound) - 1, "{isolation}");
                        assert_eq!(sql("SELECT n FROM bound"), "0");
                        // Nothing is locked any more, not even until the next await.
                        sql("UPDATE bound SET note = 'free'");
                    }
                }
            }

            #[tokio::test]
            async fn who_comes_second_computes_again_from_what_is_there_now() {
                let (counters, pool) = (counters("again"), pool("REPEATABLE READ").await);
                let mut calls = 0;
                let updated = counters.update(&pool, 1, |row| {
                    calls += 1;
                    if calls == 1 {
                        sql("UPDATE again SET n = 10, version = version + 1");
                    }
                    one_more(row)
                });
                let updated = updated.await.unwrap();
                assert_eq!((updated.attempts, updated.version), (2, 2));
                assert_eq!(sql("SELECT n FROM again"), "11");
            }

            #[tokio::test]
            async fn the_closures_error_comes_back_as_it_is() {
                let (counters, pool) = (counters("closure"), pool("READ COMMITTED").await);
                let answer = counters.update(&pool, 1, |row| {
                    Err(Mine::NotEnough(row.try_get("n").expect("there is such a column")))
                });
                let error = answer.await.expect_err("the closure says no");
                assert!(matches!(error, UpdateError::Compute(Mine::NotEnough(0))), "{error:?}");
                assert_eq!(sql("SELECT version FROM closure"), "0");
            }

            #[tokio::test]
            async fn a_row_that_is_missing_double_or_without_a_version_is_said() {
                let (counters, pool) = (counters("rows_of"), pool("READ COMMITTED").await);
                let error = counters.update(&pool, 2, one_more).await.expect_err("there is no such row");
                let UpdateError::Read(ReadError::Missing { key, .. }) = error else { panic!("{error:?}") };
                assert_eq!(key, "2");

                sql("INSERT INTO rows_of VALUES (3, 0, 'null', NULL)");
                let error = counters.update(&pool, 3, one_more).await.expect_err("its version is NULL");
                assert!(matches!(error, UpdateError::Read(ReadError::NullVersion { .. })), "{error:?}");

                sql("INSERT INTO rows_of VALUES (4, 0, 'twice', 0), (5, 0, 'twice', 0)");
                let by_note = counters.clone().key("note").unwrap();
                let error = by_note.update(&pool, "twice", one_more).await.expect_err("there are two");
                assert!(matches!(error, UpdateError::Read(ReadError::NotUnique { .. })), "{error:?}");
                // Without a transaction, too, neither is written.
                let mut connection = pool.acquire().await.unwrap();
                let error = by_note.write(&mut connection, "twice", 0, Changes::new()).await;
                assert!(matches!(error, Err(WriteError::NotUnique { rows: 2, .. })), "{error:?}");
                assert_eq!(sql("SELECT COUNT(*) FROM rows_of WHERE note = 'twice' AND version = 0"), "2");

                let bad = counters.version("note").unwrap();
                let error = bad.update(&pool, 1, one_more).await.expect_err("a text is no version");
                assert!(matches!(error, UpdateError::Read(ReadError::BadVersion { .. })), "{error:?}");
            }

            #[tokio::test]
            async fn a_row_that_is_deleted_meanwhile_is_missing() {
                let (counters, pool) = (counters("deleted"), pool("READ COMMITTED").await);
                let answer = counters.update(&pool, 1, |row| {
                    sql("DELETE FROM deleted");
                    one_more(row)
                });
                let error = answer.await.expect_err("it is gone");
                assert!(matches!(error, UpdateError::Read(ReadError::Missing { .. })), "{error:?}");
            }

            #[tokio::test]
            async fn names_may_hold_anything() {
                let pool = pool("READ COMMITTED").await;
                sql("CREATE SCHEMA bank");
                let quoted = |name: &str| {
                    let quote = $quote;
                    format!("{quote}{}{quote}", name.replace(quote, &quote.repeat(2)))
                };
                let (key, version, column) = ("we\"ird", "ba`ck`ticks", "a.b; -- $1 ?");
                for (schema, name) in [("bank", "acc\"ou`nts.2"), ("bank", "Select")] {
                    let full = format!("{}.{}", quoted(schema), quoted(name));
                    let (k, v, c) = (quoted(key), quoted(version), quoted(column));
                    sql(&format!("CREATE TABLE {full} ({k} VARCHAR(20) PRIMARY KEY, {v} SMALLINT, {c} INT)"));
                    sql(&format!("INSERT INTO {full} VALUES ('x''y', 7, 1)"));

                    let table = Versioned::in_table(TableName::in_schema(schema, name).unwrap());
                    let table = table.key(key).unwrap().version(version).unwrap();
                    let updated = table.update(&pool, "x'y", |row| {
                        let old: i32 = row.try_get(column)?;
                        Ok::<_, sqlx::Error>(Changes::new().set(column, old + 1))
                    });
                    assert_eq!(updated.await.unwrap().version, 8);
                    assert_eq!(sql(&format!("SELECT {c} FROM {full}")), "2");
                }
                let dotted = Versioned::table("bank.Select").unwrap().key(key).unwrap();
                let mut connection = pool.acquire().await.unwrap();
                let read = dotted.version(version).unwrap().read(&mut connection, "x'y").await.unwrap();
                assert_eq!(read.version, 8);
            }

            #[tokio::test]
            async fn what_was_read_long_ago_is_written_only_if_nobody_was_there() {
                let counters = counters("halves");
                for isolation in ISOLATIONS {
                    let pool = pool(isolation).await;
                    let mut connection = pool.acquire().await.unwrap();
                    let mine = counters.read(&mut connection, 1).await.unwrap();
                    let theirs = counters.read(&mut connection, 1).await.unwrap();
                    assert_eq!(mine.row.try_get::<i32, _>("id").unwrap(), 1);

                    let change = || Changes::new().set("note", "mine").set("n", None::<i64>);
                    let mut transaction = pool.begin().await.unwrap();
                    let refused = counters.write(&mut transaction, 1, mine.version, change()).await;
                    assert!(matches!(refused, Err(WriteError::Database { .. })), "NULL: {refused:?}");
                    transaction.rollback().await.unwrap();

                    let change = || Changes::new().set("note", isolation);
                    let mut transaction = pool.begin().await.unwrap();
                    let raised = counters.write(&mut transaction, 1, mine.version, change()).await.unwrap();
                    assert_eq!(raised, mine.version + 1);
                    transaction.commit().await.unwrap();

                    let mut transaction = pool.begin().await.unwrap();
                    let late = counters.write(&mut transaction, 1, theirs.version, Changes::new()).await;
                    let Err(WriteError::Conflict(conflict)) = late else { panic!("{late:?}") };
                    assert_eq!((conflict.attempts, conflict.version), (1, theirs.version));
                    assert_eq!(sql("SELECT note FROM halves"), isolation);
                }
            }

            #[tokio::test]
            async fn a_transaction_that_reads_early_and_writes_late_loses_nothing() {
                let counters = counters("early");
                for isolation in ISOLATIONS {
                    let pool = pool(isolation).await;
                    let mut late = pool.begin().await.unwrap();
                    let read = counters.read(&mut late, 1).await.unwrap();
                    counters.update(&pool, 1, one_more).await.unwrap();
                    let change = one_more(&read.row).unwrap();
                    let answer = counters.write(&mut late, 1, read.version, change).await;
                    // PostgreSQL says of a snapshot that is too old only that it is.
                    let refused =
                        matches!(answer, Err(WriteError::Conflict(_) | WriteError::Contended { .. }));
                    assert!(refused, "{isolation}: {answer:?}");
                }
                assert_eq!(sql("SELECT n FROM early"), "2");
            }

            #[tokio::test]
            async fn the_key_and_the_version_are_not_the_closures_to_set() {
                let (counters, pool) = (counters("reserved"), pool("READ COMMITTED").await);
                for column in ["id", "version"] {
                    let change = |_: &_| Ok::<_, Mine>(Changes::new().set(column, 9));
                    let error = counters.update(&pool, 1, change).await.expect_err("it is not to be set");
                    assert!(matches!(error, UpdateError::Write(WriteError::Reserved { .. })), "{error:?}");
                }
                let change = |_: &_| Ok::<_, Mine>(Changes::new().set("", 9));
                let error = counters.update(&pool, 1, change).await.expect_err("that is no name");
                assert!(matches!(error, UpdateError::Write(WriteError::Column(_))), "{error:?}");
                let change = |_: &_| Ok::<_, Mine>(Changes::new().set("no_such", 9));
                let error = counters.update(&pool, 1, change).await.expect_err("there is no such column");
                assert!(matches!(error, UpdateError::Write(WriteError::Database { .. })), "{error:?}");
                assert_eq!(sql("SELECT version FROM reserved"), "0");
                let touched = counters.update(&pool, 1, |_| Ok::<_, Mine>(Changes::new())).await.unwrap();
                assert_eq!(touched.version, 1, "nothing but the version");
            }

            #[tokio::test]
            async fn a_column_that_is_added_while_all_runs_does_no_harm() {
                let counters = counters("altered");
                // One connection, which may have prepared what it was asked before.
                let options = sqlx::pool::PoolOptions::<$database>::new().max_connections(1);
                let pool = options.connect(&<$server>::shared().url()).await.unwrap();
                counters.update(&pool, 1, one_more).await.unwrap();
                sql("ALTER TABLE altered ADD COLUMN more INT");
                counters.update(&pool, 1, one_more).await.unwrap();
                assert_eq!(sql("SELECT n FROM altered"), "2");
            }
        }
    };
}

suite!(
    postgres, tenure_testkit::Postgres, Postgres,
    isolation: "SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL {}",
    quote: "\""
);

suite!(
    mariadb, MariaDb, MySql,
    isolation: "SET SESSION TRANSACTION ISOLATION LEVEL {}",
    quote: "`"
);

#[tokio::test]
async fn mariadb_that_commits_nothing_by_itself_and_unsigned_versions_lose_nothing_either() {
    let server = MariaDb::shared();
    server.sql("CREATE TABLE manual (id INT PRIMARY KEY, n BIGINT, Version BIGINT UNSIGNED)");
    server.sql("INSERT INTO manual VALUES (1, 0, 0)");
    let options = sqlx::pool::PoolOptions::<MySql>::new().after_connect(|connection, _| {
        Box::pin(async move { connection.execute("SET autocommit = 0").await.map(drop) })
    });
    let pool = options.connect(&server.url()).await.unwrap();
    let table = Versioned::table("manual").unwrap();
    for before in 0..5_i64 {
        let updated = table.update(&pool, 1, |row| {
            Ok::<_, sqlx::Error>(Changes::new().set("n", row.try_get::<i64, _>("n")? + 1))
        });
        assert_eq!(updated.await.unwrap().version, before + 1);
    }
    assert_eq!(server.sql("SELECT n FROM manual"), "5", "another connection sees it");

    server.sql("UPDATE manual SET Version = 18446744073709551615");
    let answer = table.update(&pool, 1, |_| Ok::<_, Mine>(Changes::new())).await;
    let error = answer.expect_err("it does not fit");
    assert!(matches!(error, UpdateError::Read(ReadError::BadVersion { .. })), "{error:?}");
}

/// A table whose writes end the connection: at once, or at the commit.
fn cut_off(table: &str, when: &str) -> Versioned {
    let server = tenure_testkit::Postgres::shared();
    server.sql(&format!("CREATE TABLE {table} (id INT PRIMARY KEY, version BIGINT)"));
    server.sql(&format!("INSERT INTO {table} VALUES (1, 0)"));
    server.sql(&format!(
        "CREATE FUNCTION cut_{table}() RETURNS trigger LANGUAGE plpgsql AS \
         'BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN NEW; END'"
    ));
    server.sql(&format!(
        "CREATE CONSTRAINT TRIGGER cut AFTER UPDATE ON {table} DEFERRABLE INITIALLY {when} \
         FOR EACH ROW EXECUTE FUNCTION cut_{table}()"
    ));
    Versioned::table(table).unwrap()
}

#[tokio::test]
async fn a_commit_without_an_answer_is_in_doubt_and_not_tried_again() {
    let pool = sqlx::PgPool::connect(&tenure_testkit::Postgres::shared().url()).await.unwrap();
    let mut calls = 0;
    let at_commit = cut_off("cut_at_commit", "DEFERRED");
    let answer = at_commit.update(&pool, 1, |_| {
        calls += 1;
        Ok::<_, Mine>(Changes::new())
    });
    let error = answer.await.expect_err("the connection ends");
    assert!(matches!(error, UpdateError::Write(WriteError::InDoubt { version: 0, .. })), "{error:?}");
    assert_eq!(calls, 1);

    let before = cut_off("cut_before", "IMMEDIATE");
    let answer = before.update(&pool, 1, |_| Ok::<_, Mine>(Changes::new())).await;
    let error = answer.expect_err("the connection ends");
    assert!(
        matches!(error, UpdateError::Write(WriteError::Database { .. })),
        "no commit, no doubt: {error:?}"
    );
}
