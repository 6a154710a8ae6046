//! Locks in a database: `postgres:` and `mysql:` (MariaDB too).
//!
//! Both are one engine with the same recipes, in two dialects:
//!
//! - `table`: a row for each lock, and holders and waiters beside it. A lease, by the database's clock.
//! - `row`: a row that an open transaction locks.
//! - `advisory` (PostgreSQL) and `named` (MySQL): a lock that a session holds.

mod address;
mod connection;
mod dialect;
mod fault;
mod link;
mod pooler;
mod session;
mod table;
mod tables;
mod work;

use std::sync::Arc;
use std::time::Duration;

use self::address::Address;
use self::fault::Fault;
use self::session::SessionEngine;
use self::table::TableEngine;
use crate::engine::{Engine, EngineContext};
use crate::error::ConnectError;
use crate::sql::Dialect;
use crate::url::{EngineUrl, UrlError};

/// The recipes for a lock in a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recipe {
    /// A row that names the holder.
    Table,
    /// A row that an open transaction locks.
    Row,
    /// A lock that a session holds: `advisory` in PostgreSQL, `named` in MySQL.
    Session,
}

impl Recipe {
    fn parse(dialect: Dialect, text: &str) -> Result<Self, String> {
        match (text, dialect) {
            ("table", _) => Ok(Self::Table),
            ("row", _) => Ok(Self::Row),
            ("advisory", Dialect::Postgres) | ("named", Dialect::MySql) => Ok(Self::Session),
            ("version", _) => {
                Err("`version` is no lock but optimistic locking: see `tenure::optimistic`".into())
            }
            (_, Dialect::Postgres) => {
                Err(format!("there is the recipe `table`, `row`, `advisory`, and not `{text}`"))
            }
            (_, Dialect::MySql) => {
                Err(format!("there is the recipe `table`, `row`, `named`, and not `{text}`"))
            }
        }
    }

    const fn name(self, dialect: Dialect) -> &'static str {
        match (self, dialect) {
            (Self::Table, _) => "table",
            (Self::Row, _) => "row",
            (Self::Session, Dialect::Postgres) => "advisory",
            (Self::Session, Dialect::MySql) => "named",
        }
    }
}

/// Returns a duration in the unit of the databases, at most some centuries.
fn whole_ms(duration: Duration) -> i64 {
    const LONGEST: i64 = 10_000_000_000_000;
    i64::try_from(duration.as_millis()).map_or(LONGEST, |ms| ms.min(LONGEST))
}

pub(super) async fn open_url(
    dialect: Dialect,
    url: &EngineUrl<'_>,
    context: EngineContext,
) -> Result<Arc<dyn Engine>, ConnectError> {
    let address = Address::parse(url, dialect)?;
    if let Some(message) = address.tls.unreadable() {
        return Err(Fault::refused(dialect, message, None).error.into());
    }
    let opened = match address.recipe {
        Recipe::Table => TableEngine::open(address, context).await,
        Recipe::Row | Recipe::Session => SessionEngine::open(address, context).await,
    };
    Ok(opened.map_err(|fault| fault.error)?)
}

/// Returns the statements that create the tables of the recipe in a URL.
pub(super) fn migration(dialect: Dialect, url: &EngineUrl<'_>) -> Result<Vec<String>, UrlError> {
    let address = Address::parse(url, dialect)?;
    Ok(match address.recipe {
        Recipe::Table => table::tables(dialect, &address.table).into(),
        Recipe::Row | Recipe::Session => session::tables(dialect, &address.table).into(),
    })
}
