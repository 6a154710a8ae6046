//! PostgreSQL and MariaDB.
use tenure_testkit::{MariaDb, Postgres};
#[test]
fn a_started_postgresql_is_ready_for_statements() {
    let postgres = Postgres::start();
    assert_eq!(postgres.sql("SELECT 1, NULL, 'a'"), "1||a");
}
#[test]
fn a_started_mariadb_is_ready_for_statements() {
    let mariadb = MariaDb::start();
    assert_eq!(mariadb.sql("SELECT 1, NULL, database()"), "1\tNULL\ttenure");
}
