//! Optimistic locking (recipe `version`): no writer waits, and a writer that comes second repeats its change.
//!
//! A row has a version, a whole number that every write raises. A writer reads the row with its version, computes, and writes *where the
//! version is still the same*. If another writer was faster, no row matches, and the change is repeated with the current row. Nothing is
//! locked between read and write, so an abandoned change leaves nothing behind. A fencing token is not needed: the version serves as one.
//!
//! ```no_run
//! # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! use sqlx::Row;
//! use tenure::optimistic::{Changes, Versioned};
//!
//! let accounts = Versioned::table("bank.accounts")?.key("id")?.version("version")?;
//!
//! accounts
//!     .update(&pool, 42, |row| {
//!         let balance: i64 = row.try_get("balance")?;
//!         Ok::<_, sqlx::Error>(Changes::new().set("balance", balance - 10))
//!     })
//!     .await?;
//! # Ok(())
//! # }
//! ```
//!
//! It suits rows that are seldom changed concurrently. Where many writers change the same row, most attempts fail: use a
//! [lock](crate::Client::lock) there. **Every writer must raise the version**: a write that does not is not noticed, and may be
//! overwritten.
//!
//! It works with existing tables and with sqlx's pools, on PostgreSQL, MariaDB and MySQL. See also `docs/optimistic.md`.

mod changes;
mod error;
mod versioned;

pub use crate::sql::{Dialect, IdentifierError, SqlConnection, SqlDatabase, TableName};
pub use changes::Changes;
pub use error::{Conflict, ReadError, UpdateError, WriteError};
pub use versioned::{Snapshot, Updated, Versioned};

/// Compiles the examples of the page.
#[cfg(all(doctest, feature = "postgres", feature = "mysql"))]
#[doc = include_str!("../../../../docs/optimistic.md")]
struct Page;
