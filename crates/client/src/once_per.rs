//! A job that many processes start, and that is to run once in a period.
//!
//! The lock alone is not enough: a process that acquires it after the first has finished would run the job again. So the engine records
//! when the job was last started, by its own clock. Two rules make that safe:
//!
//! - **The decision to run is made under the lock**, by [`Engine::remember`](crate::Engine::remember) or, where only a success counts, by a
//!   lookup while no other owner can hold the lock. A lookup without the lock can only show that the job has run.
//! - **A run in doubt is left out.** If the answer to `remember` is lost, a run may be left out, and none is done twice.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tenure_table::LockName;

use crate::capabilities::Capability;
use crate::clock::BootTime;
use crate::engine::{Remembered, Start};
use crate::error::{AcquireError, EngineError, InspectError, OncePerError, RememberError};
use crate::guard::{Guard, Release};
use crate::inner::ClientInner;
use crate::random;
use crate::request::{LockRequest, Options, request_options};

/// The pause of [`OncePerRequest::every`] after an error, unless the period is shorter.
const RETRY_EVERY: Duration = Duration::from_secs(10);

/// When a start is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Record {
    /// Before the job runs: it runs at most once in a period, even if it fails or its process dies.
    #[default]
    AtStart,
    /// When the job has succeeded: after a failure, or the death of its process, the next caller runs it again. The period still counts
    /// from the start. Through one [`Owner`](crate::Owner), whose locks re-enter, two runs can overlap.
    AtSuccess,
}

/// A request for a turn at a job. Nothing is sent until it is [begun](OncePerRequest::begin). From
/// [`Client::once_per`](crate::Client::once_per).
#[derive(Clone, Debug)]
#[must_use = "a request does nothing until it is begun"]
pub struct OncePerRequest {
    request: LockRequest,
    period: Duration,
    spread: Option<Duration>,
    record: Record,
}

request_options!(OncePerRequest);

impl OncePerRequest {
    pub(crate) const fn new(request: LockRequest, period: Duration) -> Self {
        Self { request, period, spread: None, record: Record::AtStart }
    }

    pub(crate) const fn options(&mut self) -> &mut Options {
        self.request.options()
    }

    pub(crate) const fn shared_with(&self) -> &Arc<ClientInner> {
        self.request.shared_with()
    }

    /// Sets how far apart the starts of one turn may be; a tenth of the period by default. No other start follows a start for the period
    /// less the spread.
    pub fn spread(self, spread: Duration) -> Self {
        Self { spread: Some(spread), ..self }
    }

    /// Sets when a start is recorded; before the job runs, by default.
    pub fn record(self, record: Record) -> Self {
        Self { record, ..self }
    }

    /// Returns [`Turn::AlreadyRun`] at once if a start is recorded within the window, even while that job still runs. Otherwise waits for
    /// the lock as long as the request allows, and returns the turn. With [`Record::AtStart`], it also looks for a start meanwhile.
    ///
    /// # Cancellation safety
    /// May be dropped at any point: neither a lock nor a waiter remains. A start may have been recorded.
    pub async fn begin(self) -> Result<Turn, OncePerError> {
        let shared = self.shared_with().clone();
        let turn = self.turn().await;
        shared.telemetry.turn(&turn);
        turn
    }

    /// Runs a job once per period for as long as the program runs, for programs without cron. The job gets the [`Run`] and reports whether
    /// it [succeeded](Run::succeeded). Of all programs that call this with one name, one runs the job in each period. The others sleep
    /// until the next period.
    ///
    /// Outages, a lost lock and a start in doubt are logged, and the job is tried again in the next period at the latest. Returns only with
    /// an error that does not pass by itself: bad input, a denied login, a closed client.
    ///
    /// ```no_run
    /// # async fn report() -> Result<(), std::io::Error> { Ok(()) }
    /// # async fn example(client: tenure::Client) {
    /// use std::time::Duration;
    ///
    /// let hour = Duration::from_secs(3600);
    /// let ended = client
    ///     .once_per("hourly-report", hour)
    ///     .every(async |run| {
    ///         let outcome = match run.guard().run(report()).await {
    ///             Ok(Ok(())) => run.succeeded().await,
    ///             Ok(Err(_)) | Err(_) => run.failed().await,
    ///         };
    ///         if let Err(error) = outcome {
    ///             eprintln!("{error}");
    ///         }
    ///     })
    ///     .await;
    /// eprintln!("the job does not run any more: {ended}");
    /// # }
    /// ```
    ///
    /// # Cancellation safety
    /// May be dropped at any point, if the job may: neither a lock nor a waiter remains.
    pub async fn every<F: Future<Output = ()>>(self, mut job: impl FnMut(Run) -> F) -> OncePerError {
        let shared = self.shared_with().clone();
        loop {
            let began = shared.clock.now();
            let next = match self.clone().begin().await {
                Ok(Turn::Yours(run)) => {
                    let began = run.rest.began;
                    job(run).await;
                    began + self.period
                }
                Ok(Turn::AlreadyRun { ago }) => shared.clock.now() + self.period.saturating_sub(ago),
                Err(error) if error.ends_a_schedule() => return error,
                Err(error) => {
                    tracing::warn!(target: "tenure::every", %error, "the job did not run; it is tried again");
                    began + self.period.min(RETRY_EVERY)
                }
            };
            // Processes that were started together do not keep asking at the same instant.
            let next = next + random::jittered(self.period.min(RETRY_EVERY) / 20);
            tokio::select! {
                () = shared.closing.cancelled() => return EngineError::Closed.into(),
                () = shared.clock.sleep_until(next) => {}
            }
        }
    }

    async fn turn(self) -> Result<Turn, OncePerError> {
        let job = self.checked()?;
        match job.recall().await {
            Ok(Some(ago)) => return Ok(Turn::AlreadyRun { ago }),
            Ok(None) => {}
            // The acquire waits through an outage, and the start is looked up again under the lock.
            Err(error) if error.is_outage() && self.request.waits() => {}
            Err(error) => return Err(error),
        }
        let acquire = self.request.acquire();
        let acquired = match self.record {
            Record::AtStart => tokio::select! {
                biased;
                acquired = acquire => acquired,
                ago = job.started() => return Ok(Turn::AlreadyRun { ago }),
            },
            // A success is recorded just before the release: there is no start to find while the lock is held.
            Record::AtSuccess => acquire.await,
        };
        let guard = match acquired {
            Err(not_got @ (AcquireError::Busy { .. } | AcquireError::TimedOut { .. })) => {
                return match job.recall().await {
                    Ok(Some(ago)) => Ok(Turn::AlreadyRun { ago }),
                    Ok(None) | Err(_) => Err(not_got.into()),
                };
            }
            acquired => acquired?,
        };
        let began = job.shared.clock.now();
        // From here on an error drops the guard, which releases the lock.
        let already = match self.record {
            Record::AtStart => match guard.remember(Start::new(Duration::ZERO, job.window)).await {
                Ok(Remembered::Recorded) => None,
                Ok(Remembered::Already { ago }) => Some(ago),
                Err(RememberError::Lost(lost)) => return Err(lost.into()),
                Err(RememberError::Engine(error)) => {
                    return Err(OncePerError::StartInDoubt { name: job.name, error });
                }
            },
            Record::AtSuccess => job.recall().await?,
        };
        match already {
            None => {
                let rest = Rest { record: self.record, began, window: job.window };
                Ok(Turn::Yours(Run { guard, rest }))
            }
            Some(ago) => {
                // A release that is not confirmed continues in the background, and the result is the same.
                let _ = guard.release().await;
                Ok(Turn::AlreadyRun { ago })
            }
        }
    }

    /// Checks the request before the engine is asked.
    fn checked(&self) -> Result<Job, OncePerError> {
        let (name, _) = self.request.checked()?;
        let (period, spread) = (self.period, self.spread.unwrap_or(self.period / 10));
        if period.is_zero() {
            return Err(OncePerError::Period { name });
        }
        let Some(window) = period.checked_sub(spread).filter(|window| !window.is_zero()) else {
            return Err(OncePerError::Spread { name, period, spread });
        };
        let asked = self.request.asked_mode();
        if !asked.may_write() {
            return Err(OncePerError::Mode { name, asked });
        }
        let shared = self.shared_with().clone();
        shared.engine.capabilities().require(Capability::Remember)?;
        Ok(Job { shared, name, window })
    }
}

/// A job whose last start is looked up.
struct Job {
    shared: Arc<ClientInner>,
    name: LockName,
    window: Duration,
}

impl Job {
    /// Returns how long ago the job was started, if that is within the window.
    async fn recall(&self) -> Result<Option<Duration>, OncePerError> {
        let recall = self.shared.ask(|engine| engine.recall(self.name.clone(), self.window));
        recall.await.map_err(|error| match error {
            InspectError::Engine(error) => error.into(),
            InspectError::Name(error) => AcquireError::Name(error).into(),
        })
    }

    /// Resolves when a start of the job is recorded. Of many processes that ask at once, all but one wait here before that one has recorded
    /// its start. They must not wait for as long as its run takes. A start is recorded soon after the grant, so the first lookups are
    /// frequent, and later ones rarer.
    async fn started(&self) -> Duration {
        const FIRST_LOOK: Duration = Duration::from_millis(50);
        const RAREST_LOOK: Duration = Duration::from_secs(30);
        let mut pause = FIRST_LOOK;
        loop {
            self.shared.clock.sleep_until(self.shared.clock.now() + random::jittered(pause)).await;
            // An engine that fails is reported by the acquire.
            if let Ok(Some(ago)) = self.recall().await {
                return ago;
            }
            pause = (pause * 2).min(RAREST_LOOK);
        }
    }
}

/// The result of a [`OncePerRequest`].
#[derive(Debug)]
#[must_use = "dropping a turn gives it up"]
pub enum Turn {
    /// The caller runs the job now.
    Yours(Run),
    /// The job has run, or is running.
    AlreadyRun {
        /// The time since the job was started, by the engine's clock.
        ago: Duration,
    },
}

/// A turn at a job, under its lock. Dropping it counts as a [failure](Run::failed).
#[derive(Debug)]
#[must_use = "dropping a run is its failure"]
pub struct Run {
    guard: Guard,
    rest: Rest,
}

/// The state of a run besides its guard.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rest {
    record: Record,
    began: BootTime,
    window: Duration,
}

impl Run {
    pub(crate) fn into_parts(self) -> (Guard, Rest) {
        (self.guard, self.rest)
    }

    pub(crate) const fn from_parts(guard: Guard, rest: Rest) -> Self {
        Self { guard, rest }
    }

    /// Returns the guard of the lock under which the job runs: [`Guard::run`] ends the job if the lock is lost.
    pub const fn guard(&self) -> &Guard {
        &self.guard
    }

    /// Ends the run as a success. With [`Record::AtSuccess`], its start is recorded before the lock is released; otherwise the lock is only
    /// released.
    ///
    /// # Cancellation safety
    /// May be dropped at any point: the lock is released on the client's own thread. With [`Record::AtSuccess`], whether the start
    /// was recorded is then not known.
    pub async fn succeeded(self) -> Result<Release, OncePerError> {
        if self.rest.record == Record::AtSuccess {
            let ago = self.guard.shared().clock.now().since(self.rest.began);
            match self.guard.remember(Start::new(ago, self.rest.window)).await {
                // Another run of the same owner was recorded meanwhile, and its record covers this run too.
                Ok(Remembered::Recorded | Remembered::Already { .. }) => {}
                Err(RememberError::Lost(lost)) => return Err(lost.into()),
                Err(RememberError::Engine(error)) => {
                    return Err(OncePerError::SuccessInDoubt { name: self.guard.name().clone(), error });
                }
            }
        }
        Ok(self.guard.release().await?)
    }

    /// Ends the run as a failure. Nothing is recorded. With [`Record::AtSuccess`], the next caller runs the job again. With
    /// [`Record::AtStart`], the start was recorded before and remains so.
    ///
    /// # Cancellation safety
    /// May be dropped at any point: the release continues on the client's own thread.
    pub async fn failed(self) -> Result<Release, OncePerError> {
        Ok(self.guard.release().await?)
    }
}
