//! The tables of all recipes: how they are made, and what is read from them.

use sqlx::Error;

use super::connection::Row;
use super::fault::{Fault, What};
use super::link::Link;
use super::work::Plain;
use crate::sql::Dialect;

/// The number that whoever makes tables in PostgreSQL locks: any, as long as it is always the same.
const MAKING_TABLES: i64 = 0x7465_6e75_7265;

/// Makes the tables, if they are not there. They are named by how their names end, with their columns.
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
        // One after the other: two who make a table at once get in each other's way, `IF NOT EXISTS` or not. Statements that are sent
        // together are one transaction.
        let one_by_one = format!("SELECT pg_advisory_xact_lock({MAKING_TABLES}); {}", make.join("; "));
        link.with(Plain(&[one_by_one])).await?;
    }
    // The others may be somebody else's.
    link.with(Plain(&looks)).await
}

/// The first name that does not begin with this any more, of those that can be: no name has such a byte in it.
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
