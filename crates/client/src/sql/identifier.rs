//! Names of tables and columns, quoted so that no character in them has another meaning.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::Dialect;

/// Why a text is not the name of a table or a column.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IdentifierError {
    /// The text, or a part of it between dots, is empty.
    #[error("the name {text:?} of a table or column has an empty part: name it as `table` or `schema.table`")]
    Empty {
        /// The text.
        text: String,
    },
    /// The name is too long: PostgreSQL would cut it off, and use another table.
    #[error("the name {text:?} of a table or column has more than {max} bytes in one part, which databases cut off or refuse: use a shorter one", max = Identifier::MAX_BYTES)]
    TooLong {
        /// The text.
        text: String,
    },
    /// The name contains a NUL character, which no database allows.
    #[error("the name {text:?} of a table or column has a NUL character in it, which no database can store")]
    Nul {
        /// The text.
        text: String,
    },
    /// The name has more parts than a schema and a table.
    #[error(
        "the name {text:?} has more than one dot: name the table as `table` or `schema.table`, or use `TableName::literal` or `TableName::in_schema` if a dot is a part of the name"
    )]
    Dots {
        /// The text.
        text: String,
    },
}

/// One part of a name: a schema, a table or a column.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(crate) struct Identifier(Arc<str>);

impl Identifier {
    /// The longest name that PostgreSQL keeps; it cuts off the rest without an error. MariaDB and MySQL keep 64 characters.
    const MAX_BYTES: usize = 63;

    pub(crate) fn parse(text: &str) -> Result<Self, IdentifierError> {
        let owned = || text.to_owned();
        if text.is_empty() {
            return Err(IdentifierError::Empty { text: owned() });
        }
        if text.len() > Self::MAX_BYTES {
            return Err(IdentifierError::TooLong { text: owned() });
        }
        if text.contains('\0') {
            return Err(IdentifierError::Nul { text: owned() });
        }
        Ok(Self(text.into()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the quoted name for a statement. A quote within the name is doubled, so that it cannot end the name.
    pub(crate) fn quoted(&self, dialect: Dialect) -> String {
        match dialect {
            Dialect::Postgres => format!("\"{}\"", self.0.replace('"', "\"\"")),
            Dialect::MySql => format!("`{}`", self.0.replace('`', "``")),
        }
    }
}

impl fmt::Debug for Identifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// The name of a table, with or without its schema (on MariaDB and MySQL: its database). It is quoted in every statement, so it may
/// contain anything but NUL. It must be spelled as the database stores it: PostgreSQL stores `Accounts` as `accounts` unless it was
/// created with quotes.
///
/// ```
/// # use tenure::fence::{IdentifierError, TableName};
/// let plain = TableName::parse("accounts")?;
/// let in_schema = TableName::parse("bank.accounts")?;
/// assert_eq!(in_schema, TableName::in_schema("bank", "accounts")?);
/// let odd = TableName::literal("accounts.2026; --")?; // one table, in spite of its dot
/// # Ok::<(), IdentifierError>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct TableName {
    schema: Option<Identifier>,
    table: Identifier,
}

impl TableName {
    /// Parses `table` or `schema.table`, of 1 to 63 bytes each.
    pub fn parse(text: &str) -> Result<Self, IdentifierError> {
        match text.split('.').collect::<Vec<_>>()[..] {
            [table] => Self::literal(table),
            [schema, table] => Self::in_schema(schema, table),
            _ => Err(IdentifierError::Dots { text: text.to_owned() }),
        }
    }

    /// Returns the table with exactly this name, dots included.
    pub fn literal(table: &str) -> Result<Self, IdentifierError> {
        Ok(Self { schema: None, table: Identifier::parse(table)? })
    }

    /// Returns the table in a schema, both with exactly these names, dots included.
    pub fn in_schema(schema: &str, table: &str) -> Result<Self, IdentifierError> {
        Ok(Self { schema: Some(Identifier::parse(schema)?), table: Identifier::parse(table)? })
    }

    /// Returns the quoted name for a statement.
    pub(crate) fn quoted(&self, dialect: Dialect) -> String {
        let table = self.table.quoted(dialect);
        match &self.schema {
            Some(schema) => format!("{}.{table}", schema.quoted(dialect)),
            None => table,
        }
    }
}

impl FromStr for TableName {
    type Err = IdentifierError;

    fn from_str(text: &str) -> Result<Self, IdentifierError> {
        Self::parse(text)
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(schema) = &self.schema {
            write!(f, "{}.", schema.0)?;
        }
        f.write_str(&self.table.0)
    }
}

impl fmt::Debug for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_name_ends_its_quotes() {
        let name = TableName::literal("we\"ird`; DROP TABLE x; --").unwrap();
        assert_eq!(name.quoted(Dialect::Postgres), "\"we\"\"ird`; DROP TABLE x; --\"");
        assert_eq!(name.quoted(Dialect::MySql), "`we\"ird``; DROP TABLE x; --`");
    }

    #[test]
    fn a_dot_parts_the_schema_from_the_table_unless_it_is_said_not_to() {
        assert_eq!(TableName::parse("a.b").unwrap().quoted(Dialect::Postgres), "\"a\".\"b\"");
        assert_eq!(TableName::literal("a.b").unwrap().quoted(Dialect::MySql), "`a.b`");
        assert_eq!(TableName::in_schema("a.b", "c").unwrap().to_string(), "a.b.c");
        for bad in ["", ".", "a.", ".b"] {
            assert!(matches!(TableName::parse(bad), Err(IdentifierError::Empty { .. })), "{bad}");
        }
        assert!(matches!(TableName::parse("a.b.c"), Err(IdentifierError::Dots { .. })));
    }

    #[test]
    fn a_name_that_a_database_would_cut_off_is_refused() {
        assert!(TableName::parse(&"x".repeat(63)).is_ok());
        assert!(matches!(TableName::parse(&"x".repeat(64)), Err(IdentifierError::TooLong { .. })));
        assert!(matches!(TableName::parse("a\0"), Err(IdentifierError::Nul { .. })));
    }
}
