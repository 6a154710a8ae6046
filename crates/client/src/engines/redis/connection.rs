//! One connection to a Redis.
//!
//! **A connection is used until it breaks**, even after a long silence. So the release that undoes a request can follow it on the same
//! connection, and does not overtake it.

use std::fmt;
use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use tokio::sync::watch;

use super::fault::Fault;

/// One connection, which may not be open yet.
pub(in crate::engines) type Connection = Arc<ConnectionCell>;

/// A connection that is being opened, is open, or could not be opened.
pub(in crate::engines) struct ConnectionCell(watch::Receiver<State>);

/// The state of a connection.
pub(super) enum State {
    Opening,
    Open(MultiplexedConnection),
    /// The connection could not be opened.
    Failed(Fault),
}

impl ConnectionCell {
    pub(super) fn new(state: watch::Receiver<State>) -> Connection {
        Arc::new(Self(state))
    }

    /// Returns whether the connection was opened. It may have broken since.
    pub(in crate::engines) fn is_open(&self) -> bool {
        matches!(*self.0.borrow(), State::Open(_))
    }

    /// Returns the connection, if it was opened.
    pub(super) fn open(&self) -> Option<MultiplexedConnection> {
        match &*self.0.borrow() {
            State::Open(connection) => Some(connection.clone()),
            State::Opening | State::Failed(_) => None,
        }
    }

    /// Waits for the connection, or for the error. Returns `None` if its task ended before.
    pub(super) async fn opened(&self) -> Option<Result<MultiplexedConnection, Fault>> {
        let mut state = self.0.clone();
        let state = state.wait_for(|state| !matches!(state, State::Opening)).await.ok()?;
        match &*state {
            State::Open(connection) => Some(Ok(connection.clone())),
            State::Failed(fault) => Some(Err(fault.again())),
            State::Opening => None,
        }
    }
}

impl fmt::Debug for ConnectionCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConnectionCell").field("is_open", &self.is_open()).finish_non_exhaustive()
    }
}
