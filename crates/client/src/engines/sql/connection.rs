//! One connection to either database, with the same interface.

use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt;
use futures_util::stream::BoxStream;
#[cfg(feature = "mysql")]
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlQueryResult, MySqlRow, MySqlSslMode};
#[cfg(feature = "postgres")]
use sqlx::postgres::{PgConnectOptions, PgConnection, PgQueryResult, PgRow, PgSslMode};
use sqlx::{AssertSqlSafe, ConnectOptions, Connection as _, Either, Error, Executor, Row as _};

use super::address::{Address, TlsMode};
use crate::sql::Dialect;

/// A statement: made of constants and of a checked table name.
pub(super) type Sql = Arc<str>;

/// An argument of a statement.
#[derive(Clone, Copy, Debug)]
pub(super) enum Arg<'a> {
    Int(i64),
    Bytes(&'a [u8]),
    Text(&'a str),
}

/// The result of a statement that changes something.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    pub(super) rows: u64,
    /// The value that MySQL's `LAST_INSERT_ID(…)` was set to.
    pub(super) number: u64,
}

impl Done {
    /// Returns the token that MySQL has counted, if there was a row to count in.
    pub(super) fn counted(self) -> Option<u64> {
        (self.number != 0).then_some(self.number)
    }
}

/// The options of a connection.
#[derive(Clone, Debug)]
pub(super) enum Options {
    #[cfg(feature = "postgres")]
    Postgres(Box<PgConnectOptions>),
    #[cfg(feature = "mysql")]
    MySql(Box<MySqlConnectOptions>),
}

#[derive(Debug)]
pub(super) enum Connection {
    #[cfg(feature = "postgres")]
    Postgres(PgConnection),
    #[cfg(feature = "mysql")]
    MySql(MySqlConnection),
}

/// A row of an answer.
pub(super) enum Row {
    #[cfg(feature = "postgres")]
    Postgres(PgRow),
    #[cfg(feature = "mysql")]
    MySql(MySqlRow),
}

impl Options {
    pub(super) fn of(address: &Address) -> Self {
        match address.dialect {
            #[cfg(feature = "postgres")]
            Dialect::Postgres => Self::Postgres(Box::new(postgres(address))),
            #[cfg(feature = "mysql")]
            Dialect::MySql => Self::MySql(Box::new(mysql(address))),
            #[cfg(not(all(feature = "postgres", feature = "mysql")))]
            _ => unreachable!("a dialect that is not built in is refused before"),
        }
    }

    /// Connects. The database soon ends a transaction of a process that was stopped: other clients wait for its row, also to renew their
    /// leases.
    pub(super) async fn connect(&self, limit: Duration) -> Result<Connection, Error> {
        // The lock timeout ends before the caller's time limit, so that the statement has no effect afterwards. At least 1: a timeout of 0
        // means no limit.
        let lock_limit = limit * 3 / 4;
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(options) => {
                // The time after which the server ends an idle transaction (ms).
                const IDLE_MS: u64 = 1_000;
                let (ms, lock_ms) = (limit.as_millis(), lock_limit.as_millis().max(1));
                let mut connection = options.connect().await?;
                // Overrides the settings of a role or a database.
                let session = format!(
                    "SET default_transaction_isolation = 'read committed'; SET standard_conforming_strings = on; \
                     SET bytea_output = 'hex'; \
                     SET statement_timeout = {ms}; SET lock_timeout = {lock_ms}; \
                     SET idle_in_transaction_session_timeout = {IDLE_MS}; \
                     SELECT set_config('synchronous_commit', 'on', false) \
                     WHERE current_setting('synchronous_commit') IN ('off', 'local')"
                );
                connection.execute(sqlx::raw_sql(AssertSqlSafe(session))).await?;
                Ok(Connection::Postgres(connection))
            }
            #[cfg(feature = "mysql")]
            Self::MySql(options) => {
                let seconds = lock_limit.as_secs().max(1);
                let mut connection = options.connect().await?;
                // MySQL has no time limit for transactions alone: there, the limit applies to every idle connection.
                let session = format!(
                    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED; \
                     SET SESSION autocommit = 1, completion_type = 'NO_CHAIN'; \
                     SET SESSION innodb_lock_wait_timeout = {seconds}; SET SESSION wait_timeout = 10; \
                     /*M! SET SESSION wait_timeout = 3600, idle_transaction_timeout = 1, \
                     idle_readonly_transaction_timeout = 1, idle_write_transaction_timeout = 1, max_statement_time = 0 */"
                );
                connection.execute(sqlx::raw_sql(AssertSqlSafe(session))).await?;
                Ok(Connection::MySql(connection))
            }
        }
    }
}

#[cfg(feature = "postgres")]
fn postgres(address: &Address) -> PgConnectOptions {
    let (host, port) = address.host();
    let mut options = PgConnectOptions::new_without_pgpass()
        .host(host)
        .port(port)
        .database(&address.authority.path)
        .application_name("tenure")
        // No value is a float, and a proxy may refuse this setting.
        .extra_float_digits(None)
        .disable_statement_logging()
        .ssl_mode(match address.tls.mode {
            TlsMode::Off => PgSslMode::Disable,
            TlsMode::Prefer => PgSslMode::Prefer,
            TlsMode::Verify => PgSslMode::VerifyFull,
        });
    if let Some(user) = &address.authority.user {
        options = options.username(user);
    }
    if let Some(password) = &address.authority.password {
        options = options.password(password);
    }
    if let Some(ca) = &address.tls.ca {
        options = options.ssl_root_cert(ca);
    }
    if let (Some(cert), Some(key)) = (&address.tls.cert, &address.tls.key) {
        options = options.ssl_client_cert(cert).ssl_client_key(key);
    }
    options
}

#[cfg(feature = "mysql")]
fn mysql(address: &Address) -> MySqlConnectOptions {
    let (host, port) = address.host();
    // The session uses UTC, whatever the server's time zone is.
    let mut options = MySqlConnectOptions::new()
        .host(host)
        .port(port)
        .database(&address.authority.path)
        .timezone(Some("+00:00".to_owned()))
        .disable_statement_logging()
        .ssl_mode(match address.tls.mode {
            TlsMode::Off => MySqlSslMode::Disabled,
            TlsMode::Prefer => MySqlSslMode::Preferred,
            TlsMode::Verify => MySqlSslMode::VerifyIdentity,
        });
    if let Some(user) = &address.authority.user {
        options = options.username(user);
    }
    if let Some(password) = &address.authority.password {
        options = options.password(password);
    }
    if let Some(ca) = &address.tls.ca {
        options = options.ssl_ca(ca);
    }
    if let (Some(cert), Some(key)) = (&address.tls.cert, &address.tls.key) {
        options = options.ssl_client_cert(cert).ssl_client_key(key);
    }
    options
}

/// Binds the arguments in order.
macro_rules! bound {
    ($sql:expr, $args:expr) => {{
        let mut query = sqlx::query(AssertSqlSafe($sql.clone()));
        for arg in $args {
            query = match *arg {
                Arg::Int(number) => query.bind(number),
                Arg::Bytes(bytes) => query.bind(bytes),
                Arg::Text(text) => query.bind(text),
            };
        }
        query
    }};
}

impl Connection {
    /// Runs a statement that answers with rows.
    pub(super) async fn rows(&mut self, sql: &Sql, args: &[Arg<'_>]) -> Result<Vec<Row>, Error> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(connection) => {
                let rows = connection.fetch_all(bound!(sql, args)).await?;
                Ok(rows.into_iter().map(Row::Postgres).collect())
            }
            #[cfg(feature = "mysql")]
            Self::MySql(connection) => {
                let rows = connection.fetch_all(bound!(sql, args)).await?;
                Ok(rows.into_iter().map(Row::MySql).collect())
            }
        }
    }

    /// Returns the first row of an answer.
    #[cfg(feature = "mysql")]
    pub(super) async fn row(&mut self, sql: &Sql, args: &[Arg<'_>]) -> Result<Option<Row>, Error> {
        Ok(self.rows(sql, args).await?.into_iter().next())
    }

    /// Runs a statement that changes something.
    pub(super) async fn run(&mut self, sql: &Sql, args: &[Arg<'_>]) -> Result<Done, Error> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(connection) => Ok(done_by_postgres(&connection.execute(bound!(sql, args)).await?)),
            #[cfg(feature = "mysql")]
            Self::MySql(connection) => Ok(done_by_mysql(&connection.execute(bound!(sql, args)).await?)),
        }
    }

    /// Runs statements without arguments, which are not prepared.
    pub(super) async fn plain(&mut self, sql: impl Into<Sql>) -> Result<(), Error> {
        let sql = sqlx::raw_sql(AssertSqlSafe(sql.into()));
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(connection) => connection.execute(sql).await.map(drop),
            #[cfg(feature = "mysql")]
            Self::MySql(connection) => connection.execute(sql).await.map(drop),
        }
    }

    /// Runs several statements without arguments in one message. Returns the rows of each.
    pub(super) async fn batch(&mut self, sql: String) -> Result<Vec<Vec<Row>>, Error> {
        let sql = sqlx::raw_sql(AssertSqlSafe(sql));
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(connection) => gather(connection.fetch_many(sql), Row::Postgres).await,
            #[cfg(feature = "mysql")]
            Self::MySql(connection) => gather(connection.fetch_many(sql), Row::MySql).await,
        }
    }

    pub(super) async fn ping(&mut self) -> Result<(), Error> {
        match self {
            #[cfg(feature = "postgres")]
            Self::Postgres(connection) => connection.ping().await,
            #[cfg(feature = "mysql")]
            Self::MySql(connection) => connection.ping().await,
        }
    }

    /// Closes the connection in an orderly way, within a time limit, so that the database need not detect the end.
    pub(super) async fn close(self) {
        const POLITE: Duration = Duration::from_secs(1);
        let goodbye = async {
            match self {
                #[cfg(feature = "postgres")]
                Self::Postgres(connection) => connection.close().await,
                #[cfg(feature = "mysql")]
                Self::MySql(connection) => connection.close().await,
            }
        };
        // After the time limit, the database detects the end itself.
        let _ = tokio::time::timeout(POLITE, goodbye).await;
    }
}

#[cfg(feature = "postgres")]
fn done_by_postgres(done: &PgQueryResult) -> Done {
    Done { rows: done.rows_affected(), number: 0 }
}

#[cfg(feature = "mysql")]
fn done_by_mysql(done: &MySqlQueryResult) -> Done {
    Done { rows: done.rows_affected(), number: done.last_insert_id() }
}

/// Collects the rows of each statement.
async fn gather<D, R>(
    mut answers: BoxStream<'_, Result<Either<D, R>, Error>>,
    row: impl Fn(R) -> Row,
) -> Result<Vec<Vec<Row>>, Error> {
    let (mut all, mut rows) = (Vec::new(), Vec::new());
    while let Some(answer) = answers.try_next().await? {
        match answer {
            Either::Left(_) => all.push(std::mem::take(&mut rows)),
            Either::Right(one) => rows.push(row(one)),
        }
    }
    Ok(all)
}

macro_rules! from_row {
    ($($(#[$doc:meta])* $name:ident: $type:ty;)+) => {
        impl Row {$(
            $(#[$doc])*
            pub(super) fn $name(&self, column: usize) -> Result<$type, Error> {
                match self {
                    #[cfg(feature = "postgres")]
                    Self::Postgres(row) => row.try_get(column),
                    #[cfg(feature = "mysql")]
                    Self::MySql(row) => row.try_get(column),
                }
            }
        )+}
    };
}

from_row! {
    int: i64;
    maybe_int: Option<i64>;
    bytes: Vec<u8>;
    maybe_bytes: Option<Vec<u8>>;
    text: String;
}
