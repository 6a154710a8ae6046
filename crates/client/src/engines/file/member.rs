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

use crate::clock::BootTime;
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
    Waiter(Ticket),
}

/// A waiter's place in the queue. It is in the file's name, so that a queue is read without opening its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    /// Since when it waits: all processes of a host have one time since boot.
    pub(super) since: BootTime,
    pub(super) mode: Mode,
}

impl Role {
    fn file_name(self, grant: GrantId) -> String {
        match self {
            Self::Holder => format!("holder-{grant}"),
            Self::Joined => format!("joined-{grant}"),
            Self::Waiter(Ticket { since, mode }) => {
                format!("waiter-{:020}-{mode}-{grant}", since.since_boot().as_nanos())
            }
        }
    }

    fn parse(file_name: &str) -> Option<(Self, GrantId)> {
        let (role, rest) = file_name.split_once('-')?;
        match role {
            "holder" => Some((Self::Holder, rest.parse().ok()?)),
            "joined" => Some((Self::Joined, rest.parse().ok()?)),
            "waiter" => {
                let (nanos, rest) = rest.split_once('-')?;
                let (mode, grant) = rest.split_once('-')?;
                let since = BootTime::from_boot(Duration::from_nanos(nanos.parse().ok()?));
                Some((Self::Waiter(Ticket { since, mode: mode.parse().ok()? }), grant.parse().ok()?))
            }
            _ => None,
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
        let path = folder.join(role.file_name(grant));
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
}

impl Found {
    /// Whether its being there keeps out a grant in this mode to this owner. One that cannot be read keeps everybody out.
    pub(super) fn keeps_out(&self, owner: OwnerId, mode: Mode) -> bool {
        self.holds()
            && self.record.as_ref().is_none_or(|held| held.owner != owner && !held.mode.compatible_with(mode))
    }

    /// Whether it holds, alone or with others.
    pub(super) fn holds(&self) -> bool {
        matches!(self.role, Role::Holder | Role::Joined) && self.presence == Presence::Present
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
}

/// All members of a resource, longest first.
pub(super) fn find(folder: &Path) -> io::Result<Vec<Found>> {
    let mut found = Vec::new();
    for (file_name, path) in entries(folder)? {
        let Some((role, grant)) = Role::parse(&file_name) else { continue };
        if let Some((record, presence)) = look(&path)? {
            found.push(Found { role, grant, record, presence });
        }
    }
    found.sort_by_key(|found| (found.record.as_ref().map(|record| record.since_ms), found.grant));
    Ok(found)
}

/// Those who hold. Removes what the dead left, on the way.
pub(super) fn holders(folder: &Path) -> io::Result<Vec<Found>> {
    let (mut holders, mut marks) = (Vec::new(), Vec::new());
    let mut longest_waiting: Option<PathBuf> = None;
    let remove_if_dead = |path: &Path| -> io::Result<()> {
        match look(path)? {
            Some((_, Presence::Gone)) => remove(path),
            _ => Ok(()),
        }
    };
    for (file_name, path) in entries(folder)? {
        match Role::parse(&file_name) {
            Some((Role::Waiter(_), _)) => {
                longest_waiting = Some(longest_waiting.map_or(path.clone(), |other| other.min(path)));
            }
            Some((role, grant)) => match look(&path)? {
                Some((record, Presence::Present)) => {
                    holders.push(Found { role, grant, record, presence: Presence::Present });
                }
                Some((_, Presence::Gone)) => remove(&path)?,
                None => {}
            },
            None if file_name.starts_with("new-") => remove_if_dead(&path)?,
            None => marks.extend(file_name.strip_prefix("break-").map(|grant| (grant.to_owned(), path))),
        }
    }
    // Not at all of them: this is called for every grant, and a queue may be long. The dead come to the front of it.
    longest_waiting.map_or(Ok(()), |path| remove_if_dead(&path))?;
    for (grant, path) in marks {
        if !holders.iter().any(|holder| holder.grant.to_string() == grant) {
            remove(&path)?;
        }
    }
    Ok(holders)
}

/// The one who waits nearest before this one and keeps it waiting.
pub(super) fn ahead_of(folder: &Path, own: GrantId, ticket: Ticket) -> io::Result<Option<PathBuf>> {
    let mut ahead: Vec<_> = entries(folder)?
        .into_iter()
        .filter_map(|(file_name, path)| match Role::parse(&file_name)? {
            (Role::Waiter(other), grant) if !other.mode.compatible_with(ticket.mode) => {
                ((other.since, grant) < (ticket.since, own)).then_some((other.since, grant, path))
            }
            _ => None,
        })
        .collect();
    ahead.sort();
    for (_, _, path) in ahead.into_iter().rev() {
        match look(&path)? {
            Some((_, Presence::Present)) => return Ok(Some(path)),
            Some((_, Presence::Gone)) => remove(&path)?,
            None => {}
        }
    }
    Ok(None)
}

fn entries(folder: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let entry = entry?;
        if let Ok(file_name) = entry.file_name().into_string() {
            entries.push((file_name, entry.path()));
        }
    }
    Ok(entries)
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        // Somebody else was faster.
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// The mark by which an operator asks a holder to let go.
pub(super) fn break_mark(folder: &Path, grant: GrantId) -> PathBuf {
    folder.join(format!("break-{grant}"))
}

/// What a member's file says, and whether its process lives; nothing if it has just left.
fn look(path: &Path) -> io::Result<Option<(Option<Record>, Presence)>> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    // Shared, so that two who look do not take each other for its owner; let go of when the file is closed.
    let presence = match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Presence::Gone,
        Err(rustix::io::Errno::WOULDBLOCK) => Presence::Present,
        Err(error) => return Err(error.into()),
    };
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    Ok(Some((serde_json::from_slice(&text).ok(), presence)))
}
