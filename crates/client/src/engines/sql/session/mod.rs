//! The recipes `row`, `advisory` and `named`: a lock that the database itself keeps for as long as a connection lives.
//!
//! Each grant and each waiter has a separate connection. The database ends a connection that is silent for a TTL, and the holder sends a
//! request every third of it. So an idle holder is not dropped, and a dead host does not hold the lock for hours. A holder without an
//! answer knows when its lease ends.
//!
//! A token is counted after the lock is held, in a separate row that is committed apart from it. The row also names the holder, for
//! observers, and has the last start of a job (`start`).

mod acquire;
mod look;
mod start;
mod texts;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::Error;
use tenure_table::{FencingToken, GrantId, LockName, Mode, ModeSet};
use tokio::sync::Mutex as AsyncMutex;

pub(super) use self::texts::tables;
use self::texts::{Kind, Texts};

use super::address::Address;
use super::fault::{Fault, What};
use super::link::{Lent, Link};
use super::tables::ensure_tables;
use super::{Recipe, pooler};
use crate::capabilities::{Capabilities, Expiry, Reach, Waking};
use crate::clock::BootTime;
use crate::engine::{AcquireRequest, Engine, EngineContext, Grant, Granted, Remembered, Start};
use crate::engines::details::ProcessInfo;
use crate::error::{AcquireError, InspectError, LostReason, ReleaseError, RememberError, RenewError};
use crate::info::LockInfo;
use crate::lease::{Term, Ttl};

/// The resolution of the databases' timers.
const MARGIN: Duration = Duration::from_millis(10);

#[derive(Debug)]
pub(super) struct SessionEngine {
    address: Address,
    texts: Texts,
    /// The connections of holders and waiters.
    locks: Arc<Link>,
    /// The connections for short requests: a new holder must not wait behind the waiters for its lock.
    short: Arc<Link>,
    /// Statements are stopped one after the other, so that many stops need no more connections.
    stops: Arc<AsyncMutex<()>>,
    held: Mutex<HashMap<GrantId, Arc<Held>>>,
    process: ProcessInfo,
    capabilities: Capabilities,
    context: EngineContext,
}

/// A grant.
#[derive(Debug)]
struct Held {
    token: FencingToken,
    /// The number of the session that holds.
    session: i64,
    /// The connection that holds, until the release or until it breaks.
    connection: AsyncMutex<Option<Lent>>,
}

impl SessionEngine {
    pub(super) async fn open(address: Address, context: EngineContext) -> Result<Arc<dyn Engine>, Fault> {
        // If a token is counted on another connection than the holder's, several connections can do it.
        let short =
            if address.recipe == Recipe::Row { 1 + address.connections.saturating_sub(16) / 4 } else { 1 };
        // A connection that holds must outlive the runtime of the caller.
        let locks = Link::new(&address, address.connections - short, &context).on_own_runtime();
        let short = Link::new(&address, short, &context).that_overflows();
        let (locks, short) = (Arc::new(locks), Arc::new(short));
        pooler::refuse(&locks).await?;
        let make = tables(address.dialect, &address.table);
        ensure_tables(&short, &address.table, &texts::COLUMNS, &make).await?;
        let asked =
            short.rows(&texts::place(&address).into(), &[], |row| Ok((row.text(0)?, row.text(1)?))).await?;
        let (place, version) = asked.into_iter().next().ok_or_else(|| short.fault(Error::RowNotFound))?;
        let is_mariadb = version.contains("MariaDB");
        if is_mariadb && number(&version) < (10, 5) {
            return Err(
                short.refused(&format!("MariaDB {version} is too old for this recipe: 10.5 is needed"))
            );
        }
        let texts = Texts::new(&address, place, is_mariadb);
        let modes: &[Mode] = if texts.kind == Kind::Named { &[Mode::Ex] } else { &[Mode::Pr, Mode::Ex] };
        if texts.kind != Kind::Named {
            // Rows that remain have no effect, so the sweep can be left to a user with the permission.
            if let Err(fault) = short.run(&texts.sweep, &[]).await {
                tracing::debug!(error = %fault.error, "the rows of readers that died were not swept up");
            }
        }
        let capabilities = Capabilities {
            modes: ModeSet::of(modes),
            remembers: true,
            fencing: true,
            expiry: Expiry::Connection,
            waking: Waking::One,
            reach: Reach::Network,
            ..Capabilities::minimal(address.dialect.engine(), address.recipe.name(address.dialect))
        };
        Ok(Arc::new(Self {
            address,
            texts,
            locks,
            short,
            stops: Arc::default(),
            held: Mutex::default(),
            process: ProcessInfo::new(),
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

    /// Sends a request on the connection of a grant, so that the database does not end it.
    async fn speak(self: Arc<Self>, grant: Grant) -> Result<Term, RenewError> {
        let lost = || RenewError::Lost(LostReason::Disconnected);
        let held = self.held().get(&grant.id).cloned().ok_or_else(lost)?;
        let (clock, at, ttl) = (self.context.clock.clone(), self.locks.clone(), grant.ttl.get());
        // A separate task, which continues after the time limit: the next renewal finds its result.
        let speaking = self.context.runtime.spawn(async move {
            let mut held = held.connection.lock().await;
            let lent = held.as_mut()?;
            let sent_at = clock.now();
            // After a TTL, the database has ended the session, even if no error arrives.
            match tokio::time::timeout(ttl, lent.connection.ping()).await {
                Ok(Ok(())) => return Some(sent_at),
                Ok(Err(error)) => tracing::debug!(%error, "the connection of a lock is gone"),
                Err(_) => tracing::debug!("the connection of a lock was silent for its ttl"),
            }
            *held = None;
            None
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
        let not_held = Err(ReleaseError::NotHeld(LostReason::Disconnected));
        let Some(held) = self.held().remove(&grant.id) else { return not_held };
        let sql = self.texts.unlock(&grant.name, grant.mode, held.session);
        let freeing = async {
            let mut held = held.connection.lock().await;
            let Some(mut lent) = held.take() else { return Ok(false) };
            // Whatever the outcome, either the connection or the lock is gone.
            let answers = match lent.connection.batch(sql).await {
                Ok(answers) => answers,
                // The database had ended the session before the release.
                Err(error) if self.locks.says_ended(&error) => return Ok(false),
                Err(error) => return Err(self.locks.fault(error)),
            };
            self.locks.put_back(lent);
            let said = answers.last().and_then(|rows| rows.first());
            said.map_or(Ok(true), |row| Ok(row.int(0).map_err(|error| self.locks.fault(error))? > 0))
        };
        match self.locks.within(self.locks.limit(), What::NoAnswer, freeing).await {
            Ok(true) => Ok(()),
            Ok(false) => not_held,
            Err(fault) => Err(fault.into()),
        }
    }
}

/// Returns the first two numbers of a version.
fn number(version: &str) -> (u32, u32) {
    let mut numbers = version.split(['.', '-']).map_while(|number| number.parse().ok());
    (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default())
}

/// Returns the term of a lease, by an answer to a request of this instant.
fn term(sent_at: BootTime, ttl: Ttl) -> Term {
    Term::Lease { sent_at, ttl: ttl.get(), margin: MARGIN }
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
        Box::pin(self.wait_for(request))
    }

    fn renew(self: Arc<Self>, grant: Grant) -> BoxFuture<'static, Result<Term, RenewError>> {
        Box::pin(self.speak(grant))
    }

    fn release(self: Arc<Self>, grant: Grant) -> BoxFuture<'static, Result<(), ReleaseError>> {
        Box::pin(self.let_go(grant))
    }

    fn remember(
        self: Arc<Self>,
        grant: Grant,
        start: Start,
    ) -> BoxFuture<'static, Result<Remembered, RememberError>> {
        Box::pin(async move { self.record_start(&grant, start).await })
    }

    fn recall(
        self: Arc<Self>,
        name: LockName,
        window: Duration,
    ) -> BoxFuture<'static, Result<Option<Duration>, InspectError>> {
        Box::pin(async move { Ok(self.started_ago(&name, window).await?) })
    }

    fn inspect(self: Arc<Self>, name: LockName) -> BoxFuture<'static, Result<LockInfo, InspectError>> {
        Box::pin(async move { Ok(self.look(name).await?) })
    }

    fn list(self: Arc<Self>, prefix: String) -> BoxFuture<'static, Result<Vec<LockInfo>, InspectError>> {
        Box::pin(async move { Ok(self.look_at_all(&prefix).await?) })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_starts_with_two_numbers() {
        assert_eq!(number("10.11.19-MariaDB-deb12u1-log"), (10, 11));
        assert_eq!(number("10.4-MariaDB"), (10, 4));
        assert!(number("11.8.2-MariaDB") > (10, 5));
    }
}
