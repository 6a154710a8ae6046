//! The recipe `table`: who holds and who waits is written down in rows, and a lease ends by the database's clock.
//!
//! One row for each lock, which is never deleted: its counter gives the tokens, and whoever changes anything about the lock has that row
//! locked. The common case, a lock that is free and that one wants, is one statement on that row.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{BoxFuture, join_all};
use sqlx::Error;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::Brand;
use super::address::Address;
use super::book::{Answer, Ask, Book, Holder, PLACE_KEPT, Waiter as Queued};
use super::connection::{Arg, Connection, Row};
use super::ear::Ear;
use super::fault::{Fault, What};
use super::link::{Link, Plain, Work};
use super::texts::{self, State, Texts};
use crate::capabilities::{Breaking, Capabilities, Expiry, Reach, Waking};
use crate::clock::BootTime;
use crate::engine::{
    AcquireRequest, Break, Engine, EngineContext, Grant, Granted, Remembered, Start, WaitUntil,
};
use crate::engines::details::{self, Ourselves};
use crate::engines::waiting::Waiter;
use crate::error::{
    AcquireError, BreakError, InspectError, Lost, LostReason, ReleaseError, RememberError, RenewError,
    ValueError,
};
use crate::ids::{GrantId, OwnerId};
use crate::info::{LockInfo, Member};
use crate::lease::{Term, Ttl};
use crate::mode::ModeSet;
use crate::name::LockName;
use crate::random;
use crate::token::FencingToken;
use crate::value::Value;

/// The database counts in milliseconds.
const MARGIN: Duration = Duration::from_millis(1);

/// How often who waits looks by itself: those whose turn is next, and all others, who must not lose their places.
const FIRST_LOOKS: Duration = Duration::from_secs(1);
const OTHERS_LOOK: Duration = Duration::from_secs(3);

/// How long to wait before asking again one who did not answer.
const SILENT_PAUSE: Duration = Duration::from_millis(100);

/// After that long, and then again, what may have been under way on a connection that broke has arrived.
const ARRIVED_AFTER: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(15)];

/// How often what nobody asks for is looked for, and how long its time must have been over.
const SWEEP_EVERY: Duration = Duration::from_mins(10);
const SWEEP_AFTER_MS: i64 = 60_000;

/// The number that whoever makes tables in PostgreSQL locks: any, as long as it is always the same.
const MAKING_TABLES: i64 = 0x7465_6e75_7265;

/// So many locks are looked at together.
const TOGETHER: usize = 8;

#[derive(Debug)]
pub(super) struct TableEngine {
    address: Address,
    link: Arc<Link>,
    texts: Arc<Texts>,
    ear: Arc<Ear>,
    ourselves: Ourselves,
    capabilities: Capabilities,
    context: EngineContext,
    /// Grants of which a request may still be under way.
    doubtful: Mutex<HashSet<GrantId>>,
    /// What is undone in the background.
    undoing: TaskTracker,
    closing: CancellationToken,
}

impl TableEngine {
    pub(super) async fn open(
        address: Address,
        link: Arc<Link>,
        context: EngineContext,
    ) -> Result<Arc<dyn Engine>, Fault> {
        let texts = Arc::new(Texts::new(address.brand, &address.table));
        let names = ["", "_holder", "_waiter"].map(|end| format!("{}{end}", address.table));
        ensure_tables(&link, &names, &texts::tables(address.brand, &address.table)).await?;
        let capabilities = Capabilities {
            modes: ModeSet::ALL,
            value: true,
            remembers: true,
            fencing: true,
            fair: true,
            shared_owners: true,
            visible_waiters: true,
            breaking: Breaking::Force,
            expiry: Expiry::Lease,
            waking: Waking::One,
            reach: Reach::Network,
            ..Capabilities::minimal(address.brand.engine(), "table")
        };
        let engine = Arc::new(Self {
            ear: Ear::new(link.clone(), texts.clone(), context.clone()),
            address,
            link,
            texts,
            ourselves: Ourselves::new(),
            capabilities,
            doubtful: Mutex::default(),
            undoing: TaskTracker::new(),
            closing: CancellationToken::new(),
            context,
        });
        let sweeping = sweep(Arc::downgrade(&engine), engine.closing.clone());
        engine.context.runtime.spawn(sweeping);
        Ok(engine)
    }

    fn now(&self) -> BootTime {
        self.context.clock.now()
    }

    fn doubtful(&self) -> MutexGuard<'_, HashSet<GrantId>> {
        self.doubtful.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads what is written down of a lock, lets `change` change it, writes it, and wakes those whose turn it then is.
    async fn change<T: Send>(
        &self,
        name: &[u8],
        change: impl FnMut(&mut Book, bool) -> T + Send,
    ) -> Result<T, Fault> {
        self.link.with(Change { engine: self, name, asks: None, how: change }).await
    }

    async fn read(
        &self,
        connection: &mut Connection,
        name: &[u8],
        locked: bool,
    ) -> Result<Option<(State, Book)>, Error> {
        let answers = connection.batch(self.texts.read(name, locked)).await?;
        let first = if !locked && self.address.brand == Brand::MySql { 2 } else { 1 };
        let [rows, holders, waiters, ..] = answers.get(first..).unwrap_or_default() else {
            return Err(Error::RowNotFound);
        };
        let Some(row) = rows.first() else { return Ok(None) };
        let state = State::read(row.int(1)?).ok_or_else(|| damaged("state"))?;
        let mut book = Book {
            token: row.int(0)?,
            value: row.maybe_bytes(7)?,
            in_doubt: row.int(8)? != 0,
            start: row.maybe_int(9)?.zip(row.maybe_bytes(10)?),
            now: row.int(11)?,
            ..Book::default()
        };
        if state == State::Alone {
            book.holders.push(Holder {
                grant: GrantId::from_u128(id(row, 2)?),
                owner: OwnerId::from_u128(id(row, 3)?),
                mode: row.text(4)?.parse().map_err(|_| damaged("mode"))?,
                token: book.token,
                expires: row.int(5)?,
                details: row.text(6)?,
                broken: false,
            });
        }
        for row in holders {
            book.holders.push(Holder {
                grant: GrantId::from_u128(id(row, 0)?),
                owner: OwnerId::from_u128(id(row, 1)?),
                mode: row.text(2)?.parse().map_err(|_| damaged("mode"))?,
                token: row.int(3)?,
                expires: row.int(4)?,
                details: row.text(5)?,
                broken: row.int(6)? != 0,
            });
        }
        for row in waiters {
            book.waiters.push(Queued {
                ticket: Some(row.int(0)?),
                grant: GrantId::from_u128(id(row, 1)?),
                owner: OwnerId::from_u128(id(row, 2)?),
                mode: row.text(3)?.parse().map_err(|_| damaged("mode"))?,
                client: row.text(4)?,
                kept_until: row.int(5)?,
                called: row.int(6)? != 0,
                details: row.text(7)?,
            });
        }
        Ok(Some((state, book)))
    }

    /// What is written down of a lock, without keeping anybody from changing it.
    async fn look(&self, name: &[u8]) -> Result<Option<Book>, Fault> {
        let read = self.link.with(Look { engine: self, name }).await?;
        Ok(read.map(|(_, mut book)| {
            book.expire(None);
            book
        }))
    }

    /// Takes the lock if it is free, nobody waits, and it has no value: one statement.
    async fn take(&self, request: &AcquireRequest, details: &str) -> Result<Option<i64>, Fault> {
        let grant = request.grant.as_u128().to_be_bytes();
        let owner = request.owner.as_u128().to_be_bytes();
        let args = [
            Arg::Bytes(&grant),
            Arg::Bytes(&owner),
            Arg::Text(request.mode.as_str()),
            Arg::Int(milliseconds(request.ttl)),
            Arg::Text(details),
            Arg::Bytes(request.name.as_str().as_bytes()),
        ];
        match self.address.brand {
            Brand::Postgres => self.link.once(&self.texts.take, &args, |row| row.int(0)).await,
            Brand::MySql => {
                let done = self.link.run_once(&self.texts.take, &args).await?;
                Ok((done.rows == 1).then(|| i64::try_from(done.number).unwrap_or(i64::MAX)))
            }
        }
    }

    async fn wait_for(self: Arc<Self>, request: AcquireRequest) -> Result<Granted, AcquireError> {
        let details = self.ourselves.details(&request, self.context.clock.wall(), None);
        let mut unknown = false;
        if !request.reenter && !self.ear.anybody_waits_for(&request.name) {
            let sent_at = self.now();
            match self.take(&request, &details).await {
                Ok(Some(token)) => return Ok(granted(&request, sent_at, token, Value::default())),
                Ok(None) => {}
                // It may still arrive, also when what is granted now is long released.
                Err(fault) => unknown = fault.what == What::NoAnswer,
            }
        }
        Box::pin(self.wait_from(request, details, unknown)).await
    }

    async fn wait_from(
        self: &Arc<Self>,
        request: AcquireRequest,
        details: String,
        unknown: bool,
    ) -> Result<Granted, AcquireError> {
        let mut attempt = Attempt { waiter: None, unknown, answered: true };
        let answer = self.wait_with(&request, &details, &mut attempt).await;
        if answer.is_err() {
            self.undo(attempt, &request).await;
        } else if attempt.unknown {
            self.doubtful().insert(request.grant);
        }
        answer
    }

    async fn wait_with(
        &self,
        request: &AcquireRequest,
        details: &str,
        attempt: &mut Attempt,
    ) -> Result<Granted, AcquireError> {
        let mut silent_since: Option<BootTime> = None;
        // How many stood before this one when it last asked.
        let mut place = 0;
        let waits = !matches!(request.wait, WaitUntil::Try);
        loop {
            if request.cancel.is_cancelled() {
                return Err(request.not_got());
            }
            if waits && attempt.waiter.is_none() {
                attempt.waiter = Some(self.ear.register(request.grant, &request.name));
            }
            let (sent_at, client) = (self.now(), self.ear.client());
            let ask = Ask {
                grant: request.grant,
                owner: request.owner,
                mode: request.mode,
                reenter: request.reenter,
                ttl: milliseconds(request.ttl),
                details,
                client: waits.then_some(&*client),
            };
            let asked = self.ask(request, &ask, place).await;
            attempt.answered = asked.is_ok();
            let pause = match asked {
                Ok((Answer::Granted { token }, value)) => return Ok(granted(request, sent_at, token, value)),
                Ok((Answer::Held(held), _)) => {
                    let (name, asked) = (request.name.clone(), request.mode);
                    return Err(AcquireError::NotCovered { name, held, asked });
                }
                Ok((Answer::Busy { expires_in, before }, _)) => {
                    silent_since = None;
                    place = before;
                    if before > 0 {
                        random::jittered(OTHERS_LOOK)
                    } else {
                        // Nobody says that a lease has run out.
                        let look = random::jittered(FIRST_LOOKS);
                        expires_in.map_or(look, |left| look.min(left + MARGIN))
                    }
                }
                // Others of this client are before it, and the database is none the worse for it.
                Err(fault) if fault.what == What::Full && !request.wait.is_over(self.now()) => SILENT_PAUSE,
                Err(fault) => {
                    attempt.unknown |= fault.what == What::NoAnswer;
                    // A wait outlasts a restart of the database, but not a longer silence.
                    let since = *silent_since.get_or_insert(sent_at);
                    let silence = fault.what.is_silence() || fault.what == What::LockTimeout;
                    let goes_on = silence && self.now().since(since) < self.link.limit();
                    if !goes_on || request.wait.is_over(self.now()) {
                        return Err(fault.into());
                    }
                    SILENT_PAUSE
                }
            };
            if request.wait.is_over(self.now()) {
                return Err(request.not_got());
            }
            let look_again = request.wait.or_at(self.now() + pause);
            let woken = async {
                match &attempt.waiter {
                    Some(waiter) => waiter.woken().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = request.cancel.cancelled() => return Err(request.not_got()),
                // It may be its turn, or its client may have another name by now.
                () = woken => place = 0,
                () = self.context.clock.sleep_until(look_again) => {}
            }
        }
    }

    /// Asks for the lock: by a look alone where that is enough, since whoever changes something keeps all others from it.
    async fn ask(
        &self,
        request: &AcquireRequest,
        ask: &Ask<'_>,
        place: usize,
    ) -> Result<(Answer, Value), Fault> {
        let name = request.name.as_str().as_bytes();
        if place > 0 {
            let id = request.grant.as_u128().to_be_bytes();
            let (args, keep) = ([Arg::Bytes(name), Arg::Bytes(name), Arg::Bytes(&id)], Arg::Int(PLACE_KEPT));
            // Whoever is first sees to it that all go on.
            if !self.link.rows(&self.texts.before, &args, |row| row.int(0)).await?.is_empty()
                && self.link.run(&self.texts.keep_place, &[keep, args[1], args[2]]).await?.0.rows == 1
            {
                return Ok((Answer::Busy { expires_in: None, before: place }, Value::default()));
            }
        }
        if ask.client.is_none()
            && let Some(mut book) = self.look(name).await?
            && let busy @ Answer::Busy { .. } = book.acquire(ask)
        {
            return Ok((busy, Value::default()));
        }
        let change = |book: &mut Book, _| (book.acquire(ask), book.shown_value());
        self.link.with(Change { engine: self, name, asks: Some(request.grant), how: change }).await
    }

    /// Leaves the queue, and gives back what may have been granted without our having heard of it.
    async fn undo(self: &Arc<Self>, attempt: Attempt, request: &AcquireRequest) {
        if attempt.waiter.is_none() && !attempt.unknown {
            return;
        }
        // If the database answers, or if nobody waits any more: now, so that nothing is left when this has ended.
        let now = attempt.answered || request.cancel.is_cancelled();
        let undone = now && self.let_go(&request.name, request.grant).await.is_ok();
        if undone && !attempt.unknown {
            return;
        }
        let (engine, name, grant) = (self.clone(), request.name.clone(), request.grant);
        let (ttl, unknown) = (request.ttl.get(), attempt.unknown);
        let undoing = async move { engine.go_on_undoing(&name, grant, ttl, undone, unknown).await };
        self.undoing.spawn_on(undoing, &self.context.runtime);
    }

    /// As soon as the database can be reached. After the ttl there is nothing left to give back.
    async fn go_on_undoing(
        &self,
        name: &LockName,
        grant: GrantId,
        ttl: Duration,
        undone: bool,
        unknown: bool,
    ) {
        const FIRST_PAUSE: Duration = Duration::from_millis(50);
        const LONGEST_PAUSE: Duration = Duration::from_secs(2);
        let clock = &self.context.clock;
        let gone = clock.now() + self.link.limit() * 2 + ttl;
        let mut pause = FIRST_PAUSE;
        while !undone && self.let_go(name, grant).await.is_err() {
            if clock.now() > gone || self.closing.is_cancelled() {
                return;
            }
            clock.sleep_until(clock.now() + random::jittered(pause)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        if !unknown {
            return;
        }
        // It may have overtaken the request.
        for after in ARRIVED_AFTER {
            tokio::select! {
                () = self.closing.cancelled() => return,
                () = clock.sleep_until(clock.now() + after) => {}
            }
            let _ = self.let_go(name, grant).await;
        }
    }

    /// Frees what a grant holds, and takes it out of the queue; whether it held.
    async fn let_go(&self, name: &LockName, grant: GrantId) -> Result<bool, Fault> {
        let (name, id) = (name.as_str().as_bytes(), grant.as_u128().to_be_bytes());
        let args = [Arg::Bytes(name), Arg::Bytes(&id)];
        let (alone, repeated) = self.link.run(&self.texts.give_back, &args).await?;
        if alone.rows == 1 {
            return Ok(true);
        }
        // One that was sent a second time and finds nothing has done it the first time.
        let freed = self.change(name, |book, again| book.release(grant) || again).await?;
        Ok(freed || repeated)
    }

    async fn inspect_lock(&self, name: LockName) -> Result<LockInfo, Fault> {
        let mut info = LockInfo::free(name);
        let Some(book) = self.look(info.name.as_str().as_bytes()).await? else { return Ok(info) };
        info.last_token = (book.token > 0).then(|| token(book.token));
        info.holders = book.holders.iter().map(Holder::member).collect();
        info.waiters = book
            .waiters
            .iter()
            .map(|waiter| details::member(waiter.grant, waiter.owner, waiter.mode, &waiter.details))
            .collect();
        info.value = book.shown_value();
        Ok(info)
    }

    /// Frees what nobody asks for.
    async fn sweep(&self) -> Result<(), Fault> {
        let after = [Arg::Int(SWEEP_AFTER_MS), Arg::Int(SWEEP_AFTER_MS)];
        self.link.run(&self.texts.sweep, &after[..1]).await?;
        for name in self.link.rows(&self.texts.stale, &after, |row| row.bytes(0)).await? {
            if let Err(fault) = self.change(&name, |_, _| ()).await {
                tracing::debug!(error = %fault.error, "a lock was not swept");
            }
        }
        Ok(())
    }
}

/// Now and then, for as long as the engine lives.
async fn sweep(engine: Weak<TableEngine>, closing: CancellationToken) {
    let Some(clock) = engine.upgrade().map(|engine| engine.context.clock.clone()) else { return };
    loop {
        tokio::select! {
            () = closing.cancelled() => return,
            () = clock.sleep_until(clock.now() + random::jittered(SWEEP_EVERY)) => {}
        }
        let Some(engine) = engine.upgrade() else { return };
        if let Err(fault) = engine.sweep().await {
            tracing::debug!(error = %fault.error, "what nobody asks for was not swept up");
        }
    }
}

/// What has been done for a request so far.
struct Attempt {
    waiter: Option<Waiter>,
    /// Whether a request was sent whose answer did not come.
    unknown: bool,
    /// Whether the database answered when it was last asked.
    answered: bool,
}

impl Holder {
    fn member(&self) -> Member {
        let mut member = details::member(self.grant, self.owner, self.mode, &self.details);
        member.token = Some(token(self.token));
        member
    }
}

impl Book {
    fn shown_value(&self) -> Value {
        Value { bytes: self.value.clone().unwrap_or_default().into(), in_doubt: self.in_doubt }
    }
}

fn token(number: i64) -> FencingToken {
    FencingToken::new(number.unsigned_abs())
}

fn granted(request: &AcquireRequest, sent_at: BootTime, number: i64, value: Value) -> Granted {
    Granted::new(Some(token(number)), term(sent_at, request.ttl)).with_value(value)
}

/// A ttl as the database counts it.
fn milliseconds(ttl: Ttl) -> i64 {
    i64::try_from(ttl.get().as_millis()).expect("a ttl is at most a day")
}

/// What is believed of a lease that was asked for at this instant.
fn term(sent_at: BootTime, ttl: Ttl) -> Term {
    Term::Lease { sent_at, ttl: Duration::from_millis(milliseconds(ttl).unsigned_abs()), margin: MARGIN }
}

/// As it is counted here: beyond some centuries, it is all the same.
fn whole_ms(duration: Duration) -> i64 {
    const LONGEST: i64 = 10_000_000_000_000;
    i64::try_from(duration.as_millis()).map_or(LONGEST, |ms| ms.min(LONGEST))
}

/// Makes the tables, if they are not there.
pub(super) async fn ensure_tables(link: &Link, tables: &[String], make: &[String]) -> Result<(), Fault> {
    let looks: Vec<_> = tables.iter().map(|table| format!("SELECT 1 FROM {table} WHERE 1 = 0")).collect();
    let seen = link.with(Plain(&looks)).await;
    match seen {
        Err(fault) if fault.what == What::NoTable => {}
        seen => return seen,
    }
    if link.brand == Brand::MySql {
        return link.with(Plain(make)).await;
    }
    // One after the other: two who make a table at once get in each other's way, `IF NOT EXISTS` or not. Statements that are sent
    // together are one transaction.
    let one_by_one = format!("SELECT pg_advisory_xact_lock({MAKING_TABLES}); {}", make.join("; "));
    link.with(Plain(&[one_by_one])).await
}

/// The first name that does not begin with this any more, of those that can be: no name has such a byte in it.
pub(super) fn end_of(prefix: &str) -> Vec<u8> {
    [prefix.as_bytes(), &[0xff]].concat()
}

impl Engine for TableEngine {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn place(&self) -> String {
        self.address.place()
    }

    fn acquire(
        self: Arc<Self>,
        request: AcquireRequest,
    ) -> BoxFuture<'static, Result<Granted, AcquireError>> {
        Box::pin(self.wait_for(request))
    }

    fn renew(self: Arc<Self>, grant: Grant) -> BoxFuture<'static, Result<Term, RenewError>> {
        Box::pin(async move {
            let (sent_at, ttl) = (self.now(), milliseconds(grant.ttl));
            let (name, id) = (grant.name.as_str().as_bytes(), grant.id.as_u128().to_be_bytes());
            let args = [Arg::Int(ttl), Arg::Bytes(name), Arg::Bytes(&id)];
            let (alone, _) = self.link.run(&self.texts.renew, &args).await.map_err(|fault| fault.error)?;
            if alone.rows == 1 {
                return Ok(term(sent_at, grant.ttl));
            }
            let renewed = self.change(name, |book, _| {
                let expires = book.now + ttl;
                let holder = book.holder(grant.id).ok_or(LostReason::Forgotten)?;
                if holder.broken {
                    return Err(LostReason::Broken);
                }
                holder.expires = expires;
                Ok(())
            });
            match renewed.await.map_err(|fault| fault.error)? {
                Ok(()) => Ok(term(sent_at, grant.ttl)),
                Err(reason) => Err(RenewError::Lost(reason)),
            }
        })
    }

    fn release(self: Arc<Self>, grant: Grant) -> BoxFuture<'static, Result<(), ReleaseError>> {
        Box::pin(async move {
            let freed = self.let_go(&grant.name, grant.id).await?;
            if self.doubtful().remove(&grant.id) {
                let (engine, name, ttl) = (self.clone(), grant.name.clone(), grant.ttl.get());
                let again = async move { engine.go_on_undoing(&name, grant.id, ttl, true, true).await };
                self.undoing.spawn_on(again, &self.context.runtime);
            }
            if freed { Ok(()) } else { Err(ReleaseError::NotHeld(LostReason::Forgotten)) }
        })
    }

    fn set_value(self: Arc<Self>, grant: Grant, bytes: Bytes) -> BoxFuture<'static, Result<(), ValueError>> {
        Box::pin(async move {
            let written = self.change(grant.name.as_str().as_bytes(), |book, _| {
                let held = book.holder(grant.id).is_some();
                if held {
                    (book.value, book.in_doubt) = ((!bytes.is_empty()).then(|| bytes.to_vec()), false);
                }
                held
            });
            if written.await.map_err(|fault| fault.error)? {
                Ok(())
            } else {
                Err(Lost { name: grant.name, reason: LostReason::Forgotten }.into())
            }
        })
    }

    fn remember(
        self: Arc<Self>,
        grant: Grant,
        start: Start,
    ) -> BoxFuture<'static, Result<Remembered, RememberError>> {
        Box::pin(async move {
            // By which it is known if it is sent again.
            let id = GrantId::random().as_u128().to_be_bytes().to_vec();
            let noted = self.change(grant.name.as_str().as_bytes(), |book, _| {
                book.holder(grant.id)?;
                let at = book.now - whole_ms(start.ago);
                match &book.start {
                    Some((_, noted)) if *noted == id => Some(Remembered::Recorded),
                    Some((last, _)) if *last > at || book.now - last < whole_ms(start.window) => {
                        let ago = Duration::from_millis(u64::try_from(book.now - last).unwrap_or_default());
                        Some(Remembered::Already { ago })
                    }
                    _ => {
                        book.start = Some((at, id.clone()));
                        Some(Remembered::Recorded)
                    }
                }
            });
            noted
                .await
                .map_err(|fault| fault.error)?
                .ok_or_else(|| Lost { name: grant.name, reason: LostReason::Forgotten }.into())
        })
    }

    fn recall(
        self: Arc<Self>,
        name: LockName,
        window: Duration,
    ) -> BoxFuture<'static, Result<Option<Duration>, InspectError>> {
        Box::pin(async move {
            let args = [Arg::Bytes(name.as_str().as_bytes())];
            let read = |row: &Row| Ok(row.maybe_int(0)?.zip(Some(row.int(1)?)).map(|(at, now)| now - at));
            let ago = self.link.rows(&self.texts.started, &args, read).await?;
            let ago = ago.into_iter().flatten().next();
            let ago = ago.map(|ms| Duration::from_millis(u64::try_from(ms).unwrap_or_default()));
            Ok(ago.filter(|ago| *ago < window))
        })
    }

    fn inspect(self: Arc<Self>, name: LockName) -> BoxFuture<'static, Result<LockInfo, InspectError>> {
        Box::pin(async move { Ok(self.inspect_lock(name).await?) })
    }

    fn list(self: Arc<Self>, prefix: String) -> BoxFuture<'static, Result<Vec<LockInfo>, InspectError>> {
        Box::pin(async move {
            let end = end_of(&prefix);
            let args = [Arg::Bytes(prefix.as_bytes()), Arg::Bytes(&end)];
            let names = self.link.rows(&self.texts.names, &args, |row| row.bytes(0)).await?;
            let names: Vec<_> = names
                .into_iter()
                .filter_map(|name| LockName::parse(String::from_utf8(name).ok()?).ok())
                .collect();
            let mut locks = Vec::new();
            for some in names.chunks(TOGETHER) {
                for looked in join_all(some.iter().map(|name| self.inspect_lock(name.clone()))).await {
                    locks.push(looked?);
                }
            }
            // Some may be free by now.
            locks.retain(|lock| !lock.holders.is_empty() || !lock.waiters.is_empty());
            Ok(locks)
        })
    }

    fn break_lock(
        self: Arc<Self>,
        name: LockName,
        how: Break,
    ) -> BoxFuture<'static, Result<Vec<Member>, BreakError>> {
        Box::pin(async move {
            let mut before = Vec::new();
            let broken = self.change(name.as_str().as_bytes(), |book, unanswered| {
                let mut holders: Vec<_> = book.holders.iter().map(Holder::member).collect();
                // Those who were broken by the first such request, the answer to which was lost.
                if unanswered && holders.is_empty() {
                    holders.clone_from(&before);
                }
                before.clone_from(&holders);
                match how {
                    Break::Ask => book.holders.iter_mut().for_each(|holder| holder.broken = true),
                    Break::Force => book.free(),
                }
                holders
            });
            let holders = broken.await?;
            if holders.is_empty() { Err(BreakError::NotHeld { name }) } else { Ok(holders) }
        })
    }

    fn close(self: Arc<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            self.ear.close();
            self.closing.cancel();
            self.undoing.close();
            let give_up = self.now() + self.link.limit();
            tokio::select! {
                () = self.undoing.wait() => {}
                () = self.context.clock.sleep_until(give_up) => {}
            }
            self.link.close().await;
        })
    }
}

/// A change of what is written down of a lock.
struct Change<'a, F> {
    engine: &'a TableEngine,
    name: &'a [u8],
    /// Who asks, if it is one who may stand in the queue.
    asks: Option<GrantId>,
    how: F,
}

impl<T: Send, F: FnMut(&mut Book, bool) -> T + Send> Work for Change<'_, F> {
    type Answer = T;

    async fn run(&mut self, connection: &mut Connection, unanswered: bool) -> Result<T, Error> {
        let Self { engine, name, how, .. } = self;
        let mut read = engine.read(connection, name, true).await?;
        if read.is_none() {
            // Outside of the transaction: whoever waits for the row must not wait for this one's end.
            connection.plain("ROLLBACK").await?;
            connection.run(&engine.texts.make, &[Arg::Bytes(name)]).await?;
            read = engine.read(connection, name, true).await?;
        }
        let (state, was) = read.ok_or(Error::RowNotFound)?;
        let mut book = was.clone();
        book.expire(self.asks);
        let answer = how(&mut book, unanswered);
        let called = book.call();
        if book == was {
            connection.plain("ROLLBACK").await?;
            return Ok(answer);
        }
        connection.batch(engine.texts.write(name, state, &was, &book, &called)).await?;
        #[cfg(feature = "mysql")]
        if engine.address.brand == Brand::MySql && !called.is_empty() {
            // It is done, whoever hears of it: those who wait also look by themselves.
            if let Err(error) = super::ear::wake(connection, &engine.texts, &called).await {
                tracing::debug!(%error, "those whose turn it is were not told");
            }
        }
        Ok(answer)
    }
}

/// A look at what is written down of a lock.
struct Look<'a> {
    engine: &'a TableEngine,
    name: &'a [u8],
}

impl Work for Look<'_> {
    type Answer = Option<(State, Book)>;

    async fn run(&mut self, connection: &mut Connection, _: bool) -> Result<Self::Answer, Error> {
        self.engine.read(connection, self.name, false).await
    }
}

pub(super) fn damaged(column: &str) -> Error {
    Error::Decode(format!("the column `{column}` has something in it that was never written there").into())
}

pub(super) fn id(row: &Row, column: usize) -> Result<u128, Error> {
    let bytes = <[u8; 16]>::try_from(row.bytes(column)?).map_err(|_| damaged("holder"))?;
    Ok(u128::from_be_bytes(bytes))
}
