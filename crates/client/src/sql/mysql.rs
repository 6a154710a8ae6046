//! The driver for MariaDB and MySQL.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::error::BoxDynError;
use sqlx::mysql::{MySqlArguments, MySqlDatabaseError, MySqlRow};
use sqlx::{Arguments, AssertSqlSafe, MySql, MySqlConnection, Row};

use super::{Dialect, SqlConnection, Trouble, sealed};

impl SqlConnection for MySqlConnection {
    type Database = MySql;

    fn connection(&mut self) -> &mut MySqlConnection {
        self
    }
}

impl sealed::Driver for MySql {
    const DIALECT: Dialect = Dialect::MySql;

    fn rows(
        connection: &mut MySqlConnection,
        statement: String,
        arguments: MySqlArguments,
    ) -> BoxFuture<'_, Result<Vec<MySqlRow>, sqlx::Error>> {
        sqlx::query_with(AssertSqlSafe(statement), arguments).fetch_all(connection).boxed()
    }

    fn run(
        connection: &mut MySqlConnection,
        statement: String,
        arguments: MySqlArguments,
    ) -> BoxFuture<'_, Result<u64, sqlx::Error>> {
        let query = sqlx::query_with(AssertSqlSafe(statement), arguments);
        async move { Ok(query.execute(connection).await?.rows_affected()) }.boxed()
    }

    fn newest<'c>(
        connection: &'c mut MySqlConnection,
        table: &str,
        resource: &'c str,
        token: u64,
        limit: Duration,
    ) -> BoxFuture<'c, Result<u64, sqlx::Error>> {
        // The statement reads and writes the newest committed token, whatever this transaction's snapshot shows, and no other transaction
        // changes it before this one ends. The number of changed rows depends on the connection's flags, so the "insert id" carries the
        // result instead: LAST_INSERT_ID(n) returns n with the response, and for a new row the response contains 0. MySQL cannot limit
        // the time of one statement, and treats the limit as a comment.
        let seconds = limit.as_secs() + u64::from(limit.subsec_nanos() > 0);
        let seconds = seconds.clamp(1, 1 << 30);
        let statement = format!(
            "/*M! SET STATEMENT innodb_lock_wait_timeout = LEAST(@@innodb_lock_wait_timeout, {seconds}) FOR */ \
             INSERT INTO {table} (resource, token) VALUES (?, ?) \
             ON DUPLICATE KEY UPDATE token = LAST_INSERT_ID(GREATEST(token, VALUES(token)))"
        );
        async move {
            let query = sqlx::query(AssertSqlSafe(statement)).bind(resource.as_bytes()).bind(token);
            Ok(query.execute(connection).await?.last_insert_id().max(token))
        }
        .boxed()
    }

    const LARGEST_TOKEN: u64 = u64::MAX;

    fn add_number(arguments: &mut MySqlArguments, number: i64) -> Result<(), BoxDynError> {
        arguments.add(number)
    }

    fn last_number(row: &MySqlRow) -> Result<Option<i64>, sqlx::Error> {
        let last = row.len() - 1;
        match row.try_get::<Option<u64>, _>(last) {
            Ok(unsigned) => {
                unsigned.map(i64::try_from).transpose().map_err(|error| sqlx::Error::Decode(error.into()))
            }
            Err(_) => row.try_get::<Option<i64>, _>(last),
        }
    }

    fn trouble(error: &sqlx::Error) -> Trouble {
        Trouble::of(error, |answer| {
            match answer.try_downcast_ref::<MySqlDatabaseError>().map(MySqlDatabaseError::number) {
                Some(1146) => Trouble::NoTable,
                // Lock wait timeout.
                Some(1205) => Trouble::LockTimeout,
                // Deadlock, and (MariaDB, innodb_snapshot_isolation) a change since this transaction's snapshot.
                Some(1213 | 1020) => Trouble::Contended,
                // Shutdown, and a kill by an operator: a commit may be in progress.
                Some(1053 | 1927) => Trouble::NoAnswer,
                _ => Trouble::Refused,
            }
        })
    }

    fn just_created(error: &sqlx::Error) -> bool {
        let answer = error.as_database_error().and_then(|e| e.try_downcast_ref::<MySqlDatabaseError>());
        answer.is_some_and(|answer| answer.number() == 1050)
    }
}
