//! A table whose rows have versions: read, write, and repeat both until no other write comes between.

use std::fmt::Debug;
use std::time::Duration;

use sqlx::{Arguments, Encode, Pool, Transaction, Type};

use super::changes::Changes;
use super::error::{Conflict, ReadError, UpdateError, WriteError};
use crate::error::Cause;
use crate::random;
use crate::sql::sealed::Driver;
use crate::sql::{Identifier, IdentifierError, SqlConnection, SqlDatabase, TableName, Trouble};

/// The default number of attempts of `update`: with the pauses between, about half a second.
const ATTEMPTS: u32 = 10;
/// The pause after the first conflict. Each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
/// The longest pause, before jitter: a conflicting writer writes only one row.
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// A table whose rows have a key and a version.
///
/// ```
/// # use tenure::optimistic::{IdentifierError, Versioned};
/// let accounts = Versioned::table("bank.accounts")?.key("account_no")?.version("row_version")?.attempts(20);
/// # Ok::<(), IdentifierError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "it does nothing until a row is read, written or updated"]
pub struct Versioned {
    table: TableName,
    key: Identifier,
    version: Identifier,
    attempts: u32,
}

/// A row at one of its versions.
#[derive(Debug)]
#[non_exhaustive]
pub struct Snapshot<DB: SqlDatabase> {
    /// All columns of the row, and the version once more as the last column.
    pub row: DB::Row,
    /// The row's version.
    pub version: i64,
}

/// The result of an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Updated {
    /// The row's new version.
    pub version: i64,
    /// The number of attempts: 1 without a conflict.
    pub attempts: u32,
}

impl Versioned {
    /// Describes the table `table` or `schema.table`, with a key column `id` and a version column `version`.
    pub fn table(name: &str) -> Result<Self, IdentifierError> {
        TableName::parse(name).map(Self::in_table)
    }

    /// Describes a table in the same way, for a name that contains dots.
    pub fn in_table(table: TableName) -> Self {
        let column = |name| Identifier::parse(name).expect("a plain short word is a name");
        Self { table, key: column("id"), version: column("version"), attempts: ATTEMPTS }
    }

    /// Sets the column that identifies a row: the primary key, or another unique column.
    pub fn key(mut self, column: &str) -> Result<Self, IdentifierError> {
        self.key = Identifier::parse(column)?;
        Ok(self)
    }

    /// Sets the column of the version: a whole number that is not NULL.
    pub fn version(mut self, column: &str) -> Result<Self, IdentifierError> {
        self.version = Identifier::parse(column)?;
        Ok(self)
    }

    /// Sets how often [`update`](Self::update) tries before it returns the conflict: 10 by default, and at least once.
    pub fn attempts(mut self, at_most: u32) -> Self {
        self.attempts = at_most.max(1);
        self
    }

    /// Reads a row, computes the changes, and writes them if the row's version is unchanged. Otherwise it repeats all of this after a
    /// short random pause, up to the limit that [`attempts`](Self::attempts) sets.
    ///
    /// `compute` is called once for each attempt. So it must not do anything that cannot be repeated, and must read the row only from its
    /// argument. Meanwhile nothing is locked, but a connection of the pool is in use. If it takes long or must await something, use
    /// [`read`](Self::read) and [`write`](Self::write).
    ///
    /// # Cancellation safety
    /// May be dropped at any point: the row has then been written as a whole or not at all.
    pub async fn update<'k, DB, K, E>(
        &self,
        pool: &Pool<DB>,
        key: K,
        mut compute: impl FnMut(&DB::Row) -> Result<Changes<DB>, E>,
    ) -> Result<Updated, UpdateError<E>>
    where
        DB: SqlDatabase,
        K: Encode<'k, DB> + Type<DB> + Clone + Debug + Send,
    {
        let mut last_seen = 0;
        for attempt in 1..=self.attempts {
            match self.attempt(pool, &key, &mut last_seen, &mut compute).await {
                Ok(version) => return Ok(Updated { version, attempts: attempt }),
                Err(
                    UpdateError::Conflict(_)
                    | UpdateError::Read(ReadError::Contended { .. })
                    | UpdateError::Write(WriteError::Contended { .. }),
                ) => {}
                Err(error) => return Err(error),
            }
            if attempt < self.attempts {
                tokio::time::sleep(random::jittered(pause_after(attempt))).await;
            }
        }
        Err(UpdateError::Conflict(self.conflict(&key, last_seen, self.attempts)))
    }

    /// Runs one attempt in an explicit transaction. So it reads current data, and ends also where autocommit is off in the session. It
    /// can also be rolled back if more than one row was written.
    async fn attempt<'k, DB, K, E>(
        &self,
        pool: &Pool<DB>,
        key: &K,
        last_seen: &mut i64,
        compute: &mut impl FnMut(&DB::Row) -> Result<Changes<DB>, E>,
    ) -> Result<i64, UpdateError<E>>
    where
        DB: SqlDatabase,
        K: Encode<'k, DB> + Type<DB> + Clone + Debug + Send,
    {
        let begun = pool.begin().await;
        let mut transaction = begun.map_err(|error| UpdateError::Read(self.unread::<DB>(error)))?;
        match self.change(&mut transaction, key, last_seen, compute).await {
            Ok(raised) => {
                let committed = transaction.commit().await;
                let doubt = |error| self.unwritten::<DB>(format!("{key:?}"), *last_seen, error);
                committed.map_err(|error| UpdateError::Write(doubt(error)))?;
                Ok(raised)
            }
            Err(error) => {
                // Awaited, since a row can be locked even if it was not written. If it fails, the connection is closed, and its
                // transaction with it.
                let _ = transaction.rollback().await;
                Err(error)
            }
        }
    }

    async fn change<'k, DB, K, E>(
        &self,
        transaction: &mut Transaction<'_, DB>,
        key: &K,
        last_seen: &mut i64,
        compute: &mut impl FnMut(&DB::Row) -> Result<Changes<DB>, E>,
    ) -> Result<i64, UpdateError<E>>
    where
        DB: SqlDatabase,
        K: Encode<'k, DB> + Type<DB> + Clone + Debug + Send,
    {
        let changes = {
            let snapshot = self.read(transaction, key.clone()).await.map_err(UpdateError::Read)?;
            *last_seen = snapshot.version;
            compute(&snapshot.row).map_err(UpdateError::Compute)?
        };
        let written = self.write_once(transaction, key, *last_seen, changes).await;
        written.map_err(|error| match error {
            WriteError::Conflict(conflict) => UpdateError::Conflict(conflict),
            // Without a commit nothing was written, with or without a response.
            WriteError::InDoubt { table, cause, .. } => {
                UpdateError::Write(WriteError::Database { table, cause })
            }
            error => UpdateError::Write(error),
        })
    }

    /// Reads a row with its version: the first half of an update, before [`write`](Self::write). It needs no transaction.
    ///
    /// # Cancellation safety
    /// May be dropped at any point.
    pub async fn read<'k, C, K>(&self, connection: &mut C, key: K) -> Result<Snapshot<C::Database>, ReadError>
    where
        C: SqlConnection,
        K: Encode<'k, C::Database> + Type<C::Database> + Debug + Send,
    {
        let dialect = C::Database::DIALECT;
        let (table, shown) = (self.table.clone(), format!("{key:?}"));
        // The version is the last column, so that it is found whatever its name is. Two rows suffice to detect a key that is not unique.
        let statement = format!(
            "SELECT t.*, t.{version} FROM {table} AS t WHERE t.{key} = {one} LIMIT 2",
            version = self.version.quoted(dialect),
            table = self.table.quoted(dialect),
            key = self.key.quoted(dialect),
            one = dialect.placeholder(1),
        );
        let arguments = match arguments::<C::Database, K>(key) {
            Ok(arguments) => arguments,
            Err(cause) => return Err(ReadError::Key { table, key: shown, cause }),
        };
        let rows = C::Database::rows(connection.connection(), statement, arguments).await;
        let mut rows = rows.map_err(|error| self.unread::<C::Database>(error))?.into_iter();
        match (rows.next(), rows.next()) {
            (None, _) => Err(ReadError::Missing { table, key: shown }),
            (Some(_), Some(_)) => Err(ReadError::NotUnique { table, key: shown }),
            (Some(row), None) => match C::Database::last_number(&row) {
                Ok(Some(version)) => Ok(Snapshot { row, version }),
                Ok(None) => Err(ReadError::NullVersion { table, key: shown }),
                Err(cause) => Err(ReadError::BadVersion { table, key: shown, cause }),
            },
        }
    }

    /// Writes a row if it still has that version, and returns its new version: the second half of an update, after [`read`](Self::read),
    /// which may have run in another request or process. In an open transaction, the write is a part of that transaction.
    ///
    /// It takes two statements. The first checks that at most one row has the key, since without a transaction the second could not be
    /// undone.
    ///
    /// # Cancellation safety
    /// May be dropped at any point: the row has then been written as a whole or not at all.
    pub async fn write<'k, C, K>(
        &self,
        connection: &mut C,
        key: K,
        version: i64,
        changes: Changes<C::Database>,
    ) -> Result<i64, WriteError>
    where
        C: SqlConnection,
        K: Encode<'k, C::Database> + Type<C::Database> + Debug + Send + Sync,
    {
        let rows = self.rows_with(connection, &key).await?;
        if rows > 1 {
            return Err(WriteError::NotUnique { table: self.table.clone(), key: format!("{key:?}"), rows });
        }
        self.write_once(connection, &key, version, changes).await
    }

    /// Returns the number of rows with that key.
    async fn rows_with<'k, C, K>(&self, connection: &mut C, key: &K) -> Result<u64, WriteError>
    where
        C: SqlConnection,
        K: Encode<'k, C::Database> + Type<C::Database> + Debug,
    {
        let dialect = C::Database::DIALECT;
        let (table, column) = (self.table.quoted(dialect), self.key.quoted(dialect));
        let statement =
            format!("SELECT COUNT(*) FROM {table} WHERE {column} = {one}", one = dialect.placeholder(1));
        let failed = |cause| match C::Database::trouble(&cause) {
            Trouble::Contended | Trouble::LockTimeout => {
                WriteError::Contended { table: self.table.clone(), cause }
            }
            _ => WriteError::Database { table: self.table.clone(), cause },
        };
        let arguments = arguments::<C::Database, _>(key).map_err(|cause| self.bad_key(key, cause))?;
        let counted = C::Database::rows(connection.connection(), statement, arguments).await;
        let rows = counted.map_err(failed)?;
        let row = rows.first().ok_or(sqlx::Error::RowNotFound).map_err(failed)?;
        let count = C::Database::last_number(row).map_err(failed)?;
        Ok(count.unwrap_or_default().unsigned_abs())
    }

    fn bad_key(&self, key: &impl Debug, cause: Cause) -> WriteError {
        WriteError::Key { table: self.table.clone(), key: format!("{key:?}"), cause }
    }

    /// Runs the statement that writes. If it writes several rows, its transaction must be rolled back.
    async fn write_once<'k, C, K>(
        &self,
        connection: &mut C,
        key: &K,
        version: i64,
        changes: Changes<C::Database>,
    ) -> Result<i64, WriteError>
    where
        C: SqlConnection,
        K: Encode<'k, C::Database> + Type<C::Database> + Debug,
    {
        let dialect = C::Database::DIALECT;
        let shown = format!("{key:?}");
        let (mut assignments, mut arguments) = changes.assignments([&self.key, &self.version])?;
        let (key_at, version_at) = (assignments.len() + 1, assignments.len() + 2);
        let version_column = self.version.quoted(dialect);
        // Raised by the database, so that the new version never equals the old one: no write goes unnoticed.
        assignments.push(format!("{version_column} = {version_column} + 1"));
        let statement = format!(
            "UPDATE {table} SET {assignments} WHERE {key} = {key_value} AND {version_column} = {version_value}",
            table = self.table.quoted(dialect),
            assignments = assignments.join(", "),
            key = self.key.quoted(dialect),
            key_value = dialect.placeholder(key_at),
            version_value = dialect.placeholder(version_at),
        );
        arguments.add(key).map_err(|cause| self.bad_key(key, cause))?;
        C::Database::add_number(&mut arguments, version).map_err(|cause| self.bad_key(key, cause))?;
        match C::Database::run(connection.connection(), statement, arguments).await {
            Ok(0) => Err(self.conflict_at(shown, version, 1).into()),
            // The database raised it by one without an overflow, or it would have refused.
            Ok(1) => Ok(version.saturating_add(1)),
            Ok(rows) => Err(WriteError::NotUnique { table: self.table.clone(), key: shown, rows }),
            Err(error) => Err(self.unwritten::<C::Database>(shown, version, error)),
        }
    }

    fn conflict(&self, key: &impl Debug, version: i64, attempts: u32) -> Conflict {
        self.conflict_at(format!("{key:?}"), version, attempts)
    }

    fn conflict_at(&self, key: String, version: i64, attempts: u32) -> Conflict {
        Conflict { table: self.table.clone(), key, version, attempts }
    }

    fn unread<DB: SqlDatabase>(&self, cause: sqlx::Error) -> ReadError {
        let table = self.table.clone();
        match DB::trouble(&cause) {
            Trouble::Contended | Trouble::LockTimeout => ReadError::Contended { table, cause },
            _ => ReadError::Database { table, cause },
        }
    }

    fn unwritten<DB: SqlDatabase>(&self, key: String, version: i64, cause: sqlx::Error) -> WriteError {
        let table = self.table.clone();
        match DB::trouble(&cause) {
            Trouble::Contended | Trouble::LockTimeout => WriteError::Contended { table, cause },
            Trouble::NoAnswer => WriteError::InDoubt { table, key, version, cause },
            Trouble::NoTable | Trouble::Refused => WriteError::Database { table, cause },
        }
    }
}

fn arguments<'k, DB, K>(key: K) -> Result<DB::Arguments, Cause>
where
    DB: SqlDatabase,
    K: Encode<'k, DB> + Type<DB>,
{
    let mut arguments = DB::Arguments::default();
    arguments.add(key)?;
    Ok(arguments)
}

/// Returns the pause, before jitter, after this number of failed attempts.
fn pause_after(attempts: u32) -> Duration {
    let doubled = 1_u32.checked_shl(attempts - 1).unwrap_or(u32::MAX);
    FIRST_PAUSE.saturating_mul(doubled).min(LONGEST_PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_up_to_a_bound() {
        assert_eq!(pause_after(1), FIRST_PAUSE);
        assert_eq!(pause_after(2), FIRST_PAUSE * 2);
        assert_eq!(pause_after(10), LONGEST_PAUSE);
        assert_eq!(pause_after(u32::MAX), LONGEST_PAUSE);
    }
}
