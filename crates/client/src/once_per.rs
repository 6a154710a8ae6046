//! A job that a whole fleet starts, and that is to run once in a period.
//!
//! The lock alone does not do it: whoever comes after the first has finished would run it again. So the engine remembers
//! when the job was last started, by its own clock, and two rules make that safe:
//!
//! - **Whether it runs is decided under the lock**, by [`Engine::remember`](crate::Engine::remember) or, where only a success
//!   counts, by a look that nobody can come in between. What is seen without the lock can only say that it has run.
//! - **What is in doubt is not run.** If the answer to `remember` is lost, a run may be left out, and none is done twice.

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

/// How long [`OncePerRequest::every`] pauses after an error, unless the period is shorter.
const RETRY_EVERY: Duration = Duration::from_secs(10);

/// When a start is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Record {
    /// Before the job runs: it runs at most once in a period, also if it fails or its process dies.
    #[default]
    AtStart,
    /// When the job has succeeded: one that failed, or whose process died, is tried again by whoever comes next. The
    /// period still counts from the start. Through one [`Owner`](crate::Owner), whose locks re-enter, two runs can go on at once.
    AtSuccess,
}

/// A request for a turn at a job, which nothing is done about until it is [begun](OncePerRequest::begin). From
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

    /// By how much the starts of one turn may lie apart: a tenth of the period if nothing is said. A start is followed by
    /// no other for the period less this.
    pub fn spread(self, spread: Duration) -> Self {
        Self { spread: Some(spread), ..self }
    }

    /// When a start is recorded: before the job runs, if nothing is said.
    pub fn record(self, record: Record) -> Self {
        Self { record, ..self }
    }

    /// Gets the turn, or says that somebody had it. If the job is known to have been started, that is said at once, also while it
    /// still runs. Else it waits for the lock as long as the request says, and looks for a start meanwhile.
    ///
    /// # Cancellation safety
    /// May be dropped at any point: neither a lock nor a waiter stays behind. A start may have been recorded.
    pub async fn begin(self) -> Result<Turn, OncePerError> {
        let shared = self.shared_with().clone();
        let turn = self.turn().await;
        shared.telemetry.turn(&turn);
        turn
    }

    /// Runs a job once per period for as long as the program runs, for programs that have no cron. The job gets the [`Run`] and says
    /// whether it [succeeded](Run::succeeded). Of all programs that call this with one name, one runs the job in each period; the
    /// others sleep until the next one.
    ///
    /// Outages, a lost lock and a start in doubt are logged, and the job is tried again in the next period at the latest. It
    /// returns only with an error that does not pass by itself: bad input, a denied login, a closed client.
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
    /// May be dropped at any point, if the job may: neither a lock nor a waiter stays behind.
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
            // A fleet that was started together does not stay in step.
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
            // The start is looked for again under the lock, for which the acquire waits through an outage.
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
            // What is recorded at a run's end is followed by its release: there is nothing to be seen before.
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
                // If it is not confirmed, it goes on in the background, and the answer is the same.
                let _ = guard.release().await;
                Ok(Turn::AlreadyRun { ago })
            }
        }
    }

    /// What can be said of it before the engine is asked.
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

/// A job whose last start is asked for.
struct Job {
    shared: Arc<ClientInner>,
    name: LockName,
    window: Duration,
}

impl Job {
    /// How long ago it was started, if that is within the window.
    async fn recall(&self) -> Result<Option<Duration>, OncePerError> {
        let recall = self.shared.ask(|engine| engine.recall(self.name.clone(), self.window));
        recall.await.map_err(|error| match error {
            InspectError::Engine(error) => error.into(),
            InspectError::Name(error) => AcquireError::Name(error).into(),
        })
    }

    /// Resolves when it is seen that the job has been started. Of a fleet that comes at once, all but one come here before the start of
    /// that one is recorded, and are not to wait for as long as it runs. It is recorded soon after the grant, so it is looked
    /// for soon, and then ever more rarely.
    async fn started(&self) -> Duration {
        const FIRST_LOOK: Duration = Duration::from_millis(50);
        const RAREST_LOOK: Duration = Duration::from_secs(30);
        let mut pause = FIRST_LOOK;
        loop {
            self.shared.clock.sleep_until(self.shared.clock.now() + random::jittered(pause)).await;
            // An engine that fails is for the acquire to tell.
            if let Ok(Some(ago)) = self.recall().await {
                return ago;
            }
            pause = (pause * 2).min(RAREST_LOOK);
        }
    }
}

/// How a [`OncePerRequest`] ended.
#[derive(Debug)]
#[must_use = "dropping a turn gives it up"]
pub enum Turn {
    /// Run it now.
    Yours(Run),
    /// It was run, or is being run.
    AlreadyRun {
        /// How long ago it was started, by the engine's clock.
        ago: Duration,
    },
}

/// A turn at a job, under its lock. Dropping it is its [failure](Run::failed).
#[derive(Debug)]
#[must_use = "dropping a run is its failure"]
pub struct Run {
    guard: Guard,
    rest: Rest,
}

/// What a run is beside its guard.
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

    /// The lock under which it runs: [`Guard::run`] ends the job if the lock is lost.
    pub const fn guard(&self) -> &Guard {
        &self.guard
    }

    /// The job is done. With [`Record::AtSuccess`] its start is recorded, and then the lock is released; else it is just released.
    ///
    /// # Cancellation safety
    /// May be dropped at any point: the lock is released on the client's own thread. With [`Record::AtSuccess`], whether the start
    /// was recorded is then not known.
    pub async fn succeeded(self) -> Result<Release, OncePerError> {
        if self.rest.record == Record::AtSuccess {
            let ago = self.guard.shared().clock.now().since(self.rest.began);
            match self.guard.remember(Start::new(ago, self.rest.window)).await {
                // Another run of the same owner was recorded meanwhile, and stands for this one too.
                Ok(Remembered::Recorded | Remembered::Already { .. }) => {}
                Err(RememberError::Lost(lost)) => return Err(lost.into()),
                Err(RememberError::Engine(error)) => {
                    return Err(OncePerError::SuccessInDoubt { name: self.guard.name().clone(), error });
                }
            }
        }
        Ok(self.guard.release().await?)
    }

    /// The job is not done. Nothing is recorded: with [`Record::AtSuccess`] whoever comes next tries again, and with
    /// [`Record::AtStart`] the start was recorded before and stays so.
    ///
    /// # Cancellation safety
    /// May be dropped at any point: the release goes on, on the client's own thread.
    pub async fn failed(self) -> Result<Release, OncePerError> {
        Ok(self.guard.release().await?)
    }
}
