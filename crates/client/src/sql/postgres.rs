//! The driver for PostgreSQL.

use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::error::BoxDynError;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::{Arguments, AssertSqlSafe, Column, PgConnection, Postgres, Row, TypeInfo};

use super::{Dialect, SqlConnection, Trouble, sealed};

impl SqlConnection for PgConnection {
    type Database = Postgres;

    fn connection(&mut self) -> &mut PgConnection {
        self
    }
}

impl sealed::Driver for Postgres {
    const DIALECT: Dialect = Dialect::Postgres;

    fn rows(
        connection: &mut PgConnection,
        statement: String,
        arguments: PgArguments,
    ) -> BoxFuture<'_, Result<Vec<PgRow>, sqlx::Error>> {
        // Not kept prepared: PostgreSQL refuses a prepared `SELECT *` after a column was added to the table.
        let query = sqlx::query_with(AssertSqlSafe(statement), arguments).persistent(false);
        query.fetch_all(connection).boxed()
    }

    fn run(
        connection: &mut PgConnection,
        statement: String,
        arguments: PgArguments,
    ) -> BoxFuture<'_, Result<u64, sqlx::Error>> {
        let query = sqlx::query_with(AssertSqlSafe(statement), arguments);
        async move { Ok(query.execute(connection).await?.rows_affected()) }.boxed()
    }

    fn newest<'c>(
        connection: &'c mut PgConnection,
        table: &str,
        resource: &'c str,
        token: u64,
        limit: Duration,
    ) -> BoxFuture<'c, Result<u64, sqlx::Error>> {
        // The row is written even if this token is the older one. So the result is the newest committed token, whatever this
        // transaction's snapshot shows, and no other transaction changes it before this one ends. The time limit is set for this
        // transaction, before the row is touched. If the statement fails, the limit ends with the transaction.
        let statement = format!(
            "WITH setting AS MATERIALIZED (SELECT current_setting('lock_timeout') AS own), \
             limited AS MATERIALIZED (SELECT own, set_config('lock_timeout', \
             CASE WHEN own::interval > '0' AND own::interval < $3::interval THEN own ELSE $3 END, true) AS set \
             FROM setting) \
             INSERT INTO {table} AS kept (resource, token) \
             SELECT $1::text, $2::bigint FROM limited WHERE set IS NOT NULL \
             ON CONFLICT (resource) DO UPDATE SET token = GREATEST(kept.token, EXCLUDED.token) \
             RETURNING token, (SELECT own FROM limited), (SELECT set FROM limited)"
        );
        async move {
            let token = i64::try_from(token).map_err(|error| sqlx::Error::Encode(error.into()))?;
            // 0 would mean no limit.
            let limit_ms = limit.as_millis().clamp(1, i32::MAX.unsigned_abs().into());
            let query = sqlx::query_as(AssertSqlSafe(statement)).bind(resource).bind(token);
            let (newest, own, set): (i64, String, String) =
                query.bind(format!("{limit_ms}ms")).fetch_one(&mut *connection).await?;
            if own != set {
                let restore = sqlx::query("SELECT set_config('lock_timeout', $1, true)").bind(own);
                restore.execute(connection).await?;
            }
            u64::try_from(newest).map_err(|error| sqlx::Error::Decode(error.into()))
        }
        .boxed()
    }

    const LARGEST_TOKEN: u64 = i64::MAX.unsigned_abs();

    fn add_number(arguments: &mut PgArguments, number: i64) -> Result<(), BoxDynError> {
        arguments.add(number)
    }

    fn last_number(row: &PgRow) -> Result<Option<i64>, sqlx::Error> {
        let last = row.len() - 1;
        let sort = row.column(last).type_info();
        match sort.name() {
            // All three are read as the widest type.
            "INT2" | "INT4" | "INT8" => row.try_get_unchecked(last),
            // For any other type, sqlx returns the complete error.
            _ => row.try_get::<Option<i64>, _>(last),
        }
    }

    fn trouble(error: &sqlx::Error) -> Trouble {
        Trouble::of(error, |answer| match answer.code().as_deref() {
            Some("42P01") => Trouble::NoTable,
            // The wait for a lock exceeded lock_timeout.
            Some("55P03") => Trouble::LockTimeout,
            // Serialization failure, and deadlock.
            Some("40001" | "40P01") => Trouble::Contended,
            // The server ends the connection, and the outcome of the last statement is unknown: shutdown, crash, and class 08.
            Some("57P01" | "57P02") => Trouble::NoAnswer,
            Some(code) if code.starts_with("08") => Trouble::NoAnswer,
            _ => Trouble::Refused,
        })
    }

    fn just_created(error: &sqlx::Error) -> bool {
        // IF NOT EXISTS checks before it creates. Of two concurrent checks, the second create finds the table, its index or its type.
        let code = error.as_database_error().and_then(sqlx::error::DatabaseError::code);
        matches!(code.as_deref(), Some("23505" | "42P07" | "42710"))
    }
}
