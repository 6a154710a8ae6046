//! Errors of optimistic locking: one enum for each operation.

use crate::error::Cause;
use crate::sql::{IdentifierError, TableName};

/// Other writers changed the row in each attempt, between reading and writing. Nothing was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "row {key} of `{table}` was changed by others in each of {attempts} attempts, last at version {version}: try again later, allow more attempts, or take a lock where so many want one row"
)]
#[non_exhaustive]
pub struct Conflict {
    /// The table.
    pub table: TableName,
    /// The key of the row, as its `Debug` shows it.
    pub key: String,
    /// The version that was last read, or given, and that the row no longer has.
    pub version: i64,
    /// The number of attempts.
    pub attempts: u32,
}

/// Why a row was not read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The row does not exist.
    #[error("there is no row {key} in `{table}`: insert it first, with a version")]
    Missing {
        /// The table.
        table: TableName,
        /// The key, as its `Debug` shows it.
        key: String,
    },
    /// More than one row has that key.
    #[error("several rows of `{table}` have the key {key}: name a column that is unique")]
    NotUnique {
        /// The table.
        table: TableName,
        /// The key, as its `Debug` shows it.
        key: String,
    },
    /// The version is NULL, which is equal to nothing, so that no write could find the version unchanged.
    #[error(
        "the version of row {key} of `{table}` is NULL, which no write can compare: set it to 0, and make the column NOT NULL"
    )]
    NullVersion {
        /// The table.
        table: TableName,
        /// The key, as its `Debug` shows it.
        key: String,
    },
    /// The version is not a whole number that fits into 64 bits with a sign.
    #[error(
        "the version of row {key} of `{table}` is not a whole number of 64 bits: {cause}; make the column a BIGINT"
    )]
    BadVersion {
        /// The table.
        table: TableName,
        /// The key, as its `Debug` shows it.
        key: String,
        /// The decoding error.
        #[source]
        cause: sqlx::Error,
    },
    /// The key cannot be sent.
    #[error("the key {key} of `{table}` cannot be sent to the database: {cause}")]
    Key {
        /// The table.
        table: TableName,
        /// The key, as its `Debug` shows it.
        key: String,
        /// The cause.
        #[source]
        cause: Cause,
    },
    /// Another transaction conflicted with this one.
    #[error(
        "another transaction was in the way at `{table}`: roll back, and run the whole transaction again"
    )]
    Contended {
        /// The table.
        table: TableName,
        /// The database's error.
        #[source]
        cause: sqlx::Error,
    },
    /// The database refused, or did not answer.
    #[error("`{table}` could not be read: {cause}")]
    Database {
        /// The table.
        table: TableName,
        /// The database's error.
        #[source]
        cause: sqlx::Error,
    },
}

/// Why a row was not written. Unless a variant says otherwise, nothing was written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The row has another version now, or no longer exists.
    #[error(transparent)]
    Conflict(#[from] Conflict),
    /// The name of a column is not valid.
    #[error(transparent)]
    Column(IdentifierError),
    /// The value of a column cannot be sent.
    #[error("the value for column {column:?} cannot be sent to the database: {cause}")]
    Value {
        /// The column.
        column: String,
        /// The cause.
        #[source]
        cause: Cause,
    },
    /// The column is the key or the version. The version is raised automatically, and the key does not change.
    #[error("column {column:?} is the key or the version, which a change does not set: leave it out")]
    Reserved {
        /// The column.
        column: String,
    },
    /// The key cannot be sent.
    #[error("the key {key} of `{table}` cannot be sent to the database: {cause}")]
    Key {
        /// The table.
        table: TableName,
        /// The key, as its `Debug` shows it.
        key: String,
        /// The cause.
        #[source]
        cause: Cause,
    },
    /// Several rows have that key. If one of them got it only now, **they were written** in the current transaction: roll it back.
    #[error("{rows} rows of `{table}` have the key {key}: roll back, and name a column that is unique")]
    NotUnique {
        /// The table.
        table: TableName,
        /// The key, as its `Debug` shows it.
        key: String,
        /// The number of rows.
        rows: u64,
    },
    /// Another transaction conflicted with this one.
    #[error(
        "another transaction was in the way at `{table}`: roll back, and run the whole transaction again"
    )]
    Contended {
        /// The table.
        table: TableName,
        /// The database's error.
        #[source]
        cause: sqlx::Error,
    },
    /// The database refused.
    #[error("`{table}` could not be written: {cause}")]
    Database {
        /// The table.
        table: TableName,
        /// The database's error.
        #[source]
        cause: sqlx::Error,
    },
    /// The database did not answer: **it is unknown whether the row was written**, unless the transaction is yours and not committed. The
    /// write is not repeated, since the change could then be applied twice.
    #[error(
        "whether row {key} of `{table}` was written is not known: {cause}; read it, and see whether its version is still {version}"
    )]
    InDoubt {
        /// The table.
        table: TableName,
        /// The key, as its `Debug` shows it.
        key: String,
        /// The version that was to be replaced.
        version: i64,
        /// The underlying error.
        #[source]
        cause: sqlx::Error,
    },
}

/// Why a row was not updated. `E` is the error of the closure that computes the changes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UpdateError<E> {
    /// Other writers were faster in each attempt. Nothing was written.
    #[error(transparent)]
    Conflict(Conflict),
    /// The closure's error. Nothing was written.
    #[error("the change was not computed: {0}")]
    Compute(E),
    /// The row was not read. Nothing was written.
    #[error(transparent)]
    Read(ReadError),
    /// The row was not written.
    #[error(transparent)]
    Write(WriteError),
}
