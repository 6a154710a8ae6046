//! The same API without async: for programs, threads and tests without a runtime. Each call blocks its thread while the client's own thread
//! does the work. A guard is renewed in the background as in the async API.
//!
//! Calls from async code would block the runtime's thread. They panic, as tokio's own blocking calls do.
//!
//! ```
//! # let dir = tempfile::tempdir()?;
//! # let url = format!("file:{}", dir.path().display());
//! use std::time::Duration;
//! use tenure::{Wait, blocking::Client};
//!
//! let client = Client::connect(&url)?;
//! let guard = client.lock("nightly-report").wait(Wait::For(Duration::from_secs(10))).acquire()?;
//! println!("got it, {:?}", guard.token());
//! guard.release()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tenure_table::{Mode, OwnerId};

use crate::capabilities::Capabilities;
use crate::engine::Break;
use crate::error::{
    AcquireError, BreakError, CloseError, ConnectError, ConvertError, InspectError, OncePerError,
    ReleaseError, ValueError,
};
use crate::guard::Release;
use crate::info::{LockInfo, Member};
use crate::inner::ClientInner;
use crate::once_per::Record;
use crate::request::{Options, request_options};
use crate::thread::ClientThread;
use crate::wait::Wait;

fn block_on<F: Future>(shared: &Arc<ClientInner>, future: F) -> F::Output {
    shared.thread.handle().runtime().block_on(future)
}

/// The blocking form of [`tenure::Client`](crate::Client).
#[derive(Clone, Debug)]
pub struct Client(crate::Client);

impl Client {
    /// See [`tenure::Client::connect`](crate::Client::connect).
    pub fn connect(url: &str) -> Result<Self, ConnectError> {
        let thread = ClientThread::start().map_err(ConnectError::Thread)?;
        let runtime = thread.handle().runtime().clone();
        runtime.block_on(crate::Client::connect_on(thread, url)).map(Self)
    }

    /// Creates a blocking view of an async client.
    pub const fn from_async(client: crate::Client) -> Self {
        Self(client)
    }

    /// Returns the async client behind this view.
    pub const fn as_async(&self) -> &crate::Client {
        &self.0
    }

    /// See [`tenure::Client::capabilities`](crate::Client::capabilities).
    pub fn capabilities(&self) -> &Capabilities {
        self.0.capabilities()
    }

    /// See [`tenure::Client::lock`](crate::Client::lock).
    pub fn lock(&self, name: impl AsRef<str>) -> LockRequest {
        LockRequest(self.0.lock(name))
    }

    /// See [`tenure::Client::once_per`](crate::Client::once_per).
    pub fn once_per(&self, name: impl AsRef<str>, period: Duration) -> OncePerRequest {
        OncePerRequest(self.0.once_per(name, period))
    }

    /// See [`tenure::Client::lock_all`](crate::Client::lock_all).
    pub fn lock_all<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> LockAllRequest {
        LockAllRequest(self.0.lock_all(names))
    }

    /// See [`tenure::Client::owner`](crate::Client::owner).
    pub fn owner(&self) -> Owner {
        Owner(self.0.owner())
    }

    /// See [`tenure::Client::owner_with_id`](crate::Client::owner_with_id).
    pub fn owner_with_id(&self, id: OwnerId) -> Owner {
        Owner(self.0.owner_with_id(id))
    }

    /// See [`tenure::Client::inspect`](crate::Client::inspect).
    pub fn inspect(&self, name: impl AsRef<str>) -> Result<LockInfo, InspectError> {
        block_on(self.0.shared(), self.0.inspect(name))
    }

    /// See [`tenure::Client::list`](crate::Client::list).
    pub fn list(&self, prefix: &str) -> Result<Vec<LockInfo>, InspectError> {
        block_on(self.0.shared(), self.0.list(prefix))
    }

    /// See [`tenure::Client::break_lock`](crate::Client::break_lock).
    pub fn break_lock(&self, name: impl AsRef<str>, how: Break) -> Result<Vec<Member>, BreakError> {
        block_on(self.0.shared(), self.0.break_lock(name, how))
    }

    /// See [`tenure::Client::close`](crate::Client::close).
    pub fn close(self) -> Result<(), CloseError> {
        let shared = self.0.shared().clone();
        block_on(&shared, self.0.close())
    }
}

/// The blocking form of [`tenure::Owner`](crate::Owner).
#[derive(Clone, Debug)]
pub struct Owner(crate::Owner);

impl Owner {
    /// See [`tenure::Owner::id`](crate::Owner::id).
    pub const fn id(&self) -> OwnerId {
        self.0.id()
    }

    /// See [`tenure::Owner::lock`](crate::Owner::lock).
    pub fn lock(&self, name: impl AsRef<str>) -> LockRequest {
        LockRequest(self.0.lock(name))
    }

    /// See [`tenure::Owner::lock_all`](crate::Owner::lock_all).
    pub fn lock_all<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> LockAllRequest {
        LockAllRequest(self.0.lock_all(names))
    }
}

/// The blocking form of [`tenure::LockRequest`](crate::LockRequest).
#[derive(Clone, Debug)]
#[must_use = "a request does nothing until it is acquired"]
pub struct LockRequest(crate::LockRequest);

request_options!(LockRequest);

impl LockRequest {
    const fn options(&mut self) -> &mut Options {
        self.0.options()
    }

    /// See [`tenure::LockRequest::once_per`](crate::LockRequest::once_per).
    pub fn once_per(self, period: Duration) -> OncePerRequest {
        OncePerRequest(self.0.once_per(period))
    }

    /// See [`tenure::LockRequest::acquire`](crate::LockRequest::acquire).
    pub fn acquire(self) -> Result<Guard, AcquireError> {
        let shared = self.0.shared_with().clone();
        block_on(&shared, self.0.acquire()).map(Guard::new)
    }

    /// See [`tenure::LockRequest::try_acquire`](crate::LockRequest::try_acquire).
    pub fn try_acquire(self) -> Result<Option<Guard>, AcquireError> {
        let shared = self.0.shared_with().clone();
        Ok(block_on(&shared, self.0.try_acquire())?.map(Guard::new))
    }
}

/// The blocking form of [`tenure::LockAllRequest`](crate::LockAllRequest).
#[derive(Clone, Debug)]
#[must_use = "a request does nothing until it is acquired"]
pub struct LockAllRequest(crate::LockAllRequest);

request_options!(LockAllRequest);

impl LockAllRequest {
    const fn options(&mut self) -> &mut Options {
        self.0.options()
    }

    /// See [`tenure::LockAllRequest::acquire`](crate::LockAllRequest::acquire).
    pub fn acquire(self) -> Result<GuardSet, AcquireError> {
        let shared = self.0.shared_with().clone();
        Ok(GuardSet { set: block_on(&shared, self.0.acquire())?, shared })
    }

    /// See [`tenure::LockAllRequest::try_acquire`](crate::LockAllRequest::try_acquire).
    pub fn try_acquire(self) -> Result<Option<GuardSet>, AcquireError> {
        let shared = self.0.shared_with().clone();
        Ok(block_on(&shared, self.0.try_acquire())?.map(|set| GuardSet { set, shared }))
    }
}

/// The blocking form of [`tenure::OncePerRequest`](crate::OncePerRequest).
#[derive(Clone, Debug)]
#[must_use = "a request does nothing until it is begun"]
pub struct OncePerRequest(crate::OncePerRequest);

request_options!(OncePerRequest);

impl OncePerRequest {
    const fn options(&mut self) -> &mut Options {
        self.0.options()
    }

    /// See [`tenure::OncePerRequest::spread`](crate::OncePerRequest::spread).
    pub fn spread(self, spread: Duration) -> Self {
        Self(self.0.spread(spread))
    }

    /// See [`tenure::OncePerRequest::record`](crate::OncePerRequest::record).
    pub fn record(self, record: Record) -> Self {
        Self(self.0.record(record))
    }

    /// See [`tenure::OncePerRequest::begin`](crate::OncePerRequest::begin).
    pub fn begin(self) -> Result<Turn, OncePerError> {
        let shared = self.0.shared_with().clone();
        Ok(match block_on(&shared, self.0.begin())? {
            crate::Turn::Yours(run) => Turn::Yours(Run::new(run)),
            crate::Turn::AlreadyRun { ago } => Turn::AlreadyRun { ago },
        })
    }
}

/// The blocking form of [`tenure::Turn`](crate::Turn).
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

/// The blocking form of [`tenure::Run`](crate::Run).
#[derive(Debug)]
#[must_use = "dropping a run is its failure"]
pub struct Run {
    guard: Guard,
    rest: crate::once_per::Rest,
}

impl Run {
    fn new(run: crate::Run) -> Self {
        let (guard, rest) = run.into_parts();
        Self { guard: Guard::new(guard), rest }
    }

    /// See [`tenure::Run::guard`](crate::Run::guard).
    pub const fn guard(&self) -> &Guard {
        &self.guard
    }

    /// See [`tenure::Run::succeeded`](crate::Run::succeeded).
    pub fn succeeded(self) -> Result<Release, OncePerError> {
        let shared = self.guard.0.shared().clone();
        block_on(&shared, crate::Run::from_parts(self.guard.0, self.rest).succeeded())
    }

    /// See [`tenure::Run::failed`](crate::Run::failed).
    pub fn failed(self) -> Result<Release, OncePerError> {
        let shared = self.guard.0.shared().clone();
        block_on(&shared, crate::Run::from_parts(self.guard.0, self.rest).failed())
    }
}

/// The blocking form of [`tenure::Guard`](crate::Guard), with its methods without I/O by `Deref`. Dropping it blocks until the engine has
/// freed the lock, for up to two seconds. After that, the release continues in the background. On a thread of a tokio runtime, including
/// `spawn_blocking`, the drop does not block: use [`release`](Self::release) there.
#[derive(Debug)]
#[must_use = "dropping a guard releases the lock"]
pub struct Guard(crate::Guard);

impl Guard {
    const fn new(guard: crate::Guard) -> Self {
        Self(guard.blocking())
    }

    /// Returns a watch, which reports the end of this guard's hold to a thread beside the work.
    pub fn watch(&self) -> GuardWatch {
        GuardWatch { watch: self.0.watch(), runtime: self.0.shared().thread.handle().runtime().clone() }
    }

    /// See [`tenure::Guard::set_value`](crate::Guard::set_value).
    pub fn set_value(&self, bytes: impl Into<bytes::Bytes>) -> Result<(), ValueError> {
        block_on(self.0.shared(), self.0.set_value(bytes))
    }

    /// See [`tenure::Guard::convert`](crate::Guard::convert).
    pub fn convert(&self, to: Mode, wait: Wait) -> Result<(), ConvertError> {
        block_on(self.0.shared(), self.0.convert(to, wait))
    }

    /// See [`tenure::Guard::release`](crate::Guard::release).
    pub fn release(self) -> Result<Release, ReleaseError> {
        let shared = self.0.shared().clone();
        block_on(&shared, self.0.release())
    }
}

impl Deref for Guard {
    type Target = crate::Guard;

    fn deref(&self) -> &crate::Guard {
        &self.0
    }
}

/// The blocking form of [`tenure::GuardWatch`](crate::GuardWatch).
#[derive(Clone, Debug)]
pub struct GuardWatch {
    watch: crate::GuardWatch,
    runtime: tokio::runtime::Handle,
}

impl GuardWatch {
    /// Blocks until the lock is released or lost.
    pub fn wait(self) -> crate::Ended {
        self.runtime.block_on(self.watch.ended())
    }

    /// Blocks until the lock is released or lost, for at most this long. Returns `None` if it is still held then.
    pub fn wait_timeout(&self, limit: Duration) -> Option<crate::Ended> {
        let ended = self.watch.clone().ended();
        self.runtime.block_on(async { tokio::time::timeout(limit, ended).await.ok() })
    }
}

/// The blocking form of [`tenure::GuardSet`](crate::GuardSet), with its methods without I/O by `Deref`. Dropping it blocks like the drop of
/// a [`Guard`].
#[derive(Debug)]
#[must_use = "dropping it releases the locks"]
pub struct GuardSet {
    set: crate::GuardSet,
    shared: Arc<ClientInner>,
}

impl GuardSet {
    /// See [`tenure::GuardSet::release`](crate::GuardSet::release).
    pub fn release(mut self) -> Result<Vec<Release>, ReleaseError> {
        block_on(&self.shared, self.set.take().release())
    }
}

impl Drop for GuardSet {
    fn drop(&mut self) {
        let releases: Vec<_> =
            self.set.take().into_iter().filter_map(|mut guard| guard.begin_release()).collect();
        self.shared.thread.handle().wait_for(releases);
    }
}

impl Deref for GuardSet {
    type Target = crate::GuardSet;

    fn deref(&self) -> &crate::GuardSet {
        &self.set
    }
}
