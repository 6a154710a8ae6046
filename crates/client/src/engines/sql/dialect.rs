//! The differences between the databases' dialects.

use super::connection::Sql;
use crate::sql::Dialect;

/// The next token of a row: larger than all earlier ones even if the row was lost, since it is never behind the date.
pub(super) const NEXT: &str = "GREATEST(token + 1, {now} * 1000)";

impl Dialect {
    pub(super) const fn engine(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::MySql => "mysql",
        }
    }

    /// Returns the name of the server in messages.
    pub(super) const fn product(self) -> &'static str {
        match self {
            Self::Postgres => "PostgreSQL",
            Self::MySql => "MySQL",
        }
    }

    pub(super) const fn example(self) -> &'static str {
        match self {
            Self::Postgres => "postgres://user:password@host:5432/database",
            Self::MySql => "mysql://user:password@host:3306/database",
        }
    }

    pub(super) const fn default_port(self) -> u16 {
        match self {
            Self::Postgres => 5432,
            Self::MySql => 3306,
        }
    }

    /// Returns an expression for the database's clock, in milliseconds.
    pub(super) const fn now(self) -> &'static str {
        match self {
            Self::Postgres => "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint",
            Self::MySql => "CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)",
        }
    }

    /// Returns the statement that changes a row's `token` to the [next one](NEXT). PostgreSQL answers with the token, MySQL with the number
    /// of the statement.
    pub(super) fn next_token(self, table: &str, changes: &str, condition: &str) -> Sql {
        let sql = match self {
            Self::Postgres => {
                format!("UPDATE {{t}} SET token = {NEXT}, {changes} WHERE {condition} RETURNING token")
            }
            Self::MySql => {
                format!("UPDATE {{t}} SET token = LAST_INSERT_ID({NEXT}), {changes} WHERE {condition}")
            }
        };
        self.statement(table, &sql)
    }

    /// Returns a statement about a table `{t}`, at a time `{now}`, whose arguments are `$1`, `$2` and so on, in this order.
    pub(super) fn statement(self, table: &str, sql: &str) -> Sql {
        let sql = sql.replace("{t}", table).replace("{now}", self.now());
        match self {
            Self::Postgres => sql.into(),
            Self::MySql => {
                // Parameters of MySQL have no numbers.
                let mut parts = sql.split('$');
                let first = parts.next().unwrap_or_default().to_owned();
                let all = parts.fold(first, |all, part| {
                    all + "?" + part.trim_start_matches(|c: char| c.is_ascii_digit())
                });
                all.into()
            }
        }
    }

    /// Returns bytes as a literal without characters that need escaping.
    pub(super) fn bytes(self, bytes: &[u8]) -> String {
        let hex = hex(bytes);
        match self {
            Self::Postgres => format!("'\\x{hex}'::bytea"),
            Self::MySql => format!("X'{hex}'"),
        }
    }

    pub(super) fn id(self, id: u128) -> String {
        self.bytes(&id.to_be_bytes())
    }

    pub(super) fn text(self, text: &str) -> String {
        let bytes = self.bytes(text.as_bytes());
        match self {
            Self::Postgres => format!("convert_from({bytes}, 'UTF8')"),
            Self::MySql => format!("CONVERT({bytes} USING utf8mb4)"),
        }
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |of: u8| char::from(DIGITS[usize::from(of)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}
