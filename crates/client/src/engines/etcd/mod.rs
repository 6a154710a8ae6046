//! `etcd:`, locks in an existing etcd: by the recipe of etcd itself, without its known traps.
//!
//! A lock is a queue of keys below its name, in the order of their creation. What must hold beside that:
//!
//! - **Each acquire has a key**, named after its grant: a request that is sent twice is one, and tasks of one process exclude each other.
//!   All keys of a client have its lease, and are deleted with it.
//! - **A holder has no conflicting key ahead of its own**, and a waiter watches only the nearest conflicting key.
//! - **Before a grant, the request's own key was seen in the queue** under its lease, at a revision at which no conflicting key was ahead
//!   of it: a lease may have ended while its owner waited.
//! - **A lease is valid only as far as a majority has confirmed it**: see `lease`.
//! - **A request that may have been done is withdrawn**: if its response was lost, it has no effect once a key records the withdrawal.
//!
//! The assumptions are in docs/engines/etcd.md.

mod acquire;
mod address;
mod api;
mod fault;
mod keys;
mod lease;
mod leave;
mod link;
mod look;
mod rpc;
mod start;
mod value;
mod watches;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{BoxFuture, join_all};
use futures_util::stream::BoxStream;
use tenure_table::{LockName, ModeSet};

use self::address::Address;
use self::api::Get;
use self::keys::Keys;
use self::lease::Keeper;
use self::link::Link;

use crate::capabilities::{Breaking, Capabilities, Expiry, Reach, Waking};
use crate::clock::BootTime;
use crate::engine::{
    AcquireRequest, Break, Engine, EngineContext, Grant, Granted, Remembered, Start, Withdrawn,
};
use crate::engines::details::ProcessInfo;
use crate::engines::observed::{acquire_with_notices, observe};
use crate::engines::session::HasSession;
use crate::error::{
    AcquireError, BreakError, ConnectError, EngineError, InspectError, LostReason, ReleaseError,
    RememberError, RenewError, ValueError,
};
use crate::info::{LockInfo, Member};
use crate::lease::Term;
use crate::url::EngineUrl;

const ENGINE: &str = "etcd";

/// The number of locks that are read together.
const TOGETHER: usize = 64;

/// The engine `etcd:`.
#[derive(Debug)]
pub(crate) struct EtcdEngine {
    address: Address,
    link: Arc<Link>,
    keeper: Arc<Keeper>,
    process: ProcessInfo,
    capabilities: Capabilities,
    context: EngineContext,
}

impl EtcdEngine {
    pub(crate) async fn open_url(
        url: &EngineUrl<'_>,
        context: EngineContext,
    ) -> Result<Arc<dyn Engine>, ConnectError> {
        let address = Address::parse(url)?;
        let link = Link::new(&address, context.clone())?;
        link.reach(&address.prefix).await.map_err(|fault| fault.error)?;
        let keeper = Keeper::new(link.clone(), context.clone(), address.prefix.clone());
        let capabilities = Capabilities {
            modes: ModeSet::ALL,
            value: true,
            remembers: true,
            sessions: true,
            fencing: true,
            fair: true,
            notices: true,
            visible_waiters: true,
            observes: true,
            breaking: Breaking::Force,
            expiry: Expiry::Lease,
            waking: Waking::One,
            reach: Reach::Network,
            ..Capabilities::minimal(ENGINE, "key")
        };
        let process = ProcessInfo::new();
        Ok(Arc::new(Self { address, link, keeper, process, capabilities, context }))
    }

    fn keys(&self, name: &LockName) -> Result<Keys, EngineError> {
        Keys::of(&self.address.prefix, name)
    }

    fn now(&self) -> BootTime {
        self.context.clock.now()
    }

    /// Checks whether a grant still exists, and has its lease proved meanwhile.
    async fn confirm(self: Arc<Self>, grant: Grant) -> Result<Term, RenewError> {
        let asked = self.now();
        let Some((lease, held)) = self.keeper.sessions.with(grant.id, grant.ttl) else {
            return Err(RenewError::Lost(LostReason::Forgotten));
        };
        let ends = asked + self.link.limit();
        let proving = self.link.until(ends, async { Ok(lease.prove(asked).await) });
        let own = Get::key(held.node.as_str()).keys_only();
        let (found, proved) = tokio::join!(self.link.get(own), proving);
        let found = found?;
        match found.kvs.first() {
            Some(kv) if kv.create_revision == held.token.get().cast_signed() => {
                if kv.mod_revision != kv.create_revision {
                    return Err(RenewError::Lost(LostReason::Broken));
                }
            }
            _ => {
                lease.forget(grant.id);
                return Err(RenewError::Lost(LostReason::Forgotten));
            }
        }
        if proved?.is_none() {
            return Err(RenewError::Lost(LostReason::Disconnected));
        }
        lease.session().renewed(grant.id).ok_or(RenewError::Lost(LostReason::Forgotten))
    }
}

impl Engine for EtcdEngine {
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
        Box::pin(self.confirm(grant))
    }

    fn release(self: Arc<Self>, grant: Grant) -> BoxFuture<'static, Result<(), ReleaseError>> {
        Box::pin(async move { self.let_go(&grant).await })
    }

    fn withdraw(self: Arc<Self>, grant: Grant) -> BoxFuture<'static, Result<Withdrawn, EngineError>> {
        Box::pin(async move {
            // For a name that is refused, no request was sent.
            if self.keys(&grant.name).is_ok()
                && let Err(ReleaseError::Engine(error)) = self.let_go(&grant).await
            {
                return Err(error);
            }
            Ok(Withdrawn::ForGood)
        })
    }

    fn set_value(self: Arc<Self>, grant: Grant, bytes: Bytes) -> BoxFuture<'static, Result<(), ValueError>> {
        Box::pin(self.write(grant, bytes))
    }

    fn remember(
        self: Arc<Self>,
        grant: Grant,
        start: Start,
    ) -> BoxFuture<'static, Result<Remembered, RememberError>> {
        Box::pin(async move { self.note(&grant, start).await })
    }

    fn recall(
        self: Arc<Self>,
        name: LockName,
        window: Duration,
    ) -> BoxFuture<'static, Result<Option<Duration>, InspectError>> {
        Box::pin(async move {
            let keys = self.keys(&name)?;
            Ok(self.noted_ago(&keys, window).await?)
        })
    }

    fn inspect(self: Arc<Self>, name: LockName) -> BoxFuture<'static, Result<LockInfo, InspectError>> {
        Box::pin(async move { Ok(self.look_at(name).await?) })
    }

    fn list(self: Arc<Self>, prefix: String) -> BoxFuture<'static, Result<Vec<LockInfo>, InspectError>> {
        Box::pin(async move {
            let names: Vec<_> = self.names(&prefix).await?.into_iter().collect();
            let mut locks = Vec::new();
            for some in names.chunks(TOGETHER) {
                for looked in join_all(some.iter().map(|name| self.look_at(name.clone()))).await {
                    locks.push(looked?);
                }
            }
            // Some may be free by now.
            locks.retain(|lock| !lock.is_unused());
            Ok(locks)
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
        Box::pin(async move { self.broken(name, how).await })
    }

    fn close(self: Arc<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let give_up = self.now() + self.link.limit();
            tokio::select! {
                () = self.keeper.close() => {}
                () = self.context.clock.sleep_until(give_up) => {}
            }
            self.link.close();
        })
    }
}
