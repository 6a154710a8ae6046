//! Optimistic locking (recipe `version`): nobody waits, and who comes second does it again.
//!
//! A row has a version, a whole number that every write raises. Whoever changes the row reads it with its version, computes, and writes *where
//! the version is still the same*. If somebody else was faster, no row is found, and it is all done again with what is there now. Between
//! the two nothing is locked, so a reader that goes away leaves nothing behind, and needs no token: the version is one.
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
//! It suits rows that are seldom changed by two at once. Where many want the same row, most of the work is done in vain: take a
//! [lock](crate::Client::lock) there. **All who write must raise the version**; one who does not is not noticed, and what it
//! wrote may be written over.
//!
//! It works with the user's own tables and pools of sqlx, on PostgreSQL, MariaDB and MySQL. More is in `docs/optimistic.md`.

mod changes;
mod error;
mod versioned;

pub use crate::sql::{Dialect, IdentifierError, SqlConnection, SqlDatabase, TableName};
pub use changes::Changes;
pub use error::{Conflict, ReadError, UpdateError, WriteError};
pub use versioned::{Snapshot, Updated, Versioned};

/// What the page shows is compiled.
#[cfg(all(doctest, feature = "postgres", feature = "mysql"))]
#[doc = include_str!("../../../../docs/optimistic.md")]
struct Page;
