//! Fencing in a database: one statement in the same transaction as the write.

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

/// The default time for which a check waits for another transaction.
const LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// The number of attempts of a check in a separate transaction if other transactions conflict. Each conflict means that another
/// transaction succeeded, so this is far more than needed.
const STORE_ATTEMPTS: usize = 10;

/// Refuses stale tokens in a database, in the same transaction as the write.
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
/// `MySqlConnection` that has an open transaction.
#[derive(Clone, PartialEq, Eq)]
pub struct SqlFence {
    table: TableName,
    lock_timeout: Duration,
}

/// Why the table for the tokens was not created.
#[derive(Debug, thiserror::Error)]
#[error(
    "the table `{table}` for fencing tokens could not be created: {cause}; if this user may not create tables, have it created with the text of `SqlFence::create_table_sql`"
)]
pub struct CreateTableError {
    /// The table's name.
    pub table: TableName,
    /// The database's error.
    #[source]
    pub cause: sqlx::Error,
}

impl SqlFence {
    /// Creates a fence that keeps its tokens in the table `tenure_fence`.
    pub fn new() -> Self {
        Self::in_table(TableName::literal("tenure_fence").expect("a plain short word is a name"))
    }

    /// Creates a fence that keeps its tokens in another table.
    ///
    /// ```
    /// # use tenure::fence::{IdentifierError, SqlFence, TableName};
    /// let fence = SqlFence::in_table(TableName::parse("shop.fence")?);
    /// # Ok::<(), IdentifierError>(())
    /// ```
    pub const fn in_table(table: TableName) -> Self {
        Self { table, lock_timeout: LOCK_TIMEOUT }
    }

    /// Sets how long a check waits for another transaction that has passed the fence of the same resource and has not ended: 5 s by
    /// default. Then the error is [`FenceError::TimedOut`]. A shorter limit of the session stays in force, and the rest of the
    /// transaction is not affected.
    ///
    /// With PostgreSQL, the limit covers the row and not the lock on the fence's table: while another session alters that table, only the
    /// session's own `lock_timeout` ends the check. MariaDB rounds up to whole seconds. MySQL has no limit for a single statement: there,
    /// the session's `innodb_lock_wait_timeout` applies.
    #[must_use]
    pub const fn lock_timeout(mut self, limit: Duration) -> Self {
        self.lock_timeout = limit;
        self
    }

    /// Creates the table, unless it exists. Concurrent calls do no harm.
    ///
    /// Do not call it within a transaction: MariaDB and MySQL commit an open transaction before they create a table.
    ///
    /// # Cancellation safety
    /// May be dropped at any point: the table may then exist or not.
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

    /// Returns the statement that [`create_table`](Self::create_table) runs, for users without the right to create tables: run it as
    /// another user, or add it to a migration.
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
            // With "C", two texts are equal if their bytes are.
            Dialect::Postgres => format!(
                "CREATE TABLE IF NOT EXISTS {table} (\
                 resource text COLLATE \"C\" PRIMARY KEY, \
                 token bigint NOT NULL CHECK (token >= 0))"
            ),
            // Bytes have no collation, and no trailing spaces that are ignored. InnoDB is named, since an engine without transactions
            // would keep the token of a write that was rolled back.
            Dialect::MySql => format!(
                "CREATE TABLE IF NOT EXISTS {table} (\
                 resource VARBINARY(512) NOT NULL PRIMARY KEY, \
                 token BIGINT UNSIGNED NOT NULL) ENGINE=InnoDB"
            ),
        }
    }

    /// Accepts a token that is not older than the newest of its resource, and stores it; otherwise returns [`FenceError::Stale`]. It
    /// takes one statement, and with PostgreSQL a second one that restores `lock_timeout`.
    ///
    /// The token is a guard's; or where the guard is elsewhere, that of a pair: `("orders/42", token)`.
    ///
    /// **Make it the first statement of the transaction that writes, and roll back on any error.** Until the transaction ends, all other
    /// checks of this resource wait, whatever their token. If the transaction is rolled back, the token is forgotten along with the
    /// write.
    ///
    /// Why the first: the former holder may have changed what the transaction read before it passed the fence. On a connection without a
    /// transaction, the token is stored, but no write is protected.
    ///
    /// # Cancellation safety
    /// May be dropped at any point: then roll the transaction back, as sqlx does when it is dropped.
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

    /// Returns a [`FenceStore`] on the same table, for `FenceLayer`: each check is a separate transaction.
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

/// A [`FenceStore`] in a database, made by [`SqlFence::store`].
#[derive(Clone, Debug)]
pub struct SqlStore<DB: SqlDatabase> {
    fence: SqlFence,
    pool: Pool<DB>,
}

impl<DB: SqlDatabase> SqlStore<DB> {
    async fn once(&self, resource: &LockName, token: FencingToken) -> Result<(), FenceError> {
        let failed = |error| self.fence.failed::<DB>(resource.clone(), error);
        // An explicit transaction, since autocommit can be off in a session.
        let mut transaction = self.pool.begin().await.map_err(failed)?;
        let passed = self.fence.pass::<DB>(&mut transaction, resource.clone(), token).await;
        if passed.is_err() {
            // Awaited, since other transactions wait for the row. If it fails, the connection is closed, and its transaction with it.
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
