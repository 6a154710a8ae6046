//! The recipes `row`, `advisory` and `named`: a lock that the database itself keeps, for as long as a connection lives.
//!
//! Each grant has a connection of its own, and so has each who waits. The database is told to end a connection that is silent for a ttl,
//! and the holder speaks every third of it: so neither is a quiet holder dropped, nor does a dead host hold for hours, and a holder that
//! is not heard knows when to stop believing.
//!
//! A token is counted after the lock is held, in a row of its own that is committed apart from it. Beside it stands who holds, for those who
//! look; nothing is decided by that.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use sha2::{Digest, Sha256};
use sqlx::Error;
use tokio::sync::Mutex as AsyncMutex;

use super::address::Address;
use super::connection::{Connection, Row};
use super::fault::{self, Fault, What};
use super::link::{Lent, Link};
use super::{Brand, Recipe, table};
use crate::capabilities::{Capabilities, Expiry, Reach, Waking};
use crate::clock::BootTime;
use crate::engine::{AcquireRequest, Engine, EngineContext, Grant, Granted, WaitUntil};
use crate::engines::details::{self, Ourselves};
use crate::error::{AcquireError, EngineError, InspectError, LostReason, ReleaseError, RenewError};
use crate::ids::{GrantId, OwnerId};
use crate::info::{LockInfo, Member};
use crate::lease::{Term, Ttl};
use crate::mode::{Mode, ModeSet};
use crate::name::LockName;
use crate::random;
use crate::token::FencingToken;

/// How long one statement waits for a lock. Then it is asked again: so it is noticed if the database is gone, and one who has gone away
/// does not stand in the queue for longer.
const SLICE: Duration = Duration::from_secs(5);

/// PostgreSQL takes 0 for no limit at all.
const SHORTEST_SLICE: Duration = Duration::from_millis(1);

/// How long to wait before asking again one who did not answer.
const SILENT_PAUSE: Duration = Duration::from_millis(100);

/// The databases' timers are coarse.
const MARGIN: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(super) struct SessionEngine {
    address: Address,
    kind: Kind,
    /// The connections that hold or wait.
    locks: Arc<Link>,
    /// For all that is short.
    short: Arc<Link>,
    held: Mutex<HashMap<GrantId, Arc<Held>>>,
    ourselves: Ourselves,
    capabilities: Capabilities,
    context: EngineContext,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Advisory,
    Named,
    RowOfPostgres,
    RowOfMySql { is_mariadb: bool },
}

/// A grant.
#[derive(Debug)]
struct Held {
    token: FencingToken,
    /// The connection that holds it, until it is given back or broken.
    connection: AsyncMutex<Option<Lent>>,
}

/// What a statement that asks for a lock says.
enum Said {
    /// It is held, by this session: its number, and when it or its transaction began.
    Got {
        session: i64,
        born: i64,
    },
    Busy,
    /// The row of the lock is not there.
    NoRow,
}

impl SessionEngine {
    /// On the client's own thread, as all that follows.
    pub(super) async fn open(
        address: Address,
        locks: Arc<Link>,
        short: Arc<Link>,
        context: EngineContext,
    ) -> Result<Arc<dyn Engine>, Fault> {
        let closed = locks.refused("the client was closed");
        let own = context.runtime.clone();
        own.spawn(Self::open_here(address, locks, short, context)).await.unwrap_or(Err(closed))
    }

    async fn open_here(
        address: Address,
        locks: Arc<Link>,
        short: Arc<Link>,
        context: EngineContext,
    ) -> Result<Arc<dyn Engine>, Fault> {
        let kind = match (address.recipe, address.brand) {
            (Recipe::Row, Brand::Postgres) => Kind::RowOfPostgres,
            (Recipe::Row, Brand::MySql) => {
                let version = short.rows(&"SELECT VERSION()".into(), &[], |row| row.text(0)).await?;
                let is_mariadb = version.first().is_some_and(|version| version.contains("MariaDB"));
                Kind::RowOfMySql { is_mariadb }
            }
            (_, Brand::Postgres) => Kind::Advisory,
            (_, Brand::MySql) => Kind::Named,
        };
        let (names, statements) = tables(address.brand, &address.table);
        table::ensure_tables(&short, &names, &statements).await?;
        if address.brand == Brand::Postgres {
            refuse_a_pooler(&locks, &short).await?;
        }
        let modes: &[Mode] = if kind == Kind::Named { &[Mode::Ex] } else { &[Mode::Pr, Mode::Ex] };
        let capabilities = Capabilities {
            modes: ModeSet::of(modes),
            fencing: true,
            expiry: Expiry::Connection,
            waking: Waking::One,
            reach: Reach::Network,
            ..Capabilities::minimal(address.brand.engine(), address.recipe.name(address.brand))
        };
        Ok(Arc::new(Self {
            address,
            kind,
            locks,
            short,
            held: Mutex::default(),
            ourselves: Ourselves::new(),
            capabilities,
            context,
        }))
    }

    fn now(&self) -> BootTime {
        self.context.clock.now()
    }

    fn held(&self) -> MutexGuard<'_, HashMap<GrantId, Arc<Held>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the database calls a lock: a number, or a text, that is made of all of its name.
    fn key(&self, name: &LockName) -> String {
        // Named locks are one server's, and not one database's.
        let database: &str = if self.kind == Kind::Named { &self.address.authority.path } else { "" };
        let mut hash = Sha256::new();
        for part in [database, &self.address.table, name.as_str()] {
            hash.update(part.as_bytes());
            hash.update([0]);
        }
        let digest = hash.finalize();
        if self.kind == Kind::Named {
            return format!("tenure:{}", super::hex(&digest[..28]));
        }
        let (first, _) = digest.as_slice().split_first_chunk::<8>().expect("a hash is long enough");
        i64::from_be_bytes(*first).to_string()
    }

    /// On the client's own thread: the connection must outlive the runtime of whoever asks.
    async fn wait_for(self: Arc<Self>, request: AcquireRequest) -> Result<Granted, AcquireError> {
        let mut silent_since: Option<BootTime> = None;
        let same = self.held().get(&request.grant).cloned();
        if let Some(held) = same {
            // The answer to the first such request was lost.
            let grant = request.granted(Some(held.token));
            return match self.clone().speak(grant).await {
                Ok(term) => Ok(Granted::new(Some(held.token), term)),
                Err(RenewError::Engine(error)) => Err(error.into()),
                Err(RenewError::Lost(_)) => Err(request.not_got()),
            };
        }
        let mut kept: Option<Lent> = None;
        loop {
            let asked = tokio::select! {
                biased;
                () = request.cancel.cancelled() => return Err(request.not_got()),
                asked = self.ask(&request, &mut kept) => asked,
            };
            match asked {
                Ok(Some(granted)) => return Ok(granted),
                Ok(None) => {
                    silent_since = None;
                    if request.wait.is_over(self.now()) {
                        if let Some(lent) = kept {
                            self.locks.put_back(lent);
                        }
                        return Err(request.not_got());
                    }
                }
                Err(fault) => {
                    // Whatever it had begun ends with it.
                    kept = None;
                    // A wait outlasts a restart of the database, but not a longer silence. That begins here: before, the statement may
                    // have waited for its lock.
                    let since = *silent_since.get_or_insert_with(|| self.now());
                    let goes_on = fault.what.is_silence() && self.now().since(since) < self.locks.limit();
                    if !goes_on || request.wait.is_over(self.now()) {
                        return Err(fault.into());
                    }
                    let again = request.wait.or_at(self.now() + random::jittered(SILENT_PAUSE));
                    tokio::select! {
                        () = request.cancel.cancelled() => return Err(request.not_got()),
                        () = self.context.clock.sleep_until(again) => {}
                    }
                }
            }
        }
    }

    /// Asks for the lock once; nothing, if it is busy. Once more on a new connection, if an old one turns out to be closed: the database closes
    /// those that nobody uses.
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
        let now = self.now();
        let slice = match request.wait {
            WaitUntil::Try => SHORTEST_SLICE,
            WaitUntil::At { at, .. } => at.since(now).clamp(SHORTEST_SLICE, SLICE),
            WaitUntil::Forever => SLICE,
        };
        let mut sent_at = now;
        let said = self.locks.within(slice + self.locks.limit(), What::NoAnswer, async {
            self.lock(&mut lent.connection, request, slice).await.map_err(|error| self.locks.fault(error))
        });
        let (session, born) = match said.await? {
            Said::Got { session, born } => (session, born),
            Said::Busy => {
                *kept = Some(lent);
                return Ok(None);
            }
            Said::NoRow => {
                self.make_row(&mut lent.connection, request, slice).await?;
                *kept = Some(lent);
                return Box::pin(self.ask_once(request, kept, used)).await;
            }
        };
        if self.now().since(sent_at) > request.ttl.get() / 10 {
            // The lease counts from when the connection was last heard, and that was long ago.
            sent_at = self.now();
            let pinged = async { lent.connection.ping().await.map_err(|error| self.locks.fault(error)) };
            self.locks.within(self.locks.limit(), What::NoAnswer, pinged).await?;
        }
        let token = self.count(&mut lent, request, session, born).await?;
        let held = Held { token, connection: AsyncMutex::new(Some(lent)) };
        self.held().insert(request.grant, Arc::new(held));
        Ok(Some(Granted::new(Some(token), term(sent_at, request.ttl))))
    }

    /// A connection for a request; nothing, if there is none in the time that it has.
    async fn connection(&self, request: &AcquireRequest) -> Result<Option<Lent>, Fault> {
        if matches!(request.wait, WaitUntil::Try) && !self.locks.has_room() {
            return Err(self
                .locks
                .refused("all connections that locks may take are in use: raise `connections=` in the URL"));
        }
        let taking = self.locks.take_when_free();
        match request.wait {
            WaitUntil::At { at, .. } => tokio::select! {
                lent = taking => lent.map(Some),
                () = self.context.clock.sleep_until(at) => Ok(None),
            },
            WaitUntil::Try | WaitUntil::Forever => taking.await.map(Some),
        }
    }

    /// Makes the row of a lock, outside of any transaction. With MySQL, it may have to wait for one who was faster, and has it locked.
    async fn make_row(
        &self,
        connection: &mut Connection,
        request: &AcquireRequest,
        slice: Duration,
    ) -> Result<(), Fault> {
        let (brand, t) = (self.address.brand, &self.address.table);
        let name = brand.bytes(request.name.as_str().as_bytes());
        let sql = match brand {
            Brand::Postgres => {
                format!("INSERT INTO {t}_row (name) VALUES ({name}) ON CONFLICT (name) DO NOTHING")
            }
            Brand::MySql => format!("INSERT IGNORE INTO {t}_row (name) VALUES ({name})"),
        };
        let making = async { connection.plain(sql).await.map_err(|error| self.locks.fault(error)) };
        match self.locks.within(slice + self.locks.limit(), What::NoAnswer, making).await {
            // So it is there.
            Err(fault) if fault.what == What::LockTimeout => Ok(()),
            made => made,
        }
    }

    /// Has the connection lock it, which may take as long as the slice.
    async fn lock(
        &self,
        connection: &mut Connection,
        request: &AcquireRequest,
        slice: Duration,
    ) -> Result<Said, Error> {
        let (shared, t) = (request.mode == Mode::Pr, &self.address.table);
        let (wait_ms, ttl_ms) = (slice.as_millis(), request.ttl.get().as_millis());
        let (ttl_seconds, limit_ms) = (ttl_ms.div_ceil(1000), self.locks.limit().as_millis());
        let both_ms = wait_ms + limit_ms;
        let name = self.address.brand.bytes(request.name.as_str().as_bytes());
        let tries = matches!(request.wait, WaitUntil::Try);
        let sql = match self.kind {
            Kind::Advisory => {
                let (shared, key) = (if shared { "_shared" } else { "" }, self.key(&request.name));
                format!(
                    "SET statement_timeout = {both_ms}; SET lock_timeout = {wait_ms}; SET idle_session_timeout = {ttl_ms}; \
                     SELECT pg_advisory_lock{shared}({key}); SET lock_timeout = {limit_ms}; \
                     SELECT pg_backend_pid()::bigint, {BACKEND_START} FROM pg_stat_activity WHERE pid = pg_backend_pid()"
                )
            }
            Kind::RowOfPostgres => {
                let lock = if shared { "FOR SHARE" } else { "FOR UPDATE" };
                format!(
                    "SET statement_timeout = {both_ms}; SET lock_timeout = {wait_ms}; SET idle_in_transaction_session_timeout = {ttl_ms}; BEGIN; \
                     SELECT 1 FROM {t}_row WHERE name = {name} {lock}; \
                     SELECT pg_backend_pid()::bigint, {BACKEND_START} FROM pg_stat_activity WHERE pid = pg_backend_pid()"
                )
            }
            Kind::Named => {
                let (key, wait) = (self.key(&request.name), slice.as_secs_f64());
                let wait = if tries { 0.0 } else { wait };
                format!(
                    "SET SESSION wait_timeout = {ttl_seconds}; SELECT CAST(GET_LOCK('{key}', {wait:.3}) AS SIGNED); \
                     SELECT CAST(CONNECTION_ID() AS SIGNED), 0"
                )
            }
            Kind::RowOfMySql { is_mariadb } => {
                let lock = match (shared, is_mariadb) {
                    (false, _) => "FOR UPDATE",
                    (true, true) => "LOCK IN SHARE MODE",
                    (true, false) => "FOR SHARE",
                };
                let nowait = if tries { " NOWAIT" } else { "" };
                let wait_seconds = wait_ms.div_ceil(1000);
                let idle = if is_mariadb {
                    format!("SET SESSION idle_transaction_timeout = {ttl_seconds}; ")
                } else {
                    String::new()
                };
                format!(
                    "SET SESSION wait_timeout = {ttl_seconds}; SET SESSION innodb_lock_wait_timeout = {wait_seconds}; {idle}BEGIN; \
                     SELECT 1 FROM {t}_row WHERE name = {name} {lock}{nowait}; \
                     SELECT CAST(CONNECTION_ID() AS SIGNED), 0"
                )
            }
        };
        let answers = match connection.batch(sql).await {
            Ok(answers) => answers,
            Err(error) => {
                if self.locks.what(&error) != What::LockTimeout {
                    return Err(error);
                }
                // In the recipe `row`, a transaction has begun.
                if matches!(self.kind, Kind::RowOfPostgres | Kind::RowOfMySql { .. }) {
                    connection.plain("ROLLBACK").await?;
                }
                return Ok(Said::Busy);
            }
        };
        let lock = answers.iter().rev().nth(if self.kind == Kind::Advisory { 2 } else { 1 });
        let (Some(lock), Some(session)) = (lock, answers.last()) else { return Err(Error::RowNotFound) };
        let session = session.first().ok_or(Error::RowNotFound)?;
        let (number, born) = (session.int(0)?, session.int(1)?);
        match self.kind {
            Kind::Named => match lock.first().ok_or(Error::RowNotFound)?.maybe_int(0)? {
                Some(1) => {}
                Some(_) => return Ok(Said::Busy),
                // It was stopped, or is out of memory.
                None => return Err(Error::RowNotFound),
            },
            Kind::RowOfPostgres | Kind::RowOfMySql { .. } if lock.is_empty() => {
                connection.plain("ROLLBACK").await?;
                return Ok(Said::NoRow);
            }
            _ => {}
        }
        Ok(Said::Got { session: number, born })
    }

    /// Raises the counter of a lock that is held, and writes down who holds it.
    async fn count(
        &self,
        lent: &mut Lent,
        request: &AcquireRequest,
        session: i64,
        born: i64,
    ) -> Result<FencingToken, Fault> {
        let (brand, t) = (self.address.brand, &self.address.table);
        let name = brand.bytes(request.name.as_str().as_bytes());
        let details = self.ourselves.details(request, self.context.clock.wall(), None);
        let (grant, owner) = (brand.id(request.grant.as_u128()), brand.id(request.owner.as_u128()));
        let (mode, details, key) = (request.mode, brand.text(&details), self.key(&request.name));
        // Those who held it before and did not say goodbye.
        let gone = if mode == Mode::Ex {
            format!("DELETE FROM {t}_session WHERE name = {name}; ")
        } else {
            String::new()
        };
        // Larger than all before it, also if they were forgotten: never behind the date.
        let now = super::texts::now(brand);
        let raise = match brand {
            Brand::Postgres => format!(
                "INSERT INTO {t}_token (name, lock_key, token) VALUES ({name}, '{key}', {now} * 1000) \
                 ON CONFLICT (lock_key) DO UPDATE SET token = GREATEST({t}_token.token + 1, EXCLUDED.token); "
            ),
            Brand::MySql => format!(
                "INSERT INTO {t}_token (name, lock_key, token) VALUES ({name}, '{key}', {now} * 1000) \
                 ON DUPLICATE KEY UPDATE token = GREATEST(token + 1, VALUES(token)); "
            ),
        };
        // If the answer to the first such request was lost.
        let again = match brand {
            Brand::Postgres => "ON CONFLICT (name, holder) DO UPDATE SET token = EXCLUDED.token",
            Brand::MySql => "ON DUPLICATE KEY UPDATE token = VALUES(token)",
        };
        let sql = format!(
            "BEGIN; {raise}{gone}INSERT INTO {t}_session (name, holder, owner, mode, token, details, session, born) \
             SELECT {name}, {grant}, {owner}, '{mode}', token, {details}, {session}, {born} FROM {t}_token \
             WHERE lock_key = '{key}' {again}; \
             SELECT token, name FROM {t}_token WHERE lock_key = '{key}'; COMMIT"
        );
        let rows = match self.kind {
            Kind::Advisory | Kind::Named => {
                let counting =
                    async { lent.connection.batch(sql).await.map_err(|error| self.locks.fault(error)) };
                self.locks.within(self.locks.limit(), What::NoAnswer, counting).await?
            }
            // That connection's transaction stays open.
            Kind::RowOfPostgres | Kind::RowOfMySql { .. } => self.short.with(Batch(sql)).await?,
        };
        let row = rows.iter().flatten().next().ok_or_else(|| self.locks.refused("it has counted nothing"))?;
        let read = |row: &Row| Ok::<_, Error>((row.int(0)?, row.bytes(1)?));
        let (token, whose) = read(row).map_err(|error| self.locks.fault(error))?;
        if whose != request.name.as_str().as_bytes() {
            let message = format!(
                "the lock `{}` has the same key as `{}`: choose another name for one of them",
                request.name,
                String::from_utf8_lossy(&whose)
            );
            return Err(self.locks.refused(&message));
        }
        Ok(FencingToken::new(token.unsigned_abs()))
    }

    /// Speaks on the connection of a grant, so that the database goes on to keep it.
    async fn speak(self: Arc<Self>, grant: Grant) -> Result<Term, RenewError> {
        let lost = || RenewError::Lost(LostReason::Disconnected);
        let held = self.held().get(&grant.id).cloned().ok_or_else(lost)?;
        let (clock, at) = (self.context.clock.clone(), self.locks.clone());
        // By a task of its own, which goes on if there is no answer in time: the next one finds what became of it.
        let speaking = self.context.runtime.spawn(async move {
            let mut held = held.connection.lock().await;
            let lent = held.as_mut()?;
            let sent_at = clock.now();
            if let Err(error) = lent.connection.ping().await {
                tracing::debug!(%error, "the connection of a lock is gone");
                *held = None;
                return None;
            }
            Some(sent_at)
        });
        let spoken = async { Ok(speaking.await.unwrap_or_default()) };
        match at.within(at.limit(), What::NoAnswer, spoken).await {
            Ok(Some(sent_at)) => Ok(term(sent_at, grant.ttl)),
            Ok(None) => {
                self.held().remove(&grant.id);
                Err(lost())
            }
            Err(fault) => Err(RenewError::Engine(fault.error)),
        }
    }

    async fn let_go(self: Arc<Self>, grant: Grant) -> Result<(), ReleaseError> {
        let Some(held) = self.held().remove(&grant.id) else {
            return Err(ReleaseError::NotHeld(LostReason::Disconnected));
        };
        let (brand, t) = (self.address.brand, &self.address.table);
        let (name, id) = (brand.bytes(grant.name.as_str().as_bytes()), brand.id(grant.id.as_u128()));
        let gone = format!("DELETE FROM {t}_session WHERE name = {name} AND holder = {id}");
        let shared = if grant.mode == Mode::Pr { "_shared" } else { "" };
        let sql = match self.kind {
            // Committed before: whoever gets the lock next deletes such rows, too, and must not wait for this one's end.
            Kind::Advisory => {
                let key = self.key(&grant.name);
                format!("BEGIN; {gone}; COMMIT; SELECT pg_advisory_unlock{shared}({key})")
            }
            Kind::Named => format!("{gone}; SELECT RELEASE_LOCK('{}')", self.key(&grant.name)),
            Kind::RowOfPostgres | Kind::RowOfMySql { .. } => format!("{gone}; COMMIT"),
        };
        let freeing = async {
            let mut held = held.connection.lock().await;
            let Some(mut lent) = held.take() else { return Ok(false) };
            // Whatever becomes of it, the connection is gone or the lock is.
            lent.connection.batch(sql).await.map_err(|error| self.locks.fault(error))?;
            self.locks.put_back(lent);
            Ok(true)
        };
        match self.locks.within(self.locks.limit(), What::NoAnswer, freeing).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(ReleaseError::NotHeld(LostReason::Disconnected)),
            Err(fault) => Err(fault.into()),
        }
    }

    /// Those who hold locks, or one lock, as far as their connections live.
    async fn holders(&self, which: &str) -> Result<Vec<(Vec<u8>, Member)>, Fault> {
        let t = &self.address.table;
        let alive = match self.address.brand {
            Brand::Postgres => {
                format!("pg_stat_activity a ON a.pid = s.session AND {BACKEND_START} = s.born")
            }
            Brand::MySql => "information_schema.processlist p ON p.id = s.session".to_owned(),
        };
        let sql = format!(
            "SELECT s.name, s.holder, s.owner, s.mode, s.token, s.details FROM {t}_session s JOIN {alive} \
             WHERE {which} ORDER BY s.name, s.token, s.holder"
        );
        let answers = self.short.with(Batch(sql)).await?;
        let read = |row: &Row| {
            let id = |column| table::id(row, column);
            let mode = row.text(3)?.parse().map_err(|_| table::damaged("mode"))?;
            let (grant, owner) = (GrantId::from_u128(id(1)?), OwnerId::from_u128(id(2)?));
            let mut member = details::member(grant, owner, mode, &row.text(5)?);
            member.token = Some(FencingToken::new(row.int(4)?.unsigned_abs()));
            Ok((row.bytes(0)?, member))
        };
        let members: Result<Vec<_>, Error> = answers.iter().flatten().map(read).collect();
        members.map_err(|error| self.short.fault(error))
    }

    async fn look(&self, name: LockName) -> Result<LockInfo, Fault> {
        let (brand, t) = (self.address.brand, &self.address.table);
        let bytes = brand.bytes(name.as_str().as_bytes());
        let holders = self.holders(&format!("s.name = {bytes}")).await?;
        let sql = format!("SELECT token FROM {t}_token WHERE name = {bytes}");
        let tokens = self.short.with(Batch(sql)).await?;
        let mut info = LockInfo::free(name);
        info.holders = holders.into_iter().map(|(_, member)| member).collect();
        if let Some(row) = tokens.iter().flatten().next() {
            let token = row.int(0).map_err(|error| self.short.fault(error))?;
            info.last_token = Some(FencingToken::new(token.unsigned_abs()));
        }
        Ok(info)
    }
}

/// When a backend of PostgreSQL began, by which it is told from another one with the same number.
const BACKEND_START: &str = "floor(extract(epoch FROM backend_start) * 1000000)::bigint";

/// Statements that are sent together.
struct Batch(String);

impl super::link::Work for Batch {
    type Answer = Vec<Vec<Row>>;

    async fn run(&mut self, connection: &mut Connection, _: bool) -> Result<Vec<Vec<Row>>, Error> {
        connection.batch(self.0.clone()).await
    }
}

/// What is believed of a connection that was heard after this instant.
fn term(sent_at: BootTime, ttl: Ttl) -> Term {
    Term::Lease { sent_at, ttl: ttl.get(), margin: MARGIN }
}

/// A proxy that gives each transaction another connection would let go of a lock that a session holds, and let a stranger have it.
async fn refuse_a_pooler(locks: &Link, short: &Link) -> Result<(), Fault> {
    let (mut one, mut other) = (locks.take().await?, short.take().await?);
    let mut numbers = Vec::new();
    for connection in [&mut one.connection, &mut other.connection] {
        let asked = async {
            // Not prepared: of two who prepare a statement in the same session, the second is refused before it can be asked.
            let answers = connection.batch("SELECT pg_backend_pid()::bigint".into()).await;
            let number =
                |answers: Vec<Vec<Row>>| answers.iter().flatten().next().ok_or(Error::RowNotFound)?.int(0);
            answers.and_then(number).map_err(|error| locks.fault(error))
        };
        numbers.push(locks.within(locks.limit(), What::NoAnswer, asked).await?);
    }
    if numbers[0] == numbers[1] {
        return Err(locks.refused(fault::POOLED));
    }
    locks.put_back(one);
    short.put_back(other);
    Ok(())
}

/// The tables of these recipes: their names, and the statements that make them.
pub(super) fn tables(brand: Brand, t: &str) -> ([String; 3], [String; 3]) {
    let (bytes, id, mode, key, text, end) = match brand {
        Brand::Postgres => ("bytea", "bytea", "text", "text", "text", ""),
        Brand::MySql => (
            "varbinary(512)",
            "binary(16)",
            "char(2) CHARACTER SET ascii",
            "varchar(64) CHARACTER SET ascii",
            "text CHARACTER SET utf8mb4",
            " ENGINE = InnoDB",
        ),
    };
    let names = ["token", "session", "row"].map(|end| format!("{t}_{end}"));
    let statements = [
        format!(
            "CREATE TABLE IF NOT EXISTS {t}_token (\n  lock_key {key} NOT NULL PRIMARY KEY,\n  \
             name {bytes} NOT NULL,\n  token bigint NOT NULL\n){end}"
        ),
        format!(
            "CREATE TABLE IF NOT EXISTS {t}_session (\n  name {bytes} NOT NULL,\n  holder {id} NOT NULL,\n  \
             owner {id} NOT NULL,\n  mode {mode} NOT NULL,\n  token bigint NOT NULL,\n  details {text} NOT NULL,\n  \
             session bigint NOT NULL,\n  born bigint NOT NULL,\n  PRIMARY KEY (name, holder)\n){end}"
        ),
        format!("CREATE TABLE IF NOT EXISTS {t}_row (\n  name {bytes} NOT NULL PRIMARY KEY\n){end}"),
    ];
    (names, statements)
}

/// Runs something on the client's own thread, and answers with what it brings.
async fn apart<T: Send + 'static, E: From<EngineError> + Send + 'static>(
    context: &EngineContext,
    work: impl Future<Output = Result<T, E>> + Send + 'static,
) -> Result<T, E> {
    context.runtime.spawn(work).await.unwrap_or_else(|_| Err(EngineError::Closed.into()))
}

impl Engine for SessionEngine {
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
        Box::pin(async move { apart(&self.context, self.clone().wait_for(request)).await })
    }

    fn renew(self: Arc<Self>, grant: Grant) -> BoxFuture<'static, Result<Term, RenewError>> {
        Box::pin(self.speak(grant))
    }

    fn release(self: Arc<Self>, grant: Grant) -> BoxFuture<'static, Result<(), ReleaseError>> {
        Box::pin(async move { apart(&self.context, self.clone().let_go(grant)).await })
    }

    fn inspect(self: Arc<Self>, name: LockName) -> BoxFuture<'static, Result<LockInfo, InspectError>> {
        Box::pin(async move {
            let looking = self.clone();
            apart(&self.context, async move { Ok(looking.look(name).await?) }).await
        })
    }

    fn list(self: Arc<Self>, prefix: String) -> BoxFuture<'static, Result<Vec<LockInfo>, InspectError>> {
        Box::pin(async move {
            let looking = self.clone();
            let holders = apart(&self.context, async move {
                let brand = looking.address.brand;
                let (from, to) = (brand.bytes(prefix.as_bytes()), brand.bytes(&table::end_of(&prefix)));
                let which = format!("s.name >= {from} AND s.name < {to}");
                Ok::<_, InspectError>(looking.holders(&which).await?)
            });
            let mut locks: Vec<LockInfo> = Vec::new();
            for (name, member) in holders.await? {
                let Some(name) = String::from_utf8(name).ok().and_then(|name| LockName::parse(name).ok())
                else {
                    continue;
                };
                if locks.last().is_none_or(|last| last.name != name) {
                    locks.push(LockInfo::free(name));
                }
                if let Some(lock) = locks.last_mut() {
                    lock.last_token = lock.last_token.max(member.token);
                    lock.holders.push(member);
                }
            }
            Ok(locks)
        })
    }

    fn close(self: Arc<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let held: Vec<_> = self.held().drain().map(|(_, held)| held).collect();
            for held in held {
                if let Ok(mut held) = held.connection.try_lock()
                    && let Some(lent) = held.take()
                {
                    lent.connection.close().await;
                }
            }
            self.locks.close().await;
            self.short.close().await;
        })
    }
}
