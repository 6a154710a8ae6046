//! Acquiring a lock: on a separate connection, which waits in the database and then keeps the lock.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use sqlx::Error;
use tenure_table::{FencingToken, Mode};
use tokio::sync::Mutex as AsyncMutex;

use super::texts::{Kind, SLICE, Texts};
use super::{Held, SessionEngine, term};
use crate::engine::{AcquireRequest, Granted, Waits};
use crate::engines::sql::connection::{Arg, Connection, Row, Sql};
use crate::engines::sql::fault::{Fault, What};
use crate::engines::sql::link::Lent;
use crate::engines::sql::work::Work;
use crate::error::{AcquireError, RenewError};
use crate::sql::Dialect;

/// The pause before a statement is stopped once more.
const STOP_AGAIN: Duration = Duration::from_millis(50);

/// The answer to a statement that asks for a lock.
enum LockReply {
    /// The session holds the lock, with the token if the same message counted it.
    Got(Session, Option<u64>),
    /// The lock is not free, and the session holds nothing.
    Busy,
    /// The statement ended without the lock. Its effects must be undone.
    Stopped,
    /// The lock has no row. The transaction must be undone.
    NoRow,
}

/// The session of a holder, as the database shows it.
#[derive(Clone, Copy)]
struct Session {
    number: i64,
    /// The start of its transaction, where that identifies the holder.
    born: i64,
}

impl Session {
    /// Returns the session in MySQL, where its number alone identifies it.
    const fn of(lent: &Lent) -> Self {
        Self { number: lent.session.number, born: 0 }
    }
}

/// A request, with the arguments of its statements.
struct Ask<'a> {
    request: &'a AcquireRequest,
    key: String,
    grant: [u8; 16],
    owner: [u8; 16],
    details: String,
}

impl Ask<'_> {
    /// Returns the arguments that identify the lock and its holder.
    fn args(&self) -> [Arg<'_>; 5] {
        let name = self.request.name.as_str().as_bytes();
        [
            Arg::Text(&self.key),
            Arg::Bytes(name),
            Arg::Bytes(&self.grant),
            Arg::Bytes(&self.owner),
            Arg::Text(&self.details),
        ]
    }
}

impl SessionEngine {
    pub(super) async fn wait_for(self: Arc<Self>, request: AcquireRequest) -> Result<Granted, AcquireError> {
        let same = self.held().get(&request.grant).cloned();
        if let Some(held) = same {
            // The answer to the first request was lost.
            let grant = request.granted(Some(held.token));
            match self.clone().speak(grant).await {
                Ok(term) => return Ok(Granted::new(Some(held.token), term)),
                Err(RenewError::Engine(error)) => return Err(error.into()),
                Err(RenewError::Lost(_)) => {}
            }
        }
        let mut kept: Option<Lent> = None;
        while !request.cancel.is_cancelled() {
            // After an error, the connection is closed, which undoes the effects of the request.
            if let Some(granted) = self.ask(&request, &mut kept).await? {
                return Ok(granted);
            }
            if !request.waits() {
                break;
            }
        }
        if let Some(lent) = kept {
            self.locks.put_back(lent);
        }
        Err(request.not_granted())
    }

    /// Asks for the lock once. Returns `None` if the lock is busy or the request was cancelled. Asks again on a new connection if an old
    /// one turns out to be closed: the database closes idle ones.
    async fn ask(&self, request: &AcquireRequest, kept: &mut Option<Lent>) -> Result<Option<Granted>, Fault> {
        let mut used = false;
        match self.ask_once(request, kept, &mut used).await {
            Err(fault) if used && fault.what.is_silence() => {
                self.locks.forget_idle();
                self.ask_once(request, kept, &mut used).await
            }
            asked => asked,
        }
    }

    async fn ask_once(
        &self,
        request: &AcquireRequest,
        kept: &mut Option<Lent>,
        used: &mut bool,
    ) -> Result<Option<Granted>, Fault> {
        let mut lent = match kept.take() {
            Some(lent) => lent,
            None => match self.connection(request).await? {
                Some(lent) => lent,
                None => return Ok(None),
            },
        };
        *used = lent.used;
        let mut sent_at = self.now();
        let ask = Ask {
            request,
            key: self.texts.key(&request.name),
            grant: request.grant.as_u128().to_be_bytes(),
            owner: request.owner.as_u128().to_be_bytes(),
            details: self.process.details(request, self.context.clock.wall(), None).to_string(),
        };
        let telling = async { self.tell(&mut lent, &ask).await.map_err(|error| self.locks.fault(error)) };
        self.locks.within(self.locks.limit(), What::NoAnswer, telling).await?;
        let stop = Sql::from(self.texts.stop(&lent.session));
        let asking = async { self.lock(&mut lent, &ask).await.map_err(|error| self.locks.fault(error)) };
        let asking = self.locks.within(SLICE + self.locks.limit(), What::NoAnswer, asking);
        let said = self.stopped_if_cancelled(request, stop, asking).await?;
        let is_cancelled = request.cancel.is_cancelled();
        if is_cancelled || matches!(said, LockReply::Stopped | LockReply::NoRow) {
            let forgetting = async { self.forget(&mut lent).await.map_err(|error| self.locks.fault(error)) };
            self.locks.within(self.locks.limit(), What::NoAnswer, forgetting).await?;
        }
        if is_cancelled {
            *kept = Some(lent);
            return Ok(None);
        }
        let (session, token) = match said {
            LockReply::Got(session, token) => (session, token),
            LockReply::Busy | LockReply::Stopped => {
                *kept = Some(lent);
                return Ok(None);
            }
            LockReply::NoRow => {
                self.make_row(&mut lent.connection, request).await?;
                *kept = Some(lent);
                return Box::pin(self.ask_once(request, kept, used)).await;
            }
        };
        let count = Count { texts: &self.texts, dialect: self.address.dialect, ask: &ask, session, token };
        let token = self.count(&mut lent, count).await?;
        // The lease counts from the last answer on the connection, which may be long ago. And a token that was counted on another
        // connection is valid only if this connection still held the lock then.
        if self.texts.kind.is_row() || self.now().since(sent_at) > request.ttl.get() / 10 {
            sent_at = self.now();
            let pinged = async { lent.connection.ping().await.map_err(|error| self.locks.fault(error)) };
            self.locks.within(self.locks.limit(), What::NoAnswer, pinged).await?;
        }
        let held = Held { token, session: session.number, connection: AsyncMutex::new(Some(lent)) };
        self.held().insert(request.grant, Arc::new(held));
        Ok(Some(Granted::new(Some(token), term(sent_at, request.ttl))))
    }

    /// Waits for the statement by which a session asks for a lock. If the request is cancelled meanwhile, the statement is stopped in the
    /// database: a connection that is closed instead would remain in the queue, and count, until the database notices.
    async fn stopped_if_cancelled<T>(
        &self,
        request: &AcquireRequest,
        stop: Sql,
        asking: impl Future<Output = T>,
    ) -> T {
        let mut asking = pin!(asking);
        tokio::select! {
            biased;
            said = &mut asking => return said,
            () = request.cancel.cancelled() => {}
        }
        loop {
            // A separate task, since dropping it half-way would lose its connection. It has ended when this function returns: a later stop
            // could hit another statement.
            let (short, stops, stop) = (self.short.clone(), self.stops.clone(), stop.clone());
            let stopping = self.context.runtime.spawn(async move {
                let _one_at_a_time = stops.lock_owned().await;
                short.with(Stop(stop)).await
            });
            let (stopped, said) = tokio::join!(stopping, async {
                let again = self.now() + STOP_AGAIN;
                tokio::select! {
                    biased;
                    said = &mut asking => Some(said),
                    () = self.context.clock.sleep_until(again) => None,
                }
            });
            if let Ok(Err(fault)) = stopped {
                tracing::debug!(error = %fault.error, "a wait that was given up could not be stopped");
            }
            // Without an answer, the stop may have arrived before the statement, and is repeated.
            if let Some(said) = said {
                return said;
            }
        }
    }

    /// Undoes the effects of a request for the lock. A late stop may hit the first attempt.
    async fn forget(&self, lent: &mut Lent) -> Result<(), Error> {
        match lent.connection.plain(self.texts.forget()).await {
            Err(error) if self.locks.what(&error) == What::Cancelled => {
                lent.connection.plain(self.texts.forget()).await
            }
            forgotten => forgotten,
        }
    }

    /// Returns a connection for a request, or `None` if none is available in time.
    async fn connection(&self, request: &AcquireRequest) -> Result<Option<Lent>, Fault> {
        const FULL: &str = "all connections that locks may take are in use: raise `connections=` in the URL";
        if request.waits() {
            return self.locks.take_unless(request.cancel.cancelled()).await;
        }
        match self.locks.take_now().await? {
            None if request.wait == Waits::No => Err(self.locks.refused(FULL)),
            lent => Ok(lent),
        }
    }

    /// Creates the row of a lock, outside of the lock's transaction. With MySQL, it may have to wait for a transaction that created the row
    /// first, and has it locked.
    async fn make_row(&self, connection: &mut Connection, request: &AcquireRequest) -> Result<(), Fault> {
        let sql = self.texts.make_row(&request.name);
        let making = async { connection.plain(sql).await.map_err(|error| self.locks.fault(error)) };
        match self.locks.within(SLICE + self.locks.limit(), What::NoAnswer, making).await {
            // The row exists, and another transaction has it locked.
            Err(fault) if fault.what == What::LockTimeout => Ok(()),
            made => made,
        }
    }

    /// Runs the statement that locks, which may wait for a whole slice.
    async fn lock(&self, lent: &mut Lent, ask: &Ask<'_>) -> Result<LockReply, Error> {
        let said = match self.texts.kind {
            Kind::Named => self.lock_named(lent, ask).await,
            Kind::RowOfMySql => self.lock_row(lent, ask).await,
            Kind::Advisory | Kind::RowOfPostgres => self.lock_in_postgres(lent, ask).await,
        };
        match said {
            // With PostgreSQL, a wait for several readers is a separate wait for each. So the timeout of the statement may end it, and not
            // that of the lock.
            Err(error) if matches!(self.locks.what(&error), What::LockTimeout | What::Cancelled) => {
                Ok(LockReply::Stopped)
            }
            said => said,
        }
    }

    /// Changes the settings of a session, if they differ.
    async fn tell(&self, lent: &mut Lent, ask: &Ask<'_>) -> Result<(), Error> {
        let settings = self.texts.settings(ask.request);
        if lent.session.settings.is_empty() {
            let said = lent.connection.batch(format!("{}{settings}", self.texts.begin)).await?;
            let session = said.iter().flatten().next().ok_or(Error::RowNotFound)?;
            (lent.session.number, lent.session.mark) = (session.int(0)?, session.text(1)?);
        } else if lent.session.settings != settings {
            lent.connection.plain(settings.as_str()).await?;
        }
        lent.session.settings = settings;
        Ok(())
    }

    async fn lock_named(&self, lent: &mut Lent, ask: &Ask<'_>) -> Result<LockReply, Error> {
        let [key, name, grant, owner, details] = ask.args();
        let args = [key, name, grant, owner, details, key];
        let mut done = lent.connection.run(&self.texts.lock_named, &args).await?;
        if done.rows == 0 && ask.request.waits() {
            // The statement that waits touches no table: otherwise a statement that alters one, or stops all writes, would wait behind it,
            // and all others behind that one.
            let wait_ms = i64::try_from(SLICE.as_millis()).expect("a slice is some seconds");
            let rows = lent.connection.rows(&self.texts.wait_named, &[key, Arg::Int(wait_ms)]).await?;
            match rows.first().map(|row| row.int(0)).transpose()? {
                Some(1) => done = lent.connection.run(&self.texts.lock_named, &args).await?,
                Some(0) => {}
                // The statement was stopped.
                _ if ask.request.cancel.is_cancelled() => {}
                _ => return Err(Error::RowNotFound),
            }
        }
        Ok(if done.rows == 0 { LockReply::Busy } else { LockReply::Got(Session::of(lent), done.counted()) })
    }

    async fn lock_row(&self, lent: &mut Lent, ask: &Ask<'_>) -> Result<LockReply, Error> {
        let shown = format!("{}:{}", lent.session.number, ask.key);
        let args = [Arg::Text(&shown), Arg::Bytes(ask.request.name.as_str().as_bytes())];
        let rows = lent.connection.rows(&self.texts.lock_row(ask.request), &args).await?;
        Ok(if rows.is_empty() { LockReply::NoRow } else { LockReply::Got(Session::of(lent), None) })
    }

    async fn lock_in_postgres(&self, lent: &mut Lent, ask: &Ask<'_>) -> Result<LockReply, Error> {
        let mut sql = self.texts.lock(ask.request, &ask.key);
        let count = self.texts.and_count(ask.request, &ask.key, &ask.details);
        sql.extend(count.as_deref());
        let answers = lent.connection.batch(sql).await?;
        let (lock, counted) = match answers.as_slice() {
            [.., lock] if count.is_none() => (lock, None),
            [.., lock, counted] => (lock, counted.first()),
            _ => return Err(Error::RowNotFound),
        };
        let Some(row) = lock.first() else { return Ok(LockReply::NoRow) };
        if self.texts.answers_whether(ask.request) && row.int(2)? != 1 {
            return Ok(LockReply::Busy);
        }
        let token = counted.map(token).transpose()?;
        Ok(LockReply::Got(Session { number: row.int(0)?, born: row.int(1)? }, token))
    }

    /// Raises the counter of a lock that is held and records its holder, unless the same message did so already.
    async fn count(&self, lent: &mut Lent, mut count: Count<'_>) -> Result<FencingToken, Fault> {
        let request = count.ask.request;
        let counted = match count.token {
            Some(token) if request.mode == Mode::Ex => Ok(token),
            // The connection that holds has an open transaction.
            _ if self.texts.kind.is_row() => self.short.with(count).await?,
            _ => {
                let counting = async {
                    count.run(&mut lent.connection, false).await.map_err(|error| self.locks.fault(error))
                };
                self.locks.within(self.locks.limit(), What::NoAnswer, counting).await?
            }
        };
        counted.map(FencingToken::new).map_err(|other| {
            self.locks.refused(&format!(
                "the lock `{}` has the same key as `{}`: choose another name for one of them",
                request.name,
                String::from_utf8_lossy(&other)
            ))
        })
    }
}

/// Stops a statement.
struct Stop(Sql);

impl Work for Stop {
    type Answer = ();

    async fn run(&mut self, connection: &mut Connection, _: bool) -> Result<(), Error> {
        match connection.plain(self.0.clone()).await {
            // In MySQL, the session no longer exists. The connection remains usable.
            Err(error) if error.as_database_error().is_some() => {
                tracing::debug!(%error, "the database did not stop the statement of a wait that was given up");
                Ok(())
            }
            stopped => stopped,
        }
    }
}

/// Counts the next token of a lock, and records its holder. Answers with the name of another lock that has the same key, if there is one.
struct Count<'a> {
    texts: &'a Texts,
    dialect: Dialect,
    ask: &'a Ask<'a>,
    session: Session,
    /// The token, if it was counted already.
    token: Option<u64>,
}

impl Work for Count<'_> {
    type Answer = Result<u64, Vec<u8>>;

    async fn run(&mut self, connection: &mut Connection, _: bool) -> Result<Self::Answer, Error> {
        let Self { texts, dialect, ask, session, mut token } = *self;
        let [lock, name, grant, owner, details] = ask.args();
        let (number, born) = (Arg::Int(session.number), Arg::Int(session.born));
        let args = [lock, name, grant, owner, details, number, born];
        let shared = ask.request.mode == Mode::Pr;
        let (sql, args) = match (shared, dialect) {
            (true, _) => (&texts.count_shared, &args[..2]),
            (false, Dialect::Postgres) => (&texts.count_alone, &args[..]),
            (false, Dialect::MySql) => (&texts.count_alone, &args[..6]),
        };
        if token.is_none() {
            token = self.next(connection, sql, args).await?;
        }
        if token.is_none() {
            connection.run(&texts.begin_count, &[lock, name]).await?;
            token = self.next(connection, sql, args).await?;
        }
        let Some(token) = token else {
            let others = connection.rows(&texts.counted_for, &[lock]).await?;
            return Ok(Err(others.first().ok_or(Error::RowNotFound)?.bytes(0)?));
        };
        if shared {
            let reader = [lock, number, born, Arg::Int(token.cast_signed()), grant, owner, details];
            connection.run(&texts.read_in, &reader).await?;
        }
        Ok(Ok(token))
    }
}

impl Count<'_> {
    /// Counts the next token. Returns `None` if the lock has no row yet.
    async fn next(
        &self,
        connection: &mut Connection,
        sql: &Sql,
        args: &[Arg<'_>],
    ) -> Result<Option<u64>, Error> {
        match self.dialect {
            Dialect::Postgres => {
                let rows = connection.rows(sql, args).await?;
                rows.first().map(token).transpose()
            }
            Dialect::MySql => Ok(connection.run(sql, args).await?.counted()),
        }
    }
}

/// Reads the token from PostgreSQL's answer.
fn token(row: &Row) -> Result<u64, Error> {
    Ok(row.int(0)?.unsigned_abs())
}
