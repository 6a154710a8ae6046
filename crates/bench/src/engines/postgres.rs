//! `postgres:` beside the SQL of each of its recipes, written by hand with the same client crate.

use anyhow::Result;
use sqlx::ConnectOptions;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use tenure_testkit::Postgres;

use super::Lineup;
use super::recipes::{self, Database};
use super::sql;

/// The rows of the locks are there, as they are after the first day.
const TABLES: &str = "
    CREATE TABLE bare_lock (name text PRIMARY KEY, token bigint NOT NULL DEFAULT 0, holder bigint,
        expires timestamptz NOT NULL DEFAULT now());
    CREATE TABLE bare_row (name text PRIMARY KEY);
    CREATE TABLE bare_token (name text PRIMARY KEY, token bigint NOT NULL);";

pub(crate) async fn lineup(recipe: &str) -> Result<Lineup> {
    let connections = format!("max_connections={}", sql::MAX_CONNECTIONS);
    let server = Postgres::builder().args(["-c", &connections]).start();
    let names = sql::rows_of_names();
    server.sql(&format!(
        "{TABLES} INSERT INTO bare_lock (name) VALUES {names}; INSERT INTO bare_row (name) VALUES {names}"
    ));
    let contenders = recipes::beside_ours::<BarePostgres>(&server.url(), recipe).await?;
    Ok(Lineup { contenders, _ground: Box::new(server) })
}

struct BarePostgres;

impl Database for BarePostgres {
    type Connection = PgConnection;

    const TABLE: &'static str = "bare UPDATE … RETURNING token";
    const SESSION: &'static str = "bare pg_advisory_lock + token";

    async fn connect(url: String) -> Result<PgConnection> {
        Ok(url.parse::<PgConnectOptions>()?.disable_statement_logging().connect().await?)
    }

    async fn take(connection: &mut PgConnection, key: &str, holder: i64) -> Result<bool> {
        let taken = sqlx::query_scalar::<_, i64>(
            "UPDATE bare_lock SET token = token + 1, holder = $1, expires = clock_timestamp() + interval '30 s'
             WHERE name = $2 AND (holder IS NULL OR expires < clock_timestamp()) RETURNING token",
        );
        Ok(taken.bind(holder).bind(key).fetch_optional(connection).await?.is_some())
    }

    async fn free(connection: &mut PgConnection, key: &str, holder: i64) -> Result<bool> {
        let freed = sqlx::query("UPDATE bare_lock SET holder = NULL WHERE name = $1 AND holder = $2");
        Ok(freed.bind(key).bind(holder).execute(connection).await?.rows_affected() == 1)
    }

    async fn lock_row(connection: &mut PgConnection, key: &str) -> Result<()> {
        let locked = sqlx::query("SELECT 1 FROM bare_row WHERE name = $1 FOR UPDATE");
        locked.bind(key).fetch_one(connection).await?;
        Ok(())
    }

    async fn count(connection: &mut PgConnection, key: &str) -> Result<()> {
        let counted = sqlx::query_scalar::<_, i64>(
            "INSERT INTO bare_token (name, token) VALUES ($1, 1)
             ON CONFLICT (name) DO UPDATE SET token = bare_token.token + 1 RETURNING token",
        );
        counted.bind(key).fetch_one(connection).await?;
        Ok(())
    }

    async fn lock(connection: &mut PgConnection, key: &str) -> Result<bool> {
        let got = sqlx::query("SELECT pg_advisory_lock(hashtextextended($1, 0))");
        got.bind(key).execute(connection).await?;
        Ok(true)
    }

    async fn unlock(connection: &mut PgConnection, key: &str) -> Result<bool> {
        let freed = sqlx::query_scalar("SELECT pg_advisory_unlock(hashtextextended($1, 0))");
        Ok(freed.bind(key).fetch_one(connection).await?)
    }
}
