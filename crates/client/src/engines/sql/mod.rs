//! Locks in a database: `postgres:` and `mysql:` (MariaDB too).
//!
//! Both are one engine with the same recipes, in two dialects:
//!
//! - `table`: a row for each lock, and holders and waiters beside it. A lease, by the database's clock.
//! - `row`: a row that an open transaction locks.
//! - `advisory` (PostgreSQL) and `named` (MySQL): a lock that a session holds.

mod address;
mod book;
mod connection;
mod ear;
mod fault;
mod link;
mod session;
mod table;
mod texts;

use std::fmt::Write;
use std::sync::Arc;

use self::address::Address;
use self::link::Link;
use self::session::SessionEngine;
use self::table::TableEngine;
use crate::engine::{Engine, EngineContext};
use crate::error::ConnectError;
use crate::url::{EngineUrl, UrlError};

/// Which sort of database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Brand {
    Postgres,
    /// MariaDB is one of them.
    MySql,
}

impl Brand {
    const fn engine(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::MySql => "mysql",
        }
    }

    const fn example(self) -> &'static str {
        match self {
            Self::Postgres => "postgres://user:password@host:5432/database",
            Self::MySql => "mysql://user:password@host:3306/database",
        }
    }

    const fn default_port(self) -> u16 {
        match self {
            Self::Postgres => 5432,
            Self::MySql => 3306,
        }
    }

    /// Bytes as a literal in which nothing can end early.
    fn bytes(self, bytes: &[u8]) -> String {
        let hex = hex(bytes);
        match self {
            Self::Postgres => format!("'\\x{hex}'::bytea"),
            Self::MySql => format!("X'{hex}'"),
        }
    }

    fn id(self, id: u128) -> String {
        self.bytes(&id.to_be_bytes())
    }

    fn text(self, text: &str) -> String {
        let bytes = self.bytes(text.as_bytes());
        match self {
            Self::Postgres => format!("convert_from({bytes}, 'UTF8')"),
            Self::MySql => format!("CONVERT({bytes} USING utf8mb4)"),
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut hex = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}

/// The ways of locking with a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recipe {
    /// A row that says who holds.
    Table,
    /// A row that an open transaction locks.
    Row,
    /// A lock that a session holds: `advisory` in PostgreSQL, `named` in MySQL.
    Session,
}

impl Recipe {
    fn parse(brand: Brand, text: &str) -> Result<Self, String> {
        match (text, brand) {
            ("table", _) => Ok(Self::Table),
            ("row", _) => Ok(Self::Row),
            ("advisory", Brand::Postgres) | ("named", Brand::MySql) => Ok(Self::Session),
            ("version", _) => {
                Err("`version` is no lock but optimistic locking: see `tenure::optimistic`".into())
            }
            (_, Brand::Postgres) => {
                Err(format!("there is the recipe `table`, `row`, `advisory`, and not `{text}`"))
            }
            (_, Brand::MySql) => {
                Err(format!("there is the recipe `table`, `row`, `named`, and not `{text}`"))
            }
        }
    }

    const fn name(self, brand: Brand) -> &'static str {
        match (self, brand) {
            (Self::Table, _) => "table",
            (Self::Row, _) => "row",
            (Self::Session, Brand::Postgres) => "advisory",
            (Self::Session, Brand::MySql) => "named",
        }
    }
}

pub(super) async fn open_url(
    brand: Brand,
    url: &EngineUrl<'_>,
    context: EngineContext,
) -> Result<Arc<dyn Engine>, ConnectError> {
    let address = Address::parse(url, brand)?;
    let opened = match address.recipe {
        Recipe::Table => {
            let link = Link::new(&address, address.connections, 1, &context);
            TableEngine::open(address, link, context).await
        }
        Recipe::Row | Recipe::Session => {
            // One is for all that is short: whoever gets a lock must not wait for those who wait for it.
            let locks = Link::new(&address, address.connections - 1, 0, &context);
            let short = Link::new(&address, 1, 0, &context);
            SessionEngine::open(address, locks, short, context).await
        }
    };
    Ok(opened.map_err(|fault| fault.error)?)
}

/// The statements that make the tables of the recipe that a URL names.
pub(super) fn migration(brand: Brand, url: &EngineUrl<'_>) -> Result<Vec<String>, UrlError> {
    let address = Address::parse(url, brand)?;
    Ok(match address.recipe {
        Recipe::Table => texts::tables(brand, &address.table).into(),
        Recipe::Row | Recipe::Session => session::tables(brand, &address.table).1.into(),
    })
}
