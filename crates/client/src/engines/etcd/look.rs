//! Inspection and breaking of locks.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use tenure_table::{FencingToken, LockName};

use super::EtcdEngine;
use super::acquire::{LOOK_AGAIN, REFUSED_PAUSE};
use super::api::{Compare, Delete, Get, KeyValue, Put, Step, Txn, end_of};
use super::fault::Fault;
use super::keys::{Keys, StoredValue, is_of_a_recipe, name_of};
use super::watches::{Interest, Woken};
use crate::engine::Break;
use crate::engines::details;
use crate::engines::observed::Look;
use crate::engines::queue::{Entry, Queue};
use crate::engines::stranger::{ASK_ANOTHER, another};
use crate::error::{BreakError, InspectError};
use crate::info::{LockInfo, Member};
use crate::random;

/// The number of keys that one step of a list reads.
const STEP: i64 = 5000;

/// The pause between a change and the look at it.
const PAUSE: Duration = Duration::from_millis(20);

/// The number of keys that one transaction changes: etcd allows 128 steps.
const AT_ONCE: usize = 50;

/// All holders and waiters of a lock.
struct Members {
    /// The revision.
    revision: i64,
    queue: Queue,
    /// The content of each entry, by its name.
    texts: HashMap<String, Vec<u8>>,
    value: StoredValue,
}

impl Members {
    fn member(&self, entry: &Entry) -> Member {
        let ours = || {
            let (owner, details) = str::from_utf8(self.texts.get(&entry.node)?).ok()?.split_once(' ')?;
            Some(details::member(entry.grant?, owner.parse().ok()?, entry.mode, details))
        };
        ours().unwrap_or_else(|| another(entry.node.as_bytes()))
    }

    fn info(self, name: LockName) -> LockInfo {
        let mut info = LockInfo::free(name);
        for (place, entry) in self.queue.entries().iter().enumerate() {
            let mut member = self.member(entry);
            if self.queue.waits_for(place).is_none() {
                member.token = Some(token(entry));
                info.holders.push(member);
            } else {
                info.waiters.push(member);
            }
        }
        info.last_token = info.holders.iter().filter_map(|member| member.token).max();
        let stands = |writer| self.queue.has(writer);
        info.value = self.value.kept.map(|kept| kept.value(stands)).unwrap_or_default();
        info
    }
}

fn token(entry: &Entry) -> FencingToken {
    FencingToken::new(entry.order.unsigned_abs())
}

impl EtcdEngine {
    async fn members(&self, keys: &Keys) -> Result<Members, Fault> {
        let both = [Get::prefix(keys.below.as_str()), Get::key(keys.value.as_str())];
        let answer = self.link.txn(Txn::new().and_then(both.map(Step::from))).await?.answer;
        let revision = answer.revision();
        let Ok([all, value]) = <[_; 2]>::try_from(answer.found()) else { return Err(Fault::too_little()) };
        let queue = keys.queue(&all.kvs);
        let called = |key: Vec<u8>| String::from_utf8(key.strip_prefix(keys.below.as_bytes())?.to_vec()).ok();
        let text = |kv: KeyValue| Some((called(kv.key)?, kv.value));
        Ok(Members {
            revision,
            queue,
            texts: all.kvs.into_iter().filter_map(text).collect(),
            value: StoredValue::read(&value)?,
        })
    }

    pub(super) async fn look_at(&self, name: LockName) -> Result<LockInfo, Fault> {
        let keys = self.keys(&name)?;
        Ok(self.members(&keys).await?.info(name))
    }

    /// Returns the state of a lock, and a future that resolves when it may have changed.
    pub(super) async fn look_and_watch(self: Arc<Self>, name: LockName) -> Result<Look, InspectError> {
        let keys = self.keys(&name)?;
        let members = self.members(&keys).await?;
        let from = members.revision + 1;
        let mut watched = self.keeper.watches.watch(keys.below, from, Interest::AnyChangeBelow);
        let clock = self.context.clock.clone();
        let change = Box::pin(async move {
            let look_again = clock.sleep_until(clock.now() + random::jittered(LOOK_AGAIN));
            let woken = tokio::select! {
                woken = watched.woken() => woken,
                () = look_again => Woken::Changed,
            };
            // Locks below this one's name may change all the time, and one look covers many changes.
            let pause = if woken == Woken::Look { REFUSED_PAUSE } else { PAUSE };
            clock.sleep_until(clock.now() + random::jittered(pause)).await;
        });
        Ok(Look { info: members.info(name), change })
    }

    /// Returns the names of the locks with this prefix that have a holder or waiter. Reads all keys there, in steps.
    pub(super) async fn names(&self, prefix: &str) -> Result<BTreeSet<LockName>, Fault> {
        let before = &self.address.prefix;
        let (mut from, mut names) = (format!("{before}{prefix}").into_bytes(), BTreeSet::new());
        let end = end_of(&from);
        if from.is_empty() {
            from = vec![0];
        }
        loop {
            let found = self.link.get(Get::range(from, end.clone()).keys_only().at_most(STEP)).await?;
            for kv in &found.kvs {
                let Some(key) =
                    str::from_utf8(&kv.key).ok().and_then(|key| key.strip_prefix(before.as_str()))
                else {
                    continue;
                };
                if let Some((name, called)) = name_of(key)
                    && name.starts_with(prefix)
                    && is_of_a_recipe(called, kv.lease)
                {
                    names.extend(LockName::parse(name));
                }
            }
            match found.kvs.last().filter(|_| found.more) {
                // The smallest key after the last one.
                Some(last) => from = [&*last.key, &[0]].concat(),
                None => return Ok(names),
            }
        }
    }

    pub(super) async fn broken(&self, name: LockName, how: Break) -> Result<Vec<Member>, BreakError> {
        let keys = self.keys(&name)?;
        let members = self.members(&keys).await?;
        let entries: Vec<&Entry> = members.queue.holders().collect();
        if entries.is_empty() {
            return Err(BreakError::NotHeld { name });
        }
        let shown = |entry: &&Entry| {
            let mut member = members.member(entry);
            member.token = Some(token(entry));
            member
        };
        if how == Break::Ask && entries.iter().any(|entry| entry.grant.is_none()) {
            let holders = entries.iter().filter(|entry| entry.grant.is_none()).map(shown).collect();
            return Err(BreakError::HolderKeepsIt { name, holders, advice: ASK_ANOTHER.into() });
        }
        for some in entries.chunks(AT_ONCE) {
            // Each on the condition that it is the entry that was seen.
            let each = some.iter().map(|entry| {
                let key = keys.seen(entry);
                let stands = Compare::created_at(key.as_str(), entry.order);
                // A second write marks a key as broken; its place in the queue depends only on the first write.
                let step = match how {
                    Break::Ask => Put::again(key).into(),
                    Break::Force => Delete::key(key).into(),
                };
                Step::from(Txn::new().when([stands]).and_then([step]))
            });
            self.link.txn(Txn::new().and_then(each.collect::<Vec<_>>())).await?;
        }
        Ok(entries.iter().map(shown).collect())
    }
}
