//! One connection to a Redis.
//!
//! **It is used until it breaks**, also if it was silent for long: so what undoes a request can follow it on the same connection, and
//! does not overtake it.

use std::fmt;
use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use tokio::sync::watch;

use super::fault::Fault;

/// One connection, which may not be open yet.
pub(in crate::engines) type Connection = Arc<ConnectionCell>;

/// A connection, once there is one.
pub(in crate::engines) struct ConnectionCell(watch::Receiver<State>);

/// What has become of a connection.
pub(super) enum State {
    Opening,
    Open(MultiplexedConnection),
    /// It could not be opened.
    Failed(Fault),
}

impl ConnectionCell {
    pub(super) fn new(state: watch::Receiver<State>) -> Connection {
        Arc::new(Self(state))
    }

    /// Whether there is a connection: it may have broken.
    pub(in crate::engines) fn is_open(&self) -> bool {
        matches!(*self.0.borrow(), State::Open(_))
    }

    /// The connection, if it is open.
    pub(super) fn open(&self) -> Option<MultiplexedConnection> {
        match &*self.0.borrow() {
            State::Open(connection) => Some(connection.clone()),
            State::Opening | State::Failed(_) => None,
        }
    }

    /// The connection, or why there is none; nothing, if nobody is opening it any more.
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
