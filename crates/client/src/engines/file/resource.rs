//! A resource's folder, and the two locks in it: the lock itself, and a short one around changes of the state.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rustix::fs::{FlockOperation, OFlags, Timespec, Timestamps, UTIME_NOW};
use rustix::io::Errno;
use tenure_table::{LockName, Mode};

use super::state::{State, StateError};

/// A resource, by its folder.
#[derive(Clone, Debug)]
pub(super) struct Resource {
    pub(super) name: LockName,
    pub(super) folder: PathBuf,
}

impl Resource {
    pub(super) fn lock_path(&self) -> PathBuf {
        self.folder.join("lock")
    }

    /// Opens the lock file with a separate descriptor. Creates the file and its folder if they do not exist.
    pub(super) fn open_lock(&self) -> io::Result<LockFile> {
        let open = || for_writing().create(true).open(self.lock_path());
        if std::fs::symlink_metadata(&self.folder).is_ok_and(|found| !found.is_dir()) {
            return Err(Errno::NOTDIR.into());
        }
        let file = match open() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make_folder(&self.folder)?;
                open()?
            }
            opened => opened?,
        };
        Ok(LockFile { file, locked: false })
    }

    /// Whether this is the file that others will open. It is not after the file was deleted or replaced.
    pub(super) fn is_current(&self, lock: &LockFile) -> io::Result<bool> {
        let ours = lock.file.metadata()?;
        match std::fs::metadata(self.lock_path()) {
            Ok(theirs) => Ok((ours.dev(), ours.ino()) == (theirs.dev(), theirs.ino())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Locks the folder, for a change of the state, or for a look at the members during which they must not change.
    pub(super) fn short_lock(&self) -> io::Result<ShortLock> {
        let folder = OpenOptions::new()
            .read(true)
            .custom_flags((OFlags::DIRECTORY | OFlags::NOFOLLOW).bits().cast_signed())
            .open(&self.folder)?;
        let mut pause = Duration::from_micros(100);
        let mut waited = Duration::ZERO;
        // The wait is not in the kernel: the process with the lock may be stopped, and would block this thread for as long.
        while let Err(error) = rustix::fs::flock(&folder, FlockOperation::NonBlockingLockExclusive) {
            if error != Errno::WOULDBLOCK {
                return Err(error.into());
            }
            if waited > ShortLock::LIMIT {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "somebody else is changing it and does not end; is it stopped?",
                ));
            }
            std::thread::sleep(pause);
            waited += pause;
            pause = (pause * 2).min(Duration::from_millis(5));
        }
        Ok(ShortLock { folder })
    }

    /// Opens and reads the state, under the short lock. Creates it if it does not exist.
    pub(super) fn state(&self, _under: &ShortLock, now: SystemTime) -> Result<(File, State), StateError> {
        match for_writing().open(self.folder.join("state")) {
            Ok(file) => {
                let state = State::read(&file, &self.name)?;
                Ok((file, state))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let state = State::first(now);
                Ok((state.create(&self.folder, &self.name)?, state))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Reads the state without the short lock, and does not create one.
    pub(super) fn peek(folder: &Path) -> Result<Option<(String, State)>, StateError> {
        match File::open(folder.join("state")) {
            Ok(file) => State::read_unlocked(&file).map(Some),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns options that never follow a symbolic link: other users with access to the directory may have planted one.
pub(super) fn for_writing() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    options
}

/// Returns the token of the resource's last grant that ended well.
pub(super) fn last_ended(folder: &Path) -> Option<u64> {
    LockFile { file: File::open(folder.join("lock")).ok()?, locked: false }.last_ended()
}

fn make_folder(folder: &Path) -> io::Result<()> {
    match DirBuilder::new().create(folder) {
        // Another process created it first.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        // The whole directory was removed.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            DirBuilder::new().recursive(true).create(folder)
        }
        made => made,
    }
}

/// Held while the state is read, changed and synced. Dropping it releases the lock.
#[derive(Debug)]
pub(super) struct ShortLock {
    folder: File,
}

impl Drop for ShortLock {
    /// Closing alone is not enough: a child that was forked meanwhile has the descriptor too, and would keep the lock.
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.folder, FlockOperation::Unlock);
    }
}

impl ShortLock {
    /// The longest wait for the short lock; far longer than a sync takes.
    const LIMIT: Duration = Duration::from_secs(10);
}

/// One acquire's separate descriptor of the lock file.
#[derive(Debug)]
pub(super) struct LockFile {
    file: File,
    locked: bool,
}

impl LockFile {
    /// Takes the lock if it is free. Never blocks.
    pub(super) fn try_lock(&mut self, mode: Mode) -> io::Result<bool> {
        if !self.locked {
            let how = match mode {
                Mode::Ex => FlockOperation::NonBlockingLockExclusive,
                _ => FlockOperation::NonBlockingLockShared,
            };
            match rustix::fs::flock(&self.file, how) {
                Ok(()) => self.locked = true,
                Err(Errno::WOULDBLOCK) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.locked)
    }

    pub(super) fn unlock(&mut self) -> io::Result<()> {
        self.locked = false;
        Ok(rustix::fs::flock(&self.file, FlockOperation::Unlock)?)
    }

    pub(super) fn anchor(&self) -> io::Result<OwnedFd> {
        Ok(self.file.try_clone()?.into())
    }

    /// Records that the grant with this token ended well. Not synced: if the record is lost, the value counts as in doubt.
    pub(super) fn mark_ended(&self, token: u64) {
        let _ = self.file.write_all_at(&token.to_le_bytes(), 0);
    }

    /// Returns the token of the last grant that ended well.
    pub(super) fn last_ended(&self) -> Option<u64> {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, 0).ok().map(|()| u64::from_le_bytes(bytes))
    }

    /// Makes the subscribers of the file check it.
    pub(super) fn poke(&self) -> io::Result<()> {
        // Both times: with one alone, inotify reports a write or a read and not a change of attributes. The current time, since only the
        // file's owner may set another.
        let now = Timespec { tv_sec: 0, tv_nsec: UTIME_NOW };
        Ok(rustix::fs::futimens(&self.file, &Timestamps { last_access: now, last_modification: now })?)
    }
}

impl Drop for LockFile {
    /// Unlocks the file before it is closed: the close wakes waiters, and a child that was just forked may still have the descriptor.
    fn drop(&mut self) {
        if self.locked {
            let _ = self.unlock();
        }
    }
}
