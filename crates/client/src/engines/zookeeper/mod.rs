//! `zookeeper:`, locks in an existing ZooKeeper, as that project's documentation describes them. They are compatible with other languages'
//! recipes, so that their locks exclude each other.
//!
//! Recipes:
//!
//! - `sequential` (the default): an ephemeral, sequential node for each holder or waiter. A node without a conflicting earlier node holds
//!   the lock. A waiter watches only the nearest conflicting node.
//! - `simple`: one ephemeral node, which one waiter in each session watches.
//!
//! What must hold:
//!
//! - **A node carries the id of its grant**, so a node whose response was lost is found again, and not created twice.
//! - **A grant ends with its session**, or after the session's timeout without a renewal.
//! - **The deadline precedes the end of the session**: `link` explains the proof.
//!
//! The assumptions are in docs/engines/zookeeper.md.

mod acquire;
mod address;
mod fault;
mod link;
mod look;
mod paths;
mod start;
mod turns;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{BoxFuture, join, join_all};
use futures_util::stream::BoxStream;
use tenure_table::{GrantId, LockName, Mode, ModeSet};
use zookeeper_client::{CreateMode, Error};

use self::address::Address;
use self::fault::{Fault, What};
use self::link::{Link, is_simple, within};
use self::paths::VALUE;

use crate::capabilities::{Breaking, Capabilities, Expiry, Reach, Waking};
use crate::clock::BootTime;
use crate::engine::{
    AcquireRequest, Break, Engine, EngineContext, Grant, Granted, Remembered, Start, Withdrawn,
};
use crate::engines::details::ProcessInfo;
use crate::engines::kept_value::KeptValue;
use crate::engines::observed::{Look, acquire_with_notices, observe};
use crate::engines::session::{HasSession, Held, InUse, Sessions};
use crate::engines::stranger::ASK_ANOTHER;
use crate::error::{
    AcquireError, BreakError, ConnectError, EngineError, InspectError, Lost, LostReason, ReleaseError,
    RememberError, RenewError, ValueError,
};
use crate::info::{LockInfo, Member};
use crate::lease::{Term, Ttl};
use crate::random;
use crate::url::EngineUrl;

/// The ways of locking with ZooKeeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recipe {
    /// A queue.
    Sequential,
    /// One node.
    Simple,
}

impl Recipe {
    fn parse(text: &str) -> Result<Self, String> {
        match text {
            "sequential" => Ok(Self::Sequential),
            "simple" => Ok(Self::Simple),
            _ => Err(format!("there is the recipe `sequential`, `simple`, and not `{text}`")),
        }
    }
}

/// The engine `zookeeper:`.
#[derive(Debug)]
pub(crate) struct ZooKeeperEngine {
    address: Address,
    sessions: Arc<Sessions<Link>>,
    process: ProcessInfo,
    capabilities: Capabilities,
    context: EngineContext,
}

impl ZooKeeperEngine {
    pub(crate) async fn open_url(
        url: &EngineUrl<'_>,
        context: EngineContext,
    ) -> Result<Arc<Self>, ConnectError> {
        let address = Address::parse(url)?;
        let minimal = |recipe| Capabilities {
            value: true,
            remembers: true,
            sessions: true,
            fencing: true,
            breaking: Breaking::Force,
            expiry: Expiry::Lease,
            reach: Reach::Network,
            ..Capabilities::minimal("zookeeper", recipe)
        };
        let capabilities = match address.recipe {
            Recipe::Sequential => Capabilities {
                modes: ModeSet::of(&Mode::ALL),
                fair: true,
                notices: true,
                visible_waiters: true,
                observes: true,
                waking: Waking::One,
                ..minimal("sequential")
            },
            // The nodes of two successive holders cannot be told apart, so a lock is not broken by force.
            Recipe::Simple => {
                Capabilities { waking: Waking::All, breaking: Breaking::Ask, ..minimal("simple") }
            }
        };
        let engine =
            Self { address, sessions: Arc::default(), process: ProcessInfo::new(), capabilities, context };
        // Checks that the servers exist and accept the login.
        let link = engine.link(Ttl::DEFAULT).await?;
        let looked = async { link.client().check_stat("/").await };
        within(&engine.context, engine.address.limit, looked).await.map_err(|fault| engine.told(fault))?;
        drop(link);
        Ok(Arc::new(engine))
    }

    fn now(&self) -> BootTime {
        self.context.clock.now()
    }

    /// Converts a fault into an error for the user.
    fn told(&self, fault: Fault) -> EngineError {
        fault.error(&self.address.hosts())
    }

    /// Returns a session of this TTL, and opens one if there is none.
    async fn link(&self, ttl: Ttl) -> Result<InUse<Link>, EngineError> {
        if let Some(link) = self.sessions.of(ttl) {
            return Ok(link);
        }
        let opening = self.sessions.open(ttl, async |timeout| {
            Link::open(&self.address, timeout, &self.context, &self.sessions).await
        });
        let opened = async { Ok::<_, Fault>(opening.await) };
        // Another request may be opening a session without a response.
        within(&self.context, self.address.limit, opened).await.map_err(|fault| self.told(fault))?
    }

    async fn answer<T>(&self, asking: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
        within(&self.context, self.address.limit, asking).await
    }

    /// Returns the session of a grant, and the grant.
    fn held(&self, grant: &Grant) -> Option<(InUse<Link>, Held)> {
        self.sessions.with(grant.id, grant.ttl)
    }

    /// Checks whether a grant still exists, and returns its term.
    async fn confirm(&self, link: &InUse<Link>, grant: GrantId, node: &str) -> Result<Term, RenewError> {
        let asked = self.now();
        let looking = async {
            let stat = link.client().check_stat(node).await?.ok_or(Error::NoNode)?;
            if is_simple(node) {
                let (data, _) = link.client().get_data(node).await?;
                // Another holder may have the path after an operator deleted the grant's node.
                look::grant(&data).filter(|found| *found == grant).ok_or(Error::NoNode)?;
            }
            Ok::<_, Fault>(stat.version)
        };
        let confirming = async {
            let (version, proven) = join(looking, link.prove(asked)).await;
            proven?;
            version
        };
        let lost = |reason| {
            link.session().forget(grant);
            RenewError::Lost(reason)
        };
        match self.answer(confirming).await {
            Ok(0) => link.session().renewed(grant).ok_or(RenewError::Lost(LostReason::Expired)),
            // Breaking a lock changes its node. The node remains until its holder releases the lock.
            Ok(_) => Err(RenewError::Lost(LostReason::Broken)),
            Err(fault) if fault.is(&Error::NoNode) => Err(lost(LostReason::Forgotten)),
            Err(fault) if fault.what() == What::SessionOver => Err(lost(LostReason::Disconnected)),
            Err(fault) => Err(self.told(fault).into()),
        }
    }

    /// Returns the state of a lock, and a future that resolves when its holders or waiters change.
    async fn look_and_watch(self: Arc<Self>, name: LockName) -> Result<Look, InspectError> {
        let link = self.link(Ttl::DEFAULT).await?;
        let lock = self.address.root.lock(&name);
        let looking = async {
            // Set before the look, so that no change is missed.
            let watcher = link.watch_children(&lock).await?;
            Ok((watcher, link.inspect(name).await?))
        };
        let (watcher, info) = self.answer(looking).await.map_err(|fault| self.told(fault))?;
        let (clock, session) = (self.context.clock.clone(), link.session());
        let (ended, timeout, room) = (session.ended().clone(), session.timeout(), link.room(lock.len()));
        // A lasting observer does not keep the session from being closed.
        let link = link.downgrade();
        let change = Box::pin(async move {
            let _held = (room, link);
            tokio::select! {
                _ = watcher.changed() => {}
                () = ended.cancelled() => {}
                // No observer relies on its watch alone.
                () = clock.sleep_until(clock.now() + random::jittered(timeout)) => {}
            }
        });
        Ok(Look { info, change })
    }

    /// Writes a value, or deletes it if it is empty.
    async fn put_value(&self, link: &Link, lock: &str, node: &str, value: &KeptValue) -> Result<(), Fault> {
        let path = format!("{lock}/{VALUE}");
        if value.bytes.is_empty() {
            let mut writer = link.client().new_multi_writer();
            writer.add_check_version(node, -1)?;
            writer.add_delete(&path, None)?;
            return match writer.commit().await.map_err(Fault::from) {
                Err(fault) if fault.is(&Error::NoNode) => self.stands(link, node).await,
                deleted => deleted.map(drop),
            };
        }
        let lasting = CreateMode::Persistent.with_acls(self.address.acls());
        match self.write_value(link, node, lock, value).await {
            Err(fault) if fault.is(&Error::NoNode) => {
                // Either the grant's node does not exist, or there was no value yet.
                let mut writer = link.client().new_multi_writer();
                writer.add_check_version(node, -1)?;
                writer.add_create(&path, &value.text(), &lasting)?;
                Ok(writer.commit().await.map(drop)?)
            }
            written => written,
        }
    }

    /// Checks whether a node exists; fails with `NoNode` if not.
    async fn stands(&self, link: &Link, node: &str) -> Result<(), Fault> {
        match link.client().check_stat(node).await? {
            Some(_) => Ok(()),
            None => Err(Error::NoNode.into()),
        }
    }

    async fn break_holders(&self, name: LockName, how: Break) -> Result<Vec<Member>, BreakError> {
        let told = |fault| BreakError::Engine(self.told(fault));
        let link = self.link(Ttl::DEFAULT).await?;
        let lock = self.address.root.lock(&name);
        let looking = async {
            let seen = link.see_now(&lock).await?;
            link.present(&lock, &seen).await
        };
        let (holders, _) = self.answer(looking).await.map_err(told)?;
        let members: Vec<_> = holders.iter().map(|holder| holder.member.clone()).collect();
        if members.is_empty() {
            return Err(BreakError::NotHeld { name });
        }
        if how == Break::Ask && holders.iter().any(|holder| !holder.ours) {
            return Err(BreakError::HolderKeepsIt { name, holders: members, advice: ASK_ANOTHER.into() });
        }
        if how == Break::Force && holders.iter().any(|holder| is_simple(&holder.node)) {
            return Err(BreakError::HolderKeepsIt { name, holders: members, advice: ASK_SIMPLE.into() });
        }
        let breaking = holders.iter().map(async |holder| match how {
            // The holder finds its node changed.
            Break::Ask => Ok(link.client().set_data(&holder.node, &holder.data, None).await.map(drop)?),
            Break::Force => link.free(&holder.node, None).await,
        });
        for broken in self.answer(async { Ok(join_all(breaking).await) }).await.map_err(told)? {
            match broken {
                // The holder has released the lock meanwhile.
                Err(fault) if fault.is(&Error::NoNode) => {}
                broken => broken.map_err(told)?,
            }
        }
        Ok(members)
    }
}

/// Runs a write of a valid grant, after its earlier writes. A write takes several steps, each of which checks that the grant's node exists.
/// By the recipe `simple`, the next holder's node has the same path, so the node is not freed before the last step.
async fn write<T>(
    link: &Link,
    grant: &Grant,
    held: &Held,
    write: impl Future<Output = Result<T, Fault>>,
) -> Result<T, Fault> {
    let _writing = held.writing.lock().await;
    link.session().held(grant.id).ok_or(Error::NoNode)?;
    write.await
}

const ASK_SIMPLE: &str =
    "by the recipe `simple` it goes with its holder: ask the holder to let go, or end its process";

impl Engine for ZooKeeperEngine {
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
        let context = self.context.clone();
        acquire_with_notices(self, &context, request, Self::wait_for)
    }

    fn renew(self: Arc<Self>, grant: Grant) -> BoxFuture<'static, Result<Term, RenewError>> {
        Box::pin(async move {
            let (link, held) = self.held(&grant).ok_or(RenewError::Lost(LostReason::Disconnected))?;
            self.confirm(&link, grant.id, &held.node).await
        })
    }

    fn release(self: Arc<Self>, grant: Grant) -> BoxFuture<'static, Result<(), ReleaseError>> {
        Box::pin(async move {
            let not_held = |reason| Err(ReleaseError::NotHeld(reason));
            let Some((link, held)) = self.held(&grant) else { return not_held(LostReason::Disconnected) };
            let freeing = async {
                let _written = held.writing.lock().await;
                if link.has_request(grant.id) && link.is_taken_by(&held.node, grant.id).await?.is_none() {
                    // The node was freed before, and the response was lost: the path may belong to another grant by now.
                    return Err(Error::NoNode.into());
                }
                let marked = link.session().held(grant.id).ok_or(Error::NoNode)?.marked;
                let value = marked.map(KeptValue::unmarked).filter(|value| !value.bytes.is_empty());
                link.free(&held.node, value.as_ref()).await
            };
            match self.answer(freeing).await {
                Ok(()) => {
                    link.forget(grant.id);
                    Ok(())
                }
                Err(fault) if fault.is(&Error::NoNode) => {
                    link.forget(grant.id);
                    not_held(LostReason::Forgotten)
                }
                Err(fault) if fault.what() == What::SessionOver => not_held(LostReason::Disconnected),
                Err(fault) => {
                    if is_simple(&held.node) && fault.what() == What::AnswerLost {
                        link.may_be_freed(grant.id);
                    }
                    Err(self.told(fault).into())
                }
            }
        })
    }

    fn withdraw(self: Arc<Self>, grant: Grant) -> BoxFuture<'static, Result<Withdrawn, EngineError>> {
        Box::pin(async move {
            let lock = self.address.root.lock(&grant.name);
            let entry = self.address.names.entry(grant.id, grant.mode);
            for link in self.sessions.every(grant.ttl) {
                match self.answer(link.withdraw(&lock, &entry, grant.id)).await {
                    // The request ended with its session.
                    Err(fault) if fault.what() == What::SessionOver => {}
                    withdrawn => withdrawn.map_err(|fault| self.told(fault))?,
                }
            }
            Ok(Withdrawn::ForGood)
        })
    }

    fn set_value(self: Arc<Self>, grant: Grant, bytes: Bytes) -> BoxFuture<'static, Result<(), ValueError>> {
        Box::pin(async move {
            let lost = |reason| ValueError::Lost(Lost { name: grant.name.clone(), reason });
            let (link, held) = self.held(&grant).ok_or_else(|| lost(LostReason::Disconnected))?;
            let (lock, value) = (self.address.root.lock(&grant.name), KeptValue::written(bytes, grant.id));
            // Recorded before the write is sent: a release that follows is processed after it, and must include it.
            link.session().mark(grant.id, Some(value.clone()));
            let writing = write(&link, &grant, &held, self.put_value(&link, &lock, &held.node, &value));
            match self.answer(writing).await {
                Ok(()) => Ok(()),
                Err(fault) if fault.what() == What::Refused && !fault.is(&Error::NoNode) => {
                    link.session().mark(grant.id, held.marked);
                    Err(self.told(fault).into())
                }
                Err(fault) if fault.is(&Error::NoNode) => Err(lost(LostReason::Forgotten)),
                Err(fault) if fault.what() == What::SessionOver => Err(lost(LostReason::Disconnected)),
                Err(fault) => Err(self.told(fault).into()),
            }
        })
    }

    fn remember(
        self: Arc<Self>,
        grant: Grant,
        start: Start,
    ) -> BoxFuture<'static, Result<Remembered, RememberError>> {
        Box::pin(async move {
            let lost = |reason| RememberError::Lost(Lost { name: grant.name.clone(), reason });
            let (link, held) = self.held(&grant).ok_or_else(|| lost(LostReason::Disconnected))?;
            let lock = self.address.root.lock(&grant.name);
            let writing = write(&link, &grant, &held, self.note(&link, &lock, &held.node, start));
            match self.answer(writing).await {
                Ok(remembered) => Ok(remembered),
                Err(fault) if fault.is(&Error::NoNode) => Err(lost(LostReason::Forgotten)),
                Err(fault) if fault.what() == What::SessionOver => Err(lost(LostReason::Disconnected)),
                Err(fault) => Err(self.told(fault).into()),
            }
        })
    }

    fn recall(
        self: Arc<Self>,
        name: LockName,
        window: Duration,
    ) -> BoxFuture<'static, Result<Option<Duration>, InspectError>> {
        Box::pin(async move {
            let link = self.link(Ttl::DEFAULT).await?;
            let lock = self.address.root.lock(&name);
            let ago = self.answer(self.last_start(&link, &lock)).await.map_err(|fault| self.told(fault))?;
            Ok(ago.filter(|ago| *ago < window))
        })
    }

    fn inspect(self: Arc<Self>, name: LockName) -> BoxFuture<'static, Result<LockInfo, InspectError>> {
        Box::pin(async move {
            let link = self.link(Ttl::DEFAULT).await?;
            Ok(self.answer(link.inspect(name)).await.map_err(|fault| self.told(fault))?)
        })
    }

    fn list(self: Arc<Self>, prefix: String) -> BoxFuture<'static, Result<Vec<LockInfo>, InspectError>> {
        Box::pin(async move {
            let link = self.link(Ttl::DEFAULT).await?;
            Ok(link.list(&prefix).await.map_err(|fault| self.told(fault))?)
        })
    }

    fn observe(self: Arc<Self>, name: LockName) -> BoxStream<'static, Result<LockInfo, InspectError>> {
        observe(move || Box::pin(self.clone().look_and_watch(name.clone())))
    }

    fn break_lock(
        self: Arc<Self>,
        name: LockName,
        how: Break,
    ) -> BoxFuture<'static, Result<Vec<Member>, BreakError>> {
        Box::pin(async move { self.break_holders(name, how).await })
    }

    fn close(self: Arc<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            // All that is left is removed with its session.
            join_all(self.sessions.all().into_iter().map(Link::close)).await;
        })
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::future::poll_immediate;
    use tenure_testkit::ZooKeeper;
    use tokio::runtime::Handle;

    use super::*;
    use crate::clock::SystemClock;

    /// A dropped write continues, and its last step may be about to be sent.
    #[tokio::test(flavor = "multi_thread")]
    async fn a_release_waits_for_a_write_that_is_under_way() {
        let url = format!("{}/unit?recipe=simple&tick_ms=500", ZooKeeper::shared().url());
        let runtime = Handle::current();
        let context = EngineContext { clock: Arc::new(SystemClock::on(runtime.clone())), runtime };
        let engine = ZooKeeperEngine::open_url(&EngineUrl::parse(&url).unwrap(), context).await.unwrap();
        let request = AcquireRequest::new(LockName::parse("written").unwrap());
        let granted = engine.clone().acquire(request.clone()).await.unwrap();
        let grant = request.granted(granted.token);
        let holders = async || engine.clone().inspect(grant.name.clone()).await.unwrap().holders.len();

        let (_, held) = engine.held(&grant).unwrap();
        let writing = held.writing.lock().await;
        let mut releasing = pin!(engine.clone().release(grant.clone()));
        assert!(poll_immediate(&mut releasing).await.is_none());
        // Sent after all requests of the release, in the same session.
        assert_eq!(holders().await, 1, "the node was freed while the write was under way");
        drop(writing);
        releasing.await.unwrap();
        assert_eq!(holders().await, 0);
        engine.close().await;
    }
}
