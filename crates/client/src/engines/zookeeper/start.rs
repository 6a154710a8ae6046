//! The last start of the work that a lock protects, by the servers' clock. A node records the time of its last change, and another node is
//! changed to read the current time.

use std::time::Duration;

use tenure_table::GrantId;
use zookeeper_client::{CreateMode, Error, Stat};

use super::ZooKeeperEngine;
use super::fault::{Fault, What};
use super::link::Link;
use super::paths::START;
use crate::engine::{Remembered, Start};
use crate::random;

/// A recorded start.
struct Noted {
    /// Identifies the start if the response to its recording was lost.
    id: GrantId,
    /// The time of the start, in milliseconds of the servers' wall clock.
    at: i64,
    /// The number of changes of the node.
    version: i32,
}

impl Noted {
    fn read(data: &[u8], stat: &Stat) -> Option<Self> {
        let (id, ago) = str::from_utf8(data).ok()?.split_once(' ')?;
        Some(Self { id: id.parse().ok()?, at: stat.mtime - ago.parse::<i64>().ok()?, version: stat.version })
    }

    fn age(&self, now: i64) -> Duration {
        // Zero after the clock was set back behind the start.
        Duration::from_millis(u64::try_from(now - self.at).unwrap_or(0))
    }
}

impl ZooKeeperEngine {
    /// Returns the recorded start of a lock, if there is one.
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

    /// Returns the current time of the servers.
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

    /// Returns the time since the last start.
    pub(super) async fn last_start(&self, link: &Link, lock: &str) -> Result<Option<Duration>, Fault> {
        link.client().sync("/").await?;
        let Some(noted) = self.noted(link, lock).await? else { return Ok(None) };
        Ok(Some(noted.age(self.servers_now(link).await?)))
    }

    /// Records a start, if the grant's node exists; otherwise fails with `NoNode`.
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
                // It is unknown whether this start was recorded before the other one.
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
                // Another grant of the same owner was faster.
                Err(fault) if fault.is(&Error::BadVersion) || fault.is(&Error::NodeExists) => {}
                Err(fault) if fault.what() == What::AnswerLost => lost = Some(fault),
                Err(fault) => return Err(fault),
            }
        }
    }
}
