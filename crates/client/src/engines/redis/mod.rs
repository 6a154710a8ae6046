//! `redis:`: locks in an existing Redis, compatible with the Redis locks of other languages, so that both exclude each other.
//!
//! A lock is a key: `SET name value NX PX ttl`, with a value that is unique to its grant. Further rules:
//!
//! - **Every step is one script**, so no other command runs between its reads and its writes. The exception is the taking of a free lock,
//!   where an interleaved command does no harm (`take`). The key of a lock always has a TTL.
//! - **Readers, and an owner with several grants, also occupy the plain key.** All recipes and foreign clients exclude each other by this
//!   key alone.
//! - **A waiter has a place in a queue in Redis**, and a release hands the lock to the first waiter that is present. With `?fair=true` only
//!   that waiter gets the lock; without it, a request that finds the lock free gets it too. A lock that was handed on for some seconds is
//!   free for a moment, so that locks of other languages can take it (`queue.lua`).
//! - **A request that may have been carried out is withdrawn**: on the same connection, behind the request, if that connection is still
//!   open (`withdraw`).
//!
//! The engine assumes that Redis keeps its memory, and that its clock does not jump: docs/engines/redis.md.

mod acquire;
pub(in crate::engines) mod address;
mod channel;
pub(in crate::engines) mod connection;
pub(in crate::engines) mod entry;
pub(in crate::engines) mod fault;
mod handed;
pub(in crate::engines) mod link;
pub(in crate::engines) mod look;
pub(in crate::engines) mod scripts;
mod take;
mod withdraw;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{BoxFuture, join_all};
use redis::Value as Answer;
use tenure_table::{FencingToken, LockName, Mode, ModeSet};

use self::address::{Address, Form, OWN_KEYS};
use self::channel::Channel;
use self::entry::Held;
use self::fault::What;
use self::link::{Link, Repeat};
use self::scripts::Call;
use self::withdraw::Unanswered;

use crate::capabilities::{Breaking, Capabilities, Expiry, Reach, Waking};
use crate::clock::BootTime;
use crate::engine::{
    AcquireRequest, Break, Engine, EngineContext, Grant, Granted, Remembered, Start, Withdrawn,
};
use crate::engines::details::ProcessInfo;
use crate::engines::notifications::NotificationListener;
use crate::engines::stranger::ASK_ANOTHER;
use crate::error::{
    AcquireError, BreakError, ConnectError, EngineError, InspectError, Lost, LostReason, ReleaseError,
    RememberError, RenewError, ValueError,
};
use crate::info::{LockInfo, Member};
use crate::lease::{Term, Ttl};
use crate::random;
use crate::url::{EngineUrl, UrlError};

/// The engine `redis:`.
#[derive(Debug)]
pub(crate) struct RedisEngine {
    address: Address,
    link: Arc<Link>,
    limit: Duration,
    process: ProcessInfo,
    capabilities: Capabilities,
    context: EngineContext,
    listener: Arc<NotificationListener<Channel>>,
    unanswered: Unanswered,
}

const FORM: Form = Form {
    engine: "redis",
    example: "redis://user:password@host:6379/0",
    options: &["fair", "prefix", "timeout_ms", "ca", "cert", "key"],
    known: "there is `fair=true`, `prefix`, `timeout_ms`, and for `rediss:` `ca`, `cert` and `key`",
};

/// The resolution of the clock of Redis: one millisecond.
pub(in crate::engines) const MARGIN: Duration = Duration::from_millis(1);

/// The delay of the first renewal of a grant whose token is not yet recorded, or whose lease is shorter than the request asked for. Most
/// locks are released before this renewal.
const FIRST_RENEWAL: Duration = Duration::from_millis(100);

/// How many times a lock is read whose token is not yet recorded, and the pause between two reads: its holder is about to record the token.
const YOUNG_LOOKS: u32 = 50;
const YOUNG_PAUSE: Duration = Duration::from_millis(10);

/// The number of locks that are read at the same time.
pub(in crate::engines) const TOGETHER: usize = 64;

impl RedisEngine {
    pub(crate) async fn open_url(
        url: &EngineUrl<'_>,
        context: EngineContext,
    ) -> Result<Arc<dyn Engine>, ConnectError> {
        let address = Address::parse(url, &FORM)?;
        if address.hosts().len() != 1 {
            let message =
                "it names several servers: `redis:` is one, and `redlock:` is several that are independent";
            return Err(UrlError::Location { url: address.place(), message: message.into() }.into());
        }
        let (client, at) = address.clients()?.remove(0);
        let limit = address.limit_or_default();
        let link = Link::new("redis", client, at, context.runtime.clone());
        link.reach(limit).await.map_err(|fault| fault.error)?;
        let capabilities = Capabilities {
            modes: ModeSet::of(&[Mode::Pr, Mode::Ex]),
            value: true,
            remembers: true,
            fencing: true,
            fair: address.fair,
            shared_owners: true,
            visible_waiters: true,
            breaking: Breaking::Force,
            expiry: Expiry::Lease,
            waking: Waking::One,
            reach: Reach::Network,
            ..Capabilities::minimal("redis", if address.fair { "fair" } else { "set-nx" })
        };
        let listener = NotificationListener::new(Channel::new(link.clone(), limit), context.clone());
        Ok(Arc::new(Self {
            unanswered: Unanswered::default(),
            listener,
            address,
            link,
            limit,
            process: ProcessInfo::new(),
            capabilities,
            context,
        }))
    }

    fn key(&self, name: &LockName) -> Result<String, EngineError> {
        key(self.capabilities.engine, &self.address.prefix, name)
    }

    fn now(&self) -> BootTime {
        self.context.clock.now()
    }
}

/// Reads the answer of the script that breaks locks: the holders, and whether they are grants of this engine.
pub(in crate::engines) fn holders(answer: &[Answer]) -> (Vec<Member>, bool) {
    match answer.split_first() {
        Some((Answer::BulkString(text), rest)) => match Held::parse(text) {
            Held::One(member) | Held::Young(member) => (vec![member], true),
            Held::Many { .. } => (entry::all(rest, entry::holder), true),
            Held::Another(member) => (vec![member], false),
        },
        _ => (Vec::new(), true),
    }
}

/// Returns the key of a lock.
pub(in crate::engines) fn key(
    engine: &'static str,
    prefix: &str,
    name: &LockName,
) -> Result<String, EngineError> {
    let key = [prefix, name.as_str()].concat();
    if key.starts_with(OWN_KEYS) {
        let message = format!(
            "keys that start with `{OWN_KEYS}` are the engine's own: choose another name, or `?prefix=` for all locks"
        );
        return Err(EngineError::Refused { engine, message, cause: None });
    }
    Ok(key)
}

/// Returns a TTL in the unit of Redis.
pub(in crate::engines) fn milliseconds(ttl: Ttl) -> u64 {
    u64::try_from(ttl.get().as_millis()).expect("a ttl is at most a day")
}

/// Returns the term of a lease that was requested at this instant.
pub(in crate::engines) fn term(sent_at: BootTime, ttl: Ttl) -> Term {
    Term::Lease { sent_at, ttl: Duration::from_millis(milliseconds(ttl)), margin: MARGIN }
}

impl Engine for RedisEngine {
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
        self.wait_for(request)
    }

    fn renew(self: Arc<Self>, grant: Grant) -> BoxFuture<'static, Result<Term, RenewError>> {
        Box::pin(async move {
            let key = self.key(&grant.name)?;
            let sent_at = self.now();
            let mut script = Call::new(&scripts::RENEW, &key);
            script.arg(grant.id.to_string()).arg(milliseconds(grant.ttl));
            script.arg(grant.token.map_or(0, FencingToken::get));
            match self.link.script(self.limit, Repeat::Harmless, &script).await {
                Ok(1) => Ok(term(sent_at, grant.ttl)),
                Ok(2) => Err(RenewError::Lost(LostReason::Broken)),
                Ok(_) => Err(RenewError::Lost(LostReason::Forgotten)),
                Err(fault) if fault.what == What::WrongType => Err(RenewError::Lost(LostReason::Forgotten)),
                Err(fault) => Err(fault.error.into()),
            }
        })
    }

    fn release(self: Arc<Self>, grant: Grant) -> BoxFuture<'static, Result<(), ReleaseError>> {
        Box::pin(async move {
            let key = self.key(&grant.name)?;
            if self.let_go(&key, &grant).await? {
                Ok(())
            } else {
                Err(ReleaseError::NotHeld(LostReason::Forgotten))
            }
        })
    }

    fn withdraw(self: Arc<Self>, grant: Grant) -> BoxFuture<'static, Result<Withdrawn, EngineError>> {
        Box::pin(async move { self.withdraw_request(&grant).await })
    }

    fn set_value(self: Arc<Self>, grant: Grant, bytes: Bytes) -> BoxFuture<'static, Result<(), ValueError>> {
        Box::pin(async move {
            let key = self.key(&grant.name)?;
            let mut script = Call::new(&scripts::SET_VALUE, &key);
            script.arg(grant.id.to_string()).arg(&*bytes);
            match self.link.script(self.limit, Repeat::Harmless, &script).await {
                Ok(1) => Ok(()),
                Ok(_) => Err(Lost { name: grant.name, reason: LostReason::Forgotten }.into()),
                Err(fault) => Err(fault.error.into()),
            }
        })
    }

    fn remember(
        self: Arc<Self>,
        grant: Grant,
        start: Start,
    ) -> BoxFuture<'static, Result<Remembered, RememberError>> {
        Box::pin(async move {
            let key = self.key(&grant.name)?;
            let mut script = Call::new(&scripts::REMEMBER, &key);
            script.arg(grant.id.to_string()).arg(whole_ms(start.ago)).arg(whole_ms(start.window));
            // Identifies this record if the script is sent again.
            script.arg(random::grant_id().to_string());
            match self.link.script::<Option<i64>>(self.limit, Repeat::Harmless, &script).await {
                Ok(Some(ago)) => match u64::try_from(ago) {
                    Ok(ago) => Ok(Remembered::Already { ago: Duration::from_millis(ago) }),
                    Err(_) => Ok(Remembered::Recorded),
                },
                Ok(None) => Err(Lost { name: grant.name, reason: LostReason::Forgotten }.into()),
                Err(fault) => Err(fault.error.into()),
            }
        })
    }

    fn recall(
        self: Arc<Self>,
        name: LockName,
        window: Duration,
    ) -> BoxFuture<'static, Result<Option<Duration>, InspectError>> {
        Box::pin(async move {
            let key = self.key(&name)?;
            let script = Call::new(&scripts::RECALL, &key);
            let ago: Option<u64> = self.link.script(self.limit, Repeat::Harmless, &script).await?;
            Ok(ago.map(Duration::from_millis).filter(|ago| *ago < window))
        })
    }

    fn inspect(self: Arc<Self>, name: LockName) -> BoxFuture<'static, Result<LockInfo, InspectError>> {
        Box::pin(async move {
            let key = self.key(&name)?;
            let mut looks = 1;
            loop {
                let seen = look::inspect(&self.link, self.limit, &key, name.clone()).await?;
                if !seen.is_young || looks == YOUNG_LOOKS {
                    return Ok(seen.info);
                }
                looks += 1;
                self.context.clock.sleep_until(self.now() + YOUNG_PAUSE).await;
            }
        })
    }

    fn list(self: Arc<Self>, prefix: String) -> BoxFuture<'static, Result<Vec<LockInfo>, InspectError>> {
        Box::pin(async move {
            let names = look::names(&self.link, self.limit, &self.address.prefix, &prefix).await?;
            let names: Vec<_> = names.into_iter().collect();
            let mut locks = Vec::new();
            for some in names.chunks(TOGETHER) {
                let asked = some.iter().map(|name| self.clone().inspect(name.clone()));
                for looked in join_all(asked).await {
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
            let key = self.key(&name)?;
            let mut script = Call::new(&scripts::BREAK, &key);
            script.arg("").arg(u8::from(how == Break::Force));
            let answer: Vec<Answer> = self.link.script(self.limit, Repeat::Never, &script).await?;
            match holders(&answer) {
                (holders, _) if holders.is_empty() => Err(BreakError::NotHeld { name }),
                (holders, false) if how == Break::Ask => {
                    Err(BreakError::HolderKeepsIt { name, holders, advice: ASK_ANOTHER.into() })
                }
                (holders, _) => Ok(holders),
            }
        })
    }

    fn close(self: Arc<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            self.listener.close();
            self.link.close();
        })
    }
}

/// Returns a duration in the unit of Redis, at most some centuries.
pub(in crate::engines) fn whole_ms(duration: Duration) -> u64 {
    const LONGEST: u64 = 10_000_000_000_000;
    u64::try_from(duration.as_millis()).map_or(LONGEST, |ms| ms.min(LONGEST))
}
