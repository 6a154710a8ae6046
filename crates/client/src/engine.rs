//! What an engine is: the recipe, and nothing else.
//!
//! The common layer above it validates, renews, keeps deadlines, re-enters within a client, releases in the
//! background and reports. Four rules make that possible:
//!
//! - **An operation that has begun is finished.** Its future is never dropped half-way: when the caller goes
//!   away, the future moves to the client's own thread with its `cancel` raised, and ends there. So every future is
//!   `'static`, and an engine's timers and connections must not need the caller's runtime: use [`EngineContext`].
//! - **A grant is named by its [`GrantId`]**, which is drawn before the first request is sent. The same
//!   request twice is one grant, and nobody can release what is not theirs.
//! - **An engine answers in bounded time**: within the time limits of the few requests that an operation takes. An acquire that waits does so
//!   once it is cancelled.
//! - **An answer may be lost.** Whether a request was carried out is then not known. The common layer repeats it for the same grant, or
//!   withdraws it until that is confirmed: `attempt.rs`.

use std::fmt;
use std::future::Future;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use tenure_table::{FencingToken, GrantId, LockName, Mode, OwnerId, Value};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::capabilities::{Breaking, Capabilities, Capability};
use crate::clock::{BootTime, Clock, SystemClock};
use crate::error::{
    AcquireError, BreakError, ConvertError, EngineError, InspectError, LostReason, ReleaseError,
    RememberError, RenewError, ValueError,
};
use crate::hold::Hold;
use crate::info::{LockInfo, Member};
use crate::inner::ClientInner;
use crate::lease::{Term, Ttl};
use crate::random;
use crate::thread::ClientThread;

/// Where an engine lives: the client's own runtime, and its clock.
#[derive(Clone, Debug)]
pub struct EngineContext {
    /// The runtime on the client's own thread. It has I/O, time and blocking threads, and outlives every operation.
    pub runtime: Handle,
    /// Where the time comes from.
    pub clock: Arc<dyn Clock>,
}

impl EngineContext {
    pub(crate) fn of(thread: &ClientThread, clock: Option<Arc<dyn Clock>>) -> Self {
        let runtime = thread.handle().runtime().clone();
        let clock = clock.unwrap_or_else(|| Arc::new(SystemClock::on(runtime.clone())));
        Self { runtime, clock }
    }
}

/// What keeps the truth about locks.
pub trait Engine: Send + Sync + fmt::Debug + 'static {
    /// What it can do. Constant for one engine.
    fn capabilities(&self) -> &Capabilities;

    /// Where its locks are: the same text for all who reach the same locks, however their URLs are spelled, and another one for
    /// those who do not. No secret is in it. Where there is no secret to it, it is a URL.
    fn place(&self) -> String;

    /// Gets the lock, or says why not. When `request.cancel` is raised, it answers soon, with the grant or with any error.
    ///
    /// A request for the same grant continues an earlier one: it is answered with the grant if that is held, and keeps its place in the
    /// queue. With [`AcquireError::Busy`] nothing is left of a first request that does not wait, unless it was
    /// [not answered](GrantEvents::unanswered). Any other error may leave the grant or its place in a queue behind: the client then
    /// repeats the request, or [withdraws](Self::withdraw) it.
    fn acquire(self: Arc<Self>, request: AcquireRequest)
    -> BoxFuture<'static, Result<Granted, AcquireError>>;

    /// Gets several locks at one instant, or none. The requests are by one owner that holds none of them, for different names, with the same
    /// ttl, wait and `cancel`; the grants come in their order. Otherwise as [`acquire`](Self::acquire).
    ///
    /// Only asked of an engine with [`Capability::AtomicSets`]: elsewhere a client gets one lock after the other, in the order of their names.
    fn acquire_all(
        self: Arc<Self>,
        requests: Vec<AcquireRequest>,
    ) -> BoxFuture<'static, Result<Vec<Granted>, AcquireError>> {
        let _ = requests;
        let error = self.capabilities().unsupported(Capability::AtomicSets.to_string());
        Box::pin(async { Err(error.into()) })
    }

    /// Lengthens the grant's lease by the grant's ttl from now, or confirms that it stands where there is no lease. Not asked of a grant whose
    /// term is a [session](Term::Session).
    fn renew(self: Arc<Self>, grant: Grant) -> BoxFuture<'static, Result<Term, RenewError>>;

    /// Frees what this grant holds, and nothing else; a conversion of it that still waits ends with it. Once freed, or if it was not held, the same call answers
    /// [`ReleaseError::NotHeld`].
    fn release(self: Arc<Self>, grant: Grant) -> BoxFuture<'static, Result<(), ReleaseError>>;

    /// Leaves nothing of an [acquire](Self::acquire) behind that ended with an error or was repeated: neither the grant nor a place in a
    /// queue. Twice does no harm.
    fn withdraw(self: Arc<Self>, grant: Grant) -> BoxFuture<'static, Result<Withdrawn, EngineError>> {
        Box::pin(async move {
            match self.release(grant).await {
                Ok(()) | Err(ReleaseError::NotHeld(_)) => Ok(Withdrawn::ForGood),
                Err(ReleaseError::Engine(error)) => Err(error),
            }
        })
    }

    /// Descriptors that, open in whatever process, keep the grant from being freed because this process died. Empty where it
    /// does not hang on one.
    fn anchors(&self, grant: &Grant) -> io::Result<Vec<OwnedFd>> {
        let _ = grant;
        Ok(Vec::new())
    }

    /// Changes the grant's mode. With an error, the old mode stands.
    fn convert(self: Arc<Self>, conversion: Conversion) -> BoxFuture<'static, Result<Granted, ConvertError>> {
        let _ = conversion;
        let error = self.capabilities().unsupported("conversion of a held lock");
        Box::pin(async { Err(error.into()) })
    }

    /// Writes the resource's value, if the grant still stands; durable when it answers.
    fn set_value(self: Arc<Self>, grant: Grant, bytes: Bytes) -> BoxFuture<'static, Result<(), ValueError>> {
        let _ = (grant, bytes);
        let error = self.capabilities().unsupported("a value that stays with the lock");
        Box::pin(async { Err(error.into()) })
    }

    /// Notes down, by the engine's own clock, that what the grant protects was started `start.ago` before now; durable when it
    /// answers. Only while the grant stands. If a start within `start.window`, or a later one than this, is noted
    /// already, it changes nothing and says so: of two that come together through one owner, one is `Already`.
    ///
    /// Each call is a start of its own, also by the same grant. An engine that sends it again after a lost answer must tell its
    /// own note from another's, or answer with an error. It may forget a start when its window has passed.
    fn remember(
        self: Arc<Self>,
        grant: Grant,
        start: Start,
    ) -> BoxFuture<'static, Result<Remembered, RememberError>> {
        let _ = (grant, start);
        let error = self.capabilities().unsupported(Capability::Remember.to_string());
        Box::pin(async { Err(error.into()) })
    }

    /// How long ago, by the engine's own clock, the last start was that it remembers, if that is less than `window`.
    fn recall(
        self: Arc<Self>,
        name: LockName,
        window: Duration,
    ) -> BoxFuture<'static, Result<Option<Duration>, InspectError>> {
        let _ = (name, window);
        let error = self.capabilities().unsupported(Capability::Remember.to_string());
        Box::pin(async { Err(error.into()) })
    }

    /// Who holds a lock and who waits for it.
    fn inspect(self: Arc<Self>, name: LockName) -> BoxFuture<'static, Result<LockInfo, InspectError>>;

    /// The locks whose names start with `prefix` and that are held or waited for, in the order of their names.
    fn list(self: Arc<Self>, prefix: String) -> BoxFuture<'static, Result<Vec<LockInfo>, InspectError>>;

    /// The lock as it is, and again whenever its holders, or its waiters, have changed; changes that follow each other closely may be one. It
    /// does not end. After an error it goes on with the lock as it is by then.
    fn observe(self: Arc<Self>, name: LockName) -> BoxStream<'static, Result<LockInfo, InspectError>> {
        let _ = name;
        let capabilities = self.capabilities().clone();
        Box::pin(stream::repeat_with(move || {
            Err(capabilities.unsupported(Capability::Observe.to_string()).into())
        }))
    }

    /// Marks the present grants of a lock as broken and tells their holders, or frees them at once; answers with
    /// those holders.
    fn break_lock(
        self: Arc<Self>,
        name: LockName,
        how: Break,
    ) -> BoxFuture<'static, Result<Vec<Member>, BreakError>> {
        let _ = (name, how);
        debug_assert_eq!(
            self.capabilities().breaking,
            Breaking::None,
            "an engine that breaks locks says how"
        );
        let error = self.capabilities().unsupported("to break a lock");
        Box::pin(async { Err(error.into()) })
    }

    /// Lets go of connections. Called once, when everything that had begun is finished or given up.
    fn close(self: Arc<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async {})
    }
}

/// Says that a request's answer is not wanted any more. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Cancellation(CancellationToken);

impl Cancellation {
    /// One that is not raised.
    pub fn new() -> Self {
        Self::default()
    }

    /// Raises it, for all clones and children.
    pub fn cancel(&self) {
        self.0.cancel();
    }

    /// Whether it is raised.
    pub fn is_cancelled(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Resolves when it is raised.
    ///
    /// # Cancellation safety
    /// May be dropped at any point.
    pub async fn cancelled(&self) {
        self.0.cancelled().await;
    }

    /// Runs a future until this is raised: `None` if it is raised first.
    ///
    /// # Cancellation safety
    /// May be dropped at any point, if `work` may.
    pub async fn run_until_cancelled<F: Future>(&self, work: F) -> Option<F::Output> {
        self.0.run_until_cancelled(work).await
    }

    /// One that is raised with this one, and may be raised alone.
    pub fn child(&self) -> Self {
        Self(self.0.child_token())
    }
}

/// What an engine is asked to grant.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AcquireRequest {
    /// The grant's id.
    pub grant: GrantId,
    /// What is to be locked.
    pub name: LockName,
    /// How.
    pub mode: Mode,
    /// For whom.
    pub owner: OwnerId,
    /// Whether the owner may hold it already, through another client: then it re-enters, where the engine has
    /// shared owners.
    pub reenter: bool,
    /// How long the grant lives without renewal.
    pub ttl: Ttl,
    /// Whether it will be renewed. If not, all of the ttl counts from the grant on, and none of it may be left for a renewal to give.
    pub renews: bool,
    /// Whether it waits.
    pub wait: Waits,
    /// What the caller calls itself.
    pub label: Option<Arc<str>>,
    /// Raised when nobody waits for the answer any more.
    pub cancel: Cancellation,
    /// How long nobody else gets the lock after this grant has expired. Zero without [`Capability::LockDelay`].
    pub lock_delay: Duration,
    /// Whether the engine is to tell [`wanted`](GrantEvents::wanted). Not without [`Capability::Notices`].
    pub notify: bool,
    /// To be told what the engine learns by itself.
    pub events: GrantEvents,
}

impl AcquireRequest {
    /// A request for an exclusive lock, by an owner of its own, that does not wait: for those who drive an engine
    /// without a client.
    pub fn new(name: LockName) -> Self {
        Self {
            grant: random::grant_id(),
            name,
            mode: Mode::Ex,
            owner: random::owner_id(),
            reenter: false,
            ttl: Ttl::DEFAULT,
            renews: false,
            wait: Waits::No,
            label: None,
            cancel: Cancellation::new(),
            lock_delay: Duration::ZERO,
            notify: false,
            events: GrantEvents::ignored(),
        }
    }

    /// The grant that this asks for, once it has that token.
    pub fn granted(&self, token: Option<FencingToken>) -> Grant {
        Grant {
            id: self.grant,
            name: self.name.clone(),
            owner: self.owner,
            mode: self.mode,
            token,
            ttl: self.ttl,
            may_arrive: false,
        }
    }

    /// Whether it waits.
    pub fn waits(&self) -> bool {
        self.wait == Waits::Yes
    }

    /// Waits for a message, until an instant: nothing, if that comes first.
    ///
    /// # Errors
    /// If the request is cancelled.
    ///
    /// # Cancellation safety
    /// May be dropped at any point, if `message` may.
    pub async fn woken_before<T>(
        &self,
        clock: &dyn Clock,
        at: BootTime,
        message: impl Future<Output = T>,
    ) -> Result<Option<T>, AcquireError> {
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(self.not_granted()),
            message = message => Ok(Some(message)),
            () = clock.sleep_until(at) => Ok(None),
        }
    }

    /// The answer to a request that does not wait, where the lock is held; and to one that is cancelled.
    pub fn not_granted(&self) -> AcquireError {
        if self.waits() || self.cancel.is_cancelled() {
            AcquireError::Engine(EngineError::Closed)
        } else {
            AcquireError::Busy { name: self.name.clone() }
        }
    }
}

/// Whether a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// No. The answer to a lock that is held is [`AcquireError::Busy`].
    No,
    /// Until it is granted or cancelled.
    Yes,
    /// No more: it has waited, and asks for the last time.
    NoMore,
}

/// What an engine granted.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Granted {
    /// The fencing token; that of the grant that was re-entered, if one was.
    pub token: Option<FencingToken>,
    /// The resource's value, as it was at the grant.
    pub value: Value,
    /// How long the grant lives if the engine hears nothing more.
    pub term: Term,
    /// How soon the first renewal is due, where that is sooner than the term asks for. Only for a grant that is renewed.
    pub first_renewal: Option<Duration>,
}

impl Granted {
    /// A grant with no value.
    pub fn new(token: Option<FencingToken>, term: Term) -> Self {
        Self { token, value: Value::default(), term, first_renewal: None }
    }

    /// The same, with a first renewal that is due this soon.
    #[must_use]
    pub fn renewed_within(self, first_renewal: Duration) -> Self {
        Self { first_renewal: Some(first_renewal), ..self }
    }

    /// The same, with the resource's value.
    #[must_use]
    pub fn with_value(self, value: Value) -> Self {
        Self { value, ..self }
    }
}

/// A grant, named to its engine.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// Which.
    pub id: GrantId,
    /// Of what.
    pub name: LockName,
    /// Whose.
    pub owner: OwnerId,
    /// How.
    pub mode: Mode,
    /// With which token.
    pub token: Option<FencingToken>,
    /// How long it lives without renewal.
    pub ttl: Ttl,
    /// Whether a request for it was not answered, and may still arrive: see [`GrantEvents::unanswered`].
    pub may_arrive: bool,
}

/// A change of mode that an engine is asked for.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Conversion {
    /// The grant, in its old mode.
    pub grant: Grant,
    /// The new mode.
    pub to: Mode,
    /// Whether it waits until it is done or cancelled.
    pub waits: bool,
    /// Raised when nobody waits for the answer any more.
    pub cancel: Cancellation,
}

impl Conversion {
    pub(crate) const fn new(grant: Grant, to: Mode, waits: bool, cancel: Cancellation) -> Self {
        Self { grant, to, waits, cancel }
    }

    /// The answer to a conversion that does not wait, where others are in its way; and to one that is cancelled.
    pub fn not_converted(&self) -> ConvertError {
        if self.waits || self.cancel.is_cancelled() {
            ConvertError::Engine(EngineError::Closed)
        } else {
            ConvertError::Busy { name: self.grant.name.clone(), to: self.to }
        }
    }
}

/// Whether a request that was withdrawn can still take effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Withdrawn {
    /// It cannot.
    ForGood,
    /// It was sent on a connection that has broken since, and may arrive later: it is to be withdrawn again.
    ForNow,
}

/// A start that an engine is asked to remember.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Start {
    /// How long before now it was: a length of time, since the clocks of callers are nobody's measure.
    pub ago: Duration,
    /// For how long after it no other is to follow.
    pub window: Duration,
}

impl Start {
    /// A start that was so long ago, and after which no other is to follow for the window.
    pub const fn new(ago: Duration, window: Duration) -> Self {
        Self { ago, window }
    }
}

/// What became of a start that was to be remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remembered {
    /// It is noted down, durably.
    Recorded,
    /// Another stands in its way, and nothing was changed.
    Already {
        /// How long ago that was.
        ago: Duration,
    },
}

/// How an operator breaks a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Break {
    /// Mark the grant and tell its holder: the lock is free when the holder lets go or its lease ends.
    Ask,
    /// Free it at once. The holder may still believe that it holds: only fencing protects the data then.
    Force,
}

/// What an engine tells the holder of a grant without having been asked. Nothing of it blocks.
#[derive(Clone)]
pub struct GrantEvents {
    hold: Weak<Hold>,
    shared: Weak<ClientInner>,
}

impl GrantEvents {
    pub(crate) fn new(hold: &Arc<Hold>, shared: &Arc<ClientInner>) -> Self {
        Self { hold: Arc::downgrade(hold), shared: Arc::downgrade(shared) }
    }

    /// Events that nobody reads: for those who drive an engine without a client.
    pub fn ignored() -> Self {
        Self { hold: Weak::new(), shared: Weak::new() }
    }

    /// Resolves when there is no holder to be told any more.
    #[cfg(any(feature = "etcd", feature = "zookeeper"))]
    pub(crate) fn unread(&self) -> impl Future<Output = ()> + Send + use<> {
        let watch = self.hold.upgrade().map(|hold| hold.watch());
        async move {
            if let Some(watch) = watch {
                watch.ended().await;
            }
        }
    }

    /// The grant is lost. The first reason counts.
    pub fn lost(&self, reason: LostReason) {
        if let (Some(hold), Some(shared)) = (self.hold.upgrade(), self.shared.upgrade()) {
            shared.lose(&hold, reason);
        }
    }

    /// A request for the grant was sent and not answered: it may be carried out at any time. The grant is
    /// [withdrawn](Engine::withdraw) after its release, or if it is not granted.
    pub fn unanswered(&self) {
        if let Some(hold) = self.hold.upgrade() {
            hold.note_unanswered();
        }
    }

    /// Another request waits for this mode, which conflicts with the grant's. May come before the grant is answered.
    pub fn wanted(&self, mode: Mode) {
        if let Some(hold) = self.hold.upgrade() {
            hold.wanted(mode);
        }
    }
}

impl fmt::Debug for GrantEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GrantEvents")
    }
}
