//! The common parts of fencing and optimistic locking on databases: the user's own connections, safely quoted names, and the meaning of
//! database errors.
//!
//! Both work on the user's own connections of sqlx, so that they can be a part of the user's own transaction.

mod identifier;
#[cfg(feature = "mysql")]
mod mysql;
#[cfg(feature = "postgres")]
mod postgres;

use std::fmt;

use sqlx::Transaction;
use sqlx::pool::PoolConnection;

pub(crate) use identifier::Identifier;
pub use identifier::{IdentifierError, TableName};

/// The SQL dialect of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dialect {
    /// The dialect of PostgreSQL.
    Postgres,
    /// The dialect of MariaDB and MySQL.
    MySql,
}

impl Dialect {
    /// Returns the name of the database.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Postgres => "PostgreSQL",
            Self::MySql => "MariaDB or MySQL",
        }
    }

    /// Returns the placeholder of a statement's `n`th value, from 1.
    pub(crate) fn placeholder(self, n: usize) -> String {
        match self {
            Self::Postgres => format!("${n}"),
            Self::MySql => "?".to_owned(),
        }
    }
}

impl fmt::Display for Dialect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A supported database of sqlx: [`sqlx::Postgres`] or [`sqlx::MySql`]. The trait is sealed.
pub trait SqlDatabase: sealed::Driver {}

impl<DB: sealed::Driver> SqlDatabase for DB {}

/// A connection to such a database: a transaction of sqlx, a connection, or a pool's connection. Implement it for a type of your own that
/// wraps one of these.
pub trait SqlConnection: Send {
    /// The connection's database.
    type Database: SqlDatabase;

    /// Returns the connection of sqlx.
    fn connection(&mut self) -> &mut <Self::Database as sqlx::Database>::Connection;
}

impl<DB: SqlDatabase> SqlConnection for Transaction<'_, DB> {
    type Database = DB;

    fn connection(&mut self) -> &mut DB::Connection {
        self
    }
}

impl<DB: SqlDatabase> SqlConnection for PoolConnection<DB> {
    type Database = DB;

    fn connection(&mut self) -> &mut DB::Connection {
        self
    }
}

/// The meaning of a database's error, which decides how to continue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The table does not exist.
    NoTable,
    /// Another transaction has held a lock for longer than this session's limit.
    LockTimeout,
    /// Another transaction conflicted: the same transaction may succeed if it is run again from its start.
    Contended,
    /// The database refused the statement.
    Refused,
    /// The database did not answer: it is unknown whether the statement was done.
    NoAnswer,
}

impl Trouble {
    /// Returns the meaning of an error. `meaning` decides on errors that the database itself returned.
    fn of(error: &sqlx::Error, meaning: impl FnOnce(&dyn sqlx::error::DatabaseError) -> Self) -> Self {
        match error {
            sqlx::Error::Database(answer) => meaning(&**answer),
            // After an error on the client's side, the statement was not sent, or its response was read.
            sqlx::Error::Encode(_)
            | sqlx::Error::Decode(_)
            | sqlx::Error::ColumnDecode { .. }
            | sqlx::Error::ColumnNotFound(_)
            | sqlx::Error::RowNotFound
            | sqlx::Error::TypeNotFound { .. } => Self::Refused,
            _ => Self::NoAnswer,
        }
    }
}

pub(crate) mod sealed {
    use std::time::Duration;

    use futures_util::future::BoxFuture;

    use super::{Dialect, Trouble};

    /// The operations that differ between databases. Statements contain quoted names only, and all values are arguments.
    pub trait Driver: sqlx::Database {
        const DIALECT: Dialect;

        /// Returns the rows of a statement.
        fn rows(
            connection: &mut Self::Connection,
            statement: String,
            arguments: Self::Arguments,
        ) -> BoxFuture<'_, Result<Vec<Self::Row>, sqlx::Error>>;

        /// Runs a statement, and returns how many rows it changed.
        fn run(
            connection: &mut Self::Connection,
            statement: String,
            arguments: Self::Arguments,
        ) -> BoxFuture<'_, Result<u64, sqlx::Error>>;

        /// Stores the newer of the stored token and this one in the table of that quoted name, and returns it. The wait for another
        /// transaction ends at the limit, or at the session's own limit if that is shorter.
        fn newest<'c>(
            connection: &'c mut Self::Connection,
            table: &str,
            resource: &'c str,
            token: u64,
            limit: Duration,
        ) -> BoxFuture<'c, Result<u64, sqlx::Error>>;

        /// The largest token that a table can store.
        const LARGEST_TOKEN: u64;

        /// Adds a whole number to the arguments.
        fn add_number(arguments: &mut Self::Arguments, number: i64) -> Result<(), sqlx::error::BoxDynError>;

        /// Returns the whole number in a row's last column; `None` if it is NULL.
        fn last_number(row: &Self::Row) -> Result<Option<i64>, sqlx::Error>;

        /// Returns the meaning of an error.
        fn trouble(error: &sqlx::Error) -> Trouble;

        /// Returns whether this error says that another session has just created the same table.
        fn just_created(error: &sqlx::Error) -> bool;
    }
}
