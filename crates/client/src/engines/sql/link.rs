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

use super::Brand;
use super::address::Address;
use super::connection::{Arg, Connection, Done, Options, Row, Sql};
use super::fault::{self, Fault, What};

pub(super) struct Link {
    pub(super) brand: Brand,
    options: Options,
    /// Host and port, for messages.
    at: String,
    limit: Duration,
    /// The client's own runtime.
    own: Handle,
    idle: Mutex<Vec<Idle>>,
    /// One for each connection in use.
    slots: Arc<Semaphore>,
    most: usize,
}

struct Idle {
    runtime: runtime::Id,
    connection: Connection,
}

/// A connection in use.
#[derive(Debug)]
pub(super) struct Lent {
    pub(super) connection: Connection,
    runtime: runtime::Id,
    _slot: OwnedSemaphorePermit,
    /// Whether it was used before, and may have been closed meanwhile.
    pub(super) used: bool,
}

impl Link {
    /// With so many connections at the most.
    pub(super) fn new(address: &Address, most: usize, own: Handle) -> Arc<Self> {
        Arc::new(Self {
            brand: address.brand,
            options: Options::of(address),
            at: address.at(),
            limit: address.limit,
            own,
            idle: Mutex::default(),
            slots: Arc::new(Semaphore::new(most)),
            most,
        })
    }

    pub(super) const fn limit(&self) -> Duration {
        self.limit
    }

    pub(super) const fn options(&self) -> &Options {
        &self.options
    }

    pub(super) fn fault(&self, error: Error) -> Fault {
        Fault::of(self.brand, &self.at, error)
    }

    /// What an error means.
    pub(super) fn what(&self, error: &Error) -> What {
        error.as_database_error().map_or(What::NoAnswer, |said| fault::meaning(self.brand, said))
    }

    pub(super) fn refused(&self, message: &str) -> Fault {
        Fault::refused(self.brand, format!("{} does not do it: {message}", self.at), None)
    }

    /// Whether a connection can be had without waiting for another's end.
    pub(super) fn has_room(&self) -> bool {
        self.slots.available_permits() > 0
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something on a connection, within the time limit of one request; once more on a new one, if an old one turns out to be
    /// closed.
    pub(super) async fn with<W: Work>(&self, mut work: W) -> Result<W::Answer, Fault> {
        let mut repeated = false;
        loop {
            let mut lent = self.take().await?;
            let done = self.within(self.limit, What::NoAnswer, async {
                work.run(&mut lent.connection, repeated).await.map_err(|error| self.fault(error))
            });
            match done.await {
                Ok(answer) => {
                    self.put_back(lent);
                    return Ok(answer);
                }
                Err(fault) => {
                    // What it had begun ends with it, unless the database itself has ended it.
                    let again = match fault.what {
                        What::Conflict => true,
                        What::NoAnswer => lent.used,
                        _ => false,
                    };
                    drop(lent);
                    if repeated || !again {
                        return Err(fault);
                    }
                    self.forget_idle();
                    repeated = true;
                }
            }
        }
    }

    /// Runs a statement that changes something: what it has done, and whether it was sent a second time.
    pub(super) async fn run(&self, sql: &Sql, args: &[Arg<'_>]) -> Result<(Done, bool), Fault> {
        self.with(Run { sql, args }).await
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
        let here = Handle::current().id();
        if let Ok(slot) = self.slots.clone().try_acquire_owned()
            && let Some(connection) = self.take_idle(here)
        {
            return Ok(Lent { connection, runtime: here, _slot: slot, used: true });
        }
        let slot = self.slots.clone().acquire_owned();
        let slot = async { Ok(slot.await.expect("it is never closed")) };
        let slot = self.within(self.limit, What::NotSent, slot).await?;
        self.open(here, slot).await
    }

    /// The same, however long others take to give one back.
    pub(super) async fn take_when_free(&self) -> Result<Lent, Fault> {
        let slot = self.slots.clone().acquire_owned().await.expect("it is never closed");
        self.open(Handle::current().id(), slot).await
    }

    async fn open(&self, here: runtime::Id, slot: OwnedSemaphorePermit) -> Result<Lent, Fault> {
        self.within(self.limit, What::NotSent, async {
            if let Some(connection) = self.take_idle(here) {
                return Ok(Lent { connection, runtime: here, _slot: slot, used: true });
            }
            let connection = self.options.connect(self.limit).await.map_err(|error| {
                let fault = self.fault(error);
                let what = if fault.what.is_silence() { What::NotSent } else { fault.what };
                Fault { what, ..fault }
            })?;
            Ok(Lent { connection, runtime: here, _slot: slot, used: false })
        })
        .await
    }

    /// A connection of this runtime that nobody uses. If there is none, one is to be opened: those of other runtimes make room for it.
    fn take_idle(&self, here: runtime::Id) -> Option<Connection> {
        let mut idle = self.idle();
        if let Some(at) = idle.iter().rposition(|idle| idle.runtime == here) {
            return Some(idle.remove(at).connection);
        }
        let in_use = self.most - self.slots.available_permits();
        let room = self.most.saturating_sub(in_use);
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
        self.idle().push(Idle { runtime: lent.runtime, connection: lent.connection });
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
        in_time.unwrap_or_else(|_| Err(Fault::late(self.brand, &self.at, limit, what)))
    }

    /// Lets go of what is not in use.
    pub(super) async fn close(&self) {
        let idle = std::mem::take(&mut *self.idle());
        futures_util::future::join_all(idle.into_iter().map(|idle| idle.connection.close())).await;
    }
}

/// Something that is done on a connection. It must be such that twice is as good as once, and is told whether it is the second time.
pub(super) trait Work: Send {
    type Answer: Send;

    fn run(
        &mut self,
        connection: &mut Connection,
        repeated: bool,
    ) -> impl Future<Output = Result<Self::Answer, Error>> + Send;
}

struct Run<'a> {
    sql: &'a Sql,
    args: &'a [Arg<'a>],
}

impl Work for Run<'_> {
    type Answer = (Done, bool);

    async fn run(&mut self, connection: &mut Connection, repeated: bool) -> Result<(Done, bool), Error> {
        Ok((connection.run(self.sql, self.args).await?, repeated))
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
