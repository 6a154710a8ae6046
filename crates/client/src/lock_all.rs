//! Several locks, all or nothing.
//!
//! An engine with [`Capability::AtomicSets`] grants them at one instant: while one of them is held by somebody else, none is held. On other
//! engines, and for a named owner, who may hold some of them already, they are got one after the other in the order of their names, so that
//! two such requests never wait for each other in a circle, whatever order their callers wrote. If a lock that was got first is lost while a
//! later one is waited for, everything is let go and begun again.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use tenure_table::{LockName, NameError, OwnerId};
use tracing::Instrument;
use tracing::field::Empty;

use crate::capabilities::Capability;
use crate::engine::Granted;
use crate::error::{AcquireError, EngineError, Lost, ReleaseError};
use crate::guard::{Guard, Release, run_while};
use crate::hold::{Hold, ReleaseTask, Unusable};
use crate::inner::ClientInner;
use crate::operation::Operation;
use crate::request::{self, LockRequest, Options, request_options};
use crate::wait::{Wait, WaitUntil};
use crate::{attempt, random};

/// A request for several locks, which nothing is done about until it is [acquired](LockAllRequest::acquire).
#[derive(Clone, Debug)]
#[must_use = "a request does nothing until it is acquired"]
pub struct LockAllRequest {
    shared: Arc<ClientInner>,
    names: Result<Vec<LockName>, NameError>,
    /// Nothing, if it is an owner of its own.
    owner: Option<OwnerId>,
    options: Options,
}

request_options!(LockAllRequest);

impl LockAllRequest {
    pub(crate) fn new<N: AsRef<str>>(
        shared: Arc<ClientInner>,
        names: impl IntoIterator<Item = N>,
        owner: Option<OwnerId>,
    ) -> Self {
        let names = names.into_iter().map(LockName::parse).collect::<Result<Vec<_>, _>>().map(|mut names| {
            names.sort();
            names.dedup();
            names
        });
        Self { shared, names, owner, options: Options::default() }
    }

    pub(crate) const fn options(&mut self) -> &mut Options {
        &mut self.options
    }

    pub(crate) const fn shared_with(&self) -> &Arc<ClientInner> {
        &self.shared
    }

    /// Gets all of them, or none; the request's wait is for all of them together. A name that is given twice counts
    /// once, and no names at all are got at once.
    ///
    /// # Cancellation safety
    /// May be dropped at any point: what was got is released on the client's own thread.
    pub async fn acquire(self) -> Result<GuardSet, AcquireError> {
        /// So often a lock may be lost while others are waited for before the ttl is at fault and not chance.
        const ROUNDS: usize = 3;
        let names = self.names.clone()?;
        if self.options.max_hold == Some(Duration::ZERO) {
            return Err(AcquireError::MaxHold);
        }
        self.shared.check_open()?;
        let wait = self.options.wait.from(self.shared.clock.now());
        let mut lost = None;
        let at_once = self.owner.is_none()
            && names.len() > 1
            && self.shared.engine.capabilities().has(Capability::AtomicSets);
        let owner = self.owner.unwrap_or_else(random::owner_id);
        for _ in 0..ROUNDS {
            let round = if at_once {
                // Another owner for each round: what an earlier one got may not be released yet.
                self.at_once(&names, random::owner_id(), wait).await?
            } else {
                self.one_by_one(&names, owner, wait).await?
            };
            match round {
                Ok(set) => return Ok(set),
                Err(name) => lost = Some(name),
            }
            if wait.is_over(self.shared.clock.now()) {
                break;
            }
        }
        let name = lost.expect("a round that lost nothing has returned");
        Err(AcquireError::Lapsed { name, ttl: self.options.ttl })
    }

    /// Gets all of them if they are free.
    ///
    /// # Cancellation safety
    /// As with [`acquire`](Self::acquire).
    pub async fn try_acquire(self) -> Result<Option<GuardSet>, AcquireError> {
        match self.wait(Wait::Try).acquire().await {
            Ok(set) => Ok(Some(set)),
            Err(AcquireError::Busy { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All at one instant; the name of one that was granted too late to be used.
    async fn at_once(
        &self,
        names: &[LockName],
        owner: OwnerId,
        wait: WaitUntil,
    ) -> Result<Result<GuardSet, LockName>, AcquireError> {
        let shared = &self.shared;
        let cancel = shared.closing.child();
        let each = names.iter().map(|name| {
            let (name, ttl) = self.request_for(name, owner, self.options.clone()).checked()?;
            Ok(request::asked(shared, &self.options, name, ttl, owner, false, cancel.clone()))
        });
        let (holds, requests): (Vec<_>, Vec<_>) =
            each.collect::<Result<Vec<_>, AcquireError>>()?.into_iter().unzip();
        // `close` waits until this has ended: until the guards are scheduled, or what was granted is released.
        let _begun = shared.thread.handle().unfinished_token();
        shared.check_open()?;
        let (background, asked_for) = (shared.background.clone(), holds.clone());
        let settle = move |result: Result<Vec<Granted>, AcquireError>| -> BoxFuture<'static, ()> {
            Box::pin(async move {
                if result.is_ok() {
                    let release =
                        |hold: &Arc<Hold>| background.clone().release(ReleaseTask::new(hold.grant(), None));
                    join_all(asked_for.iter().map(release)).await;
                }
            })
        };
        let all = names.iter().map(LockName::as_str).collect::<Vec<_>>().join(" ");
        let span = tracing::debug_span!("tenure.acquire", lock = %all, mode = %self.options.mode, outcome = Empty, token = Empty, waited_ms = Empty);
        let began = shared.clock.now();
        let asking =
            attempt::acquire_all(shared.background.clone(), holds.clone(), requests, cancel.clone(), wait);
        let operation =
            Operation::new(shared.thread.handle().clone(), Some(cancel), Box::pin(asking), settle);
        let answer = operation.instrument(span.clone()).await;
        let took = shared.clock.now().since(began);
        let granted = match answer {
            Err(_) if shared.closing.is_cancelled() => Err(EngineError::Closed.into()),
            answer => answer,
        };
        let granted = granted.inspect_err(|error| shared.telemetry.acquired(&span, Err(error), took))?;
        let mut set = GuardSet { guards: Vec::with_capacity(names.len()) };
        let mut late = None;
        for ((hold, granted), name) in holds.into_iter().zip(granted).zip(names) {
            match request::guard_of(shared, &self.options, hold, granted) {
                Ok(guard) => {
                    shared.telemetry.acquired(&span, Ok(&guard), took);
                    set.guards.push(guard);
                }
                Err(Unusable) => late = Some(name.clone()),
            }
        }
        // `close` may have looked through the schedule just before.
        shared.check_open()?;
        for guard in &set.guards {
            self.options.check_token(guard)?;
        }
        Ok(late.map_or(Ok(set), Err))
    }

    fn request_for(&self, name: &LockName, owner: OwnerId, options: Options) -> LockRequest {
        LockRequest::new(self.shared.clone(), name.as_str(), Some(owner)).with_options(options)
    }

    /// One after the other; the name of one that was lost while another was waited for.
    async fn one_by_one(
        &self,
        names: &[LockName],
        owner: OwnerId,
        wait: WaitUntil,
    ) -> Result<Result<GuardSet, LockName>, AcquireError> {
        let clock = &self.shared.clock;
        let mut set = GuardSet { guards: Vec::with_capacity(names.len()) };
        for name in names {
            let left = match wait {
                WaitUntil::At { at, .. } => Wait::For(at.since(clock.now())),
                WaitUntil::Try | WaitUntil::Forever => self.options.wait,
            };
            // The time for which all of them may be held begins when all of them are.
            let options = Options { wait: left, max_hold: None, ..self.options.clone() };
            let guard = self.request_for(name, owner, options).acquire().await.map_err(|error| {
                match (error, wait) {
                    // What is told is the time that the caller gave, not what was left of it for the last lock.
                    (AcquireError::TimedOut { name, .. }, WaitUntil::At { waited, .. }) => {
                        AcquireError::TimedOut { name, waited }
                    }
                    (error, _) => error,
                }
            })?;
            set.guards.push(guard);
            if let Err(lost) = set.check() {
                return Ok(Err(lost.name));
            }
        }
        for guard in &set.guards {
            guard.hold().limit(self.options.max_hold, clock.now());
            self.shared.schedule.put(guard.hold());
        }
        Ok(Ok(set))
    }
}

/// Several locks that are held together. Dropping it releases all of them.
#[derive(Debug)]
#[must_use = "dropping it releases the locks"]
pub struct GuardSet {
    guards: Vec<Guard>,
}

impl GuardSet {
    /// All guards, out of a set that is about to be dropped.
    pub(crate) fn take(&mut self) -> Self {
        Self { guards: std::mem::take(&mut self.guards) }
    }

    /// The guards, in the order of their names.
    pub fn iter(&self) -> std::slice::Iter<'_, Guard> {
        self.guards.iter()
    }

    /// The guard of this lock.
    pub fn get(&self, name: &str) -> Option<&Guard> {
        self.iter().find(|guard| guard.name().as_str() == name)
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.guards.len()
    }

    /// Whether there are none, because none were asked for.
    pub fn is_empty(&self) -> bool {
        self.guards.is_empty()
    }

    /// Resolves when the first of them is lost; never, if they are released.
    ///
    /// # Cancellation safety
    /// May be dropped at any point.
    pub fn lost(&self) -> impl Future<Output = Lost> + Send + use<> {
        let all: Vec<_> = self
            .iter()
            .map(|guard| {
                let (name, lost) = (guard.name().clone(), guard.lost());
                Box::pin(async move { Lost { name, reason: lost.await } })
            })
            .collect();
        async move {
            if all.is_empty() {
                std::future::pending::<()>().await;
            }
            futures_util::future::select_all(all).await.0
        }
    }

    /// An error if any of them is lost.
    pub fn check(&self) -> Result<(), Lost> {
        self.iter().try_for_each(Guard::check)
    }

    /// Runs a future for as long as all locks are held, and drops it when the first of them is lost.
    ///
    /// # Cancellation safety
    /// May be dropped at any point, if `work` may.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, Lost> {
        run_while(|| self.check(), self.lost(), work).await
    }

    /// Releases all of them, the last got first. Tries each, and answers with the first error.
    ///
    /// # Cancellation safety
    /// May be dropped at any point: what is left is released on the client's own thread.
    pub async fn release(mut self) -> Result<Vec<Release>, ReleaseError> {
        let mut released = Vec::with_capacity(self.guards.len());
        let mut first_error = None;
        while let Some(guard) = self.guards.pop() {
            match guard.release().await {
                Ok(release) => released.push(release),
                Err(error) => first_error = first_error.or(Some(error)),
            }
        }
        released.reverse();
        first_error.map_or(Ok(released), Err)
    }
}

impl IntoIterator for GuardSet {
    type Item = Guard;
    type IntoIter = std::vec::IntoIter<Guard>;

    fn into_iter(self) -> Self::IntoIter {
        self.guards.into_iter()
    }
}

impl<'a> IntoIterator for &'a GuardSet {
    type Item = &'a Guard;
    type IntoIter = std::slice::Iter<'a, Guard>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}
