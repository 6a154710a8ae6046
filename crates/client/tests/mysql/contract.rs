//! `mysql:` is held to the contract, by each of its recipes.

use tenure_testkit::MariaDb;

use crate::databases::subject;

subject!(
    /// Rows that say who holds.
    Table, table, MariaDb, "mysql://root@{}/tenure"
);
subject!(
    /// A row that an open transaction locks.
    Row, row, MariaDb, "mysql://root@{}/tenure"
);
subject!(
    /// A lock that a session holds.
    Named, named, MariaDb, "mysql://root@{}/tenure"
);
