//! The last start of what a lock protects, by the servers' clock: a node knows when it was changed last, and another one is changed to learn
//! what time it is.

use std::time::Duration;

use tenure_table::GrantId;
use zookeeper_client::{CreateMode, Error, Stat};

use super::ZooKeeperEngine;
use super::fault::{Fault, What};
use super::link::Link;
use super::paths::START;
use crate::engine::{Remembered, Start};
use crate::random;

/// A start that is noted down.
struct Noted {
    /// By which it is known if the answer to its noting was lost.
    id: GrantId,
    /// When it was, in milliseconds of the servers' calendar.
    at: i64,
    /// How often the node has been changed.
    version: i32,
}

impl Noted {
    fn read(data: &[u8], stat: &Stat) -> Option<Self> {
        let (id, ago) = str::from_utf8(data).ok()?.split_once(' ')?;
        Some(Self { id: id.parse().ok()?, at: stat.mtime - ago.parse::<i64>().ok()?, version: stat.version })
    }

    fn age(&self, now: i64) -> Duration {
        // A clock that was set back makes it no older than it is.
        Duration::from_millis(u64::try_from(now - self.at).unwrap_or(0))
    }
}

impl ZooKeeperEngine {
    /// What is noted down of a lock, if anything is.
    async fn noted(&self, link: &Link, lock: &str) -> Result<Option<Noted>, Fault> {
        let path = format!("{lock}/{START}");
        match link.client().get_data(&path).await {
            Ok((data, stat)) => {
                let damaged = || format!("{path} is not a start of ours: see who wrote it, and delete it");
                Noted::read(&data, &stat).map(Some).ok_or_else(|| Fault::Damaged(damaged()))
            }
            Err(Error::NoNode) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// What time it is, for the servers.
    async fn servers_now(&self, link: &Link) -> Result<i64, Fault> {
        let path = self.address.root.clock();
        let lasting = CreateMode::Persistent.with_acls(self.address.acls());
        loop {
            match link.client().set_data(&path, &[], None).await {
                Ok(stat) => return Ok(stat.mtime),
                Err(Error::NoNode) => {}
                Err(error) => return Err(error.into()),
            }
            match link.client().create(&path, &[], &lasting).await {
                Ok(_) | Err(Error::NodeExists) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// How long ago the last start was.
    pub(super) async fn last_start(&self, link: &Link, lock: &str) -> Result<Option<Duration>, Fault> {
        link.client().sync("/").await?;
        let Some(noted) = self.noted(link, lock).await? else { return Ok(None) };
        Ok(Some(noted.age(self.servers_now(link).await?)))
    }

    /// Notes down a start, if what stands for the grant is there: `NoNode`, if it is not.
    pub(super) async fn note(
        &self,
        link: &Link,
        lock: &str,
        node: &str,
        start: Start,
    ) -> Result<Remembered, Fault> {
        let id = random::grant_id();
        let (path, ago) =
            (format!("{lock}/{START}"), i64::try_from(start.ago.as_millis()).unwrap_or(i64::MAX));
        let text = format!("{id} {ago}");
        let mut lost: Option<Fault> = None;
        loop {
            let noted = self.noted(link, lock).await?;
            if let Some(noted) = &noted {
                if noted.id == id {
                    return Ok(Remembered::Recorded);
                }
                let now = self.servers_now(link).await?;
                if noted.age(now) < start.window || noted.at > now.saturating_sub(ago) {
                    return Ok(Remembered::Already { ago: noted.age(now) });
                }
            }
            if let Some(fault) = lost {
                // Whether it was done before somebody else's is not known.
                return Err(fault);
            }
            let mut writer = link.client().new_multi_writer();
            writer.add_check_version(node, -1)?;
            if let Some(noted) = &noted {
                writer.add_set_data(&path, text.as_bytes(), Some(noted.version))?;
            } else {
                let lasting = CreateMode::Persistent.with_acls(self.address.acls());
                writer.add_create(&path, text.as_bytes(), &lasting)?;
            }
            match writer.commit().await.map_err(Fault::from) {
                Ok(_) => return Ok(Remembered::Recorded),
                // Somebody of the same owner was faster.
                Err(fault) if fault.is(&Error::BadVersion) || fault.is(&Error::NodeExists) => {}
                Err(fault) if fault.what() == What::AnswerLost => lost = Some(fault),
                Err(fault) => return Err(fault),
            }
        }
    }
}
