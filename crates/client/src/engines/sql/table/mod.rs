//! The recipe `table`: rows record the holders and the waiters, and a lease ends by the database's clock.
//!
//! Each lock has one row, which is never deleted. Its counter provides the tokens, and every change of the lock is made with that row
//! locked. The common case, a free lock without waiters, is one statement on that row.

mod acquire;
mod book;
mod change;
mod listen;
mod texts;

use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{BoxFuture, join_all};
use tenure_table::{FencingToken, GrantId, LockName, ModeSet, Value};
use tokio_util::sync::CancellationToken;

use self::book::{Book, Holder};
use self::change::{Change, Look};
use self::listen::Database;
use self::texts::Texts;
pub(super) use self::texts::tables;

use super::address::Address;
use super::connection::{Arg, Row};
use super::fault::Fault;
use super::link::Link;
use super::pooler;
use super::tables::{end_of, ensure_tables};
use super::whole_ms;
use crate::capabilities::{Breaking, Capabilities, Expiry, Reach, Waking};
use crate::clock::BootTime;
use crate::engine::{
    AcquireRequest, Break, Engine, EngineContext, Grant, Granted, Remembered, Start, Withdrawn,
};
use crate::engines::details::{self, ProcessInfo};
use crate::engines::notifications::NotificationListener;
use crate::error::{
    AcquireError, BreakError, EngineError, InspectError, Lost, LostReason, ReleaseError, RememberError,
    RenewError, ValueError,
};
use crate::info::{LockInfo, Member};
use crate::lease::{Term, Ttl};
use crate::random;

/// The resolution of the database's clock: one millisecond.
const MARGIN: Duration = Duration::from_millis(1);

/// The interval of the sweep for expired holders that no request removes, and how long they must have been expired.
const SWEEP_EVERY: Duration = Duration::from_mins(10);
const SWEEP_AFTER_MS: i64 = 60_000;

/// The number of locks that are read at the same time.
const TOGETHER: usize = 8;

#[derive(Debug)]
pub(super) struct TableEngine {
    address: Address,
    link: Arc<Link>,
    texts: Texts,
    listener: Arc<NotificationListener<Database>>,
    process: ProcessInfo,
    capabilities: Capabilities,
    context: EngineContext,
    closing: CancellationToken,
}

impl TableEngine {
    pub(super) async fn open(address: Address, context: EngineContext) -> Result<Arc<dyn Engine>, Fault> {
        let link = Arc::new(Link::new(&address, address.connections, &context).with_a_reserve());
        pooler::refuse(&link).await?;
        let texts = Texts::new(address.dialect, &address.table);
        let make = tables(address.dialect, &address.table);
        ensure_tables(&link, &address.table, &texts::COLUMNS, &make).await?;
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
            ..Capabilities::minimal(address.dialect.engine(), "table")
        };
        let engine = Arc::new(Self {
            listener: NotificationListener::new(Database::new(link.clone(), &address.table), context.clone()),
            address,
            link,
            texts,
            process: ProcessInfo::new(),
            capabilities,
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

    /// Reads the record of a lock, applies `change`, writes the record, and notifies the waiters whose turn it is.
    async fn change<T: Send>(
        &self,
        name: &[u8],
        change: impl FnMut(&mut Book, bool) -> T + Send,
    ) -> Result<T, Fault> {
        self.link.with(Change { engine: self, name, asks: None, how: change }).await
    }

    /// Reads the record of a lock, without locking it.
    async fn look(&self, name: &[u8]) -> Result<Option<Book>, Fault> {
        let read = self.link.with(Look { engine: self, name }).await?;
        Ok(read.map(|(_, mut book)| {
            book.expire(None);
            book
        }))
    }

    /// Frees what a grant holds, and removes it from the queue. Returns whether it held.
    async fn let_go(&self, name: &LockName, grant: GrantId) -> Result<bool, Fault> {
        let (bytes, id) = (name.as_str().as_bytes(), grant.as_u128().to_be_bytes());
        let mut repeated = false;
        // A lock with waiters is never in the simple state that this statement changes.
        if !self.listener.has_waiter(name) {
            let args = [Arg::Bytes(bytes), Arg::Bytes(&id)];
            let (alone, again) = self.link.run(&self.texts.give_back, &args).await?;
            if alone.rows == 1 {
                return Ok(true);
            }
            repeated = again;
        }
        // A repeated request that finds nothing was carried out the first time.
        let freed = self.change(bytes, |book, again| book.release(grant) || again).await?;
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

    /// Frees expired locks that no request asks for.
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

/// Sweeps at intervals, until the engine is closed or dropped.
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

/// Returns a TTL in the unit of the database.
fn milliseconds(ttl: Ttl) -> i64 {
    i64::try_from(ttl.get().as_millis()).expect("a ttl is at most a day")
}

/// Returns the term of a lease that was requested at this instant.
fn term(sent_at: BootTime, ttl: Ttl) -> Term {
    Term::Lease { sent_at, ttl: Duration::from_millis(milliseconds(ttl).unsigned_abs()), margin: MARGIN }
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
            if freed { Ok(()) } else { Err(ReleaseError::NotHeld(LostReason::Forgotten)) }
        })
    }

    fn withdraw(self: Arc<Self>, grant: Grant) -> BoxFuture<'static, Result<Withdrawn, EngineError>> {
        Box::pin(async move { self.withdraw_request(&grant).await.map_err(|fault| fault.error) })
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
            // Identifies this start if the request is sent again.
            let id = random::grant_id().as_u128().to_be_bytes().to_vec();
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
            // Some locks may have been released in the meantime.
            locks.retain(|lock| !lock.is_unused());
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
                // The first request broke these holders, and its answer was lost.
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
            self.listener.close();
            self.closing.cancel();
            self.link.close().await;
        })
    }
}
