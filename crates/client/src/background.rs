//! Work that continues without the client: releases, and the withdrawal of requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{Semaphore, oneshot};

use crate::clock::{Clock, SystemClock};
use crate::engine::{Cancellation, Engine, Grant, Withdrawn};
use crate::error::{EngineError, ReleaseError};
use crate::hold::ReleaseTask;
use crate::telemetry::Telemetry;
use crate::thread::{DROP_LIMIT, ThreadHandle};
use crate::wait::Backoff;

/// Work that continues without the client: releases, and the withdrawal of requests.
#[derive(Debug)]
pub(crate) struct Background {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) clock: Arc<dyn Clock>,
    telemetry: Arc<Telemetry>,
    thread: ThreadHandle,
    closing: Cancellation,
    /// The number of requests that are to be withdrawn.
    pending: AtomicUsize,
    withdrawals: Semaphore,
}

/// The largest number of requests that are to be withdrawn. Further requests are left to their leases.
const MOST_PENDING: usize = 10_000;

/// The largest number of withdrawals at a time: the end of an outage must not cause a flood, nor delay renewals.
const MOST_AT_ONCE: usize = 8;

/// The first and the longest pause between two attempts.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The pauses after which a request on a broken connection is withdrawn once more: by then it has arrived.
const ARRIVED_AFTER: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(15)];

impl Background {
    pub(crate) fn new(
        engine: Arc<dyn Engine>,
        clock: Arc<dyn Clock>,
        telemetry: Arc<Telemetry>,
        thread: ThreadHandle,
        closing: Cancellation,
    ) -> Arc<Self> {
        let (pending, withdrawals) = (AtomicUsize::new(0), Semaphore::new(MOST_AT_ONCE));
        Arc::new(Self { engine, clock, telemetry, thread, closing, pending, withdrawals })
    }

    /// Repeats the release until the engine answers: only the engine knows whether a grant has ended by itself.
    pub(crate) async fn release(self: Arc<Self>, task: ReleaseTask) {
        let mut pauses = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        loop {
            let result = self.engine.clone().release(task.grant.clone()).await;
            self.released(&task.grant, &result);
            match result {
                Ok(()) | Err(ReleaseError::NotHeld(_) | ReleaseError::Engine(EngineError::Closed)) => break,
                Err(ReleaseError::Engine(_)) => task.failed(),
            }
            self.clock.sleep_until(pauses.next(self.clock.now())).await;
        }
        task.done();
    }

    /// Processes the result of a release.
    pub(crate) fn released(self: &Arc<Self>, grant: &Grant, result: &Result<(), ReleaseError>) {
        self.telemetry.released(grant, result);
        if grant.may_arrive && matches!(result, Ok(()) | Err(ReleaseError::NotHeld(_))) {
            self.withdraw_in_background(grant.clone());
        }
    }

    /// Removes all that a request left behind: now, or in the background if the engine does not answer.
    pub(crate) async fn withdraw(self: &Arc<Self>, grant: Grant) {
        if self.withdraw_once(&grant).await.is_err() {
            self.withdraw_in_background(grant);
        }
    }

    /// Removes all that a request left behind, as soon as the engine answers. Closing and dropping the client wait for the first attempt
    /// only.
    pub(crate) fn withdraw_in_background(self: &Arc<Self>, grant: Grant) {
        if self.pending.fetch_add(1, Ordering::Relaxed) >= MOST_PENDING {
            self.pending.fetch_sub(1, Ordering::Relaxed);
            tracing::debug!(lock = %grant.name, "too many requests are to be withdrawn: this one is left to its lease");
            return;
        }
        let (background, (tried, first_try)) = (self.clone(), oneshot::channel::<()>());
        self.thread.spawn(async move {
            background.withdraw_until_answered(grant, tried).await;
            background.pending.fetch_sub(1, Ordering::Relaxed);
        });
        let timers = SystemClock::on(self.thread.runtime().clone());
        self.thread.finish(async move {
            tokio::select! {
                _ = first_try => {}
                () = timers.sleep_until(timers.now() + DROP_LIMIT) => {}
            }
        });
    }

    async fn withdraw_until_answered(self: &Arc<Self>, grant: Grant, tried: oneshot::Sender<()>) {
        let mut pauses = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let mut tried = Some(tried);
        // A user without the right to lock has nothing to withdraw, and would be refused for ever.
        let refused_until = self.clock.now() + grant.ttl.get() + Duration::from_mins(1);
        loop {
            let permit = self.withdrawals.acquire().await;
            let withdrawn = self.withdraw_once(&grant).await;
            drop((permit, tried.take()));
            match withdrawn {
                Ok(()) | Err(EngineError::Closed) => return,
                Err(error) if !error.is_outage() && self.clock.now() > refused_until => return,
                Err(_) => {}
            }
            let pause = self.clock.sleep_until(pauses.next(self.clock.now()));
            if self.closing.run_until_cancelled(pause).await.is_none() {
                return;
            }
        }
    }

    async fn withdraw_once(self: &Arc<Self>, grant: &Grant) -> Result<(), EngineError> {
        match self.engine.clone().withdraw(grant.clone()).await? {
            Withdrawn::ForGood => {}
            Withdrawn::ForNow => {
                let (background, grant) = (self.clone(), grant.clone());
                self.thread.spawn(async move { background.withdraw_what_arrives(grant).await });
            }
        }
        Ok(())
    }

    /// Repeats a withdrawal that may have overtaken the request itself.
    async fn withdraw_what_arrives(&self, grant: Grant) {
        for after in ARRIVED_AFTER {
            let pause = self.clock.sleep_until(self.clock.now() + after);
            let is_closing = self.closing.run_until_cancelled(pause).await.is_none();
            if let Err(error) = self.engine.clone().withdraw(grant.clone()).await {
                tracing::debug!(lock = %grant.name, %error, "a request that may still arrive was not withdrawn");
            }
            if is_closing {
                return;
            }
        }
    }
}
