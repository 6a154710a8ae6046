//! The way to a database: a bounded number of connections, which are used again.
//!
//! Each runtime that asks has connections of its own, driven by that runtime: an answer then comes without a change of thread. But nothing
//! waits for such a runtime, which may end or stand still: time limits are kept by the client's own thread, and a connection that
//! did not answer in time is closed, which takes back what it had begun.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::Error;
use tokio::runtime::{self, Handle};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::address::Address;
use super::connection::{Arg, Connection, Done, Options, Row, Sql};
use super::fault::{self, Fault, What};
use crate::clock::{BootTime, Clock};
use crate::engine::EngineContext;
use crate::sql::Dialect;

pub(super) struct Link {
    pub(super) dialect: Dialect,
    options: Options,
    /// Host and port, for messages.
    at: String,
    limit: Duration,
    /// The client's own runtime.
    own: Handle,
    idle: Mutex<Vec<Idle>>,
    clock: Arc<dyn Clock>,
    /// One for each connection in use.
    slots: Arc<Semaphore>,
    /// One more, for the client's own thread: those who wait must not keep it from renewing what is held.
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
    told: Told,
    since: BootTime,
}

/// What was said with a session: nothing, if it is as it was opened.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// What it was told of itself when it was last used.
    pub(super) settings: String,
    /// Its number, if it was asked.
    pub(super) number: i64,
}

/// A connection that nobody used for so long is looked at before it is used.
const STALE: Duration = Duration::from_secs(2);

/// So long one waits for others before it opens a connection of its own, if it may.
const MOMENT: Duration = Duration::from_millis(250);

/// How far a request has come: what a silence then means.
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
    /// Nothing, if it is beside those that are counted.
    slot: Option<OwnedSemaphorePermit>,
    /// Whether it was used before, and may have been closed meanwhile.
    pub(super) used: bool,
    pub(super) told: Told,
}

impl Link {
    /// With so many connections at the most.
    pub(super) fn new(address: &Address, most: usize, context: &EngineContext) -> Self {
        Self {
            dialect: address.dialect,
            options: Options::of(address),
            at: address.at(),
            limit: address.limit,
            own: context.runtime.clone(),
            clock: context.clock.clone(),
            idle: Mutex::default(),
            slots: Arc::new(Semaphore::new(most)),
            reserve: Arc::new(Semaphore::new(0)),
            most,
            only_own: false,
            overflows: false,
            without_io: Mutex::default(),
        }
    }

    /// One of them is for the client's own thread alone.
    pub(super) fn with_a_reserve(self) -> Self {
        self.slots.forget_permits(1);
        self.reserve.add_permits(1);
        self
    }

    /// If all are in use for more than a moment, another one is opened, and closed after its use: whoever has them may stand still.
    pub(super) fn that_overflows(self) -> Self {
        Self { overflows: true, ..self }
    }

    /// All of them are driven by the client's own thread, whoever uses them.
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

    /// What an error means.
    pub(super) fn what(&self, error: &Error) -> What {
        error.as_database_error().map_or(What::NoAnswer, |said| fault::meaning(self.dialect, said))
    }

    /// Whether the database says that it has ended this connection.
    pub(super) fn says_ended(&self, error: &Error) -> bool {
        error.as_database_error().is_some() && self.what(error) == What::NoAnswer
    }

    pub(super) fn refused(&self, message: &str) -> Fault {
        Fault::refused(self.dialect, format!("{} does not do it: {message}", self.at), None)
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something on a connection, within the time limit of one request; once more on a new one, if an old one turns out to be
    /// closed, or if the database took it back.
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
                // What it had begun ends with the connection, unless the database itself has ended it.
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
        // Once something was sent, nobody knows what became of it.
        done.map_err(|fault| if fault.what.is_silence() { self.as_of(stage.get(), fault) } else { fault })
    }

    /// The same fault, for a request that had come this far.
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

    /// Runs a statement that changes something: what it has done, and whether it was sent before and not answered.
    pub(super) async fn run(&self, sql: &Sql, args: &[Arg<'_>]) -> Result<(Done, bool), Fault> {
        self.with(Run { sql, args }).await
    }

    /// Runs a statement that is not sent again: its first row, if it answers with any.
    pub(super) async fn once<T: Send>(
        &self,
        sql: &Sql,
        args: &[Arg<'_>],
        read: impl Fn(&Row) -> Result<T, Error> + Send + Sync,
    ) -> Result<Option<T>, Fault> {
        Ok(self.with(Once(Rows { sql, args, read })).await?.into_iter().next())
    }

    /// The same for a statement that only does something.
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

    /// A connection of this runtime, within the time limit.
    pub(super) async fn take(&self) -> Result<Lent, Fault> {
        let stage = Stage::default();
        let taken = self.within(self.limit, What::NotSent, self.take_at_leisure(&stage)).await;
        taken.map_err(|fault| if fault.what.is_silence() { self.as_of(stage.get(), fault) } else { fault })
    }

    /// The same, however long others take to give one back.
    pub(super) async fn take_when_free(&self) -> Result<Lent, Fault> {
        let here = self.here();
        let slot = self.slot(here).await;
        self.within(self.limit, What::NotSent, self.connection(here, slot)).await
    }

    /// One that is to be had without waiting for another's end.
    pub(super) async fn take_now(&self) -> Result<Option<Lent>, Fault> {
        let Ok(slot) = self.slots.clone().try_acquire_owned() else { return Ok(None) };
        let opening = self.connection(self.here(), Some(slot));
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

    /// The runtime whose connections whoever asks here uses: the client's own, where this one cannot have any.
    fn here(&self) -> runtime::Id {
        if self.only_own {
            return self.own.id();
        }
        let here = Handle::current().id();
        if self.without_io().contains(&here) { self.own.id() } else { here }
    }

    async fn slot(&self, here: runtime::Id) -> Option<OwnedSemaphorePermit> {
        if let Ok(slot) = self.slots.clone().try_acquire_owned() {
            return Some(slot);
        }
        let slot = self.slots.clone().acquire_owned();
        if self.overflows {
            let moment = {
                let _timers_of = self.own.enter();
                tokio::time::timeout(MOMENT, slot)
            };
            return moment.await.ok().map(|slot| slot.expect("it is never closed"));
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
        Some(slot.expect("it is never closed"))
    }

    /// One that nobody uses, or a new one.
    async fn connection(&self, here: runtime::Id, slot: Option<OwnedSemaphorePermit>) -> Result<Lent, Fault> {
        while let Some(Idle { mut connection, told, since, .. }) = self.take_idle(here) {
            // The database may have closed it meanwhile, and that is found out before it matters.
            if self.clock.now().since(since) > STALE && connection.ping().await.is_err() {
                self.forget_idle();
                continue;
            }
            return Ok(Lent { connection, runtime: here, slot, used: true, told });
        }
        let lent =
            |connection, runtime| Lent { connection, runtime, slot, used: false, told: Told::default() };
        if here == self.own.id() {
            return Ok(lent(self.open().await?, here));
        }
        if let Some(opened) = self.open_on(&Handle::current()).await? {
            return Ok(lent(opened, here));
        }
        self.without_io().push(here);
        Ok(lent(self.open().await?, self.own.id()))
    }

    /// A connection beside the bounded ones, on the client's own runtime.
    pub(super) async fn another(&self) -> Result<Connection, Fault> {
        self.within(self.limit, What::NotSent, self.open()).await
    }

    async fn open(&self) -> Result<Connection, Fault> {
        self.open_on(&self.own).await?.ok_or_else(|| self.refused("the client was closed"))
    }

    /// Opens a connection; nothing, if this runtime cannot.
    async fn open_on(&self, runtime: &Handle) -> Result<Option<Connection>, Fault> {
        let (options, limit) = (self.options.clone(), self.limit);
        // By a task of its own, which panics on such a runtime.
        let Ok(opened) = runtime.spawn(async move { options.connect(limit).await }).await else {
            return Ok(None);
        };
        opened.map(Some).map_err(|error| {
            let fault = self.fault(error);
            let what = if fault.what.is_silence() { What::NotSent } else { fault.what };
            Fault { what, ..fault }
        })
    }

    fn without_io(&self) -> MutexGuard<'_, Vec<runtime::Id>> {
        self.without_io.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A connection of this runtime that nobody uses. If there is none, one is to be opened: those of other runtimes make room for it.
    fn take_idle(&self, here: runtime::Id) -> Option<Idle> {
        let mut idle = self.idle();
        if let Some(at) = idle.iter().rposition(|idle| idle.runtime == here) {
            return Some(idle.remove(at));
        }
        let room = self.slots.available_permits() + self.reserve.available_permits();
        if idle.len() > room {
            let too_many = idle.len() - room;
            idle.drain(..too_many);
        }
        None
    }

    /// Closes what nobody uses: if one of them was closed by the database, the others may have been, too.
    pub(super) fn forget_idle(&self) {
        self.idle().clear();
    }

    pub(super) fn put_back(&self, lent: Lent) {
        // Before its slot is free, so that whoever waits for one finds it.
        let Lent { connection, runtime, told, slot, .. } = lent;
        if slot.is_none() {
            return;
        }
        self.idle().push(Idle { runtime, connection, told, since: self.clock.now() });
        drop(slot);
    }

    /// What does not answer in this time does not answer.
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

    /// Lets go of what is not in use.
    pub(super) async fn close(&self) {
        let idle = std::mem::take(&mut *self.idle());
        futures_util::future::join_all(idle.into_iter().map(|idle| idle.connection.close())).await;
    }
}

/// Something that is done on a connection. If it may be sent again, twice must be as good as once; it is told whether it was sent before
/// and not answered.
pub(super) trait Work: Send {
    type Answer: Send;

    /// It must not be sent again if there was no answer: the first may still arrive, when the second is long over.
    const ONCE: bool = false;

    fn run(
        &mut self,
        connection: &mut Connection,
        unanswered: bool,
    ) -> impl Future<Output = Result<Self::Answer, Error>> + Send;
}

struct Run<'a> {
    sql: &'a Sql,
    args: &'a [Arg<'a>],
}

impl Work for Run<'_> {
    type Answer = (Done, bool);

    async fn run(&mut self, connection: &mut Connection, unanswered: bool) -> Result<(Done, bool), Error> {
        Ok((connection.run(self.sql, self.args).await?, unanswered))
    }
}

struct Rows<'a, F> {
    sql: &'a Sql,
    args: &'a [Arg<'a>],
    read: F,
}

impl<T: Send, F: Fn(&Row) -> Result<T, Error> + Send + Sync> Work for Rows<'_, F> {
    type Answer = Vec<T>;

    async fn run(&mut self, connection: &mut Connection, _: bool) -> Result<Vec<T>, Error> {
        connection.rows(self.sql, self.args).await?.iter().map(&self.read).collect()
    }
}

/// Something that is not sent again.
struct Once<W>(W);

impl<W: Work> Work for Once<W> {
    type Answer = W::Answer;
    const ONCE: bool = true;

    async fn run(&mut self, connection: &mut Connection, unanswered: bool) -> Result<W::Answer, Error> {
        self.0.run(connection, unanswered).await
    }
}

/// Statements without arguments, one after the other.
pub(super) struct Plain<'a>(pub(super) &'a [String]);

impl Work for Plain<'_> {
    type Answer = ();

    async fn run(&mut self, connection: &mut Connection, _: bool) -> Result<(), Error> {
        for statement in self.0 {
            connection.plain(statement.as_str()).await?;
        }
        Ok(())
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Link").field(&self.at).finish()
    }
}
