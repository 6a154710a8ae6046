//! The tables of all recipes: their creation, and the reading of their columns.

use sqlx::Error;

use super::connection::Row;
use super::fault::{Fault, What};
use super::link::Link;
use super::work::Plain;
use crate::sql::Dialect;

/// The advisory lock for creating tables in PostgreSQL: an arbitrary number, but always the same.
const MAKING_TABLES: i64 = 0x7465_6e75_7265;

/// Creates the tables if they are missing. Each is given by the suffix of its name, and its columns.
pub(super) async fn ensure_tables(
    link: &Link,
    name: &str,
    tables: &[(&str, &str)],
    make: &[String],
) -> Result<(), Fault> {
    let look = |(end, columns): &(&str, &str)| format!("SELECT {columns} FROM {name}{end} WHERE 1 = 0");
    let looks: Vec<_> = tables.iter().map(look).collect();
    match link.with(Plain(&looks)).await {
        Err(fault) if fault.what == What::NoTable => {}
        seen => return seen,
    }
    if link.dialect == Dialect::MySql {
        link.with(Plain(make)).await?;
    } else {
        // One creation at a time: two concurrent ones conflict, even with `IF NOT EXISTS`. Statements that are sent together are one
        // transaction.
        let one_by_one = format!("SELECT pg_advisory_xact_lock({MAKING_TABLES}); {}", make.join("; "));
        link.with(Plain(&[one_by_one])).await?;
    }
    // An existing table may belong to another program.
    link.with(Plain(&looks)).await
}

/// Returns the first byte string after all names with this prefix: no name contains the byte 0xff.
pub(super) fn end_of(prefix: &str) -> Vec<u8> {
    [prefix.as_bytes(), &[0xff]].concat()
}

pub(super) fn damaged(column: &str) -> Error {
    Error::Decode(format!("the column `{column}` has something in it that was never written there").into())
}

pub(super) fn id(row: &Row, column: usize) -> Result<u128, Error> {
    let bytes = <[u8; 16]>::try_from(row.bytes(column)?).map_err(|_| damaged("holder"))?;
    Ok(u128::from_be_bytes(bytes))
}
