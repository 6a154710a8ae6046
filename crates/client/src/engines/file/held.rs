//! A held lock: whether it is still valid, changes of its state, and its release. All operations here may wait for the disk.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::SystemTime;

use bytes::Bytes;
use tenure_table::{FencingToken, GrantId, Mode, OwnerId, Value};

use super::member::{self, MemberFile};
use super::moment::HostClock;
use super::resource::{LockFile, Resource};
use super::state::{State, StateError};
use super::watch::Subscription;
use crate::clock::BootTime;
use crate::engine::{GrantEvents, Granted, Remembered, Start};
use crate::error::LostReason;
use crate::lease::Term;

/// A held lock. Dropping it frees the lock without recording that it ended well.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) resource: Resource,
    pub(super) grant: GrantId,
    pub(super) events: GrantEvents,
    pub(super) since: BootTime,
    /// Set once the lock is watched: to `None` if no inotify instance is available.
    pub(super) watch: OnceLock<Option<Subscription>>,
    pub(super) owner: OwnerId,
    pub(super) mode: Mode,
    /// Whether other grants of the same owner may have joined.
    pub(super) shared_owner: bool,
    pub(super) token: u64,
    pub(super) value: Value,
    /// `None` once the lock is released.
    pub(super) files: Mutex<Option<Files>>,
}

/// The files that a holder keeps open. They are dropped in this order: the next holder must not take the member file for that of a live
/// holder.
#[derive(Debug)]
pub(super) struct Files {
    pub(super) member: MemberFile,
    pub(super) lock: LockFile,
}

impl Held {
    pub(super) fn granted(&self) -> Granted {
        Granted::new(Some(FencingToken::new(self.token)), Term::Open).with_value(self.value.clone())
    }

    fn files(&self) -> MutexGuard<'_, Option<Files>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn watched_by(&self, watch: Option<Subscription>) {
        let _ = self.watch.set(watch);
    }

    pub(super) fn is_watched(&self) -> bool {
        self.watch.get().is_some()
    }

    /// Returns the descriptors that keep the lock held: the kernel keeps a flock until its last descriptor is closed.
    pub(super) fn anchors(&self) -> io::Result<Vec<OwnedFd>> {
        match &*self.files() {
            Some(files) => Ok(vec![files.lock.anchor()?, files.member.anchor()?]),
            None => Ok(Vec::new()),
        }
    }

    /// Whether the grant is still valid, and the reason if not.
    pub(super) fn confirm(&self) -> io::Result<Result<(), LostReason>> {
        self.confirm_files(self.files().as_ref())
    }

    fn confirm_files(&self, files: Option<&Files>) -> io::Result<Result<(), LostReason>> {
        let Some(files) = files else {
            return Ok(Err(LostReason::Forgotten));
        };
        if member::break_mark(&self.resource.folder, self.grant).exists() {
            return Ok(Err(LostReason::Broken));
        }
        let stands = self.resource.is_current(&files.lock)? && files.member.is_there();
        Ok(if stands { Ok(()) } else { Err(LostReason::Forgotten) })
    }

    /// Writes the value if the grant is still valid. A release waits for the write.
    pub(super) fn write(&self, bytes: Bytes, now: SystemTime) -> Result<Result<(), LostReason>, StateError> {
        let value = Value { bytes, in_doubt: false };
        self.change(now, |file, state| {
            state.write_next(file, &self.resource.name, |state| state.value = value).map(drop)
        })
    }

    /// Records a start if the grant is still valid and no earlier start prevents it. A release waits for the write.
    pub(super) fn remember(
        &self,
        start: Start,
        clock: &HostClock,
    ) -> Result<Result<Remembered, LostReason>, StateError> {
        self.change(clock.clock.wall(), |file, state| {
            // The time after the wait for the short lock: another grant of the same owner may have recorded a start during the wait.
            let now = clock.now();
            match state.start.map(|last| last.age(now)) {
                Some(ago) if ago < start.window.max(start.ago) => Ok(Remembered::Already { ago }),
                _ => {
                    state.write_start(file, &self.resource.name, now.before(start.ago))?;
                    Ok(Remembered::Recorded)
                }
            }
        })
    }

    /// Changes the state if the grant is still valid. A release waits for the change.
    fn change<T>(
        &self,
        now: SystemTime,
        change: impl FnOnce(&File, &State) -> io::Result<T>,
    ) -> Result<Result<T, LostReason>, StateError> {
        let files = self.files();
        if let Err(reason) = self.confirm_files(files.as_ref())? {
            return Ok(Err(reason));
        }
        let short = self.resource.short_lock()?;
        // Checked again: during the wait, the lock file may have been deleted, and another process may hold the lock.
        if let Err(reason) = self.confirm_files(files.as_ref())? {
            return Ok(Err(reason));
        }
        let (file, state) = self.resource.state(&short, now)?;
        Ok(Ok(change(&file, &state)?))
    }

    /// Frees the lock, and returns the reason if the grant was no longer valid. The lock is free when this returns.
    pub(super) fn release(&self) -> Result<(), LostReason> {
        let files = self.files().take();
        let stood = self.confirm_files(files.as_ref()).unwrap_or(Ok(()));
        // The set of the owner's writers must not change between the check and the mark.
        let short = if self.shared_owner { self.resource.short_lock().ok() } else { None };
        if let Some(files) = &files
            && self.mode.may_write()
            && !self.others_of_the_owner_write()
        {
            files.lock.mark_ended(self.token);
        }
        let _ = std::fs::remove_file(member::break_mark(&self.resource.folder, self.grant));
        drop(files);
        drop(short);
        match stood {
            // An operator asked for the release, and this is it.
            Ok(()) | Err(LostReason::Broken) => Ok(()),
            Err(reason) => Err(reason),
        }
    }

    fn others_of_the_owner_write(&self) -> bool {
        let writes = |found: &member::Found| {
            let of_the_owner = found
                .record
                .as_ref()
                .is_some_and(|record| record.owner == self.owner && record.mode.may_write());
            found.grant != self.grant && of_the_owner
        };
        self.shared_owner
            && member::holders(&self.resource.folder)
                .is_ok_and(|holders| holders.present.iter().any(writes) || holders.writer_died(self.token))
    }
}
