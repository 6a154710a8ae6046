//! The engine: the interface that each lock backend implements.
//!
//! The common layer above an engine validates, renews, keeps deadlines, handles re-entrance within a client, releases in the background
//! and reports. Four rules make that possible:
//!
//! - **An operation that has begun runs to its end.** Its future is never dropped half-way: when the caller drops it, the future moves to
//!   the client's own thread with its `cancel` raised, and ends there. So every future is `'static`, and an engine's timers and
//!   connections must not need the caller's runtime: use [`EngineContext`].
//! - **A grant is named by its [`GrantId`]**, which is drawn before the first request is sent. A repeated request yields the same grant,
//!   and a release frees only the grant that it names.
//! - **An engine answers in bounded time**: within the time limits of the few requests that an operation takes. A waiting acquire does so
//!   once it is cancelled.
//! - **A response may be lost.** It is then unknown whether the request was carried out. The common layer repeats it for the same grant,
//!   or withdraws it until the withdrawal is confirmed: see `attempt.rs`.

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

/// The runtime and the clock that an engine uses: those of its client.
#[derive(Clone, Debug)]
pub struct EngineContext {
    /// The runtime on the client's own thread. It has I/O, timers and blocking threads, and outlives every operation.
    pub runtime: Handle,
    /// The source of time.
    pub clock: Arc<dyn Clock>,
}

impl EngineContext {
    pub(crate) fn of(thread: &ClientThread, clock: Option<Arc<dyn Clock>>) -> Self {
        let runtime = thread.handle().runtime().clone();
        let clock = clock.unwrap_or_else(|| Arc::new(SystemClock::on(runtime.clone())));
        Self { runtime, clock }
    }
}

/// A lock backend, which holds the authoritative state of its locks.
pub trait Engine: Send + Sync + fmt::Debug + 'static {
    /// Returns what this engine supports. Constant for one engine.
    fn capabilities(&self) -> &Capabilities;

    /// Returns the location of the engine's locks: the same text for all clients that reach the same locks, however their URLs are
    /// spelled, and another text for all others. It contains no secret. If the engine's URL has none, the location is a URL.
    fn place(&self) -> String;

    /// Acquires the lock, or returns why not. Once `request.cancel` is raised, it returns soon, with the grant or with any error.
    ///
    /// A repeated request for the same grant continues the earlier one: it returns the grant if that is held, and keeps its position in
    /// the queue. After [`AcquireError::Busy`] nothing remains of a first request that does not wait, unless it was [not
    /// answered](GrantEvents::unanswered). After any other error, the grant or its position in a queue may remain: the client then
    /// repeats the request or [withdraws](Self::withdraw) it.
    fn acquire(self: Arc<Self>, request: AcquireRequest)
    -> BoxFuture<'static, Result<Granted, AcquireError>>;

    /// Acquires several locks atomically: all or none. All requests come from one owner that holds none of the locks. They have different
    /// names, and the same ttl, wait and `cancel`. The grants are returned in the order of the requests. Otherwise as
    /// [`acquire`](Self::acquire).
    ///
    /// Called only for an engine with [`Capability::AtomicSets`]. With other engines, a client acquires one lock after the other, in the
    /// order of their names.
    fn acquire_all(
        self: Arc<Self>,
        requests: Vec<AcquireRequest>,
    ) -> BoxFuture<'static, Result<Vec<Granted>, AcquireError>> {
        let _ = requests;
        let error = self.capabilities().unsupported(Capability::AtomicSets.to_string());
        Box::pin(async { Err(error.into()) })
    }

    /// Extends the grant's lease to the grant's ttl from now, or confirms the grant where there is no lease. Not called for a grant whose
    /// term is a [session](Term::Session).
    fn renew(self: Arc<Self>, grant: Grant) -> BoxFuture<'static, Result<Term, RenewError>>;

    /// Releases what this grant holds, and nothing else. A waiting conversion of the grant ends with it. If the grant is not held, or was
    /// released before, the result is [`ReleaseError::NotHeld`].
    fn release(self: Arc<Self>, grant: Grant) -> BoxFuture<'static, Result<(), ReleaseError>>;

    /// Removes all that an [acquire](Self::acquire) may have left after an error or a repetition: the grant and its position in a queue.
    /// Calling it twice does no harm.
    fn withdraw(self: Arc<Self>, grant: Grant) -> BoxFuture<'static, Result<Withdrawn, EngineError>> {
        Box::pin(async move {
            match self.release(grant).await {
                Ok(()) | Err(ReleaseError::NotHeld(_)) => Ok(Withdrawn::ForGood),
                Err(ReleaseError::Engine(error)) => Err(error),
            }
        })
    }

    /// Returns descriptors that keep the grant held after this process dies, for as long as any process has one of them open. Empty if
    /// the grant does not depend on an open descriptor.
    fn anchors(&self, grant: &Grant) -> io::Result<Vec<OwnedFd>> {
        let _ = grant;
        Ok(Vec::new())
    }

    /// Changes the grant's mode. On an error, the grant keeps its old mode.
    fn convert(self: Arc<Self>, conversion: Conversion) -> BoxFuture<'static, Result<Granted, ConvertError>> {
        let _ = conversion;
        let error = self.capabilities().unsupported("conversion of a held lock");
        Box::pin(async { Err(error.into()) })
    }

    /// Writes the resource's value, if the grant is still held. The value is durable when this returns.
    fn set_value(self: Arc<Self>, grant: Grant, bytes: Bytes) -> BoxFuture<'static, Result<(), ValueError>> {
        let _ = (grant, bytes);
        let error = self.capabilities().unsupported("a value that stays with the lock");
        Box::pin(async { Err(error.into()) })
    }

    /// Records, by the engine's own clock, that what the grant protects was started `start.ago` before now. The grant must still be held,
    /// and the record is durable when this returns. If a start within `start.window`, or a later one than this, is recorded already,
    /// nothing changes and the result is `Already`. Of two simultaneous starts through one owner, one is `Already`.
    ///
    /// Each call is a separate start, also by the same grant. An engine that repeats the request after a lost response must distinguish
    /// its own record from another's, or return an error. It may forget a start when its window has passed.
    fn remember(
        self: Arc<Self>,
        grant: Grant,
        start: Start,
    ) -> BoxFuture<'static, Result<Remembered, RememberError>> {
        let _ = (grant, start);
        let error = self.capabilities().unsupported(Capability::Remember.to_string());
        Box::pin(async { Err(error.into()) })
    }

    /// Returns how long ago the last recorded start was, by the engine's own clock, if that is less than `window`.
    fn recall(
        self: Arc<Self>,
        name: LockName,
        window: Duration,
    ) -> BoxFuture<'static, Result<Option<Duration>, InspectError>> {
        let _ = (name, window);
        let error = self.capabilities().unsupported(Capability::Remember.to_string());
        Box::pin(async { Err(error.into()) })
    }

    /// Returns the holders and the waiters of a lock.
    fn inspect(self: Arc<Self>, name: LockName) -> BoxFuture<'static, Result<LockInfo, InspectError>>;

    /// Returns the locks that are held or waited for and whose names start with `prefix`, in the order of their names.
    fn list(self: Arc<Self>, prefix: String) -> BoxFuture<'static, Result<Vec<LockInfo>, InspectError>>;

    /// Yields the lock's state, and again after each change of its holders or waiters. Changes in close succession may be yielded as one.
    /// The stream does not end. After an error it continues with the then current state.
    fn observe(self: Arc<Self>, name: LockName) -> BoxStream<'static, Result<LockInfo, InspectError>> {
        let _ = name;
        let capabilities = self.capabilities().clone();
        Box::pin(stream::repeat_with(move || {
            Err(capabilities.unsupported(Capability::Observe.to_string()).into())
        }))
    }

    /// Marks the current grants of a lock as broken and notifies their holders, or frees the grants at once. Returns those holders.
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

    /// Closes the connections. Called once, when every operation that had begun is finished or given up.
    fn close(self: Arc<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async {})
    }
}

/// A signal that a request's response is no longer needed. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Cancellation(CancellationToken);

impl Cancellation {
    /// Creates a signal that is not raised.
    pub fn new() -> Self {
        Self::default()
    }

    /// Raises the signal, for all clones and children.
    pub fn cancel(&self) {
        self.0.cancel();
    }

    /// Returns whether the signal is raised.
    pub fn is_cancelled(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Resolves when the signal is raised.
    ///
    /// # Cancellation safety
    /// May be dropped at any point.
    pub async fn cancelled(&self) {
        self.0.cancelled().await;
    }

    /// Runs a future until the signal is raised. Returns `None` if the signal is raised first.
    ///
    /// # Cancellation safety
    /// May be dropped at any point, if `work` may.
    pub async fn run_until_cancelled<F: Future>(&self, work: F) -> Option<F::Output> {
        self.0.run_until_cancelled(work).await
    }

    /// Creates a signal that is raised with this one, and can be raised alone.
    pub fn child(&self) -> Self {
        Self(self.0.child_token())
    }
}

/// A request to an engine for one grant.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct AcquireRequest {
    /// The grant's id.
    pub grant: GrantId,
    /// The name of the lock.
    pub name: LockName,
    /// The requested mode.
    pub mode: Mode,
    /// The owner of the grant.
    pub owner: OwnerId,
    /// Whether the owner may hold the lock already, through another client: then the request re-enters, if the engine has shared owners.
    pub reenter: bool,
    /// The lifetime of the grant without renewal.
    pub ttl: Ttl,
    /// Whether the client renews the grant. If not, the whole ttl counts from the grant on: the engine must not leave a part of it to a
    /// renewal.
    pub renews: bool,
    /// Whether the request waits.
    pub wait: Waits,
    /// The caller's label for itself.
    pub label: Option<Arc<str>>,
    /// Raised when the response is no longer needed.
    pub cancel: Cancellation,
    /// The time after the expiry of this grant in which the lock is not granted again. Zero without [`Capability::LockDelay`].
    pub lock_delay: Duration,
    /// Whether the engine reports [`wanted`](GrantEvents::wanted). Requires [`Capability::Notices`].
    pub notify: bool,
    /// Receives the engine's own reports about the grant.
    pub events: GrantEvents,
}

impl AcquireRequest {
    /// Creates a request for an exclusive lock, with a new owner, that does not wait: for programs that use an engine without a client.
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

    /// Returns the grant that this requests, with this token.
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

    /// Returns whether the request waits.
    pub fn waits(&self) -> bool {
        self.wait == Waits::Yes
    }

    /// Waits for a message until an instant. Returns `None` if the instant comes first.
    ///
    /// # Errors
    /// Fails if the request is cancelled.
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

    /// Returns the error for a held lock, if the request does not wait, or for a cancelled request.
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
    /// Does not wait. The response for a held lock is [`AcquireError::Busy`].
    No,
    /// Waits until the lock is granted or the request is cancelled.
    Yes,
    /// Does not wait any more: the last attempt after a wait.
    NoMore,
}

/// The engine's response to a granted request.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Granted {
    /// The fencing token. After a re-entrance, it is the token of the re-entered grant.
    pub token: Option<FencingToken>,
    /// The resource's value at the time of the grant.
    pub value: Value,
    /// How long the grant lasts without further requests.
    pub term: Term,
    /// The delay until the first renewal, if that is sooner than the term requires. Only for a grant that is renewed.
    pub first_renewal: Option<Duration>,
}

impl Granted {
    /// Creates a grant without a value.
    pub fn new(token: Option<FencingToken>, term: Term) -> Self {
        Self { token, value: Value::default(), term, first_renewal: None }
    }

    /// Returns the same grant, whose first renewal is due within this time.
    #[must_use]
    pub fn renewed_within(self, first_renewal: Duration) -> Self {
        Self { first_renewal: Some(first_renewal), ..self }
    }

    /// Returns the same grant with the resource's value.
    #[must_use]
    pub fn with_value(self, value: Value) -> Self {
        Self { value, ..self }
    }
}

/// A grant, as requests to its engine name it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grant {
    /// The id of the grant.
    pub id: GrantId,
    /// The name of the lock.
    pub name: LockName,
    /// The owner.
    pub owner: OwnerId,
    /// The mode.
    pub mode: Mode,
    /// The fencing token, if there is one.
    pub token: Option<FencingToken>,
    /// The lifetime without renewal.
    pub ttl: Ttl,
    /// Whether a request for the grant was not answered, and may still arrive: see [`GrantEvents::unanswered`].
    pub may_arrive: bool,
}

/// A request to change a grant's mode.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Conversion {
    /// The grant, in its old mode.
    pub grant: Grant,
    /// The new mode.
    pub to: Mode,
    /// Whether the conversion waits until it is done or cancelled.
    pub waits: bool,
    /// Raised when the response is no longer needed.
    pub cancel: Cancellation,
}

impl Conversion {
    pub(crate) const fn new(grant: Grant, to: Mode, waits: bool, cancel: Cancellation) -> Self {
        Self { grant, to, waits, cancel }
    }

    /// Returns the error for a conflict, if the conversion does not wait, or for a cancelled conversion.
    pub fn not_converted(&self) -> ConvertError {
        if self.waits || self.cancel.is_cancelled() {
            ConvertError::Engine(EngineError::Closed)
        } else {
            ConvertError::Busy { name: self.grant.name.clone(), to: self.to }
        }
    }
}

/// Whether a withdrawn request can still take effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Withdrawn {
    /// The request can no longer take effect.
    ForGood,
    /// The request was sent on a connection that has broken since, and may arrive later: it must be withdrawn again.
    ForNow,
}

/// A start for an engine to record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Start {
    /// The time from the start until now. It is a duration, since engines do not rely on the clocks of callers.
    pub ago: Duration,
    /// The time after the start in which no other start may follow.
    pub window: Duration,
}

impl Start {
    /// Creates a start `ago` before now, after which no other start may follow within the window.
    pub const fn new(ago: Duration, window: Duration) -> Self {
        Self { ago, window }
    }
}

/// The result of recording a start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remembered {
    /// The start is recorded durably.
    Recorded,
    /// Another start prevents this one, and nothing was changed.
    Already {
        /// How long ago the other start was.
        ago: Duration,
    },
}

/// How an operator breaks a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Break {
    /// Marks the grant and notifies its holder. The lock is free when the holder releases it or its lease ends.
    Ask,
    /// Frees the lock at once. The former holder may still report the lock as held: only fencing protects the data then.
    Force,
}

/// Receives the engine's unsolicited reports about a grant. No method blocks.
#[derive(Clone)]
pub struct GrantEvents {
    hold: Weak<Hold>,
    shared: Weak<ClientInner>,
}

impl GrantEvents {
    pub(crate) fn new(hold: &Arc<Hold>, shared: &Arc<ClientInner>) -> Self {
        Self { hold: Arc::downgrade(hold), shared: Arc::downgrade(shared) }
    }

    /// Creates events that are discarded: for programs that use an engine without a client.
    pub fn ignored() -> Self {
        Self { hold: Weak::new(), shared: Weak::new() }
    }

    /// Resolves when the grant has ended, so that nothing is left to report.
    #[cfg(any(feature = "etcd", feature = "zookeeper"))]
    pub(crate) fn unread(&self) -> impl Future<Output = ()> + Send + use<> {
        let watch = self.hold.upgrade().map(|hold| hold.watch());
        async move {
            if let Some(watch) = watch {
                watch.ended().await;
            }
        }
    }

    /// Reports that the grant is lost. Only the first reason counts.
    pub fn lost(&self, reason: LostReason) {
        if let (Some(hold), Some(shared)) = (self.hold.upgrade(), self.shared.upgrade()) {
            shared.lose(&hold, reason);
        }
    }

    /// Reports that a request for the grant was sent and not answered: it may be carried out at any time. The grant is
    /// [withdrawn](Engine::withdraw) after its release, or if it is not granted.
    pub fn unanswered(&self) {
        if let Some(hold) = self.hold.upgrade() {
            hold.note_unanswered();
        }
    }

    /// Reports that another request waits for this mode, which conflicts with the grant's mode. May be called before the acquire returns.
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
