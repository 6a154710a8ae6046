//! Who holds, who re-entered and who waits: a file for each, which its process keeps flocked. The kernel lets go of
//! that when the process ends, however it ends, so that a dead member can be told from a live one without knowing its pid.
//!
//! A member is complete and flocked before it has its name: whoever sees it can read it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};
use tenure_table::{FencingToken, GrantId, Mode, OwnerId};

use super::resource::for_writing;
use crate::clock::BootTime;
use crate::info::{Member, Presence};

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
    file: File,
    path: PathBuf,
}

impl MemberFile {
    pub(super) fn create(folder: &Path, role: Role, grant: GrantId, record: &Record) -> io::Result<Self> {
        /// So often somebody may look at it at just the wrong moment before something else is wrong.
        const TRIES: usize = 100;
        let text = serde_json::to_vec(record)?;
        let path = folder.join(role.file_name(grant));
        for attempt in 0..TRIES {
            let new = folder.join(format!("new-{grant}-{attempt}"));
            let mut file = for_writing().create_new(true).open(&new)?;
            // Not a wait in the kernel: whoever looks at it just now may be stopped there.
            if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
                remove(&new);
                continue;
            }
            let named = file.write_all(&text).and_then(|()| std::fs::rename(&new, &path));
            match named {
                Ok(()) => return Ok(Self { file, path }),
                // Somebody found it before it was flocked, and took it for a dead one's.
                Err(error) if error.kind() == io::ErrorKind::NotFound && folder.exists() => {}
                Err(error) => {
                    remove(&new);
                    return Err(error);
                }
            }
        }
        Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "somebody removes or locks every file that is made there",
        ))
    }

    pub(super) fn anchor(&self) -> io::Result<OwnedFd> {
        Ok(self.file.try_clone()?.into())
    }

    /// Whether it still has its name: it has not, if somebody deleted it.
    pub(super) fn is_there(&self) -> bool {
        self.path.exists()
    }
}

impl Drop for MemberFile {
    fn drop(&mut self) {
        // If it cannot be removed, it is seen as a dead one's, and goes with the next grant.
        remove(&self.path);
        // Not by closing alone: a child that was forked meanwhile has the descriptor too.
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
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

/// Those who hold, and what the dead left.
#[derive(Debug, Default)]
pub(super) struct Holders {
    pub(super) present: Vec<Found>,
    /// The tokens of those who could write and died.
    dead_writers: Vec<u64>,
    leftovers: Vec<PathBuf>,
}

impl Holders {
    /// Whether one of this grant's holders could write and died.
    pub(super) fn writer_died(&self, token: u64) -> bool {
        self.dead_writers.contains(&token)
    }

    /// Removes what the dead left. Not before it is written down that a writer died.
    pub(super) fn bury(self) {
        self.leftovers.iter().for_each(|path| remove(path));
    }
}

/// Those who hold, and what the dead left.
pub(super) fn holders(folder: &Path) -> io::Result<Holders> {
    let mut holders = Holders::default();
    let mut marks = Vec::new();
    let mut longest_waiting: Option<PathBuf> = None;
    // Of those who do not hold, nothing depends on what cannot be read.
    let is_dead = |path: &Path| matches!(look(path), Ok(Some((_, Presence::Gone))));
    for (file_name, path) in entries(folder)? {
        match Role::parse(&file_name) {
            Some((Role::Waiter(_), _)) => {
                longest_waiting = Some(longest_waiting.map_or(path.clone(), |other| other.min(path)));
            }
            Some((role, grant)) => match look(&path)? {
                Some((record, Presence::Present)) => {
                    holders.present.push(Found { role, grant, record, presence: Presence::Present });
                }
                Some((record, Presence::Gone)) => {
                    let writer =
                        record.filter(|record| record.mode.may_write()).and_then(|record| record.token);
                    holders.dead_writers.extend(writer.map(FencingToken::get));
                    holders.leftovers.push(path);
                }
                None => {}
            },
            None if file_name.starts_with("new-") && is_dead(&path) => holders.leftovers.push(path),
            None => marks.extend(file_name.strip_prefix("break-").map(|grant| (grant.to_owned(), path))),
        }
    }
    // Not at all who wait: this is called for every grant, and a queue may be long. The dead come to the front of it.
    holders.leftovers.extend(longest_waiting.filter(|path| is_dead(path)));
    marks.retain(|(grant, _)| !holders.present.iter().any(|holder| holder.grant.to_string() == *grant));
    holders.leftovers.extend(marks.into_iter().map(|(_, path)| path));
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
        match look(&path) {
            Ok(Some((_, Presence::Present))) => return Ok(Some(path)),
            Ok(Some((_, Presence::Gone))) => remove(&path),
            // One that has left, and one that cannot be read, are not waited for.
            Ok(None) | Err(_) => {}
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

/// What cannot be removed, because somebody else was faster or because it is another user's, does no harm.
fn remove(path: &Path) {
    let _ = std::fs::remove_file(path);
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
    // Shared, so that two who look do not take each other for its owner.
    let presence = match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => {
            rustix::fs::flock(&file, FlockOperation::Unlock)?;
            Presence::Gone
        }
        Err(rustix::io::Errno::WOULDBLOCK) => Presence::Present,
        Err(error) => return Err(error.into()),
    };
    let mut text = Vec::new();
    file.read_to_end(&mut text)?;
    Ok(Some((serde_json::from_slice(&text).ok(), presence)))
}
