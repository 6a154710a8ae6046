//! What a client, its guards and its background work share.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use crate::clock::{BootTime, Clock};
use crate::engine::{Engine, Grant};
use crate::error::{LostReason, ReleaseError, RenewError};
use crate::hold::Hold;
use crate::keeper::Schedule;
use crate::owner::Reentry;
use crate::random;
use crate::telemetry;
use crate::thread::ClientThread;

#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) schedule: Arc<Schedule>,
    pub(crate) reentry: Reentry,
    /// Raised when the client is closed; every acquire's `cancel` hangs on it.
    pub(crate) closing: CancellationToken,
    pub(crate) thread: ClientThread,
}

impl Shared {
    pub(crate) fn new(engine: Arc<dyn Engine>, clock: Arc<dyn Clock>, thread: ClientThread) -> Arc<Self> {
        let shared = Arc::new(Self {
            engine,
            clock,
            schedule: Arc::default(),
            reentry: Reentry::default(),
            closing: CancellationToken::new(),
            thread,
        });
        shared.thread.handle().spawn(crate::keeper::keep(Arc::downgrade(&shared)));
        shared
    }

    /// Ends belief in a hold, tells its guards, and frees what the engine may still keep for it.
    pub(crate) fn lose(&self, hold: &Arc<Hold>, reason: LostReason) {
        let Some(grant) = hold.lose(reason) else { return };
        telemetry::lost(&*self.engine, &grant, reason);
        self.forget(hold);
        self.release_in_background(grant, hold.lease_ends());
    }

    /// Takes a hold that has ended out of the books.
    pub(crate) fn forget(&self, hold: &Arc<Hold>) {
        self.schedule.remove(hold);
        self.reentry.forget(hold);
        telemetry::held(&*self.engine, -1.0);
    }

    pub(crate) fn renew(self: &Arc<Self>, hold: &Arc<Hold>, grant: Grant) {
        let renewal = self.engine.clone().renew(grant);
        let (client, hold): (Weak<Self>, _) = (Arc::downgrade(self), hold.clone());
        self.thread.handle().spawn(async move {
            let result = renewal.await;
            let Some(shared) = client.upgrade() else { return };
            telemetry::renewed(&*shared.engine, &hold, &result);
            match hold.renewed(&result, shared.clock.now()) {
                Some(reason) => shared.lose(&hold, reason),
                None => shared.schedule.put(&hold),
            }
        });
    }

    /// Releases a grant for which nobody waits any more.
    pub(crate) fn release_in_background(&self, grant: Grant, lease_ends: Option<BootTime>) {
        let work = release_until_settled(self.engine.clone(), self.clock.clone(), grant, lease_ends);
        self.thread.handle().finish(work);
    }

    /// What is to be done with an answer to a release for which nobody waits any more.
    pub(crate) fn settle_release(
        &self,
        grant: Grant,
        lease_ends: Option<BootTime>,
    ) -> impl FnOnce(Result<(), ReleaseError>) -> BoxFuture<'static, ()> + Send + 'static {
        let (engine, clock) = (self.engine.clone(), self.clock.clone());
        move |result| {
            Box::pin(async move {
                if let Err(ReleaseError::Engine(_)) = result {
                    release_until_settled(engine, clock, grant, lease_ends).await;
                }
            })
        }
    }
}

/// Tries again and again until the engine answers, or until the lease has ended anyway.
pub(crate) async fn release_until_settled(
    engine: Arc<dyn Engine>,
    clock: Arc<dyn Clock>,
    grant: Grant,
    lease_ends: Option<BootTime>,
) {
    // Belief ended before the lease did; by then it surely has.
    let pointless_at = lease_ends.map(|at| at + grant.ttl.get());
    let mut pause = Duration::from_millis(20);
    loop {
        let result = engine.clone().release(grant.clone()).await;
        telemetry::released(&*engine, &grant, &result);
        let Err(ReleaseError::Engine(_)) = result else {
            return;
        };
        let now = clock.now();
        if pointless_at.is_some_and(|at| now >= at) {
            return;
        }
        clock.sleep_until(now + random::jittered(pause)).await;
        pause = (pause * 2).min(Duration::from_secs(2));
    }
}

/// The outcome of a renewal, for people and dashboards.
pub(crate) const fn renewal_outcome<T>(result: &Result<T, RenewError>) -> &'static str {
    match result {
        Ok(_) => "renewed",
        Err(RenewError::Lost(_)) => "lost",
        Err(RenewError::Engine(_)) => "failed",
    }
}
