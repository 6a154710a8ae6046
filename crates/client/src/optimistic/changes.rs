//! The changes to a row.

use std::fmt;

use sqlx::{Arguments, Encode, Type};

use super::error::WriteError;
use crate::error::Cause;
use crate::sql::{Dialect, Identifier, IdentifierError, SqlDatabase};

/// The columns to write, with their new values. The version is raised automatically, also if no column is set.
///
/// ```
/// # #[cfg(feature = "postgres")] {
/// # use tenure::optimistic::Changes;
/// let changes: Changes<sqlx::Postgres> = Changes::new().set("state", "paid").set("total", 12_i64);
/// # }
/// ```
#[must_use = "changes are returned from the closure of `update`, or given to `write`"]
pub struct Changes<DB: SqlDatabase> {
    columns: Vec<Identifier>,
    values: DB::Arguments,
    /// The first error, kept until it can be returned.
    wrong: Option<Wrong>,
}

enum Wrong {
    Column(IdentifierError),
    Value { column: String, cause: Cause },
}

impl<DB: SqlDatabase> Changes<DB> {
    /// Creates an empty set of changes.
    pub fn new() -> Self {
        Self { columns: Vec::new(), values: DB::Arguments::default(), wrong: None }
    }

    /// Sets a column to a value. An error in either is returned by the write.
    pub fn set<'t>(mut self, column: &str, value: impl Encode<'t, DB> + Type<DB>) -> Self {
        if self.wrong.is_none() {
            self.wrong = self.add(column, value).err();
        }
        self
    }

    fn add<'t>(&mut self, column: &str, value: impl Encode<'t, DB> + Type<DB>) -> Result<(), Wrong> {
        let name = Identifier::parse(column).map_err(Wrong::Column)?;
        let column = || column.to_owned();
        self.values.add(value).map_err(|cause| Wrong::Value { column: column(), cause })?;
        self.columns.push(name);
        Ok(())
    }

    /// Returns `column = value, …` for a statement, and the values. Fails if one of the columns is `reserved`.
    pub(super) fn assignments(
        self,
        reserved: [&Identifier; 2],
    ) -> Result<(Vec<String>, DB::Arguments), WriteError> {
        match self.wrong {
            Some(Wrong::Column(error)) => return Err(WriteError::Column(error)),
            Some(Wrong::Value { column, cause }) => return Err(WriteError::Value { column, cause }),
            None => {}
        }
        if let Some(column) = self.columns.iter().find(|&c| reserved.iter().any(|r| same::<DB>(c, r))) {
            return Err(WriteError::Reserved { column: column.as_str().to_owned() });
        }
        let assignment = |(at, column): (usize, &Identifier)| {
            format!("{} = {}", column.quoted(DB::DIALECT), DB::DIALECT.placeholder(at + 1))
        };
        Ok((self.columns.iter().enumerate().map(assignment).collect(), self.values))
    }
}

/// Returns whether two names mean the same column.
fn same<DB: SqlDatabase>(one: &Identifier, other: &Identifier) -> bool {
    match DB::DIALECT {
        Dialect::Postgres => one == other,
        Dialect::MySql => one.as_str().to_lowercase() == other.as_str().to_lowercase(),
    }
}

impl<DB: SqlDatabase> Default for Changes<DB> {
    fn default() -> Self {
        Self::new()
    }
}

impl<DB: SqlDatabase> fmt::Debug for Changes<DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changes").field("columns", &self.columns).finish_non_exhaustive()
    }
}
