//! What is seen of locks from outside.

use zookeeper_client::{Error, MultiReadResult};

use super::fault::Fault;
use super::link::{Link, Seen, token};
use crate::engines::details;
use crate::engines::queue::{Entry, Queue};
use crate::engines::stranger::another;
use crate::ids::GrantId;
use crate::info::{LockInfo, Member};
use crate::mode::Mode;
use crate::name::LockName;

/// So many nodes are read together.
const TOGETHER: usize = 100;

/// One who holds or waits, and what stands for it.
#[derive(Clone, Debug)]
pub(super) struct Present {
    /// The path of its node.
    pub(super) node: String,
    pub(super) data: Vec<u8>,
    pub(super) member: Member,
    /// Whether it is one of ours, and listens to us.
    pub(super) ours: bool,
}

impl Link {
    /// Who holds a lock, and who waits for it.
    pub(super) async fn present(
        &self,
        lock: &str,
        seen: &Seen,
    ) -> Result<(Vec<Present>, Vec<Present>), Fault> {
        let queue = Queue::new(seen.children.entries.clone());
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
                    MultiReadResult::Data { data, stat } => (data, stat),
                    // It is gone by now.
                    MultiReadResult::Error { err: Error::NoNode } => continue,
                    MultiReadResult::Error { err } => return Err(err.into()),
                    _ => continue,
                };
                let holds = holding.contains(&entry.order);
                let (mut member, ours) = member(entry, &data);
                member.token = holds.then(|| token(&stat));
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
            info.value = kept.value(|grant| seen.children.has(grant));
        }
        Ok(info)
    }

    /// The locks whose names begin so.
    pub(super) async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>, Fault> {
        let (folder, begin) = self.root().folder(prefix);
        let names = prefix.rsplit_once('/').map_or("", |(folder, _)| folder);
        self.client().sync("/").await?;
        let mut found = Vec::new();
        // Nodes to be looked at, and the names that they stand for.
        let mut open = vec![(folder, names.to_owned())];
        let mut is_top = true;
        while let Some((node, name)) = open.pop() {
            // The root of the tree has no name, and its path is none.
            let seen = self.see(if node.is_empty() { "/" } else { &node }).await;
            let seen = match seen {
                Err(fault) if fault.is(&Error::NoNode) => continue,
                seen => seen?,
            };
            for (part, child) in &seen.children.below {
                if is_top && (!part.starts_with(begin) || (node.is_empty() && child == "zookeeper")) {
                    continue;
                }
                let is_first = is_top && !prefix.contains('/');
                let below = if is_first { part.clone() } else { format!("{name}/{part}") };
                open.push((format!("{node}/{child}"), below));
            }
            if !is_top
                && !seen.children.entries.is_empty()
                && let Ok(name) = LockName::parse(&name)
            {
                let info = self.info(name, &node, &seen).await?;
                found.extend((!info.holders.is_empty() || !info.waiters.is_empty()).then_some(info));
            }
            is_top = false;
        }
        found.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(found)
    }
}

/// The grant that a node of ours stands for, by what is in it.
pub(super) fn grant(data: &[u8]) -> Option<GrantId> {
    Some(ours(data, Mode::Ex)?.grant)
}

fn ours(data: &[u8], mode: Mode) -> Option<Member> {
    let (id, details) = str::from_utf8(data).ok()?.split_once(' ')?;
    let (grant, owner) = id.split_once('/')?;
    Some(details::member(grant.parse().ok()?, owner.parse().ok()?, mode, details))
}

fn member(entry: &Entry, data: &[u8]) -> (Member, bool) {
    match ours(data, entry.mode) {
        Some(member) => (member, true),
        None => {
            // kazoo writes who it is into its nodes, and others nothing: their names tell them apart.
            let mut member = another(if data.is_empty() { entry.node.as_bytes() } else { data });
            member.mode = entry.mode;
            (member, false)
        }
    }
}
