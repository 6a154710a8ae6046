//! Inspect, list and break, by the answers of a majority of the instances.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use futures_util::future::join_all;
use redis::Value as Answer;
use tenure_table::{GrantId, LockName};

use super::RedlockEngine;
use crate::engine::Break;
use crate::engines::redis::link::{Link, Repeat};
use crate::engines::redis::scripts::{self, Call};
use crate::engines::redis::{TOGETHER, holders, look};
use crate::engines::stranger::ASK_ANOTHER;
use crate::error::{BreakError, InspectError};
use crate::info::{LockInfo, Member};

impl RedlockEngine {
    pub(super) async fn inspect_lock(&self, name: LockName) -> Result<LockInfo, InspectError> {
        let (key, limit) = (self.key(&name)?, self.look_limit());
        let ask = |link: Arc<Link>| {
            let (key, name) = (key.clone(), name.clone());
            async move { Ok(look::inspect(&link, limit, &key, name).await?.info) }
        };
        let seen = self.instances.ask_majority(ask).await?;
        let mut info = LockInfo::free(name.clone());
        let (count, quorum) = (self.instances.links().len(), self.instances.links().len() / 2 + 1);
        // Silent instances may have the key too.
        let enough = quorum.saturating_sub(count - seen.len()).max(1);
        info.holders = seen_by(enough, seen.into_iter().flat_map(|seen| seen.holders));
        info.last_token = info.holders.iter().filter_map(|member| member.token).max();
        Ok(info)
    }

    pub(super) async fn list_locks(&self, prefix: &str) -> Result<Vec<LockInfo>, InspectError> {
        let limit = self.look_limit();
        let ask = |link: Arc<Link>| {
            let (key_prefix, prefix) = (self.address.prefix.clone(), prefix.to_owned());
            async move { look::names(&link, limit, &key_prefix, &prefix).await }
        };
        let seen = self.instances.ask_majority(ask).await?;
        let names: Vec<LockName> = seen.into_iter().flatten().collect::<BTreeSet<_>>().into_iter().collect();
        let mut locks = Vec::new();
        for some in names.chunks(TOGETHER) {
            for looked in join_all(some.iter().map(|name| self.inspect_lock(name.clone()))).await {
                locks.push(looked?);
            }
        }
        locks.retain(|lock| !lock.holders.is_empty());
        Ok(locks)
    }

    pub(super) async fn break_on_all(&self, name: LockName, how: Break) -> Result<Vec<Member>, BreakError> {
        let (key, limit) = (self.key(&name)?, self.look_limit());
        let ask = |link: Arc<Link>| {
            let key = key.clone();
            async move {
                let mut script = Call::new(&scripts::BREAK, &key);
                script.arg("").arg(u8::from(how == Break::Force));
                let answer: Vec<Answer> = link.script(limit, Repeat::Never, &script).await?;
                Ok(holders(&answer))
            }
        };
        let seen: Vec<_> = self.instances.ask_majority(ask).await?;
        let all_ours = seen.iter().all(|(_, ours)| *ours);
        // Includes all holders that any instance has marked or freed.
        let holders = seen_by(1, seen.into_iter().flat_map(|(holders, _)| holders));
        match how {
            _ if holders.is_empty() => Err(BreakError::NotHeld { name }),
            Break::Ask if !all_ours => {
                Err(BreakError::HolderKeepsIt { name, holders, advice: ASK_ANOTHER.into() })
            }
            Break::Ask | Break::Force => Ok(holders),
        }
    }
}

/// Returns the holders that enough instances show. Other holders are about to acquire the lock, or have released it.
fn seen_by(enough: usize, seen: impl Iterator<Item = Member>) -> Vec<Member> {
    let mut counted: HashMap<GrantId, (usize, Member)> = HashMap::new();
    for member in seen {
        let (times, known) = counted.entry(member.grant).or_insert_with(|| (0, member.clone()));
        *times += 1;
        // An instance that is late in the second round does not know the token.
        known.token = known.token.max(member.token);
    }
    counted.into_values().filter(|(times, _)| *times >= enough).map(|(_, member)| member).collect()
}
