//! Inspection of locks.

use futures_util::future::join_all;
use tenure_table::{GrantId, LockName, Mode};
use zookeeper_client::{Error, MultiReadResult};

use super::fault::Fault;
use super::link::{Link, Seen, token, unexpected};
use super::paths::Children;
use crate::engines::details;
use crate::engines::queue::Entry;
use crate::engines::stranger::another;
use crate::info::{LockInfo, Member};

/// The number of nodes that are read together.
const TOGETHER: usize = 100;

/// A holder or waiter, and its node.
#[derive(Clone, Debug)]
pub(super) struct Present {
    /// The path of its node.
    pub(super) node: String,
    pub(super) data: Vec<u8>,
    pub(super) member: Member,
    /// Whether the node belongs to this engine, so that its holder reacts to a change.
    pub(super) ours: bool,
}

impl Link {
    /// Returns the holders and the waiters of a lock.
    pub(super) async fn present(
        &self,
        lock: &str,
        seen: &Seen,
    ) -> Result<(Vec<Present>, Vec<Present>), Fault> {
        let queue = &seen.children.queue;
        let holding: Vec<_> = queue.holders().map(|entry| entry.order).collect();
        let (mut holders, mut waiters) = (Vec::new(), Vec::new());
        for some in queue.entries().chunks(TOGETHER) {
            let mut reader = self.client().new_multi_reader();
            let paths: Vec<_> = some.iter().map(|entry| format!("{lock}/{}", entry.node)).collect();
            for path in &paths {
                reader.add_get_data(path)?;
            }
            let answers = reader.commit().await?;
            for ((entry, node), answer) in some.iter().zip(paths).zip(answers) {
                let (data, stat) = match answer {
                    MultiReadResult::Data { data, stat } => (data, Some(stat)),
                    // The node is gone by now.
                    MultiReadResult::Error { err: Error::NoNode } => continue,
                    // The node belongs to another user.
                    MultiReadResult::Error { err: Error::NoAuth } => (Vec::new(), None),
                    other => return Err(unexpected(Some(other))),
                };
                let holds = holding.contains(&entry.order);
                let (mut member, ours) = member(entry, &data);
                member.token = stat.filter(|_| holds).map(|stat| token(&stat));
                let present = Present { node, data, member, ours };
                if holds { holders.push(present) } else { waiters.push(present) }
            }
        }
        Ok((holders, waiters))
    }

    pub(super) async fn inspect(&self, name: LockName) -> Result<LockInfo, Fault> {
        let lock = self.root().lock(&name);
        let seen = self.see_now(&lock).await?;
        self.info(name, &lock, &seen).await
    }

    async fn info(&self, name: LockName, lock: &str, seen: &Seen) -> Result<LockInfo, Fault> {
        let (holders, waiters) = self.present(lock, seen).await?;
        let mut info = LockInfo::free(name);
        info.holders = holders.into_iter().map(|holder| holder.member).collect();
        info.waiters = waiters.into_iter().map(|waiter| waiter.member).collect();
        info.last_token = info.holders.iter().filter_map(|holder| holder.token).max();
        if let Some(kept) = &seen.value {
            info.value = kept.value(|grant| seen.children.queue.has(grant));
        }
        Ok(info)
    }

    /// Returns the locks whose names have this prefix.
    pub(super) async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>, Fault> {
        self.within_limit(self.client().sync("/")).await?;
        let (folder, begin) = self.root().folder(prefix);
        let names = prefix.rsplit_once('/').map(|(names, _)| names.to_owned());
        let mut found = Vec::new();
        // Nodes that are still to be read, with their names; `None` for the root.
        let mut open = vec![(folder, names)];
        let mut is_top = true;
        while !open.is_empty() {
            let some = open.split_off(open.len().saturating_sub(TOGETHER));
            for ((node, name), children) in some.iter().zip(self.children(&some).await?) {
                for (part, child) in &children.below {
                    let is_zookeepers = node.is_empty() && child == "zookeeper";
                    if is_zookeepers || (is_top && !part.starts_with(begin)) {
                        continue;
                    }
                    let below = name.as_ref().map_or_else(|| part.clone(), |name| format!("{name}/{part}"));
                    open.push((format!("{node}/{child}"), Some(below)));
                }
                let name = name.as_ref().filter(|_| !is_top && !children.queue.entries().is_empty());
                found.extend(name.and_then(|name| Some((node.clone(), LockName::parse(name).ok()?))));
            }
            is_top = false;
        }
        found.sort_by(|(_, one), (_, other)| one.cmp(other));
        let mut locks = Vec::new();
        for some in found.chunks(TOGETHER) {
            let looking = some.iter().map(async |(node, name)| {
                let seen = self.see(node).await?;
                self.info(name.clone(), node, &seen).await
            });
            for info in self.within_limit(async { Ok::<_, Fault>(join_all(looking).await) }).await? {
                match info {
                    // A node without read permission belongs to another user.
                    Err(fault) if fault.is(&Error::NoAuth) => {}
                    info => locks.push(info?),
                }
            }
        }
        // Some may be free by now.
        locks.retain(|lock| !lock.is_unused());
        Ok(locks)
    }

    /// Returns the children of nodes; none for a node that does not exist or may not be read.
    async fn children(&self, nodes: &[(String, Option<String>)]) -> Result<Vec<Children>, Fault> {
        let mut reader = self.client().new_multi_reader();
        for (node, _) in nodes {
            // Only the root of the tree has a path that ends with `/`.
            reader.add_get_children(if node.is_empty() { "/" } else { node })?;
        }
        let answers = self.within_limit(reader.commit()).await?;
        let children = |answer| match answer {
            MultiReadResult::Children { children } => Ok(Children::new(children)),
            MultiReadResult::Error { err: Error::NoNode | Error::NoAuth } => Ok(Children::default()),
            other => Err(unexpected(Some(other))),
        };
        answers.into_iter().map(children).collect()
    }
}

/// Returns the grant of a node of this engine, by its content.
pub(super) fn grant(data: &[u8]) -> Option<GrantId> {
    Some(ours(data, Mode::Ex)?.grant)
}

fn ours(data: &[u8], mode: Mode) -> Option<Member> {
    let (id, details) = str::from_utf8(data).ok()?.split_once(' ')?;
    let (grant, owner) = id.split_once('/')?;
    Some(details::member(grant.parse().ok()?, owner.parse().ok()?, mode, details))
}

fn member(entry: &Entry, data: &[u8]) -> (Member, bool) {
    if let Some(member) = ours(data, entry.mode) {
        return (member, true);
    }
    // kazoo writes its identity into its nodes, and other recipes nothing: their names identify them.
    let mut member = another(if data.is_empty() { entry.node.as_bytes() } else { data });
    member.mode = entry.mode;
    (member, false)
}
