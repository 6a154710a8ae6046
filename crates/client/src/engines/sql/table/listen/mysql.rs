//! With MySQL, a connection waits in a statement that ends when another connection stops it (`KILL QUERY`). The statement does not begin to
//! wait if a waiter was called before, so no call is missed in between.
//!
//! The statement waits for a named lock that a second connection of this client holds permanently. `SLEEP()` would be simpler, but all
//! sleeping statements share one mutex in the server, and stopping one of many took MariaDB seconds.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::time::Duration;

use sqlx::Error;
use sqlx::mysql::MySqlDatabaseError;
use tenure_table::GrantId;

use super::{Database, QUIET, in_time};
use crate::engines::notifications::NotificationListener;
use crate::engines::sql::connection::Connection;
use crate::engines::sql::tables::id;

/// The longest wait (s), after which a broken connection is noticed.
const WAIT: u64 = 3;

/// Takes the named lock that shows other clients that a connection listens. Returns the number of the connection.
const NUMBERED: &str = "SELECT CAST(CONNECTION_ID() AS SIGNED), \
                    CAST(GET_LOCK(CONCAT('tenure_listener_', CONNECTION_ID()), 0) AS SIGNED)";

/// The calls that a client has received: the ticket of each waiter, and until when its place is kept.
type Calls = BTreeSet<(i64, i64)>;

impl Database {
    /// Receives calls for waiters, until a connection ends.
    pub(super) async fn listen_to_mysql(&self, waiters: &NotificationListener<Self>) -> Result<(), Error> {
        let limit = self.link.limit();
        let (mut listening, client) = self.open_listener().await?;
        let (mut quiet, quiet_number) = self.open_listener().await?;
        waiters.opened(&client.to_string());
        let mut heard = Calls::new();
        let mut pinged = waiters.clock().now();
        loop {
            let call = listening.batch(listen(&self.table, client, quiet_number, &heard));
            match in_time(limit + Duration::from_secs(WAIT), call).await {
                Err(error) if !was_stopped(&error) => return Err(error),
                Ok(answers) if answers.iter().flatten().any(|row| row.maybe_int(0).ok() == Some(Some(1))) => {
                    return Err(Error::Io(std::io::ErrorKind::ConnectionAborted.into()));
                }
                _ => {}
            }
            match in_time(limit, self.wake_called(waiters, &mut listening, client, &mut heard)).await {
                // It is not known which waiters were called.
                Err(error) if was_stopped(&error) => waiters.wake_all(),
                done => done?,
            }
            if waiters.clock().now().since(pinged) > QUIET {
                in_time(limit, quiet.ping()).await?;
                pinged = waiters.clock().now();
            }
        }
    }

    /// Opens a connection that has the named lock of its number. Returns it with that number.
    async fn open_listener(&self) -> Result<(Connection, i64), Error> {
        let limit = self.link.limit();
        let mut connection = in_time(limit, self.link.options().connect(limit)).await?;
        let id = in_time(limit, connection.row(&NUMBERED.into(), &[])).await?;
        Ok((connection, id.ok_or(Error::RowNotFound)?.int(0)?))
    }

    /// Wakes the waiters that were called since the last time.
    async fn wake_called(
        &self,
        waiters: &NotificationListener<Self>,
        connection: &mut Connection,
        client: i64,
        heard: &mut Calls,
    ) -> Result<(), Error> {
        let mut calls = Calls::new();
        let sql =
            format!("SELECT waiter, ticket, kept_until FROM {}_waiter WHERE {}", self.table, called(client));
        for row in connection.batch(sql).await?.iter().flatten() {
            let call = (row.int(1)?, row.int(2)?);
            if !heard.contains(&call) {
                waiters.wake(GrantId::from_u128(id(row, 0)?), ());
            }
            calls.insert(call);
        }
        *heard = calls;
        Ok(())
    }
}

/// Selects the waiters of a client that were called.
fn called(client: i64) -> String {
    format!("client = '{client}' AND called = 1")
}

/// Returns a statement that waits until it is stopped, or for `WAIT`. It does not wait if a waiter was called whose call is not in `heard`.
/// Its answer is 1 if the `quiet` connection, whose named lock it waits for, is gone.
fn listen(table: &str, client: i64, quiet: i64, heard: &Calls) -> String {
    let mut new = called(client);
    for (ticket, until) in heard {
        let _ = write!(new, " AND NOT (ticket = {ticket} AND kept_until = {until})");
    }
    format!(
        "SELECT CAST(IF(EXISTS(SELECT 1 FROM {table}_waiter WHERE {new}), 0, \
         GET_LOCK('tenure_listener_{quiet}', {WAIT})) AS SIGNED)"
    )
}

/// Returns whether a statement ended because it was stopped, or because it conflicted with another one.
fn was_stopped(error: &Error) -> bool {
    error
        .as_database_error()
        .and_then(|said| said.try_downcast_ref::<MySqlDatabaseError>())
        .is_some_and(|said| matches!(said.number(), 1205 | 1213 | 1317 | 1969))
}
