//! Member files: one for each holder, re-entered grant and waiter, which its process keeps flocked. The kernel releases the flock when the
//! process ends, however it ends, so a dead member can be told from a live one without its pid.
//!
//! A member file is complete and flocked before it has its name: every process that sees it can read it.

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

/// The role of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Holder,
    /// A holder that re-entered a lock which another client of its owner holds.
    Joined,
    Waiter(Ticket),
}

/// A waiter's place in the queue. It is in the file's name, so that a queue is read without opening its files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket {
    /// The start of the wait: all processes of a host share the boot clock.
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

/// The content of a member file.
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

/// The member file of a grant or waiter in this process. Dropping it removes the file.
#[derive(Debug)]
pub(super) struct MemberFile {
    /// Keeps the file flocked.
    file: File,
    path: PathBuf,
}

impl MemberFile {
    pub(super) fn create(folder: &Path, role: Role, grant: GrantId, record: &Record) -> io::Result<Self> {
        /// The most attempts to create the file. Another process that looks at the wrong moment explains one failure, but not as many as
        /// this.
        const TRIES: usize = 100;
        let text = serde_json::to_vec(record)?;
        let path = folder.join(role.file_name(grant));
        for attempt in 0..TRIES {
            let new = folder.join(format!("new-{grant}-{attempt}"));
            let mut file = for_writing().create_new(true).open(&new)?;
            // The wait is not in the kernel: a process that looks at the file may be stopped with the flock.
            if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
                remove(&new);
                continue;
            }
            let named = file.write_all(&text).and_then(|()| std::fs::rename(&new, &path));
            match named {
                Ok(()) => return Ok(Self { file, path }),
                // Another process found the file before it was flocked, and removed it as a dead member's.
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

    /// Whether the file still has its name. It has not if the file was deleted.
    pub(super) fn is_there(&self) -> bool {
        self.path.exists()
    }
}

impl Drop for MemberFile {
    fn drop(&mut self) {
        // A file that cannot be removed counts as a dead member's, and is removed with the next grant.
        remove(&self.path);
        // Closing alone is not enough: a child that was forked meanwhile has the descriptor too.
        let _ = rustix::fs::flock(&self.file, FlockOperation::Unlock);
    }
}

/// A member whose file was found.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) role: Role,
    pub(super) grant: GrantId,
    /// The content of the file; `None` if it cannot be read, as after a power failure.
    pub(super) record: Option<Record>,
    pub(super) presence: Presence,
}

impl Found {
    /// Whether the member keeps out a grant in this mode to this owner. A holder with an unreadable record keeps out all others.
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

/// Returns all members of a resource, longest first.
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

/// The live holders, and the files of dead members.
#[derive(Debug, Default)]
pub(super) struct Holders {
    pub(super) present: Vec<Found>,
    /// The tokens of dead holders that could write.
    dead_writers: Vec<u64>,
    leftovers: Vec<PathBuf>,
}

impl Holders {
    /// Whether a holder with this token could write and died.
    pub(super) fn writer_died(&self, token: u64) -> bool {
        self.dead_writers.contains(&token)
    }

    /// Removes the files of dead members. Called only after the death of a writer is recorded.
    pub(super) fn bury(self) {
        self.leftovers.iter().for_each(|path| remove(path));
    }
}

/// Returns the live holders, and the files of dead members.
pub(super) fn holders(folder: &Path) -> io::Result<Holders> {
    let mut holders = Holders::default();
    let mut marks = Vec::new();
    let mut longest_waiting: Option<PathBuf> = None;
    // An unreadable file of a member that does not hold the lock is ignored, since nothing depends on it.
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
    // Only the longest waiter: this runs for every grant, and a queue may be long. Dead waiters reach its front.
    holders.leftovers.extend(longest_waiting.filter(|path| is_dead(path)));
    marks.retain(|(grant, _)| !holders.present.iter().any(|holder| holder.grant.to_string() == *grant));
    holders.leftovers.extend(marks.into_iter().map(|(_, path)| path));
    Ok(holders)
}

/// Returns the file of the nearest earlier waiter that conflicts with this one.
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
            // A waiter that has left or cannot be read does not keep this one waiting.
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

/// Removes a file. A failure does no harm: another process was faster, or the file belongs to another user.
fn remove(path: &Path) {
    let _ = std::fs::remove_file(path);
}

/// Returns the path of the mark by which an operator asks a holder to release its lock.
pub(super) fn break_mark(folder: &Path, grant: GrantId) -> PathBuf {
    folder.join(format!("break-{grant}"))
}

/// Returns the content of a member's file, and whether its process lives; `None` if the member has just left.
fn look(path: &Path) -> io::Result<Option<(Option<Record>, Presence)>> {
    let mut file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    // Shared, so that two inspecting processes do not take each other for the file's owner.
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
