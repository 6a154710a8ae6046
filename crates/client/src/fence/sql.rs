//! The fence in a database: one statement in the same transaction as the write.

use std::fmt;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use sqlx::Pool;
use tenure_table::{FencingToken, LockName};

use super::error::{FenceError, compare};
use super::source::TokenSource;
use super::store::FenceStore;
use crate::error::Cause;
use crate::sql::sealed::Driver;
use crate::sql::{Dialect, SqlConnection, SqlDatabase, TableName, Trouble};

/// How long a check waits for another transaction, unless told otherwise.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// How often a check of its own, in a transaction of its own, is tried again if another transaction is in the way: each time somebody
/// else got on, so this is far more than it takes.
const STORE_ATTEMPTS: usize = 10;

/// Refuses stale tokens in a database, in the same transaction as the write that they come with.
///
/// ```no_run
/// # async fn example(pool: sqlx::PgPool, locks: tenure::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use tenure::fence::SqlFence;
///
/// let fence = SqlFence::new();
/// fence.create_table(&mut pool.acquire().await?).await?; // once, at the start of the program
///
/// let guard = locks.lock("orders/42").acquire().await?;
///
/// let mut transaction = pool.begin().await?;
/// fence.guard(&mut transaction, &guard).await?; // an error if the lock has passed on
/// sqlx::query("UPDATE orders SET state = 'paid' WHERE id = 42").execute(&mut *transaction).await?;
/// transaction.commit().await?;
/// # Ok(())
/// # }
/// ```
///
/// The same works with a `MySqlPool`, and with a [`PgConnection`](https://docs.rs/sqlx/latest/sqlx/struct.PgConnection.html) or
/// `MySqlConnection` on which you have begun a transaction yourself.
#[derive(Clone, PartialEq, Eq)]
pub struct SqlFence {
    table: TableName,
    lock_timeout: Duration,
}

/// Why the table for tokens was not created.
#[derive(Debug, thiserror::Error)]
#[error(
    "the table `{table}` for fencing tokens could not be created: {cause}; if this user may not create tables, have it created with the text of `SqlFence::create_table_sql`"
)]
pub struct CreateTableError {
    /// Its name.
    pub table: TableName,
    /// What the database said.
    #[source]
    pub cause: sqlx::Error,
}

impl SqlFence {
    /// The fence that keeps its tokens in the table `tenure_fence`.
    pub fn new() -> Self {
        Self::in_table(TableName::literal("tenure_fence").expect("a plain short word is a name"))
    }

    /// The fence that keeps its tokens in another table.
    ///
    /// ```
    /// # use tenure::fence::{IdentifierError, SqlFence, TableName};
    /// let fence = SqlFence::in_table(TableName::parse("shop.fence")?);
    /// # Ok::<(), IdentifierError>(())
    /// ```
    pub const fn in_table(table: TableName) -> Self {
        Self { table, lock_timeout: LOCK_TIMEOUT }
    }

    /// How long a check waits for a transaction that has passed the fence of the same resource and is not over: 5 s unless told. Then the
    /// error is [`FenceError::TimedOut`]. A shorter limit of the session stays in force, and the rest of the transaction is not affected.
    ///
    /// With PostgreSQL, the limit covers the row and not the lock on the fence's table: while another session alters that table, only the
    /// session's own `lock_timeout` ends the check. MariaDB counts in whole seconds, rounded up. MySQL has no such
    /// limit for a single statement: there it is the session's `innodb_lock_wait_timeout`.
    #[must_use]
    pub const fn lock_timeout(mut self, limit: Duration) -> Self {
        self.lock_timeout = limit;
        self
    }

    /// Creates the table, unless it is there. Several may do so at once.
    ///
    /// Not within a transaction: MariaDB and MySQL commit whatever is open before they create a table.
    ///
    /// # Cancellation safety
    /// May be dropped at any point: then the table may be there, or not.
    pub async fn create_table<C: SqlConnection>(&self, connection: &mut C) -> Result<(), CreateTableError> {
        let connection = connection.connection();
        let made = self.create_once::<C::Database>(connection).await;
        let made = match made {
            Err(error) if C::Database::just_created(&error) => {
                self.create_once::<C::Database>(connection).await
            }
            made => made,
        };
        made.map_err(|cause| CreateTableError { table: self.table.clone(), cause })
    }

    async fn create_once<DB: SqlDatabase>(&self, connection: &mut DB::Connection) -> Result<(), sqlx::Error> {
        DB::run(connection, self.create_table_sql(DB::DIALECT), DB::Arguments::default()).await.map(drop)
    }

    /// What [`create_table`](Self::create_table) would run, for those who may not create tables: give it to whoever may, or put it into
    /// a migration.
    ///
    /// ```
    /// use tenure::fence::{Dialect, SqlFence};
    /// assert_eq!(
    ///     SqlFence::new().create_table_sql(Dialect::Postgres),
    ///     r#"CREATE TABLE IF NOT EXISTS "tenure_fence" (resource text COLLATE "C" PRIMARY KEY, token bigint NOT NULL CHECK (token >= 0))"#,
    /// );
    /// ```
    pub fn create_table_sql(&self, dialect: Dialect) -> String {
        let table = self.table.quoted(dialect);
        match dialect {
            // By "C", two texts are equal if their bytes are.
            Dialect::Postgres => format!(
                "CREATE TABLE IF NOT EXISTS {table} (\
                 resource text COLLATE \"C\" PRIMARY KEY, \
                 token bigint NOT NULL CHECK (token >= 0))"
            ),
            // Bytes have no collation, and no spaces at their end that count for nothing. InnoDB is named, since an engine without
            // transactions would keep the token of a write that was rolled back.
            Dialect::MySql => format!(
                "CREATE TABLE IF NOT EXISTS {table} (\
                 resource VARBINARY(512) NOT NULL PRIMARY KEY, \
                 token BIGINT UNSIGNED NOT NULL) ENGINE=InnoDB"
            ),
        }
    }

    /// Accepts a token that is not older than the newest of its resource, and keeps it; else [`FenceError::Stale`]. One statement, and with
    /// PostgreSQL a second one that restores `lock_timeout`.
    ///
    /// The token is that of a guard; or where the guard is elsewhere, that of a pair: `("orders/42", token)`.
    ///
    /// **Make it the first statement of the transaction that writes, and roll back on any error.** From here to the end of the transaction,
    /// nobody else passes the fence of this resource, with whatever token: they wait. If the transaction is rolled back, the token is
    /// forgotten along with the write.
    ///
    /// Why the first: what a transaction has read before it passed the fence may be what the former holder changed since. On
    /// a connection without a transaction, the token is kept and nothing else is achieved.
    ///
    /// # Cancellation safety
    /// May be dropped at any point: roll the transaction back then, as sqlx does when it is dropped.
    pub async fn guard<C: SqlConnection>(
        &self,
        transaction: &mut C,
        by: impl TokenSource,
    ) -> Result<(), FenceError> {
        let (resource, token) = by.resource_and_token()?;
        self.pass::<C::Database>(transaction.connection(), resource, token).await
    }

    async fn pass<DB: SqlDatabase>(
        &self,
        connection: &mut DB::Connection,
        resource: LockName,
        token: FencingToken,
    ) -> Result<(), FenceError> {
        if token.get() > DB::LARGEST_TOKEN {
            let (store, largest) = (DB::DIALECT.name(), FencingToken::new(DB::LARGEST_TOKEN));
            return Err(FenceError::TooLarge { resource, token, store, largest });
        }
        let table = self.table.quoted(DB::DIALECT);
        match DB::newest(connection, &table, resource.as_str(), token.get(), self.lock_timeout).await {
            Ok(newest) => compare(resource, token, FencingToken::new(newest)),
            Err(error) => Err(self.failed::<DB>(resource, error)),
        }
    }

    fn failed<DB: SqlDatabase>(&self, resource: LockName, error: sqlx::Error) -> FenceError {
        let trouble = DB::trouble(&error);
        let cause: Cause = error.into();
        match trouble {
            Trouble::NoTable => FenceError::NoTable { table: self.table.to_string(), cause },
            Trouble::LockTimeout => FenceError::TimedOut { resource, cause },
            Trouble::Contended => FenceError::Contended { resource, cause },
            Trouble::Refused => FenceError::Refused { resource, cause },
            Trouble::NoAnswer => FenceError::NoAnswer { resource, cause },
        }
    }

    /// The same table as a [`FenceStore`], for `FenceLayer`: each check is a transaction of its own.
    pub const fn store<DB: SqlDatabase>(self, pool: Pool<DB>) -> SqlStore<DB> {
        SqlStore { fence: self, pool }
    }
}

impl Default for SqlFence {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for SqlFence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SqlFence").field(&self.table).finish()
    }
}

/// A [`FenceStore`] in a database: what [`SqlFence::store`] gives.
#[derive(Clone, Debug)]
pub struct SqlStore<DB: SqlDatabase> {
    fence: SqlFence,
    pool: Pool<DB>,
}

impl<DB: SqlDatabase> SqlStore<DB> {
    async fn once(&self, resource: &LockName, token: FencingToken) -> Result<(), FenceError> {
        let failed = |error| self.fence.failed::<DB>(resource.clone(), error);
        // Begun and committed in so many words, since a session can be set to commit nothing by itself.
        let mut transaction = self.pool.begin().await.map_err(failed)?;
        let passed = self.fence.pass::<DB>(&mut transaction, resource.clone(), token).await;
        if passed.is_err() {
            // Waited for, since others wait for the row. If it fails, the connection is gone, and all with it.
            let _ = transaction.rollback().await;
            return passed;
        }
        transaction.commit().await.map_err(failed)
    }
}

impl<DB: SqlDatabase> FenceStore for SqlStore<DB> {
    fn accept<'a>(
        &'a self,
        resource: &'a LockName,
        token: FencingToken,
    ) -> BoxFuture<'a, Result<(), FenceError>> {
        async move {
            let mut answer = self.once(resource, token).await;
            for _ in 1..STORE_ATTEMPTS {
                if !matches!(answer, Err(FenceError::Contended { .. })) {
                    break;
                }
                answer = self.once(resource, token).await;
            }
            answer
        }
        .boxed()
    }
}
