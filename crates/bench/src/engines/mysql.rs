//! `mysql:` beside the SQL of each of its recipes, written by hand with the same client crate, on MariaDB.

use anyhow::{Result, ensure};
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use sqlx::{ConnectOptions, Connection};
use tenure_testkit::MariaDb;

use super::Lineup;
use super::redis::pause;
use super::sql::{self, Recipe, Thread};
use crate::workload::Held;

/// The rows of the locks are there, as they are after the first day.
const TABLES: &str = "
    CREATE TABLE bare_lock (name varchar(255) PRIMARY KEY, token bigint NOT NULL DEFAULT 0, holder bigint,
        expires datetime(3) NOT NULL DEFAULT NOW(3)) ENGINE = InnoDB;
    CREATE TABLE bare_row (name varchar(255) PRIMARY KEY) ENGINE = InnoDB;
    CREATE TABLE bare_token (name varchar(255) PRIMARY KEY, token bigint NOT NULL) ENGINE = InnoDB;";

/// The sizes that MariaDB has by default. With the small ones of a test it would be busy making room in its log.
const AS_IT_COMES: [&str; 2] = ["--innodb-log-file-size=96M", "--innodb-buffer-pool-size=128M"];

pub(crate) async fn lineup(recipe: &str) -> Result<Lineup> {
    let connections = format!("--max-connections={}", sql::MAX_CONNECTIONS);
    let server = MariaDb::builder().arg(connections).args(AS_IT_COMES).start();
    let names = sql::rows_of_names();
    server.sql(&format!(
        "{TABLES} INSERT INTO bare_lock (name) VALUES {names}; INSERT INTO bare_row (name) VALUES {names}"
    ));
    let url = server.url();
    let contenders = match recipe {
        "table" => sql::beside_ours::<Table>(&url, recipe).await?,
        "row" => sql::beside_ours::<Row>(&url, recipe).await?,
        _ => sql::beside_ours::<Named>(&url, recipe).await?,
    };
    Ok(Lineup { contenders, _ground: Box::new(server) })
}

async fn connect(url: String) -> Result<MySqlConnection> {
    Ok(url.parse::<MySqlConnectOptions>()?.disable_statement_logging().connect().await?)
}

/// The next token, committed at once.
async fn count(connection: &mut MySqlConnection, key: &str) -> Result<u64, sqlx::Error> {
    let counted = sqlx::query(
        "INSERT INTO bare_token (name, token) VALUES (?, LAST_INSERT_ID(1))
         ON DUPLICATE KEY UPDATE token = LAST_INSERT_ID(token + 1)",
    );
    Ok(counted.bind(key).execute(connection).await?.last_insert_id())
}

/// A row that says who holds it, until when.
struct Table(MySqlConnection);

impl Table {
    async fn take(&mut self, key: &str, holder: i64) -> Result<Option<u64>, sqlx::Error> {
        let taken = sqlx::query(
            "UPDATE bare_lock SET token = LAST_INSERT_ID(token + 1), holder = ?,
             expires = NOW(3) + INTERVAL 30 SECOND WHERE name = ? AND (holder IS NULL OR expires < NOW(3))",
        );
        let taken = taken.bind(holder).bind(key).execute(&mut self.0).await?;
        Ok((taken.rows_affected() == 1).then(|| taken.last_insert_id()))
    }
}

impl Recipe for Table {
    const NAME: &'static str = "bare UPDATE … LAST_INSERT_ID(token + 1)";

    async fn connect(url: &str, holds: Thread) -> Result<Self> {
        Ok(Self(holds.open(connect(url.to_owned())).await?))
    }

    async fn pair(&mut self, key: &str, held: Held) -> Result<()> {
        let holder = sql::holder();
        while self.take(key, holder).await?.is_none() {
            pause().await;
        }
        held.await;
        let freed = sqlx::query("UPDATE bare_lock SET holder = NULL WHERE name = ? AND holder = ?");
        let freed = freed.bind(key).bind(holder).execute(&mut self.0).await?;
        ensure!(freed.rows_affected() == 1, "{key} was lost while it was held");
        Ok(())
    }
}

/// A row that an open transaction locks. A second connection counts, since what the first one writes is not committed yet.
struct Row {
    locks: MySqlConnection,
    counts: MySqlConnection,
}

impl Recipe for Row {
    const NAME: &'static str = "bare SELECT … FOR UPDATE + token";

    async fn connect(url: &str, holds: Thread) -> Result<Self> {
        let (locks, counts) = (holds.open(connect(url.to_owned())), connect(url.to_owned()));
        Ok(Self { locks: locks.await?, counts: counts.await? })
    }

    async fn pair(&mut self, key: &str, held: Held) -> Result<()> {
        let mut transaction = self.locks.begin().await?;
        let locked = sqlx::query("SELECT 1 FROM bare_row WHERE name = ? FOR UPDATE");
        locked.bind(key).fetch_one(&mut *transaction).await?;
        count(&mut self.counts, key).await?;
        held.await;
        Ok(transaction.commit().await?)
    }
}

/// A name that a session has locked.
struct Named(MySqlConnection);

impl Recipe for Named {
    const NAME: &'static str = "bare GET_LOCK + token";

    async fn connect(url: &str, holds: Thread) -> Result<Self> {
        Ok(Self(holds.open(connect(url.to_owned())).await?))
    }

    async fn pair(&mut self, key: &str, held: Held) -> Result<()> {
        let got = sqlx::query_scalar("SELECT GET_LOCK(?, 60)").bind(key);
        let got: Option<i64> = got.fetch_one(&mut self.0).await?;
        ensure!(got == Some(1), "{key} was not to be had for a minute");
        count(&mut self.0, key).await?;
        held.await;
        let freed = sqlx::query_scalar("SELECT RELEASE_LOCK(?)").bind(key);
        let freed: Option<i64> = freed.fetch_one(&mut self.0).await?;
        ensure!(freed == Some(1), "{key} was lost while it was held");
        Ok(())
    }
}
