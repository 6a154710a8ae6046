//! `redlock:`, one lock on several Redis servers that know nothing of each other: the published algorithm.
//!
//! The same key and value on all of them at once, each with a time limit that is much smaller than the ttl. It is held if more than half
//! said yes, and for `ttl - elapsed - drift`. Else it is released on **all**, also where no answer came, and tried again
//! after a random while. What must hold beside that:
//!
//! - **An answer that comes late is followed up.** Whoever has a majority does not wait for the others. The release goes behind what was
//!   asked, where it can; where an instance says yes after all, and said at the release that it had nothing, it is released there once more.
//! - **A fencing token is agreed on by a majority** that still holds, in a second round (`?fencing=true`): every later majority has one of
//!   them in it, and asks for more.
//!
//! What it assumes of the servers' clocks and memories: docs/engines/redlock.md.

mod acquire;
mod cleaner;
mod instances;
mod latecomers;
mod look;
mod round;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tenure_table::{FencingToken, GrantId, LockName};

use self::instances::{Instances, Tally, Vote};

use super::details::Ourselves;
use super::redis::address::{Address, Form};
use super::redis::fault::What;
use super::redis::link::{Answered, Link, Request};
use super::redis::scripts::{self, Call};
use super::redis::way::Gather;
use super::redis::{key, milliseconds, term};
use crate::capabilities::{Breaking, Capabilities, Expiry, Reach, Waking};
use crate::engine::{AcquireRequest, Break, Engine, EngineContext, Grant, Granted};
use crate::error::{
    AcquireError, BreakError, ConnectError, EngineError, InspectError, LostReason, ReleaseError, RenewError,
};
use crate::info::{LockInfo, Member};
use crate::lease::{Term, Ttl};
use crate::url::{EngineUrl, UrlError};

/// The engine `redlock:`.
#[derive(Debug)]
pub struct RedlockEngine {
    address: Address,
    instances: Instances,
    ourselves: Ourselves,
    capabilities: Capabilities,
    context: EngineContext,
    held: Mutex<HashMap<GrantId, Arc<Holding>>>,
}

/// A grant that this client holds.
#[derive(Debug)]
struct Holding {
    /// The value in the keys, by which they are known: each try has one of its own, so that what is still under way of an earlier
    /// one cannot touch it.
    value: GrantId,
    token: Option<FencingToken>,
    released: AtomicBool,
    /// What became of the request for the key, on each instance.
    sent: Vec<Sent>,
}

/// What became of the request for a key, on one instance.
#[derive(Debug, Default)]
struct Sent {
    /// Whether the instance said yes when nobody waited for it any more.
    late_yes: AtomicBool,
    /// Whether it said nothing, and may do it yet.
    unheard: AtomicBool,
    /// Whether it said, when it was to release the key, that it did not have it.
    was_free: AtomicBool,
}

const FORM: Form = Form {
    engine: "redlock",
    example: "redlock://user:password@host1:6379,host2:6379,host3:6379/0",
    options: &["fencing", "prefix", "timeout_ms", "ca", "cert", "key"],
    known: "there is `fencing=true`, `prefix`, `timeout_ms`, and for `redlocks:` `ca`, `cert` and `key`",
};

/// How long an instance may take for what has no ttl, if the URL does not say.
const DEFAULT_LIMIT: Duration = Duration::from_secs(1);

impl RedlockEngine {
    pub(crate) async fn open_url(
        url: &EngineUrl<'_>,
        context: EngineContext,
    ) -> Result<Arc<dyn Engine>, ConnectError> {
        let address = Address::parse(url, &FORM)?;
        check_hosts(&address)?;
        let links = address.clients()?.into_iter();
        // A majority is asked at once, and each of them would be woken more often: it gains nothing.
        let link = |(client, at)| Link::new("redlock", client, at, context.runtime.clone(), Gather::Never);
        let links = links.map(link).collect();
        let instances = Instances::new(links, context.clone());
        // Reaching them may take longer than a request does: names are looked up, and certificates exchanged.
        instances.reach(address.limit_or_default()).await?;
        let capabilities = Capabilities {
            fencing: address.fencing,
            breaking: Breaking::Force,
            expiry: Expiry::Lease,
            waking: Waking::Poll,
            reach: Reach::Network,
            ..Capabilities::minimal("redlock", if address.fencing { "majority, fencing" } else { "majority" })
        };
        let ourselves = Ourselves::new();
        Ok(Arc::new(Self { address, instances, ourselves, capabilities, context, held: Mutex::default() }))
    }

    fn key(&self, name: &LockName) -> Result<String, EngineError> {
        key("redlock", &self.address.prefix, name)
    }

    fn held(&self) -> MutexGuard<'_, HashMap<GrantId, Arc<Holding>>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn holding(&self, grant: GrantId) -> Option<Arc<Holding>> {
        self.held().get(&grant).cloned()
    }

    /// How long an instance may take: much less than the ttl, so that one which does not answer costs little of it.
    fn limit(&self, ttl: Ttl) -> Duration {
        let usual = (ttl.get() / 10).min(DEFAULT_LIMIT);
        self.address.limit().map_or(usual, |limit| limit.min(ttl.get() / 4))
    }

    fn look_limit(&self) -> Duration {
        self.address.limit().unwrap_or(DEFAULT_LIMIT)
    }

    /// Lengthens a grant where it stands: from now on the term counts, if a majority said yes.
    async fn extend(&self, key: &str, value: GrantId, ttl: Ttl) -> Result<Term, RenewError> {
        let (sent_at, limit) = (self.context.clock.now(), self.limit(ttl));
        let mut script = Call::new(&scripts::RENEW, key);
        script.arg(value.to_string()).arg(milliseconds(ttl));
        let script = Arc::new(script);
        let ask = |_, link: Arc<Link>| {
            let (way, script) = (link.present_way(), script.clone());
            async move {
                match link.ask(&way, Request::Script(&script)).await {
                    Ok(Answered { answer: 1, .. }) => Ok(Vote::Yes(0)),
                    Ok(Answered { answer: 2, .. }) => Ok(Vote::Broken),
                    Ok(_) => Ok(Vote::No),
                    Err(fault) if fault.what == What::WrongType => Ok(Vote::No),
                    Err(fault) => Err(fault),
                }
            }
        };
        let (tally, late) = self.instances.ask_until(limit, Tally::is_settled, ask).await;
        // Those who are late are renewed too: the more of them have it, the more may fail.
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
        // Those who are silent may have it yet.
        Err(tally.unreachable().into())
    }
}

/// An odd number of instances, none of them twice.
fn check_hosts(address: &Address) -> Result<(), UrlError> {
    let count = address.hosts().len();
    let wrong = |message: String| Err(UrlError::Location { url: address.place(), message });
    if count.is_multiple_of(2) {
        return wrong(format!(
            "{count} instances: of an even number, as many may fail as of one less ({}), and a split vote is more likely; use an odd number, 3 or 5",
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
        Box::pin(self.wait_for(request))
    }

    fn renew(self: Arc<Self>, grant: Grant) -> BoxFuture<'static, Result<Term, RenewError>> {
        Box::pin(async move {
            let key = self.key(&grant.name)?;
            let holding = self.holding(grant.id).ok_or(RenewError::Lost(LostReason::Forgotten))?;
            self.extend(&key, holding.value, grant.ttl).await
        })
    }

    fn release(self: Arc<Self>, grant: Grant) -> BoxFuture<'static, Result<(), ReleaseError>> {
        Box::pin(async move {
            let key = self.key(&grant.name)?;
            let holding = self.holding(grant.id).ok_or(ReleaseError::NotHeld(LostReason::Forgotten))?;
            holding.released.store(true, Ordering::SeqCst);
            // Behind what was asked, if this runtime did that: another one may have ended, or stand still.
            let way = |_, link: &Arc<Link>| link.present_way();
            let tally = self.release_on_all(&holding, way, &key, grant.ttl, Tally::is_settled).await;
            if tally.is_unreachable() {
                return Err(tally.unreachable().into());
            }
            self.held().remove(&grant.id);
            if tally.is_hopeless() { Err(ReleaseError::NotHeld(LostReason::Forgotten)) } else { Ok(()) }
        })
    }

    fn inspect(self: Arc<Self>, name: LockName) -> BoxFuture<'static, Result<LockInfo, InspectError>> {
        Box::pin(async move { self.look_at(name).await })
    }

    fn list(self: Arc<Self>, prefix: String) -> BoxFuture<'static, Result<Vec<LockInfo>, InspectError>> {
        Box::pin(async move { self.look_below(&prefix).await })
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
