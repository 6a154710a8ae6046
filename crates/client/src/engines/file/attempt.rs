//! One request's attempts to acquire a lock. All operations here may wait for the disk.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::SystemTime;

use tenure_table::{FencingToken, Value};

use super::held::{Files, Held};
use super::member::{self, Holders, MemberFile, Record, Role, Ticket};
use super::resource::{LockFile, Resource, ShortLock};
use super::state::StateError;
use super::{failed, state_failed};
use crate::clock::Clock;
use crate::engine::AcquireRequest;
use crate::error::AcquireError;

/// A request that does not hold its lock yet. Dropping it leaves nothing behind.
pub(super) struct Attempt {
    resource: Resource,
    request: AcquireRequest,
    host: String,
    clock: Arc<dyn Clock>,
    lock: Option<LockFile>,
    /// The file that shows the waiting request to others.
    waiter: Option<(Ticket, MemberFile)>,
    /// Whether a live holder without the flock keeps the request out, and not the flock itself.
    kept_out: bool,
}

/// The outcome of an attempt.
pub(super) enum Outcome {
    Held(Box<Held>),
    /// Another request holds the lock.
    Busy(Ahead),
    /// The lock file was deleted or replaced.
    Replaced,
}

/// The file to watch for a release: that of the waiter ahead, or `None` for the lock file itself if no waiter is ahead.
pub(super) type Ahead = Option<PathBuf>;

impl Attempt {
    pub(super) const fn new(
        resource: Resource,
        request: AcquireRequest,
        host: String,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self { resource, request, host, clock, lock: None, waiter: None, kept_out: false }
    }

    pub(super) const fn resource(&self) -> &Resource {
        &self.resource
    }

    /// Whether the lock seems free now; takes the flock if it is. Does not wait for the disk.
    pub(super) fn seems_free(&mut self) -> bool {
        if self.kept_out {
            return false;
        }
        // The attempt handles an error, and a file that was replaced.
        self.lock.as_mut().is_none_or(|lock| {
            lock.try_lock(self.request.mode).unwrap_or(true)
                || !self.resource.is_current(lock).unwrap_or(false)
        })
    }

    /// Whether the next attempt may succeed although the lock does not seem free.
    pub(super) const fn may_get_in_otherwise(&self) -> bool {
        self.request.reenter || self.kept_out
    }

    /// Finds the waiter ahead. Returns the attempt for its next use.
    pub(super) fn look_ahead(self) -> (Self, Result<Ahead, AcquireError>) {
        let ahead = self.ahead().map_err(|error| failed(&self.resource.folder, error).into());
        (self, ahead)
    }

    fn ahead(&self) -> io::Result<Ahead> {
        let Some((ticket, _)) = &self.waiter else { return Ok(None) };
        match member::ahead_of(&self.resource.folder, self.request.grant, *ticket) {
            // The folder was deleted: the next attempt creates it again.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            ahead => ahead,
        }
    }

    /// Tries once. Returns the attempt for its next use.
    pub(super) fn run(mut self) -> (Self, Result<Outcome, AcquireError>) {
        let outcome = self.attempt();
        (self, outcome)
    }

    fn attempt(&mut self) -> Result<Outcome, AcquireError> {
        let folder = self.resource.folder.clone();
        let io_failed = |error| failed(&folder, error);
        let mut lock = match self.lock.take() {
            Some(lock) if self.resource.is_current(&lock).map_err(io_failed)? => lock,
            Some(_) => return Ok(Outcome::Replaced),
            None => self.resource.open_lock().map_err(io_failed)?,
        };
        if self.request.reenter
            && let Some((token, value, short)) = self.joinable(&folder)?
        {
            // The lock file is kept open without its flock: closing it wakes the waiters.
            let held = self.hold(Role::Joined, lock, token, value).map_err(|(_, error)| io_failed(error))?;
            drop(short);
            return Ok(Outcome::Held(Box::new(held)));
        }
        // A request that was kept out does not take the flock only to be kept out again: others would see the lock as held.
        if self.kept_out && self.is_kept_out(&member::holders(&folder).map_err(io_failed)?) {
            return self.busy(lock).map_err(|error| io_failed(error).into());
        }
        self.kept_out = false;
        if !lock.try_lock(self.request.mode).map_err(io_failed)? {
            return self.busy(lock).map_err(|error| io_failed(error).into());
        }
        if !self.resource.is_current(&lock).map_err(io_failed)? {
            return Ok(Outcome::Replaced);
        }
        let short = match self.resource.short_lock() {
            // The short lock is held for very long: to a waiter, the lock is not free.
            Err(error) if error.kind() == io::ErrorKind::TimedOut && self.request.waits() => {
                lock.unlock().map_err(io_failed)?;
                return self.busy(lock).map_err(|error| io_failed(error).into());
            }
            short => short.map_err(io_failed)?,
        };
        let holders = member::holders(&folder).map_err(io_failed)?;
        if self.is_kept_out(&holders) {
            self.kept_out = true;
            lock.unlock().map_err(io_failed)?;
            return self.busy(lock).map_err(|error| io_failed(error).into());
        }
        let (token, value) =
            self.raise_token(&short, &lock, &holders).map_err(|error| state_failed(&folder, error))?;
        holders.bury();
        match self.hold(Role::Holder, lock, token, value) {
            Ok(held) => Ok(Outcome::Held(Box::new(held))),
            Err((lock, error)) => {
                // The grant was never held, so no holder died with it.
                lock.mark_ended(token);
                Err(io_failed(error).into())
            }
        }
    }

    fn is_kept_out(&self, holders: &Holders) -> bool {
        holders.present.iter().any(|holder| holder.keeps_out(self.request.owner, self.request.mode))
    }

    /// Returns the token and value of the same owner's grant through another client, if that covers the request. Also returns the short
    /// lock: under it, the grant remains joinable until the member file exists, since a process that gets the flock in between also reads
    /// the members under the short lock.
    fn joinable(&self, folder: &Path) -> Result<Option<(u64, Value, ShortLock)>, AcquireError> {
        let io_failed = |error| failed(folder, error);
        let short = self.resource.short_lock().map_err(io_failed)?;
        let holders = member::holders(folder).map_err(io_failed)?;
        let held: Vec<_> = holders
            .present
            .iter()
            .filter_map(|found| found.record.as_ref())
            .filter(|record| record.owner == self.request.owner)
            .collect();
        let Some(first) = held.first() else { return Ok(None) };
        let Some(covering) = held.iter().find(|record| record.mode.covers(self.request.mode)) else {
            let name = self.request.name.clone();
            return Err(AcquireError::NotCovered { name, held: first.mode, asked: self.request.mode });
        };
        let Some(token) = covering.token.map(FencingToken::get) else { return Ok(None) };
        let state_failed = |error| state_failed(folder, error);
        let (file, mut state) = self.resource.state(&short, self.clock.wall()).map_err(state_failed)?;
        if holders.writer_died(state.token) && !state.value.in_doubt {
            let doubted = state.write_next(&file, &self.resource.name, |state| state.value.in_doubt = true);
            state = doubted.map_err(|error| state_failed(error.into()))?;
        }
        holders.bury();
        Ok(Some((token, state.value, short)))
    }

    /// Takes the next token, durably.
    fn raise_token(
        &self,
        short: &ShortLock,
        lock: &LockFile,
        holders: &Holders,
    ) -> Result<(u64, Value), StateError> {
        let (file, state) = self.resource.state(short, self.clock.wall())?;
        let ended_well = lock.last_ended() == Some(state.token);
        let died = (state.open && !ended_well) || holders.writer_died(state.token);
        if !ended_well {
            // The writer of this state may have died before the sync. The last durable state may then be in the other slot, which is
            // written next.
            file.sync_data()?;
        }
        let value = Value { in_doubt: state.value.in_doubt || died, ..state.value.clone() };
        let next = state.write_next(&file, &self.resource.name, |state| {
            state.token += 1;
            state.open = self.request.mode.may_write();
            state.value = value;
        })?;
        Ok((next.token, next.value))
    }

    /// Keeps the lock file for the next attempt, and creates the waiter file.
    fn busy(&mut self, lock: LockFile) -> io::Result<Outcome> {
        self.lock = Some(lock);
        if self.waiter.is_none() && self.request.waits() {
            let ticket = Ticket { since: self.clock.now(), mode: self.request.mode };
            self.waiter = Some((ticket, self.create(Role::Waiter(ticket), None)?));
        }
        Ok(Outcome::Busy(self.ahead()?))
    }

    fn create(&self, role: Role, token: Option<FencingToken>) -> io::Result<MemberFile> {
        let since = self.clock.wall().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let record = Record {
            owner: self.request.owner,
            mode: self.request.mode,
            token,
            label: self.request.label.as_deref().map(str::to_owned),
            host: self.host.clone(),
            pid: std::process::id(),
            since_ms: u64::try_from(since.as_millis()).unwrap_or(0),
        };
        MemberFile::create(&self.resource.folder, role, self.request.grant, &record)
    }

    /// Creates the member file of the grant and returns the held lock.
    fn hold(
        &mut self,
        role: Role,
        lock: LockFile,
        token: u64,
        value: Value,
    ) -> Result<Held, (LockFile, io::Error)> {
        let member = match self.create(role, Some(FencingToken::new(token))) {
            Ok(member) => member,
            Err(error) => return Err((lock, error)),
        };
        self.waiter = None;
        Ok(Held {
            resource: self.resource.clone(),
            grant: self.request.grant,
            events: self.request.events.clone(),
            since: self.clock.now(),
            watch: OnceLock::new(),
            owner: self.request.owner,
            mode: self.request.mode,
            shared_owner: self.request.reenter,
            token,
            value,
            files: Mutex::new(Some(Files { member, lock })),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::Duration;

    use bytes::Bytes;
    use rustix::fs::FlockOperation;

    use super::super::moment::{BootId, HostClock};
    use super::*;
    use crate::clock::ManualClock;
    use crate::engine::Start;
    use crate::error::LostReason;
    use crate::random;
    use tenure_table::LockName;
    use tenure_table::OwnerId;

    fn attempt(directory: &Path, owner: OwnerId) -> Attempt {
        let name = LockName::parse("job").unwrap();
        let resource =
            Resource { folder: super::super::layout::folder(directory, &name), name: name.clone() };
        let mut request = AcquireRequest::new(name);
        request.owner = owner;
        request.reenter = true;
        Attempt::new(resource, request, "host".into(), Arc::new(ManualClock::new()))
    }

    fn hold(directory: &Path, owner: OwnerId) -> Held {
        match attempt(directory, owner).run().1 {
            Ok(Outcome::Held(held)) => *held,
            _ => panic!("it is free"),
        }
    }

    #[test]
    fn nobody_gets_in_between_the_look_at_what_can_be_joined_and_the_joining() {
        let directory = tempfile::tempdir().unwrap();
        let owner = random::owner_id();
        let held = hold(directory.path(), owner);
        let folder = held.resource.folder.clone();
        let second = attempt(directory.path(), owner);
        let (token, _, short) = second.joinable(&folder).unwrap().expect("its owner holds it");
        assert_eq!(token, held.token);
        // If the first holder left now, the next one would read the members under the short lock, and would wait for it.
        let other = std::fs::File::open(&folder).unwrap();
        assert!(rustix::fs::flock(&other, FlockOperation::NonBlockingLockExclusive).is_err());
        drop(short);
        assert!(rustix::fs::flock(&other, FlockOperation::NonBlockingLockExclusive).is_ok());
    }

    #[test]
    fn a_grant_that_does_not_stand_any_more_writes_down_nothing() {
        let clock = HostClock {
            boot: BootId::of_this_boot().expect("the kernel says which boot it is"),
            clock: Arc::new(ManualClock::new()),
        };
        let start = Start::new(Duration::ZERO, Duration::from_hours(1));
        for lost in [LostReason::Broken, LostReason::Forgotten] {
            let directory = tempfile::tempdir().unwrap();
            let held = hold(directory.path(), random::owner_id());
            match lost {
                LostReason::Broken => {
                    File::create(member::break_mark(&held.resource.folder, held.grant)).map(drop).unwrap();
                }
                _ => std::fs::remove_file(held.resource.lock_path()).unwrap(),
            }
            assert_eq!(held.remember(start, &clock).unwrap(), Err(lost));
            assert_eq!(held.write(Bytes::new(), SystemTime::UNIX_EPOCH).unwrap(), Err(lost));
            let (_, state) = Resource::peek(&held.resource.folder).unwrap().expect("there is a state");
            assert_eq!(state.start, None);
        }
    }

    #[test]
    fn a_release_waits_for_a_write_that_is_under_way() {
        let directory = tempfile::tempdir().unwrap();
        let held = hold(directory.path(), random::owner_id());
        let short = held.resource.short_lock().unwrap();
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| held.write(Bytes::from_static(b"in time"), SystemTime::UNIX_EPOCH));
            // The writer has confirmed that it holds the lock, and waits for the short lock.
            while held.files.try_lock().is_ok() {
                std::thread::yield_now();
            }
            let releasing = scope.spawn(|| held.release());
            assert!(!writing.is_finished() && !releasing.is_finished());
            drop(short);
            writing.join().unwrap().unwrap().expect("it still stands");
            releasing.join().unwrap().expect("it stood until now");
        });
        let next = hold(directory.path(), random::owner_id());
        assert_eq!(next.value.bytes, "in time");
    }
}
