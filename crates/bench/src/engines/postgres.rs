//! `postgres:` beside the SQL of each of its recipes, written by hand with the same client crate.

use anyhow::{Result, ensure};
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::{ConnectOptions, Connection};
use tenure_testkit::Postgres;

use super::Lineup;
use super::redis::pause;
use super::sql::{self, Recipe, Thread};
use crate::workload::Held;

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
    let url = server.url();
    let contenders = match recipe {
        "table" => sql::beside_ours::<Table>(&url, recipe).await?,
        "row" => sql::beside_ours::<Row>(&url, recipe).await?,
        _ => sql::beside_ours::<Advisory>(&url, recipe).await?,
    };
    Ok(Lineup { contenders, _ground: Box::new(server) })
}

async fn connect(url: String) -> Result<PgConnection> {
    Ok(url.parse::<PgConnectOptions>()?.disable_statement_logging().connect().await?)
}

/// The next token, committed at once.
async fn count(connection: &mut PgConnection, key: &str) -> Result<i64, sqlx::Error> {
    let counted = sqlx::query_scalar(
        "INSERT INTO bare_token (name, token) VALUES ($1, 1)
         ON CONFLICT (name) DO UPDATE SET token = bare_token.token + 1 RETURNING token",
    );
    counted.bind(key).fetch_one(connection).await
}

/// A row that says who holds it, until when.
struct Table(PgConnection);

impl Table {
    async fn take(&mut self, key: &str, holder: i64) -> Result<Option<i64>, sqlx::Error> {
        let taken = sqlx::query_scalar(
            "UPDATE bare_lock SET token = token + 1, holder = $1, expires = clock_timestamp() + interval '30 s'
             WHERE name = $2 AND (holder IS NULL OR expires < clock_timestamp()) RETURNING token",
        );
        taken.bind(holder).bind(key).fetch_optional(&mut self.0).await
    }
}

impl Recipe for Table {
    const NAME: &'static str = "bare UPDATE … RETURNING token";

    async fn connect(url: &str, holds: Thread) -> Result<Self> {
        Ok(Self(holds.open(connect(url.to_owned())).await?))
    }

    async fn pair(&mut self, key: &str, held: Held) -> Result<()> {
        let holder = sql::holder();
        while self.take(key, holder).await?.is_none() {
            pause().await;
        }
        held.await;
        let freed = sqlx::query("UPDATE bare_lock SET holder = NULL WHERE name = $1 AND holder = $2");
        let freed = freed.bind(key).bind(holder).execute(&mut self.0).await?;
        ensure!(freed.rows_affected() == 1, "{key} was lost while it was held");
        Ok(())
    }
}

/// A row that an open transaction locks. A second connection counts, since what the first one writes is not committed yet.
struct Row {
    locks: PgConnection,
    counts: PgConnection,
}

impl Recipe for Row {
    const NAME: &'static str = "bare SELECT … FOR UPDATE + token";

    async fn connect(url: &str, holds: Thread) -> Result<Self> {
        let (locks, counts) = (holds.open(connect(url.to_owned())), connect(url.to_owned()));
        Ok(Self { locks: locks.await?, counts: counts.await? })
    }

    async fn pair(&mut self, key: &str, held: Held) -> Result<()> {
        let mut transaction = self.locks.begin().await?;
        let locked = sqlx::query("SELECT 1 FROM bare_row WHERE name = $1 FOR UPDATE");
        locked.bind(key).fetch_one(&mut *transaction).await?;
        count(&mut self.counts, key).await?;
        held.await;
        Ok(transaction.commit().await?)
    }
}

/// A number that a session has locked.
struct Advisory(PgConnection);

impl Recipe for Advisory {
    const NAME: &'static str = "bare pg_advisory_lock + token";

    async fn connect(url: &str, holds: Thread) -> Result<Self> {
        Ok(Self(holds.open(connect(url.to_owned())).await?))
    }

    async fn pair(&mut self, key: &str, held: Held) -> Result<()> {
        let got = sqlx::query("SELECT pg_advisory_lock(hashtextextended($1, 0))");
        got.bind(key).execute(&mut self.0).await?;
        count(&mut self.0, key).await?;
        held.await;
        let freed = sqlx::query_scalar("SELECT pg_advisory_unlock(hashtextextended($1, 0))");
        let freed: bool = freed.bind(key).fetch_one(&mut self.0).await?;
        ensure!(freed, "{key} was lost while it was held");
        Ok(())
    }
}
