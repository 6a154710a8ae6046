//! Several locks, all or nothing.
//!
//! An engine with [`Capability::AtomicSets`] grants them at one instant: while another owner holds one of them, the request holds none. On
//! other engines the client acquires one after the other, in the order of their names. The same is done for a named owner, which may hold
//! some of them already. Because of the common order, two such requests never wait for each other in a cycle, whatever order their callers
//! wrote. If a lock is lost while a later one is waited for, the client releases all of them and begins again.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use tenure_table::{LockName, NameError, OwnerId};
use tracing::Instrument;

use crate::capabilities::Capability;
use crate::engine::Granted;
use crate::error::{AcquireError, Lost, ReleaseError};
use crate::guard::{Guard, Release, run_while};
use crate::hold::{Hold, ReleaseTask, Unusable};
use crate::inner::ClientInner;
use crate::request::{self, LockRequest, Options, request_options};
use crate::wait::{Wait, WaitUntil};
use crate::{attempt, random, telemetry};

/// A request for several locks. Nothing is sent until it is [acquired](LockAllRequest::acquire).
#[derive(Clone, Debug)]
#[must_use = "a request does nothing until it is acquired"]
pub struct LockAllRequest {
    shared: Arc<ClientInner>,
    names: Result<Vec<LockName>, NameError>,
    /// `None` for a new owner.
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

    /// Acquires all of the locks, or none. The wait covers all of them together. A name that is given twice counts once. A request without
    /// names succeeds at once.
    ///
    /// # Cancellation safety
    /// May be dropped at any point: the client's own thread releases what was granted.
    pub async fn acquire(self) -> Result<GuardSet, AcquireError> {
        /// After this many rounds with a lost lock, the cause is a TTL that is too short, and not chance.
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
                // Each round has a new owner: the locks of an earlier round may not be released yet.
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

    /// Acquires all of the locks if they are free. Returns `None` if another owner holds one of them.
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

    /// Acquires all locks at one instant. Returns the name of a lock that was granted too late to be used.
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
        // `close` waits until this token is dropped: by then the guards are scheduled, or the grants are released.
        let _begun = shared.thread.handle().unfinished_token();
        let (background, asked_for) = (shared.background.clone(), holds.clone());
        let settle = |result: Result<Vec<Granted>, AcquireError>| -> BoxFuture<'static, ()> {
            Box::pin(async move {
                if result.is_ok() {
                    let release =
                        |hold: &Arc<Hold>| background.clone().release(ReleaseTask::new(hold.grant(), None));
                    join_all(asked_for.iter().map(release)).await;
                }
            })
        };
        let all = names.iter().map(LockName::as_str).collect::<Vec<_>>().join(" ");
        let span = telemetry::acquire_span(&all, self.options.mode);
        let began = shared.clock.now();
        let background = shared.background.clone();
        let asking = attempt::acquire_all(background, holds.clone(), requests, cancel.clone(), wait);
        let answer = request::finish(shared, cancel, Box::pin(asking), settle).instrument(span.clone()).await;
        let took = shared.clock.now().since(began);
        let granted = answer.inspect_err(|error| shared.telemetry.acquired(&span, Err(error), took))?;
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
        // `close` may have read the schedule just before the guards were added.
        shared.check_open()?;
        for guard in &set.guards {
            self.options.check_token(guard)?;
        }
        Ok(late.map_or(Ok(set), Err))
    }

    fn request_for(&self, name: &LockName, owner: OwnerId, options: Options) -> LockRequest {
        LockRequest::new(self.shared.clone(), name.as_str(), Some(owner)).with_options(options)
    }

    /// Acquires one lock after the other. Returns the name of a lock that was lost while another was waited for.
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
            // `max_hold` counts from the instant at which all locks are held.
            let options = Options { wait: left, max_hold: None, ..self.options.clone() };
            let guard = self.request_for(name, owner, options).acquire().await.map_err(|error| {
                match (error, wait) {
                    // The error contains the wait that the caller gave, not the rest of it that was left for this lock.
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

/// Several locks that are held together. Dropping the set releases all of them.
#[derive(Debug)]
#[must_use = "dropping it releases the locks"]
pub struct GuardSet {
    guards: Vec<Guard>,
}

impl GuardSet {
    /// Takes all guards out of a set that is about to be dropped.
    pub(crate) fn take(&mut self) -> Self {
        Self { guards: std::mem::take(&mut self.guards) }
    }

    /// Returns the guards, in the order of their names.
    pub fn iter(&self) -> std::slice::Iter<'_, Guard> {
        self.guards.iter()
    }

    /// Returns the guard of the lock with this name.
    pub fn get(&self, name: &str) -> Option<&Guard> {
        self.iter().find(|guard| guard.name().as_str() == name)
    }

    /// Returns the number of guards.
    pub fn len(&self) -> usize {
        self.guards.len()
    }

    /// Returns whether the set has no guards, because the request named no locks.
    pub fn is_empty(&self) -> bool {
        self.guards.is_empty()
    }

    /// Resolves when the first of the locks is lost; never, if they are released.
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

    /// Returns an error if any of the locks is lost.
    pub fn check(&self) -> Result<(), Lost> {
        self.iter().try_for_each(Guard::check)
    }

    /// Runs a future while all locks are held, and drops it when the first of them is lost.
    ///
    /// # Cancellation safety
    /// May be dropped at any point, if `work` may.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, Lost> {
        run_while(|| self.check(), self.lost(), work).await
    }

    /// Releases all of the locks, in the reverse order of their names. Tries each, and returns the first error.
    ///
    /// # Cancellation safety
    /// May be dropped at any point: the client's own thread releases the rest.
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
