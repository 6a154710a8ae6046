//! `postgres:` is held to the contract, by each of its recipes.

use tenure_testkit::Postgres;

use crate::databases::subject;

subject!(
    /// Rows that say who holds.
    Table, table, Postgres, "postgres://postgres@{}/postgres"
);
subject!(
    /// A row that an open transaction locks.
    Row, row, Postgres, "postgres://postgres@{}/postgres"
);
subject!(
    /// A lock that a session holds.
    Advisory, advisory, Postgres, "postgres://postgres@{}/postgres"
);
