//! Who holds, who re-entered and who waits: a file for each, which its process keeps flocked. The kernel lets go of
//! that when the process ends, however it ends, so that a dead member can be told from a live one without knowing its pid.
//!
//! A member is complete and flocked before it has its name: whoever sees it can read it.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use crate::ids::{GrantId, OwnerId};
use crate::info::{Member, Presence};
use crate::mode::Mode;
use crate::token::FencingToken;

/// What somebody is to a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Holder,
    /// A holder that re-entered what another client of its owner holds.
    Joined,
    Waiter,
}

impl Role {
    const fn prefix(self) -> &'static str {
        match self {
            Self::Holder => "holder-",
            Self::Joined => "joined-",
            Self::Waiter => "waiter-",
        }
    }
}

/// What a member's file says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) owner: OwnerId,
    pub(super) mode: Mode,
    pub(super) token: Option<FencingToken>,
    pub(super) label: Option<String>,
    pub(super) host: String,
    pub(super) pid: u32,
    /// Milliseconds since 1970.
    pub(super) since_ms: u64,
}

/// One's own member file. Dropping it removes it.
#[derive(Debug)]
pub(super) struct MemberFile {
    /// Keeps it flocked.
    _file: File,
    path: PathBuf,
}

impl MemberFile {
    pub(super) fn create(folder: &Path, role: Role, grant: GrantId, record: &Record) -> io::Result<Self> {
        let text = serde_json::to_vec(record)?;
        let new = folder.join(format!("new-{grant}"));
        let path = folder.join(format!("{}{grant}", role.prefix()));
        loop {
            let mut file =
                OpenOptions::new().read(true).write(true).create(true).truncate(true).open(&new)?;
            // Blocks at most for as long as somebody looks whether it is flocked.
            rustix::fs::flock(&file, FlockOperation::LockExclusive)?;
            file.write_all(&text)?;
            match std::fs::rename(&new, &path) {
                // Somebody found it before it was flocked, and took it for a dead one's.
                Err(error) if error.kind() == io::ErrorKind::NotFound && folder.exists() => {}
                Err(error) => return Err(error),
                Ok(()) => return Ok(Self { _file: file, path }),
            }
        }
    }

    /// Whether it still has its name: it has not, if somebody deleted it.
    pub(super) fn is_there(&self) -> bool {
        self.path.exists()
    }
}

impl Drop for MemberFile {
    fn drop(&mut self) {
        // If it cannot be removed, it is seen as a dead one's, and goes with the next grant.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Somebody whose file was found.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) role: Role,
    pub(super) grant: GrantId,
    /// What the file says; nothing if it cannot be read, as after a power failure.
    pub(super) record: Option<Record>,
    pub(super) presence: Presence,
    path: PathBuf,
}

impl Found {
    /// Whether its being there keeps out a grant in this mode to this owner. One that cannot be read keeps everybody out.
    pub(super) fn keeps_out(&self, owner: OwnerId, mode: Mode) -> bool {
        self.holds()
            && self.record.as_ref().is_none_or(|held| held.owner != owner && !held.mode.compatible_with(mode))
    }

    /// Whether it holds, alone or with others.
    pub(super) fn holds(&self) -> bool {
        self.role != Role::Waiter && self.presence == Presence::Present
    }

    pub(super) fn member(self) -> Option<Member> {
        let record = self.record?;
        Some(Member {
            token: record.token,
            label: record.label,
            host: Some(record.host),
            pid: Some(record.pid),
            since: Some(SystemTime::UNIX_EPOCH + Duration::from_millis(record.since_ms)),
            presence: self.presence,
            ..Member::new(self.grant, record.owner, record.mode)
        })
    }

    /// Removes what a dead one left.
    pub(super) fn remove(&self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// All members of a resource, longest first.
pub(super) fn find(folder: &Path) -> io::Result<Vec<Found>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let file_name = entry.file_name();
        let Some((role, grant)) = file_name.to_str().and_then(parse) else {
            continue;
        };
        match look(&entry.path()) {
            Ok((record, presence)) => found.push(Found { role, grant, record, presence, path: entry.path() }),
            // It left while we looked.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    found.sort_by_key(|found| (found.record.as_ref().map(|record| record.since_ms), found.grant));
    Ok(found)
}

/// Removes what the dead left: their files, those that never got a name, and marks for them.
pub(super) fn remove_the_dead(folder: &Path, found: &[Found]) -> io::Result<()> {
    for dead in found.iter().filter(|found| found.presence == Presence::Gone) {
        dead.remove();
    }
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        let file_name = entry.file_name();
        let Some(file_name) = file_name.to_str() else {
            continue;
        };
        let dead = if file_name.starts_with("new-") {
            look(&entry.path()).is_ok_and(|(_, presence)| presence == Presence::Gone)
        } else if let Some(grant) = file_name.strip_prefix("break-") {
            !found.iter().any(|found| found.holds() && found.grant.to_string() == grant)
        } else {
            false
        };
        if dead {
            let _ = std::fs::remove_file(entry.path());
        }
    }
    Ok(())
}

/// The mark by which an operator asks a holder to let go.
pub(super) fn break_mark(folder: &Path, grant: GrantId) -> PathBuf {
    folder.join(format!("break-{grant}"))
}

fn parse(file_name: &str) -> Option<(Role, GrantId)> {
    [Role::Holder, Role::Joined, Role::Waiter]
        .into_iter()
        .find_map(|role| Some((role, file_name.strip_prefix(role.prefix())?.parse().ok()?)))
}

fn look(path: &Path) -> io::Result<(Option<Record>, Presence)> {
    let mut file = File::open(path)?;
    // Shared, so that two who look do not take each other for its owner; let go of when the file is closed.
    let presence = match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Presence::Gone,
        Err(rustix::io::Errno::WOULDBLOCK) => Presence::Present,
        Err(error) => return Err(error.into()),
    };
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    Ok((serde_json::from_slice(&text).ok(), presence))
}
