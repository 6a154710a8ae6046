//! `redlock:`: one lock on several independent Redis servers, by the published algorithm.
//!
//! All instances get the same request for a key and value at once, with a time limit that is much shorter than the TTL. The lock is held if
//! more than half say yes, for `ttl - elapsed - drift`. Otherwise it is released on **all** instances, even without an answer, and
//! requested again after a random pause. Further rules:
//!
//! - **Late answers are handled.** A client with a majority does not wait for the other answers. A release follows an unanswered request on
//!   the same connection. If a yes arrives after a release that found no key, the key is released once more.
//! - **A fencing token is accepted by a majority** that still has the key, in a second round (`?fencing=true`). Every later majority shares
//!   an instance with it, and asks for a larger token.
//!
//! The assumptions about the servers' clocks and memories are in docs/engines/redlock.md.

mod acquire;
mod cleaner;
mod instances;
mod latecomers;
mod look;
mod round;
mod start;
mod tally;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tenure_table::{FencingToken, GrantId, LockName};
use tokio::sync::Mutex as AsyncMutex;

use self::instances::Instances;
use self::tally::{Tally, Vote};

use super::details::ProcessInfo;
use super::redis::address::{Address, Form};
use super::redis::connection::Connection;
use super::redis::fault::What;
use super::redis::link::{Answered, Link, Request};
use super::redis::scripts::{self, Call};
use super::redis::{key, milliseconds, term};
use crate::capabilities::{Breaking, Capabilities, Expiry, Reach, Waking};
use crate::engine::{AcquireRequest, Break, Engine, EngineContext, Grant, Granted, Remembered, Start};
use crate::error::{
    AcquireError, BreakError, ConnectError, EngineError, InspectError, LostReason, ReleaseError,
    RememberError, RenewError,
};
use crate::info::{LockInfo, Member};
use crate::lease::{Term, Ttl};
use crate::url::{EngineUrl, UrlError};

/// The engine `redlock:`.
#[derive(Debug)]
pub(crate) struct RedlockEngine {
    address: Address,
    instances: Instances,
    process: ProcessInfo,
    capabilities: Capabilities,
    context: EngineContext,
    held: Mutex<HashMap<GrantId, Arc<Attempt>>>,
}

/// One attempt to get a lock. A grant is an attempt that succeeded.
#[derive(Debug)]
struct Attempt {
    /// The value of the keys. Each attempt has another one, so that late requests of an earlier attempt cannot touch the keys of this one.
    value: GrantId,
    token: Option<FencingToken>,
    released: AtomicBool,
    /// Starts are recorded one after the other. Otherwise, each of two starts could find the other one on some instance, and neither would
    /// count.
    starting: AsyncMutex<()>,
    /// The request for the key on each instance.
    requests: Vec<KeyRequest>,
}

/// The request for a key on one instance.
#[derive(Debug)]
struct KeyRequest {
    /// The connection on which it was sent.
    connection: Connection,
    state: Mutex<RequestState>,
}

#[derive(Clone, Copy, Debug)]
struct RequestState {
    outcome: Outcome,
    /// Whether the release found no key on the instance.
    was_free: bool,
}

/// How the instance answered the request for a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Awaited,
    /// In time, or late with a no.
    Answered,
    LateYes,
    /// Not within the time limit: the instance may still carry out the request.
    Unanswered,
}

impl KeyRequest {
    fn state(&self) -> MutexGuard<'_, RequestState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const FORM: Form = Form {
    engine: "redlock",
    example: "redlock://user:password@host1:6379,host2:6379,host3:6379/0",
    options: &["fencing", "prefix", "timeout_ms", "ca", "cert", "key"],
    known: "there is `fencing=true`, `prefix`, `timeout_ms`, and for `redlocks:` `ca`, `cert` and `key`",
};

/// The default time limit of a request that has no TTL.
const DEFAULT_LIMIT: Duration = Duration::from_secs(1);

impl RedlockEngine {
    pub(crate) async fn open_url(
        url: &EngineUrl<'_>,
        context: EngineContext,
    ) -> Result<Arc<dyn Engine>, ConnectError> {
        let address = Address::parse(url, &FORM)?;
        check_hosts(&address)?;
        let links = address.clients()?.into_iter();
        let link = |(client, at)| Link::new("redlock", client, at, context.runtime.clone());
        let links = links.map(link).collect();
        let instances = Instances::new(links, context.clone());
        // A connection may take longer than a request: it includes the name lookup and the TLS handshake.
        instances.reach(address.limit_or_default()).await?;
        let capabilities = Capabilities {
            remembers: true,
            fencing: address.fencing,
            breaking: Breaking::Force,
            expiry: Expiry::Lease,
            waking: Waking::Poll,
            reach: Reach::Network,
            ..Capabilities::minimal("redlock", if address.fencing { "majority, fencing" } else { "majority" })
        };
        let process = ProcessInfo::new();
        Ok(Arc::new(Self { address, instances, process, capabilities, context, held: Mutex::default() }))
    }

    fn key(&self, name: &LockName) -> Result<String, EngineError> {
        key("redlock", &self.address.prefix, name)
    }

    fn held(&self) -> MutexGuard<'_, HashMap<GrantId, Arc<Attempt>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn attempt(&self, grant: GrantId) -> Option<Arc<Attempt>> {
        self.held().get(&grant).cloned()
    }

    /// Returns the time limit of a request: much less than the TTL, so that a silent instance costs little of it.
    fn limit(&self, ttl: Ttl) -> Duration {
        let usual = (ttl.get() / 10).min(DEFAULT_LIMIT);
        self.address.limit().map_or(usual, |limit| limit.min(ttl.get() / 4))
    }

    fn look_limit(&self) -> Duration {
        self.address.limit().unwrap_or(DEFAULT_LIMIT)
    }

    /// Renews the keys. If a majority says yes, the lease counts from before the requests.
    async fn renew_key(&self, key: &str, value: GrantId, ttl: Ttl) -> Result<Term, RenewError> {
        let (sent_at, limit) = (self.context.clock.now(), self.limit(ttl));
        let mut script = Call::new(&scripts::RENEW, key);
        script.arg(value.to_string()).arg(milliseconds(ttl));
        let script = Arc::new(script);
        let ask = |_, link: Arc<Link>| {
            let (connection, script) = (link.current_connection(), script.clone());
            async move {
                match link.ask(&connection, Request::Script(&script)).await {
                    Ok(Answered { answer: 1, .. }) => Ok(Vote::Yes(0)),
                    Ok(Answered { answer: 2, .. }) => Ok(Vote::Broken),
                    Ok(_) => Ok(Vote::No),
                    Err(fault) if fault.what == What::WrongType => Ok(Vote::No),
                    Err(fault) => Err(fault),
                }
            }
        };
        let (tally, late) = self.instances.ask_until(limit, Tally::settled, ask).await;
        // Late instances are renewed too: with more copies of the key, more instances may fail.
        self.instances.finish(late, drop);
        if tally.broken > 0 {
            return Err(RenewError::Lost(LostReason::Broken));
        }
        if tally.has_majority() {
            return Ok(term(sent_at, ttl));
        }
        if tally.is_hopeless() {
            return Err(RenewError::Lost(LostReason::Forgotten));
        }
        // The failed instances may still have the key.
        Err(tally.unreachable().into())
    }
}

/// Checks that the number of instances is odd, and that no host is named twice.
fn check_hosts(address: &Address) -> Result<(), UrlError> {
    let count = address.hosts().len();
    let wrong = |message: String| Err(UrlError::Location { url: address.place(), message });
    if count.is_multiple_of(2) {
        return wrong(format!(
            "{count} instances are an even number: only {} may fail, as with one instance less, and a split vote is more likely; use 3 or 5",
            (count - 1) / 2
        ));
    }
    let mut hosts = address.hosts().to_vec();
    hosts.sort();
    hosts.dedup();
    if hosts.len() < count {
        return wrong("an instance is named twice: each must be a server of its own".into());
    }
    Ok(())
}

impl Engine for RedlockEngine {
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
        Box::pin(self.acquire_lock(request))
    }

    fn renew(self: Arc<Self>, grant: Grant) -> BoxFuture<'static, Result<Term, RenewError>> {
        Box::pin(async move {
            let key = self.key(&grant.name)?;
            let attempt = self.attempt(grant.id).ok_or(RenewError::Lost(LostReason::Forgotten))?;
            self.renew_key(&key, attempt.value, grant.ttl).await
        })
    }

    fn release(self: Arc<Self>, grant: Grant) -> BoxFuture<'static, Result<(), ReleaseError>> {
        Box::pin(async move {
            let key = self.key(&grant.name)?;
            let attempt = self.attempt(grant.id).ok_or(ReleaseError::NotHeld(LostReason::Forgotten))?;
            attempt.released.store(true, Ordering::SeqCst);
            let tally = self.release_on_all(&attempt, &key, grant.ttl, Tally::settled).await;
            if tally.is_unreachable() {
                return Err(tally.unreachable().into());
            }
            self.held().remove(&grant.id);
            if tally.is_hopeless() { Err(ReleaseError::NotHeld(LostReason::Forgotten)) } else { Ok(()) }
        })
    }

    fn remember(
        self: Arc<Self>,
        grant: Grant,
        start: Start,
    ) -> BoxFuture<'static, Result<Remembered, RememberError>> {
        // A separate task: the next start of the grant waits for it, and must not wait for a caller that makes no progress.
        let runtime = self.context.runtime.clone();
        let recording = runtime.spawn(async move { self.record_start(&grant, start).await });
        Box::pin(async move { recording.await.unwrap_or_else(|_| Err(EngineError::Closed.into())) })
    }

    fn recall(
        self: Arc<Self>,
        name: LockName,
        window: Duration,
    ) -> BoxFuture<'static, Result<Option<Duration>, InspectError>> {
        Box::pin(async move { Ok(self.started_ago(&name, window).await?) })
    }

    fn inspect(self: Arc<Self>, name: LockName) -> BoxFuture<'static, Result<LockInfo, InspectError>> {
        Box::pin(async move { self.inspect_lock(name).await })
    }

    fn list(self: Arc<Self>, prefix: String) -> BoxFuture<'static, Result<Vec<LockInfo>, InspectError>> {
        Box::pin(async move { self.list_locks(&prefix).await })
    }

    fn break_lock(
        self: Arc<Self>,
        name: LockName,
        how: Break,
    ) -> BoxFuture<'static, Result<Vec<Member>, BreakError>> {
        Box::pin(async move { self.break_on_all(name, how).await })
    }

    fn close(self: Arc<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move { self.instances.close(self.look_limit()).await })
    }
}
