//! Requests for locks, and how a request gets its grant.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tenure_table::{LockName, Mode, NameError, OwnerId};
use tracing::Instrument;

use crate::attempt;
use crate::capabilities::Capability;
use crate::engine::{AcquireRequest, Cancellation, GrantEvents, Granted, Waits};
use crate::error::{AcquireError, EngineError};
use crate::guard::Guard;
use crate::hold::{Hold, ReleaseTask, Unusable, WhenLost};
use crate::inner::ClientInner;
use crate::lease::Ttl;
use crate::once_per::OncePerRequest;
use crate::operation::Operation;
use crate::random;
use crate::telemetry;
use crate::wait::{Wait, WaitUntil};

/// The options of every kind of request.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) mode: Mode,
    pub(crate) ttl: Duration,
    pub(crate) renew: bool,
    pub(crate) wait: Wait,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) label: Option<Arc<str>>,
    pub(crate) when_lost: WhenLost,
    pub(crate) lock_delay: Duration,
    pub(crate) notify: bool,
    pub(crate) required: Vec<Capability>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            mode: Mode::Ex,
            ttl: Ttl::DEFAULT.get(),
            renew: true,
            wait: Wait::Forever,
            max_hold: None,
            label: None,
            when_lost: WhenLost::default(),
            lock_delay: Duration::ZERO,
            notify: false,
            required: Vec::new(),
        }
    }
}

impl Options {
    /// Returns an error if a token is required and the guard has none.
    pub(crate) fn check_token(&self, guard: &Guard) -> Result<(), AcquireError> {
        if self.required.contains(&Capability::Fencing) {
            guard.fencing_token()?;
        }
        Ok(())
    }
}

/// The builder methods of the requests, for the async and the blocking API.
macro_rules! request_options {
    ($request:ident) => {
        impl $request {
            /// Sets the mode; exclusive by default.
            pub fn mode(mut self, mode: $crate::Mode) -> Self {
                self.options().mode = mode;
                self
            }

            /// Sets the mode to [`Mode::SHARED`](crate::Mode::SHARED).
            pub fn shared(self) -> Self {
                self.mode($crate::Mode::SHARED)
            }

            /// Sets how long the grant lives without renewal; 30 seconds ([`Ttl::DEFAULT`](crate::Ttl::DEFAULT)) by default.
            pub fn ttl(mut self, ttl: std::time::Duration) -> Self {
                self.options().ttl = ttl;
                self
            }

            /// Sets whether the lease is renewed while the guard exists; `true` by default. With `false`, the lock is lost one TTL after
            /// the grant, whatever the holder does.
            pub fn renew(mut self, renew: bool) -> Self {
                self.options().renew = renew;
                self
            }

            /// Sets how long the request waits; without a limit by default. While the engine cannot be reached, the client repeats the
            /// request until the wait is over. The error is then [`EngineError::Unreachable`](crate::EngineError::Unreachable).
            pub fn wait(mut self, wait: $crate::Wait) -> Self {
                self.options().wait = wait;
                self
            }

            /// Sets the longest time for which the lock may be held. After it, renewal stops and the lock is lost. For work that may never
            /// end.
            pub fn max_hold(mut self, most: std::time::Duration) -> Self {
                self.options().max_hold = Some(most);
                self
            }

            /// Sets the name under which [`Client::inspect`](crate::Client::inspect) and the text of a deadlock show the holder.
            pub fn label(mut self, label: impl AsRef<str>) -> Self {
                self.options().label = Some(label.as_ref().into());
                self
            }

            /// Sets what happens to a lock that is lost while the engine still has it. By default, the client releases it at once.
            pub fn when_lost(mut self, when_lost: $crate::WhenLost) -> Self {
                self.options().when_lost = when_lost;
                self
            }

            /// Sets how long the engine keeps the lock from other owners after this holder's lease has expired: writes that the holder sent
            /// before may still arrive. A lock that is released is free at once. At most 24 hours. Refused by an engine without
            /// [`Capability::LockDelay`](crate::Capability::LockDelay).
            pub fn lock_delay(mut self, lock_delay: std::time::Duration) -> Self {
                self.options().lock_delay = lock_delay;
                self
            }

            /// Sets whether the guard is notified when another request waits for the lock: [`Guard::wanted`](crate::Guard::wanted) needs
            /// it. Refused by an engine without [`Capability::Notices`](crate::Capability::Notices).
            pub fn notify(mut self, notify: bool) -> Self {
                self.options().notify = notify;
                self
            }

            /// Refuses an engine without this capability, before anything is sent to it. With
            /// [`Capability::Fencing`](crate::Capability::Fencing), every guard has a [`token`](crate::Guard::token).
            pub fn require(mut self, capability: $crate::Capability) -> Self {
                self.options().required.push(capability);
                self
            }
        }
    };
}
pub(crate) use request_options;

/// A request for one lock. Nothing is sent until it is [acquired](LockRequest::acquire).
#[derive(Clone, Debug)]
#[must_use = "a request does nothing until it is acquired"]
pub struct LockRequest {
    shared: Arc<ClientInner>,
    name: Result<LockName, NameError>,
    owner: Option<OwnerId>,
    options: Options,
}

request_options!(LockRequest);

impl LockRequest {
    pub(crate) fn new(shared: Arc<ClientInner>, name: &str, owner: Option<OwnerId>) -> Self {
        Self { shared, name: LockName::parse(name), owner, options: Options::default() }
    }

    pub(crate) const fn options(&mut self) -> &mut Options {
        &mut self.options
    }

    pub(crate) fn with_options(self, options: Options) -> Self {
        Self { options, ..self }
    }

    pub(crate) const fn shared_with(&self) -> &Arc<ClientInner> {
        &self.shared
    }

    pub(crate) const fn asked_mode(&self) -> Mode {
        self.options.mode
    }

    pub(crate) fn waits(&self) -> bool {
        self.options.wait != Wait::Try
    }

    /// Turns this into a request for a job that is to run once in a period: see [`Client::once_per`](crate::Client::once_per).
    pub fn once_per(self, period: Duration) -> OncePerRequest {
        OncePerRequest::new(self, period)
    }

    /// Acquires the lock, and waits for it as long as the request allows.
    ///
    /// # Cancellation safety
    /// May be dropped at any point. The client's own thread then undoes what had begun: neither a lock nor a waiter remains.
    pub async fn acquire(self) -> Result<Guard, AcquireError> {
        let (name, ttl) = self.checked()?;
        let span = telemetry::acquire_span(name.as_str(), self.options.mode);
        let began = self.shared.clock.now();
        let wait = self.options.wait.from(began);
        let acquire =
            Acquire { shared: &self.shared, options: &self.options, owner: self.owner, name, ttl, wait };
        let result = acquire.run().instrument(span.clone()).await;
        let took = acquire.shared.clock.now().since(began);
        acquire.shared.telemetry.acquired(&span, result.as_ref(), took);
        result
    }

    /// Checks the request before the engine is asked.
    pub(crate) fn checked(&self) -> Result<(LockName, Ttl), AcquireError> {
        let name = self.name.clone()?;
        let capabilities = self.shared.engine.capabilities();
        capabilities.require(Capability::Mode(self.options.mode))?;
        for capability in &self.options.required {
            capabilities.require(*capability)?;
        }
        if self.options.notify {
            capabilities.require(Capability::Notices)?;
        }
        if self.options.lock_delay > Duration::ZERO {
            capabilities.require(Capability::LockDelay)?;
        }
        if self.options.lock_delay > Ttl::MAX.get() {
            return Err(AcquireError::LockDelay { most: Ttl::MAX.get() });
        }
        let ttl = Ttl::new(self.options.ttl)?;
        if self.options.max_hold == Some(Duration::ZERO) {
            return Err(AcquireError::MaxHold);
        }
        Ok((name, ttl))
    }

    /// Acquires the lock if it is free. Returns `None` if another owner holds it.
    ///
    /// # Cancellation safety
    /// As with [`acquire`](Self::acquire).
    pub async fn try_acquire(self) -> Result<Option<Guard>, AcquireError> {
        match self.wait(Wait::Try).acquire().await {
            Ok(guard) => Ok(Some(guard)),
            Err(AcquireError::Busy { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// A checked request that is under way.
pub(crate) struct Acquire<'a> {
    pub(crate) shared: &'a Arc<ClientInner>,
    pub(crate) options: &'a Options,
    owner: Option<OwnerId>,
    pub(crate) name: LockName,
    ttl: Ttl,
    pub(crate) wait: WaitUntil,
}

impl Acquire<'_> {
    async fn run(&self) -> Result<Guard, AcquireError> {
        match self.owner {
            None => self.ask_engine(random::owner_id()).await,
            // Boxed: most requests have no owner, and an unboxed future would be as large as the larger branch for all of them.
            Some(owner) => Box::pin(self.through(owner)).await,
        }
    }

    /// Asks the engine, and asks again if the grant came too late to be used.
    pub(crate) async fn ask_engine(&self, owner: OwnerId) -> Result<Guard, AcquireError> {
        /// After this many late grants, the cause is a TTL that is too short, and not chance.
        const LATE_GRANTS: usize = 3;
        let mut late_grants = 0;
        // `close` waits until this token is dropped: by then the guard is scheduled, or the grant is released.
        let _begun = self.shared.thread.handle().unfinished_token();
        loop {
            let (hold, granted) = self.ask_once(owner).await?;
            let guard = guard_of(self.shared, self.options, hold, granted);
            // `close` may have read the schedule just before the guard was added.
            self.shared.check_open()?;
            match guard {
                Ok(guard) => return self.options.check_token(&guard).map(|()| guard),
                Err(Unusable) => late_grants += 1,
            }
            if late_grants == LATE_GRANTS || self.wait.is_over(self.shared.clock.now()) {
                return Err(AcquireError::Lapsed { name: self.name.clone(), ttl: self.ttl.get() });
            }
        }
    }

    /// Asks the engine for one grant. The request runs to its end even if this future is dropped.
    async fn ask_once(&self, owner: OwnerId) -> Result<(Arc<Hold>, Granted), AcquireError> {
        let (cancel, name) = (self.shared.closing.child(), self.name.clone());
        let reenters = self.owner.is_some();
        let (hold, request) =
            asked(self.shared, self.options, name, self.ttl, owner, reenters, cancel.clone());
        let (background, asked_for) = (self.shared.background.clone(), hold.clone());
        // If this future is dropped, the next acquire of the same owner waits until the request is settled.
        let releasing = self.shared.reentry.releasing(&hold);
        let settle = move |result: Result<Granted, AcquireError>| -> BoxFuture<'static, ()> {
            match result {
                Ok(_) => Box::pin(background.release(ReleaseTask::new(asked_for.grant(), releasing))),
                Err(_) => Box::pin(async move { drop(releasing) }),
            }
        };
        let background = self.shared.background.clone();
        let asking = Box::pin(attempt::acquire(background, hold.clone(), request, self.wait));
        Ok((hold, finish(self.shared, cancel, asking, settle).await?))
    }

    pub(crate) fn not_got(&self) -> AcquireError {
        let name = self.name.clone();
        match self.wait {
            WaitUntil::At { waited, .. } => AcquireError::TimedOut { name, waited },
            WaitUntil::Try | WaitUntil::Forever => AcquireError::Busy { name },
        }
    }
}

/// Creates a pending hold, and the engine's request for it.
pub(crate) fn asked(
    shared: &Arc<ClientInner>,
    options: &Options,
    name: LockName,
    ttl: Ttl,
    owner: OwnerId,
    reenters: bool,
    cancel: Cancellation,
) -> (Arc<Hold>, AcquireRequest) {
    let Options { mode, renew, ref label, when_lost, lock_delay, notify, .. } = *options;
    let hold = Arc::new(Hold::pending(name.clone(), owner, reenters, mode, ttl, renew, when_lost));
    let request = AcquireRequest {
        grant: hold.id,
        name,
        mode,
        owner,
        reenter: reenters,
        ttl,
        renews: renew,
        wait: Waits::No,
        label: label.clone(),
        cancel,
        lock_delay,
        notify,
        events: GrantEvents::new(&hold, shared),
    };
    (hold, request)
}

/// Runs a request to its end, also if this future is dropped: `settle` then gets the answer.
pub(crate) async fn finish<T: Send + 'static>(
    shared: &ClientInner,
    cancel: Cancellation,
    asking: BoxFuture<'static, Result<T, AcquireError>>,
    settle: impl FnOnce(Result<T, AcquireError>) -> BoxFuture<'static, ()> + Send + 'static,
) -> Result<T, AcquireError> {
    shared.check_open()?;
    let answer = Operation::new(shared.thread.handle().clone(), Some(cancel), asking, settle).await;
    if answer.is_err() && shared.closing.is_cancelled() {
        return Err(EngineError::Closed.into());
    }
    answer
}

/// Creates a guard for a grant. If the grant is no longer usable, it is released.
pub(crate) fn guard_of(
    shared: &Arc<ClientInner>,
    options: &Options,
    hold: Arc<Hold>,
    granted: Granted,
) -> Result<Guard, Unusable> {
    let now = shared.clock.now();
    hold.begin(granted, now).inspect_err(|_| {
        shared.release_in_background(ReleaseTask::new(hold.grant(), None));
    })?;
    shared.telemetry.begun();
    hold.limit(options.max_hold, now);
    let guard = Guard::new(hold, shared.clone());
    shared.schedule.add(guard.hold());
    Ok(guard)
}
