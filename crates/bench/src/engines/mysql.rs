//! `mysql:` beside the SQL of each of its recipes, written by hand with the same client crate, on MariaDB.

use anyhow::Result;
use sqlx::ConnectOptions;
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection};
use tenure_testkit::MariaDb;

use super::Lineup;
use super::recipes::{self, Database};
use super::sql;

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
    let contenders = recipes::beside_ours::<BareMariaDb>(&server.url(), recipe).await?;
    Ok(Lineup { contenders, _ground: Box::new(server) })
}

struct BareMariaDb;

impl Database for BareMariaDb {
    type Connection = MySqlConnection;

    const TABLE: &'static str = "bare UPDATE … LAST_INSERT_ID(token + 1)";
    const SESSION: &'static str = "bare GET_LOCK + token";

    async fn connect(url: String) -> Result<MySqlConnection> {
        Ok(url.parse::<MySqlConnectOptions>()?.disable_statement_logging().connect().await?)
    }

    async fn take(connection: &mut MySqlConnection, key: &str, holder: i64) -> Result<bool> {
        let taken = sqlx::query(
            "UPDATE bare_lock SET token = LAST_INSERT_ID(token + 1), holder = ?,
             expires = NOW(3) + INTERVAL 30 SECOND WHERE name = ? AND (holder IS NULL OR expires < NOW(3))",
        );
        Ok(taken.bind(holder).bind(key).execute(connection).await?.rows_affected() == 1)
    }

    async fn free(connection: &mut MySqlConnection, key: &str, holder: i64) -> Result<bool> {
        let freed = sqlx::query("UPDATE bare_lock SET holder = NULL WHERE name = ? AND holder = ?");
        Ok(freed.bind(key).bind(holder).execute(connection).await?.rows_affected() == 1)
    }

    async fn lock_row(connection: &mut MySqlConnection, key: &str) -> Result<()> {
        let locked = sqlx::query("SELECT 1 FROM bare_row WHERE name = ? FOR UPDATE");
        locked.bind(key).fetch_one(connection).await?;
        Ok(())
    }

    async fn count(connection: &mut MySqlConnection, key: &str) -> Result<()> {
        let counted = sqlx::query(
            "INSERT INTO bare_token (name, token) VALUES (?, LAST_INSERT_ID(1))
             ON DUPLICATE KEY UPDATE token = LAST_INSERT_ID(token + 1)",
        );
        counted.bind(key).execute(connection).await?;
        Ok(())
    }

    async fn lock(connection: &mut MySqlConnection, key: &str) -> Result<bool> {
        let got = sqlx::query_scalar::<_, Option<i64>>("SELECT GET_LOCK(?, 60)");
        Ok(got.bind(key).fetch_one(connection).await? == Some(1))
    }

    async fn unlock(connection: &mut MySqlConnection, key: &str) -> Result<bool> {
        let freed = sqlx::query_scalar::<_, Option<i64>>("SELECT RELEASE_LOCK(?)");
        Ok(freed.bind(key).fetch_one(connection).await? == Some(1))
    }
}
