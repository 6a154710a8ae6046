//! The client: an engine, its thread, and the methods that request locks.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tenure_table::{LockName, OwnerId};

use crate::capabilities::{Capabilities, Capability};
use crate::clock::{Clock, SystemClock};
use crate::engine::{Break, Engine, EngineContext};
use crate::engines;
use crate::error::{
    BreakError, CloseError, ConnectError, EngineError, InspectError, LostReason, OncePerError,
};
use crate::info::{LockInfo, Member};
use crate::inner::ClientInner;
use crate::lock_all::LockAllRequest;
use crate::observation::Observation;
use crate::once_per::{OncePerRequest, Run};
use crate::owner::Owner;
use crate::random;
use crate::request::LockRequest;
use crate::thread::ClientThread;

/// A connection to an engine. Clones share it. Dropping the last clone and the last guard blocks for up to two seconds for releases that
/// are under way. Releases that are not done by then continue in the background. [`close`](Client::close) waits longer, without blocking
/// the thread, and reports how many releases are not confirmed.
#[derive(Clone, Debug)]
pub struct Client {
    shared: Arc<ClientInner>,
}

/// The longest time for which [`Client::close`] waits for releases to be confirmed.
const CLOSE_LIMIT: Duration = Duration::from_secs(10);

impl Client {
    /// Connects to the engine that the URL names.
    ///
    /// | URL | engine |
    /// | --- | --- |
    /// | `file:` | the directory `tenure/locks` below the user's state directory |
    /// | `file:/var/lib/myapp/locks` | that directory, which is created if it is not there |
    /// | `memory:` | the memory of this process: for tests ([`tenure::memory`](crate::memory)) |
    /// | `memory:orders-test` | the same, shared by all clients of this process that use this name |
    /// | `redis://user:password@host:6379/0` | a Redis; `rediss:` with TLS. Options: `fair=true`, `prefix`, `timeout_ms`, `ca`, `cert`, `key` |
    /// | `redlock://host1,host2,host3` | a majority of several; `redlocks:` with TLS. Options: `fencing=true`, and those of `redis:` except `fair` |
    /// | `postgres://user@host/database`, `mysql://user@host/database` | a database. Options: `recipe`, `table`, `connections`, `timeout_ms`, `tls`, `ca`, `cert`, `key` |
    /// | `zookeeper://user:password@host1,host2,host3/root` | a ZooKeeper. Options: `recipe`, `tick_ms`, `timeout_ms`, `containers` |
    /// | `etcd://user:password@host1,host2,host3` | an etcd; `etcds:` with TLS. Options: `prefix`, `timeout_ms`, `ca`, `cert`, `key` |
    ///
    /// `docs/guarantees.md` and `docs/engines` list the capabilities and the assumptions of each engine.
    ///
    /// # Cancellation safety
    /// May be dropped at any point.
    pub async fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::connect_on(ClientThread::start().map_err(ConnectError::Thread)?, url).await
    }

    pub(crate) async fn connect_on(thread: ClientThread, url: &str) -> Result<Self, ConnectError> {
        let mut context = EngineContext::of(&thread, None);
        let engine = engines::open(url, &mut context).await?;
        Ok(Self { shared: ClientInner::new(engine, context.clock, thread) })
    }

    /// Creates a client of an engine from outside this crate.
    pub fn with_engine(
        open: impl FnOnce(EngineContext) -> Result<Arc<dyn Engine>, EngineError>,
    ) -> Result<Self, ConnectError> {
        Self::with_engine_and_clock(None, open)
    }

    /// Creates a client of an engine from outside this crate, on the given clock, for instance a
    /// [`ManualClock`](crate::clock::ManualClock). `None` is the system clock.
    pub fn with_engine_and_clock(
        clock: Option<Arc<dyn Clock>>,
        open: impl FnOnce(EngineContext) -> Result<Arc<dyn Engine>, EngineError>,
    ) -> Result<Self, ConnectError> {
        let thread = ClientThread::start().map_err(ConnectError::Thread)?;
        let context = EngineContext::of(&thread, clock);
        let engine = open(context.clone())?;
        Ok(Self { shared: ClientInner::new(engine, context.clock, thread) })
    }

    /// Returns the capabilities of the engine.
    pub fn capabilities(&self) -> &Capabilities {
        self.shared.engine.capabilities()
    }

    /// Returns the engine itself: for tools, and for the contract suite.
    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.shared.engine
    }

    /// Returns the clock of all deadlines.
    pub fn clock(&self) -> &Arc<dyn Clock> {
        &self.shared.clock
    }

    pub(crate) fn shared(&self) -> &Arc<ClientInner> {
        &self.shared
    }

    /// Creates a request for a lock, with a new owner.
    pub fn lock(&self, name: impl AsRef<str>) -> LockRequest {
        LockRequest::new(self.shared.clone(), name.as_ref(), None)
    }

    /// Creates a request for a turn at a job that many processes start and that is to run once in a period. Short for
    /// `client.lock(name).once_per(period)`.
    ///
    /// The job runs unless its last recorded start is less than `period - spread` ago. The spread is a tenth of the period by default, so
    /// that starts on both sides of a minute's boundary count as one. The engine measures the age by its own clock: the clocks of the
    /// callers need not agree. All callers must give the same period.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("file:{}", dir.path().display());
    /// use std::time::Duration;
    /// use tenure::{Client, Turn};
    ///
    /// let client = Client::connect(&url).await?;
    /// let hour = Duration::from_secs(3600);
    /// match client.once_per("hourly-report", hour).begin().await? {
    ///     Turn::Yours(run) => {
    ///         println!("ours, with {:?}", run.guard().token()); // the job, under the lock
    ///         run.succeeded().await?;
    ///     }
    ///     Turn::AlreadyRun { ago } => println!("somebody ran it {ago:?} ago"),
    /// }
    /// // Every further request gets this answer until the hour is nearly over.
    /// let next = client.once_per("hourly-report", hour).begin().await?;
    /// assert!(matches!(next, Turn::AlreadyRun { .. }));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn once_per(&self, name: impl AsRef<str>, period: Duration) -> OncePerRequest {
        self.lock(name).once_per(period)
    }

    /// Runs a job once per period for as long as the program runs: short for
    /// `client.once_per(name, period).every(job)`, see [`OncePerRequest::every`].
    ///
    /// # Cancellation safety
    /// May be dropped at any point, if the job may.
    pub async fn every<F: Future<Output = ()>>(
        &self,
        name: impl AsRef<str>,
        period: Duration,
        job: impl FnMut(Run) -> F,
    ) -> OncePerError {
        self.once_per(name, period).every(job).await
    }

    /// Creates a request for several locks, all or nothing. The names may be in any order.
    pub fn lock_all<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> LockAllRequest {
        LockAllRequest::new(self.shared.clone(), names, None)
    }

    /// Creates an owner with a new id. An owner re-enters the locks that it holds.
    pub fn owner(&self) -> Owner {
        self.owner_with_id(random::owner_id())
    }

    /// Returns the owner with this id, which may hold locks through other clients too.
    pub fn owner_with_id(&self, id: OwnerId) -> Owner {
        Owner::new(self.shared.clone(), id)
    }

    /// Returns the holders and the waiters of a lock.
    ///
    /// # Cancellation safety
    /// May be dropped at any point.
    pub async fn inspect(&self, name: impl AsRef<str>) -> Result<LockInfo, InspectError> {
        let name = LockName::parse(name)?;
        self.shared.ask(|engine| engine.inspect(name)).await
    }

    /// Returns the locks whose names start with `prefix` and that are held or waited for.
    ///
    /// # Cancellation safety
    /// May be dropped at any point.
    pub async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>, InspectError> {
        self.shared.ask(|engine| engine.list(prefix.to_owned())).await
    }

    /// Observes the holders of a lock: first as they are, then as they change. Nothing is polled. For standbys, caches and dashboards; to
    /// wait for a lock, use [`acquire`](crate::LockRequest::acquire).
    ///
    /// ```
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// let client = tenure::Client::connect("memory:").await?;
    /// let mut leader = client.observe("leader")?;
    /// assert!(leader.next().await?.holders.is_empty());
    /// let guard = client.lock("leader").label("node-1").acquire().await?;
    /// println!("led by {:?}", leader.next().await?.holders[0].label);
    /// # drop(guard);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn observe(&self, name: impl AsRef<str>) -> Result<Observation, InspectError> {
        let name = LockName::parse(name)?;
        self.capabilities().require(Capability::Observe).map_err(EngineError::from)?;
        self.shared.check_open()?;
        Ok(Observation::new(self.shared.clone(), name))
    }

    /// Asks the holders of a lock to release it, or with [`Break::Force`] frees it although they may still rely on it. For operators.
    /// Returns those holders. The guard of a holder that is asked becomes `Lost(Broken)`, and its client releases the lock.
    ///
    /// # Cancellation safety
    /// May be dropped at any point; whether the lock is broken is then not known.
    pub async fn break_lock(&self, name: impl AsRef<str>, how: Break) -> Result<Vec<Member>, BreakError> {
        let name = LockName::parse(name)?;
        self.shared.ask(|engine| engine.break_lock(name, how)).await
    }

    /// Releases all locks that are held through this client and its clones, and cancels the requests that wait. Waits until the engine has
    /// confirmed this, for at most ten seconds. Guards that still exist become `Lost(Closed)`.
    ///
    /// Operations that have begun must be able to end. An acquire that is no longer polled, for instance because its task is the one that
    /// waits here, is not confirmed.
    ///
    /// # Cancellation safety
    /// May be dropped at any point: the releases continue.
    pub async fn close(self) -> Result<(), CloseError> {
        self.shared.closing.cancel();
        for hold in self.shared.schedule.all() {
            self.shared.lose(&hold, LostReason::Closed);
            if let Some(task) = hold.give_up_kept() {
                self.shared.release_in_background(task);
            }
        }
        let thread = self.shared.thread.handle();
        let timers = SystemClock::on(thread.runtime().clone());
        let mut give_up = timers.sleep_until(timers.now() + CLOSE_LIMIT);
        tokio::select! {
            biased;
            () = thread.finished() => {}
            () = &mut give_up => {
                self.shared.close_gave_up.store(true, Ordering::Release);
                return Err(CloseError { unconfirmed: thread.unfinished() });
            }
        }
        if let Some(close) = self.shared.close_engine() {
            // All locks are released. An engine that takes longer to close does so in the background.
            tokio::select! {
                biased;
                _ = thread.finish(close) => {}
                () = give_up => {}
            }
        }
        Ok(())
    }
}
