//! What the fence and optimistic locking share on databases: the user's own connections, names that are quoted safely, and what a
//! database's errors mean.
//!
//! Both work on connections of sqlx that belong to the user, so that they can be part of the user's own transaction.

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

/// Which SQL a database speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dialect {
    /// That of PostgreSQL.
    Postgres,
    /// That of MariaDB and MySQL.
    MySql,
}

impl Dialect {
    /// Whose it is.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Postgres => "PostgreSQL",
            Self::MySql => "MariaDB or MySQL",
        }
    }

    /// What stands in a statement for its `n`th value, from 1.
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

/// A database of sqlx that is known here: [`sqlx::Postgres`] and [`sqlx::MySql`]. Nobody else can implement it.
pub trait SqlDatabase: sealed::Driver {}

impl<DB: sealed::Driver> SqlDatabase for DB {}

/// A connection to such a database, as you have it: a transaction of sqlx, a connection, or one of a pool; and a type of your own that
/// has one of these in it, if you implement this.
pub trait SqlConnection: Send {
    /// Its database.
    type Database: SqlDatabase;

    /// The connection itself.
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

/// What a database's error means to whoever has to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The table is not there.
    NoTable,
    /// Another transaction has kept a lock for longer than the limit of this session.
    LockTimeout,
    /// Another transaction was in the way: the same transaction may succeed when it is run again from its start.
    Contended,
    /// The database answered, and said no.
    Refused,
    /// There was no answer: whether the statement was done is not known.
    NoAnswer,
}

impl Trouble {
    /// What it means, once it is known that the database has answered with that error.
    fn of(error: &sqlx::Error, meaning: impl FnOnce(&dyn sqlx::error::DatabaseError) -> Self) -> Self {
        match error {
            sqlx::Error::Database(answer) => meaning(&**answer),
            // What fails on our side of the wire was not sent, or its answer was read.
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

    /// What is done differently on each database. The statements are made of quoted names, with all values as arguments.
    pub trait Driver: sqlx::Database {
        const DIALECT: Dialect;

        /// The rows that a statement gives.
        fn rows(
            connection: &mut Self::Connection,
            statement: String,
            arguments: Self::Arguments,
        ) -> BoxFuture<'_, Result<Vec<Self::Row>, sqlx::Error>>;

        /// Runs a statement: how many rows it has changed.
        fn run(
            connection: &mut Self::Connection,
            statement: String,
            arguments: Self::Arguments,
        ) -> BoxFuture<'_, Result<u64, sqlx::Error>>;

        /// Keeps the newest of the stored token and this one in the table of that quoted name, and says which it is. It waits for
        /// another transaction for as long as the limit, or as the session allows if that is less.
        fn newest<'c>(
            connection: &'c mut Self::Connection,
            table: &str,
            resource: &'c str,
            token: u64,
            limit: Duration,
        ) -> BoxFuture<'c, Result<u64, sqlx::Error>>;

        /// The largest token that a table can keep.
        const LARGEST_TOKEN: u64;

        /// Adds a whole number to the arguments.
        fn add_number(arguments: &mut Self::Arguments, number: i64) -> Result<(), sqlx::error::BoxDynError>;

        /// The whole number in a row's last column; nothing if it is NULL.
        fn last_number(row: &Self::Row) -> Result<Option<i64>, sqlx::Error>;

        /// What an error means.
        fn trouble(error: &sqlx::Error) -> Trouble;

        /// Whether this says that somebody else has just created the same table.
        fn just_created(error: &sqlx::Error) -> bool;
    }
}
