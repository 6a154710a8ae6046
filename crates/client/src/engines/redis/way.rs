//! One connection to a Redis.
//!
//! **It is used until it breaks**, also if it was silent for long: so what undoes a request can follow it on the same way, and
//! does not overtake it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use redis::aio::MultiplexedConnection;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::fault::Fault;
use super::together::Together;

/// So many requests are under way on a connection before those who come next are sent together: fewer are not worth its while.
const BUSY: usize = 16;

/// Whether requests are sent together where much is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engines) enum Gather {
    WhereBusy,
    Never,
}

/// One connection, which may not be open yet.
pub(in crate::engines) type Way = Arc<Connected>;

/// A connection, once there is one.
pub(in crate::engines) struct Connected {
    state: watch::Receiver<State>,
    /// Which drives it.
    runtime: Handle,
    /// How many requests wait for their answers.
    under_way: AtomicUsize,
    gather: Gather,
    pub(super) together: Together,
    /// Raised when nobody uses it any more, or nobody can.
    gone: CancellationToken,
}

/// What has become of a connection.
pub(super) enum State {
    Opening,
    Open(MultiplexedConnection),
    /// It could not be opened.
    Failed(Fault),
}

/// A request that waits for its answer, for as long as this lives.
pub(super) struct UnderWay<'a>(&'a AtomicUsize);

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Connected {
    pub(super) fn new(runtime: Handle, gather: Gather, state: watch::Receiver<State>) -> Way {
        let (under_way, together) = (AtomicUsize::new(0), Together::default());
        Arc::new(Self { state, runtime, under_way, gather, together, gone: CancellationToken::new() })
    }

    /// Raised when nobody uses it any more, or nobody can.
    pub(super) fn gone(&self) -> CancellationToken {
        self.gone.clone()
    }

    /// It was found to be closed.
    pub(super) fn is_gone(&self) {
        self.gone.cancel();
    }

    pub(super) const fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Whether there is a connection: it may have broken.
    pub(in crate::engines) fn is_open(&self) -> bool {
        matches!(*self.state.borrow(), State::Open(_))
    }

    /// The connection, if it is open.
    pub(super) fn connection(&self) -> Option<MultiplexedConnection> {
        match &*self.state.borrow() {
            State::Open(connection) => Some(connection.clone()),
            State::Opening | State::Failed(_) => None,
        }
    }

    /// The connection, or why there is none; nothing, if nobody is opening it any more.
    pub(super) async fn opened(&self) -> Option<Result<MultiplexedConnection, Fault>> {
        let mut state = self.state.clone();
        let state = state.wait_for(|state| !matches!(state, State::Opening)).await.ok()?;
        match &*state {
            State::Open(connection) => Some(Ok(connection.clone())),
            State::Failed(fault) => Some(Err(fault.again())),
            State::Opening => None,
        }
    }

    /// Counts a request that is sent now.
    pub(super) fn sends(&self) -> UnderWay<'_> {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        UnderWay(&self.under_way)
    }

    /// Whether so much is under way that those who come next are better sent together.
    pub(super) fn is_busy(&self) -> bool {
        self.gather == Gather::WhereBusy && self.under_way.load(Ordering::Relaxed) >= BUSY
    }
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.gone.cancel();
    }
}

impl fmt::Debug for Connected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connected").field("is_open", &self.is_open()).finish_non_exhaustive()
    }
}
