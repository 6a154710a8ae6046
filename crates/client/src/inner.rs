//! The state of a client, which its clones, its requests and its guards share.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::task::JoinHandle;

use crate::background::Background;
use crate::clock::Clock;
use crate::engine::{Cancellation, Engine, Grant};
use crate::error::{EngineError, LostReason, RenewError};
use crate::hold::{Hold, LetGo, LostGrant, ReleaseTask};
use crate::keeper::Schedule;
use crate::operation::Operation;
use crate::reentrance::{Reentry, Releasing};
use crate::telemetry::Telemetry;
use crate::thread::{ClientThread, DROP_LIMIT};

#[derive(Debug)]
pub(crate) struct ClientInner {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) telemetry: Arc<Telemetry>,
    pub(crate) background: Arc<Background>,
    pub(crate) schedule: Arc<Schedule>,
    pub(crate) reentry: Arc<Reentry>,
    /// Raised when the client is closed; every acquire's `cancel` is a child of it.
    pub(crate) closing: Cancellation,
    engine_closed: AtomicBool,
    /// Whether `close` has waited for the releases as long as it may: then the drop does not wait again.
    pub(crate) close_gave_up: AtomicBool,
    pub(crate) thread: ClientThread,
}

impl ClientInner {
    pub(crate) fn new(engine: Arc<dyn Engine>, clock: Arc<dyn Clock>, thread: ClientThread) -> Arc<Self> {
        let telemetry = Arc::new(Telemetry::new(engine.capabilities().engine));
        let closing = Cancellation::new();
        let background = Background::new(
            engine.clone(),
            clock.clone(),
            telemetry.clone(),
            thread.handle().clone(),
            closing.clone(),
        );
        let shared = Arc::new(Self {
            engine,
            clock,
            telemetry,
            background,
            schedule: Arc::default(),
            reentry: Arc::default(),
            closing,
            engine_closed: AtomicBool::new(false),
            close_gave_up: AtomicBool::new(false),
            thread,
        });
        shared.thread.handle().spawn(crate::keeper::keep(Arc::downgrade(&shared)));
        shared
    }

    /// Marks a hold as lost, notifies its guards, and releases the grant at the engine, unless the guards keep it.
    pub(crate) fn lose(&self, hold: &Arc<Hold>, reason: LostReason) {
        // Before the hold ends: a caller that sees the end must also see that a release is under way.
        let releasing = self.reentry.releasing(hold);
        let Some(lost) = hold.lose(reason, releasing, self.clock.now()) else { return };
        self.telemetry.ended();
        match lost {
            LostGrant::Release(task) => {
                self.telemetry.lost(&task.grant, reason);
                self.schedule.remove(hold);
                self.release_in_background(task);
            }
            LostGrant::Keep(grant) => {
                self.telemetry.lost(&grant, reason);
                // Scheduled, so that closing the client finds the hold.
                self.schedule.put(hold);
            }
        }
    }

    /// Removes one guard from a hold. Also returns the marker of a release under way, which is needed if the guard was the last.
    pub(crate) fn let_go(&self, hold: &Arc<Hold>) -> (LetGo, Option<Releasing>) {
        let releasing = self.reentry.releasing(hold);
        let let_go = hold.let_go();
        match let_go {
            LetGo::Last(_) => {
                self.schedule.remove(hold);
                self.telemetry.ended();
            }
            LetGo::Kept(..) => self.schedule.remove(hold),
            LetGo::StillHeld | LetGo::Lost(..) => {}
        }
        (let_go, releasing)
    }

    /// Renews a grant on the client's thread.
    pub(crate) fn renew(self: &Arc<Self>, hold: &Arc<Hold>, grant: Grant) {
        let (client, engine, hold): (Weak<Self>, _, _) =
            (Arc::downgrade(self), self.engine.clone(), hold.clone());
        self.thread.handle().finish(async move {
            // An engine that panics must not prevent the next renewal.
            let renewal = AssertUnwindSafe(async move { engine.renew(grant).await }).catch_unwind().await;
            let Some(shared) = client.upgrade() else { return };
            let result = renewal.unwrap_or_else(|_| {
                let (engine, message) = (shared.engine.capabilities().engine, "it panicked".to_owned());
                Err(RenewError::Engine(EngineError::Unreachable { engine, message, cause: None }))
            });
            match hold.renewed(&result, shared.clock.now()) {
                Some(reason) => shared.lose(&hold, reason),
                None => shared.schedule.put(&hold),
            }
            // Afterwards: a logger that panics must not prevent the next renewal.
            shared.telemetry.renewed(&hold, &result);
        });
    }

    /// Releases a grant in the background.
    pub(crate) fn release_in_background(&self, task: ReleaseTask) -> JoinHandle<()> {
        self.thread.handle().finish(self.background.clone().release(task))
    }

    /// Runs an engine operation that needs no undo. Returns `Closed` if the client is closed. If the caller drops the future, the
    /// operation still runs to its end.
    pub(crate) async fn ask<T, E>(
        &self,
        operation: impl FnOnce(Arc<dyn Engine>) -> BoxFuture<'static, Result<T, E>>,
    ) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<EngineError> + Send + 'static,
    {
        // The token comes before the check: `close` either sees the token and waits, or the check sees `closing`.
        let _begun = self.thread.handle().unfinished_token();
        self.check_open()?;
        self.finish(operation(self.engine.clone())).await
    }

    /// Runs an engine operation to its end, also if the caller drops the future.
    pub(crate) fn finish<T: Send + 'static>(
        &self,
        operation: BoxFuture<'static, T>,
    ) -> impl Future<Output = T> + use<T> {
        let settle = |_: T| -> BoxFuture<'static, ()> { Box::pin(async {}) };
        Operation::new(self.thread.handle().clone(), None, operation, settle)
    }

    /// Returns an error once the client is closed.
    pub(crate) fn check_open(&self) -> Result<(), EngineError> {
        if self.closing.is_cancelled() { Err(EngineError::Closed) } else { Ok(()) }
    }

    /// Returns the future that closes the engine; `None` after the first call.
    pub(crate) fn close_engine(&self) -> Option<BoxFuture<'static, ()>> {
        (!self.engine_closed.swap(true, Ordering::AcqRel)).then(|| self.engine.clone().close())
    }
}

impl Drop for ClientInner {
    fn drop(&mut self) {
        let close = self.close_engine().unwrap_or_else(|| Box::pin(async {}));
        let limit = if *self.close_gave_up.get_mut() { Duration::ZERO } else { DROP_LIMIT };
        self.thread.end_with(close, limit);
    }
}
