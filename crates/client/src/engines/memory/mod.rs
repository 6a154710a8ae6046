//! `memory:`, locks within one process, for the tests of programs that use Tenure.
//!
//! The lock table of `crates/table` decides. This module adds what a test needs of a server: a clock that the test moves, links that can be
//! cut, lost responses, and a pause. What must hold:
//!
//! - **A renewed grant depends on its client's session**, which one request keeps alive (`sessions`). A grant that is not renewed has a
//!   lease to itself. Either ends when the store's clock reaches its end, whether or not anything observes it. In the lock table, each
//!   grant has a session, whose id is the grant's.
//! - **Clients and store have one clock**, and a lease counts from the instant at which the store made it. This also covers a waiter whose
//!   response was held back. The client's deadline therefore precedes the store's expiry, and never depends on the arrival of the response.
//! - **A request is done in one step or not at all.** A request that does not get through is not sent, and waits in the client for as long
//!   as a request may take. A request that was done and not answered is withdrawn, or its outcome is resolved.

mod acquire;
mod look;
mod registry;
mod server;
mod sessions;
mod state;
mod store;

use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use tenure_table::{LockName, ModeSet};
use tokio_util::task::TaskTracker;

use self::server::{LinkId, REQUEST_LIMIT, Server};
use self::sessions::Sessions;
pub use self::store::{Link, MemoryStore};
use crate::capabilities::{Breaking, Capabilities, Expiry, Reach, Waking};
use crate::clock::{Clock, SystemClock};
use crate::engine::{
    AcquireRequest, Break, Conversion, Engine, EngineContext, Grant, Granted, Remembered, Start, Withdrawn,
};
use crate::error::{
    AcquireError, BreakError, ConvertError, EngineError, InspectError, Lost, LostReason, ReleaseError,
    RememberError, RenewError, ValueError,
};
use crate::info::{LockInfo, Member};
use crate::lease::Term;
use crate::url::{EngineUrl, UrlError};

/// The name of the engine.
const ENGINE: &str = "memory";

/// One client's engine `memory:`.
struct MemoryEngine {
    /// The store. `None` once the engine is closed, so that a store is dropped with its last client.
    server: Mutex<Option<Arc<Server>>>,
    /// The link to the store.
    link: LinkId,
    place: String,
    capabilities: Capabilities,
    sessions: Sessions,
    context: EngineContext,
    /// The number of conversions so far. The number of a conversion identifies it when it is undone.
    conversions: AtomicU64,
    /// Conversions that are undone in the background.
    undoing: TaskTracker,
}

/// Opens the engine that a URL names. If its store has its own clock, the client uses that one.
pub(crate) fn open_url(
    url: &EngineUrl<'_>,
    context: &mut EngineContext,
) -> Result<Arc<dyn Engine>, UrlError> {
    let (server, link) = registry::find(url)?;
    if let Some(clock) = server.clock() {
        context.clock = clock;
    }
    let capabilities = Capabilities {
        modes: ModeSet::ALL,
        conversion: true,
        value: true,
        remembers: true,
        fencing: true,
        fair: true,
        deadlock_detection: true,
        notices: true,
        lock_delay: true,
        shared_owners: true,
        visible_waiters: true,
        observes: true,
        atomic_sets: true,
        sessions: true,
        breaking: Breaking::Force,
        expiry: Expiry::Lease,
        waking: Waking::One,
        reach: Reach::Process,
        ..Capabilities::minimal(ENGINE, "table")
    };
    context.runtime.spawn(server::end_leases(Arc::downgrade(&server), context.clock.clone()));
    Ok(Arc::new(MemoryEngine {
        place: server.url(),
        server: Mutex::new(Some(server)),
        link,
        capabilities,
        sessions: Sessions::default(),
        context: context.clone(),
        conversions: AtomicU64::new(0),
        undoing: TaskTracker::new(),
    }))
}

impl MemoryEngine {
    fn server(&self) -> Option<Arc<Server>> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn lost(grant: &Grant) -> Lost {
    Lost { name: grant.name.clone(), reason: LostReason::Forgotten }
}

impl Engine for MemoryEngine {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn place(&self) -> String {
        self.place.clone()
    }

    fn acquire(
        self: Arc<Self>,
        request: AcquireRequest,
    ) -> BoxFuture<'static, Result<Granted, AcquireError>> {
        Box::pin(self.get(request))
    }

    fn acquire_all(
        self: Arc<Self>,
        requests: Vec<AcquireRequest>,
    ) -> BoxFuture<'static, Result<Vec<Granted>, AcquireError>> {
        Box::pin(async move { self.get_all(&requests).await })
    }

    fn renew(self: Arc<Self>, grant: Grant) -> BoxFuture<'static, Result<Term, RenewError>> {
        Box::pin(async move {
            let renewed = self.ask(None, |state| state.renew(grant.id)).await.map_err(EngineError::from)?;
            renewed.ok_or(RenewError::Lost(LostReason::Forgotten))
        })
    }

    fn release(self: Arc<Self>, grant: Grant) -> BoxFuture<'static, Result<(), ReleaseError>> {
        Box::pin(async move {
            let held = self.ask(None, |state| state.release(grant.id)).await.map_err(EngineError::from)?;
            if held { Ok(()) } else { Err(ReleaseError::NotHeld(LostReason::Forgotten)) }
        })
    }

    fn withdraw(self: Arc<Self>, grant: Grant) -> BoxFuture<'static, Result<Withdrawn, EngineError>> {
        Box::pin(async move {
            self.ask(None, |state| state.withdraw(grant.id)).await?;
            Ok(Withdrawn::ForGood)
        })
    }

    fn convert(self: Arc<Self>, conversion: Conversion) -> BoxFuture<'static, Result<Granted, ConvertError>> {
        Box::pin(self.change(conversion))
    }

    fn set_value(self: Arc<Self>, grant: Grant, bytes: Bytes) -> BoxFuture<'static, Result<(), ValueError>> {
        Box::pin(async move {
            let write = |state: &mut state::State| state.set_value(grant.id, bytes);
            self.ask(None, write).await.map_err(EngineError::from)?.map_err(|refusal| match refusal {
                tenure_table::Refusal::NotHeld => lost(&grant).into(),
                tenure_table::Refusal::MayNotWrite { mode } => {
                    ValueError::Mode { name: grant.name.clone(), held: mode }
                }
                other => look::refused(&other).into(),
            })
        })
    }

    fn remember(
        self: Arc<Self>,
        grant: Grant,
        start: Start,
    ) -> BoxFuture<'static, Result<Remembered, RememberError>> {
        Box::pin(async move {
            let note = |state: &mut state::State| state.remember(grant.id, start);
            self.ask(None, note).await.map_err(EngineError::from)?.map_err(|refusal| match refusal {
                tenure_table::Refusal::NotHeld => lost(&grant).into(),
                other => look::refused(&other).into(),
            })
        })
    }

    fn recall(
        self: Arc<Self>,
        name: LockName,
        window: Duration,
    ) -> BoxFuture<'static, Result<Option<Duration>, InspectError>> {
        Box::pin(async move {
            Ok(self.ask(None, |state| state.recall(&name, window)).await.map_err(EngineError::from)?)
        })
    }

    fn inspect(self: Arc<Self>, name: LockName) -> BoxFuture<'static, Result<LockInfo, InspectError>> {
        Box::pin(
            async move { Ok(self.ask(None, |state| state.inspect(name)).await.map_err(EngineError::from)?) },
        )
    }

    fn list(self: Arc<Self>, prefix: String) -> BoxFuture<'static, Result<Vec<LockInfo>, InspectError>> {
        Box::pin(
            async move { Ok(self.ask(None, |state| state.list(&prefix)).await.map_err(EngineError::from)?) },
        )
    }

    fn observe(self: Arc<Self>, name: LockName) -> BoxStream<'static, Result<LockInfo, InspectError>> {
        let changes = self.server().map(|server| server.work(|state| state.observe(&name)));
        // The store only signals a change. The state is then requested on this client's link, which may be cut.
        Box::pin(stream::unfold(changes, move |mut changes| {
            let (engine, name) = (self.clone(), name.clone());
            async move {
                if let Some(changes) = &mut changes {
                    // An error is impossible: the store exists for as long as this engine.
                    let _ = changes.changed().await;
                }
                let info = engine.ask(None, |state| state.inspect(name)).await;
                if info.is_err()
                    && let Some(changes) = &mut changes
                {
                    changes.mark_changed();
                }
                Some((info.map_err(|no_answer| EngineError::from(no_answer).into()), changes))
            }
        }))
    }

    fn break_lock(
        self: Arc<Self>,
        name: LockName,
        how: Break,
    ) -> BoxFuture<'static, Result<Vec<Member>, BreakError>> {
        Box::pin(async move {
            let broken =
                self.ask(None, |state| state.break_lock(&name, how)).await.map_err(EngineError::from)?;
            broken.ok_or(BreakError::NotHeld { name })
        })
    }

    fn close(self: Arc<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            self.undoing.close();
            // By the system's clock: with a manual clock that is not advanced, a client that is cut off would never close.
            let clock = SystemClock::on(self.context.runtime.clone());
            tokio::select! {
                () = self.undoing.wait() => {}
                () = clock.sleep_until(clock.now() + REQUEST_LIMIT) => {}
            }
            let closed = self.server.lock().unwrap_or_else(PoisonError::into_inner).take();
            drop(closed);
        })
    }
}

impl fmt::Debug for MemoryEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryEngine").field("place", &self.place).finish_non_exhaustive()
    }
}
