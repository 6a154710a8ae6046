//! The command on locks that a database keeps.

use tenure_testkit::{MariaDb, Postgres};

use crate::once::eight_servers_send_one_message;

/// On a server that is new: all of them find that its tables are missing.
#[test]
fn eight_servers_send_one_message_over_postgresql() {
    eight_servers_send_one_message(&Postgres::start().url());
}

#[test]
fn eight_servers_send_one_message_over_mariadb() {
    eight_servers_send_one_message(&MariaDb::start().url());
}
