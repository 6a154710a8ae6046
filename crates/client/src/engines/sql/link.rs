//! The connections to a database: a bounded number, which are used again.
//!
//! Each runtime that sends requests has separate connections, which it drives itself: an answer then needs no change of thread. But no
//! operation depends on such a runtime, which may end or be blocked. The client's own thread drives all time limits. A connection that did
//! not answer in time is closed, which undoes an open transaction.

use std::fmt;
use std::future::Future;
use std::io::ErrorKind;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::Error;
use tokio::runtime::{self, Handle};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinHandle;

use super::address::Address;
use super::connection::{Arg, Connection, Done, Options, Row, Sql};
use super::fault::{self, Fault, What};
use super::work::{Once, Rows, Run, Work};
use crate::clock::{BootTime, Clock};
use crate::engine::EngineContext;
use crate::random;
use crate::sql::Dialect;

pub(super) struct Link {
    pub(super) dialect: Dialect,
    options: Options,
    /// Product, host and port, for messages.
    at: String,
    limit: Duration,
    /// The client's own runtime.
    own: Handle,
    idle: Mutex<Vec<Idle>>,
    clock: Arc<dyn Clock>,
    /// Counts the open connections: each of them has a clone.
    open: Arc<()>,
    /// Notified when a connection is put back.
    returned: Notify,
    /// One permit for each connection in use.
    slots: Arc<Semaphore>,
    /// One more permit, for the client's own thread: waiters must not keep it from renewing leases.
    reserve: Arc<Semaphore>,
    most: usize,
    only_own: bool,
    overflows: bool,
    /// Runtimes that cannot open connections.
    without_io: Mutex<Vec<runtime::Id>>,
}

struct Idle {
    runtime: runtime::Id,
    connection: Connection,
    session: SessionInfo,
    since: BootTime,
    open: Arc<()>,
}

/// The permission to have a connection. An abandoned attempt to open one keeps it, see [`Attempt`].
type Slot = Arc<OwnedSemaphorePermit>;

/// The connection for a request.
enum Source {
    Idle(Idle),
    /// A new connection, to be opened on this runtime.
    New(runtime::Id),
}

/// The client's knowledge of a session. It is empty for a new session.
#[derive(Debug, Default)]
pub(super) struct SessionInfo {
    /// The settings of its last use.
    pub(super) settings: String,
    /// Its number, if it was queried.
    pub(super) number: i64,
    /// Identifies the session, together with the number: after a failover, another session may have that number.
    pub(super) mark: String,
}

/// An idle connection is checked before its use after this time.
const STALE: Duration = Duration::from_secs(2);

/// The wait for a connection before an additional one is opened, where that is allowed.
const MOMENT: Duration = Duration::from_millis(250);

/// The wait for a returned connection before the next attempt to open one, if the database has none left. It is long, so that clients
/// without any connection come first.
const FULL_PAUSE: Duration = Duration::from_millis(500);

/// The progress of a request, which determines the meaning of a timeout.
#[derive(Default)]
struct Stage(Mutex<Option<What>>);

impl Stage {
    fn set(&self, what: What) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(what);
    }

    fn get(&self) -> What {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).unwrap_or(What::Full)
    }
}

/// A connection in use.
#[derive(Debug)]
pub(super) struct Lent {
    pub(super) connection: Connection,
    runtime: runtime::Id,
    /// `None` for a connection beside the bounded ones.
    slot: Option<Slot>,
    open: Arc<()>,
    /// Whether it was used before. The server may have closed it since.
    pub(super) used: bool,
    pub(super) session: SessionInfo,
}

impl Link {
    /// Creates a link with at most this number of connections.
    pub(super) fn new(address: &Address, most: usize, context: &EngineContext) -> Self {
        Self {
            dialect: address.dialect,
            options: Options::of(address),
            at: address.server(),
            limit: address.limit,
            own: context.runtime.clone(),
            clock: context.clock.clone(),
            idle: Mutex::default(),
            open: Arc::default(),
            returned: Notify::new(),
            slots: Arc::new(Semaphore::new(most)),
            reserve: Arc::new(Semaphore::new(0)),
            most,
            only_own: false,
            overflows: false,
            without_io: Mutex::default(),
        }
    }

    /// Reserves one connection for the client's own thread.
    pub(super) fn with_a_reserve(self) -> Self {
        self.slots.forget_permits(1);
        self.reserve.add_permits(1);
        self
    }

    /// Allows an additional connection if all are in use for longer than a moment. It is closed after its use. The runtimes that use the
    /// others may be blocked.
    pub(super) fn that_overflows(self) -> Self {
        Self { overflows: true, ..self }
    }

    /// Drives all connections on the client's own thread, whichever runtime uses them.
    pub(super) fn on_own_runtime(self) -> Self {
        Self { only_own: true, ..self }
    }

    pub(super) const fn limit(&self) -> Duration {
        self.limit
    }

    pub(super) const fn options(&self) -> &Options {
        &self.options
    }

    pub(super) fn fault(&self, error: Error) -> Fault {
        Fault::of(self.dialect, &self.at, error)
    }

    /// Returns the kind of an error.
    pub(super) fn what(&self, error: &Error) -> What {
        error.as_database_error().map_or(What::NoAnswer, |said| fault::meaning(self.dialect, said))
    }

    /// Returns whether an error says that the database has ended this connection, and with it the session.
    pub(super) fn says_ended(&self, error: &Error) -> bool {
        match error {
            Error::Io(error) => matches!(
                error.kind(),
                ErrorKind::UnexpectedEof
                    | ErrorKind::ConnectionReset
                    | ErrorKind::ConnectionAborted
                    | ErrorKind::BrokenPipe
            ),
            error => error.as_database_error().is_some() && self.what(error) == What::NoAnswer,
        }
    }

    pub(super) fn refused(&self, message: &str) -> Fault {
        Fault::refused(self.dialect, format!("{}: {message}", self.at), None)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a request on a connection, within its time limit. Runs it once more on a new connection if an old one turns out to be closed,
    /// or if the database rolled the request back.
    pub(super) async fn with<W: Work>(&self, mut work: W) -> Result<W::Answer, Fault> {
        let stage = Stage::default();
        let attempts = async {
            let (mut repeated, mut unanswered) = (false, false);
            loop {
                let mut lent = self.take_at_leisure(&stage).await?;
                stage.set(What::NoAnswer);
                let error = match work.run(&mut lent.connection, unanswered).await {
                    Ok(answer) => {
                        self.put_back(lent);
                        return Ok(answer);
                    }
                    Err(error) => error,
                };
                // The connection is dropped, which ends an open transaction, unless the database has ended it already.
                let fault = self.fault(error);
                let again = match fault.what {
                    What::Conflict => true,
                    What::NoAnswer => lent.used && !W::ONCE,
                    _ => false,
                };
                if fault.what == What::NoAnswer {
                    self.forget_idle();
                    unanswered = true;
                }
                if repeated || !again {
                    return Err(fault);
                }
                repeated = true;
            }
        };
        let done = self.within(self.limit, What::NoAnswer, attempts).await;
        // After the request was sent, its outcome is unknown.
        done.map_err(|fault| if fault.what.is_silence() { self.as_of(stage.get(), fault) } else { fault })
    }

    /// Returns the fault of a request that has reached this stage.
    fn as_of(&self, stage: What, fault: Fault) -> Fault {
        if stage == What::Full {
            let message = format!(
                "all {} connections that locks may take were in use for {:?}: raise `connections=` in the URL",
                self.most, self.limit
            );
            return Fault::silence(self.dialect, What::Full, message, None);
        }
        Fault { what: stage, ..fault }
    }

    /// Runs a statement that changes something. Returns its result, and whether it was sent before without an answer.
    pub(super) async fn run(&self, sql: &Sql, args: &[Arg<'_>]) -> Result<(Done, bool), Fault> {
        self.with(Run { sql, args }).await
    }

    /// Runs a statement that is not sent again. Returns its first row, if there is one.
    pub(super) async fn once<T: Send>(
        &self,
        sql: &Sql,
        args: &[Arg<'_>],
        read: impl Fn(&Row) -> Result<T, Error> + Send + Sync,
    ) -> Result<Option<T>, Fault> {
        Ok(self.with(Once(Rows { sql, args, read })).await?.into_iter().next())
    }

    /// Runs a statement that changes something and is not sent again.
    pub(super) async fn run_once(&self, sql: &Sql, args: &[Arg<'_>]) -> Result<Done, Fault> {
        Ok(self.with(Once(Run { sql, args })).await?.0)
    }

    /// Runs a statement that answers with rows, and reads them.
    pub(super) async fn rows<T: Send>(
        &self,
        sql: &Sql,
        args: &[Arg<'_>],
        read: impl Fn(&Row) -> Result<T, Error> + Send + Sync,
    ) -> Result<Vec<T>, Fault> {
        self.with(Rows { sql, args, read }).await
    }

    /// Returns a connection for this runtime, within the time limit.
    pub(super) async fn take(&self) -> Result<Lent, Fault> {
        let stage = Stage::default();
        let taken = self.within(self.limit, What::NotSent, self.take_at_leisure(&stage)).await;
        taken.map_err(|fault| if fault.what.is_silence() { self.as_of(stage.get(), fault) } else { fault })
    }

    /// Waits for a connection without a time limit while all are in use. Returns `None` if `over` completes first.
    pub(super) async fn take_unless(&self, over: impl Future<Output = ()>) -> Result<Option<Lent>, Fault> {
        let here = self.here();
        let slot = tokio::select! {
            biased;
            slot = self.slot(here) => slot,
            () = over => return Ok(None),
        };
        self.within(self.limit, What::NotSent, self.connection(here, slot)).await.map(Some)
    }

    /// Returns a connection if one is available without a wait for its return.
    pub(super) async fn take_now(&self) -> Result<Option<Lent>, Fault> {
        let Ok(slot) = self.slots.clone().try_acquire_owned() else { return Ok(None) };
        let opening = self.connection(self.here(), Some(Arc::new(slot)));
        self.within(self.limit, What::NotSent, opening).await.map(Some)
    }

    async fn take_at_leisure(&self, stage: &Stage) -> Result<Lent, Fault> {
        let here = self.here();
        if stage.get() != What::NoAnswer {
            stage.set(What::Full);
        }
        let slot = self.slot(here).await;
        if stage.get() != What::NoAnswer {
            stage.set(What::NotSent);
        }
        self.connection(here, slot).await
    }

    /// Returns the runtime whose connections the caller uses: the client's own, if the current one cannot have any.
    fn here(&self) -> runtime::Id {
        if self.only_own {
            return self.own.id();
        }
        let here = Handle::current().id();
        if self.without_io().contains(&here) { self.own.id() } else { here }
    }

    async fn slot(&self, here: runtime::Id) -> Option<Slot> {
        if let Ok(slot) = self.slots.clone().try_acquire_owned() {
            return Some(Arc::new(slot));
        }
        let slot = self.slots.clone().acquire_owned();
        if self.overflows {
            let moment = {
                let _timers_of = self.own.enter();
                tokio::time::timeout(MOMENT, slot)
            };
            return moment.await.ok().map(|slot| Arc::new(slot.expect("it is never closed")));
        }
        let slot = if here == self.own.id() {
            tokio::select! {
                biased;
                slot = slot => slot,
                reserved = self.reserve.clone().acquire_owned() => reserved,
            }
        } else {
            slot.await
        };
        Some(Arc::new(slot.expect("it is never closed")))
    }

    /// Returns an idle connection, or a new one.
    async fn connection(&self, here: runtime::Id, slot: Option<Slot>) -> Result<Lent, Fault> {
        let give_up = self.clock.now() + self.limit / 2;
        let mut full = false;
        loop {
            let runtime = match self.source(here, full) {
                Source::New(runtime) => runtime,
                Source::Idle(Idle { mut connection, runtime, session, since, open }) => {
                    // The database may have closed the idle connection, which is noticed before the request is sent.
                    if self.clock.now().since(since) > STALE && connection.ping().await.is_err() {
                        self.forget_idle();
                        continue;
                    }
                    return Ok(Lent { connection, runtime, slot, open, used: true, session });
                }
            };
            match self.open_for(runtime, slot.clone()).await {
                // The database has no connection left, but other requests of this client will put theirs back. With `only_own`, there is no
                // such wait: those connections are kept for as long as a lock is held.
                Err(fault)
                    if fault.what == What::Exhausted
                        && !self.only_own
                        && Arc::strong_count(&self.open) > 1
                        && self.clock.now() < give_up =>
                {
                    full = true;
                    let again = self.clock.now() + random::jittered(FULL_PAUSE);
                    tokio::select! {
                        () = self.returned.notified() => {}
                        () = self.clock.sleep_until(again) => {}
                    }
                }
                opened => return opened,
            }
        }
    }

    async fn open_for(&self, here: runtime::Id, slot: Option<Slot>) -> Result<Lent, Fault> {
        let mut opened = None;
        if here != self.own.id() {
            opened =
                self.open_on(&Handle::current(), slot.clone()).await?.map(|connection| (connection, here));
            if opened.is_none() {
                self.without_io().push(here);
            }
        }
        let (connection, runtime) = match opened {
            Some(opened) => opened,
            None => (self.open(slot.clone()).await?, self.own.id()),
        };
        Ok(Lent {
            connection,
            runtime,
            slot,
            open: self.open.clone(),
            used: false,
            session: SessionInfo::default(),
        })
    }

    /// Opens a connection beside the bounded ones, on the client's own runtime.
    pub(super) async fn another(&self) -> Result<Connection, Fault> {
        self.within(self.limit, What::NotSent, self.open(None)).await
    }

    async fn open(&self, slot: Option<Slot>) -> Result<Connection, Fault> {
        self.open_on(&self.own, slot).await?.ok_or_else(|| self.refused("the client was closed"))
    }

    /// Opens a connection. Returns `None` if this runtime cannot.
    async fn open_on(&self, runtime: &Handle, slot: Option<Slot>) -> Result<Option<Connection>, Fault> {
        let (options, limit) = (self.options.clone(), self.limit);
        // A separate task, which panics on a runtime without I/O.
        let opening = runtime.spawn(async move {
            let late = |_| Error::Io(ErrorKind::TimedOut.into());
            tokio::time::timeout(limit, options.connect(limit)).await.map_err(late)?
        });
        let mut attempt =
            Attempt { opening: Some(opening), slot, runtime: runtime.clone(), own: self.own.clone() };
        let Some(opened) = attempt.outcome().await else { return Ok(None) };
        opened.map(Some).map_err(|error| {
            let fault = self.fault(error);
            let is_silence = fault.what.is_silence() && fault.what != What::Exhausted;
            let what = if is_silence { What::NotSent } else { fault.what };
            Fault { what, ..fault }
        })
    }

    fn without_io(&self) -> MutexGuard<'_, Vec<runtime::Id>> {
        self.without_io.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns an idle connection, or the runtime on which to open one.
    ///
    /// A runtime uses its own connections. If the bound or a full database prevents a new connection, it also uses those of the client's own
    /// runtime, which is never blocked. If there are none of these, idle connections of other runtimes are closed to make room. Unless these
    /// were stale, the new connection is opened on the client's own runtime. So runtimes that take turns do not close each other's
    /// connections again and again.
    fn source(&self, here: runtime::Id, full: bool) -> Source {
        let mut idle = self.idle();
        let room = self.slots.available_permits() + self.reserve.available_permits();
        let too_many = idle.len().saturating_sub(room).max(usize::from(full)).min(idle.len());
        let of = |runtime| idle.iter().rposition(|idle| idle.runtime == runtime);
        let mut found = of(here);
        if too_many > 0 {
            found = found.or_else(|| of(self.own.id()));
        }
        if let Some(at) = found {
            return Source::Idle(idle.remove(at));
        }
        let now = self.clock.now();
        let unused = idle.drain(..too_many).all(|idle| now.since(idle.since) > STALE);
        Source::New(if unused { here } else { self.own.id() })
    }

    /// Closes all idle connections: if the database closed one of them, it may have closed the others, too.
    pub(super) fn forget_idle(&self) {
        self.idle().clear();
    }

    /// Closes an idle connection, to make room at the database for another purpose, unless it is the only one. Returns whether it did.
    pub(super) fn make_room(&self) -> bool {
        let mut idle = self.idle();
        // The link itself has one of these clones.
        let closes = !idle.is_empty() && Arc::strong_count(&self.open) > 2;
        if closes {
            idle.remove(0);
        }
        closes
    }

    pub(super) fn put_back(&self, lent: Lent) {
        // The connection is put back before its slot is free, so that the next request for a slot finds it.
        let Lent { connection, runtime, session, slot, open, .. } = lent;
        if slot.is_none() {
            return;
        }
        self.idle().push(Idle { runtime, connection, session, since: self.clock.now(), open });
        drop(slot);
        self.returned.notify_one();
    }

    /// Fails a request that is not answered within the time limit.
    pub(super) async fn within<T>(
        &self,
        limit: Duration,
        what: What,
        request: impl Future<Output = Result<T, Fault>>,
    ) -> Result<T, Fault> {
        let timeout = {
            let _timers_of = self.own.enter();
            tokio::time::timeout(limit, request)
        };
        let in_time = pin!(timeout).await;
        in_time.unwrap_or_else(|_| Err(Fault::late(self.dialect, &self.at, limit, what)))
    }

    /// Closes the idle connections.
    pub(super) async fn close(&self) {
        let idle = std::mem::take(&mut *self.idle());
        futures_util::future::join_all(idle.into_iter().map(|idle| idle.connection.close())).await;
    }
}

/// An attempt to open a connection. If its future is dropped, the attempt counts as a connection until it ends, or until its runtime is
/// blocked: an application's runtime may never be driven again. The client's own runtime is never blocked.
struct Attempt {
    /// `None` after the attempt has ended.
    opening: Option<JoinHandle<Result<Connection, Error>>>,
    slot: Option<Slot>,
    runtime: Handle,
    own: Handle,
}

impl Attempt {
    /// Waits for the result. `None` if the runtime cannot open connections.
    async fn outcome(&mut self) -> Option<Result<Connection, Error>> {
        let outcome = self.opening.as_mut()?.await;
        self.opening = None;
        outcome.ok()
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let Some(mut opening) = self.opening.take() else { return };
        let (slot, runtime) = (self.slot.take(), self.runtime.clone());
        let is_own = runtime.id() == self.own.id();
        self.own.spawn(async move {
            let _slot = slot;
            tokio::select! {
                _ = &mut opening => {}
                // If the runtime is driven again, the attempt does not continue.
                () = stillness_of(&runtime), if !is_own => opening.abort(),
            }
        });
    }
}

/// Returns once a runtime has run no task for a moment.
async fn stillness_of(runtime: &Handle) {
    while tokio::time::timeout(MOMENT, runtime.spawn(async {})).await.is_ok() {
        tokio::time::sleep(MOMENT).await;
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Link").field(&self.at).finish()
    }
}
