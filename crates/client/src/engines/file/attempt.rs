//! One request's attempts at a lock, and what is held when one of them succeeds. All of this may wait for the disk.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use bytes::Bytes;

use super::member::{self, MemberFile, Record, Role, Ticket};
use super::resource::{LockFile, Resource, ShortLock};
use super::state::StateError;
use super::watch::Subscription;
use super::{failed, state_failed};
use crate::clock::Clock;
use crate::engine::{AcquireRequest, Granted, LossNotice};
use crate::error::{AcquireError, LostReason};
use crate::ids::{GrantId, OwnerId};
use crate::lease::Term;
use crate::mode::Mode;
use crate::token::FencingToken;
use crate::value::Value;

/// A request that has not got its lock yet. Dropping it leaves nothing behind.
pub(super) struct Attempt {
    resource: Resource,
    request: AcquireRequest,
    host: String,
    clock: Arc<dyn Clock>,
    lock: Option<LockFile>,
    /// Shows others that it waits.
    waiter: Option<(Ticket, MemberFile)>,
}

/// How an attempt ended.
pub(super) enum Outcome {
    Held(Box<Held>),
    /// Somebody else holds it.
    Busy(Ahead),
    /// Somebody deleted or replaced the lock file.
    Replaced,
}

/// Whose leaving is worth waiting for: that of the waiter ahead, by its file, or of the holder if there is none ahead.
pub(super) type Ahead = Option<PathBuf>;

impl Attempt {
    pub(super) const fn new(
        resource: Resource,
        request: AcquireRequest,
        host: String,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self { resource, request, host, clock, lock: None, waiter: None }
    }

    pub(super) const fn resource(&self) -> &Resource {
        &self.resource
    }

    /// Whether the lock seems free now; takes it if it is. Does not wait for the disk.
    pub(super) fn seems_free(&mut self) -> bool {
        // An error, and a file that is no longer the one, are for the attempt to find.
        self.lock.as_mut().is_none_or(|lock| {
            lock.try_lock(self.request.mode).unwrap_or(true)
                || !self.resource.is_current(lock).unwrap_or(false)
        })
    }

    /// Looks who is ahead; gives itself back.
    pub(super) fn look_ahead(self) -> (Self, Result<Ahead, AcquireError>) {
        let ahead = self.ahead().map_err(|error| failed(&self.resource.folder, error).into());
        (self, ahead)
    }

    fn ahead(&self) -> io::Result<Ahead> {
        let Some((ticket, _)) = &self.waiter else { return Ok(None) };
        match member::ahead_of(&self.resource.folder, self.request.grant, *ticket) {
            // The folder was deleted: the next attempt makes it anew.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            ahead => ahead,
        }
    }

    /// Tries once; gives itself back for the next time.
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
            && let Some((token, value)) = self.joinable(&folder)?
        {
            // The lock file is kept open without its lock: those who wait are woken when it is closed.
            return Ok(Outcome::Held(Box::new(
                self.hold(Role::Joined, lock, token, value).map_err(io_failed)?,
            )));
        }
        if !lock.try_lock(self.request.mode).map_err(io_failed)? {
            return self.busy(lock).map_err(|error| io_failed(error).into());
        }
        if !self.resource.is_current(&lock).map_err(io_failed)? {
            return Ok(Outcome::Replaced);
        }
        let short = self.resource.short_lock().map_err(io_failed)?;
        let holders = member::holders(&folder).map_err(io_failed)?;
        if holders.iter().any(|holder| holder.keeps_out(self.request.owner, self.request.mode)) {
            lock.unlock().map_err(io_failed)?;
            return self.busy(lock).map_err(|error| io_failed(error).into());
        }
        let (token, value) = self.raise_token(&short, &lock).map_err(|error| state_failed(&folder, error))?;
        Ok(Outcome::Held(Box::new(self.hold(Role::Holder, lock, token, value).map_err(io_failed)?)))
    }

    /// The token and value of what the same owner holds through another client, if that covers what is asked for.
    ///
    /// What is seen under the short lock stays true until the member is made: whoever gets the lock in between
    /// looks at the members under the short lock too, and finds it.
    fn joinable(&self, folder: &Path) -> Result<Option<(u64, Value)>, AcquireError> {
        let io_failed = |error| failed(folder, error);
        let short = self.resource.short_lock().map_err(io_failed)?;
        let holders = member::holders(folder).map_err(io_failed)?;
        let held: Vec<_> = holders
            .iter()
            .filter_map(|found| found.record.as_ref())
            .filter(|record| record.owner == self.request.owner)
            .collect();
        let Some(first) = held.first() else {
            return Ok(None);
        };
        let Some(covering) = held.iter().find(|record| record.mode.covers(self.request.mode)) else {
            let name = self.request.name.clone();
            return Err(AcquireError::NotCovered { name, held: first.mode, asked: self.request.mode });
        };
        let (_, state) =
            self.resource.state(&short, self.clock.wall()).map_err(|error| state_failed(folder, error))?;
        Ok(covering.token.map(|token| (token.get(), state.value)))
    }

    /// Takes the next token, durably.
    fn raise_token(&self, short: &ShortLock, lock: &LockFile) -> Result<(u64, Value), StateError> {
        let (file, state) = self.resource.state(short, self.clock.wall())?;
        let died = state.open && lock.last_ended() != Some(state.token);
        let value = Value { in_doubt: state.value.in_doubt || died, ..state.value.clone() };
        let next = state.write_next(&file, &self.resource.name, |state| {
            state.token += 1;
            state.open = self.request.mode.may_write();
            state.value = value;
        })?;
        Ok((next.token, next.value))
    }

    /// Not got: waits on, and shows it.
    fn busy(&mut self, lock: LockFile) -> io::Result<Outcome> {
        self.lock = Some(lock);
        if self.waiter.is_none() && !self.request.wait.is_over(self.clock.now()) {
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

    /// Got.
    fn hold(&mut self, role: Role, lock: LockFile, token: u64, value: Value) -> io::Result<Held> {
        let member = self.create(role, Some(FencingToken::new(token)))?;
        self.waiter = None;
        Ok(Held {
            resource: self.resource.clone(),
            grant: self.request.grant,
            loss: self.request.loss.clone(),
            watch: None,
            owner: self.request.owner,
            mode: self.request.mode,
            shared_owner: self.request.reenter,
            token,
            value,
            files: Mutex::new(Some(Files { member, lock })),
        })
    }
}

/// A lock that is held. Dropping it frees the lock without a word.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) resource: Resource,
    pub(super) grant: GrantId,
    pub(super) loss: LossNotice,
    pub(super) watch: Option<Subscription>,
    owner: OwnerId,
    mode: Mode,
    /// Whether others of the same owner may have joined it.
    shared_owner: bool,
    token: u64,
    value: Value,
    /// Gone when it is released.
    files: Mutex<Option<Files>>,
}

/// What a holder keeps open. They are dropped in this order: whoever gets the lock must not take the member for a
/// live holder's.
#[derive(Debug)]
struct Files {
    member: MemberFile,
    lock: LockFile,
}

impl Held {
    pub(super) fn granted(&self) -> Granted {
        Granted::new(Some(FencingToken::new(self.token)), Term::Open).with_value(self.value.clone())
    }

    fn files(&self) -> MutexGuard<'_, Option<Files>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it still stands, and why not.
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

    /// Writes the value, if it still stands.
    pub(super) fn write(&self, bytes: Bytes, now: SystemTime) -> Result<Result<(), LostReason>, StateError> {
        let short = match self.confirm()? {
            Ok(()) => self.resource.short_lock()?,
            Err(reason) => return Ok(Err(reason)),
        };
        let (file, state) = self.resource.state(&short, now)?;
        let value = Value { bytes, in_doubt: false };
        state.write_next(&file, &self.resource.name, |state| state.value = value)?;
        Ok(Ok(()))
    }

    /// Frees it, and says why if it did not stand any more. It is free when this returns.
    pub(super) fn release(&self) -> Result<(), LostReason> {
        let files = self.files().take();
        let stood = self.confirm_files(files.as_ref()).unwrap_or(Ok(()));
        if let Some(files) = &files
            && self.mode.may_write()
            && !self.others_of_the_owner_hold()
        {
            files.lock.mark_ended(self.token);
        }
        let _ = std::fs::remove_file(member::break_mark(&self.resource.folder, self.grant));
        drop(files);
        match stood {
            // It was asked to let go, and does so now.
            Ok(()) | Err(LostReason::Broken) => Ok(()),
            Err(reason) => Err(reason),
        }
    }

    fn others_of_the_owner_hold(&self) -> bool {
        let is_other = |found: &member::Found| {
            let same_owner = found.record.as_ref().is_some_and(|record| record.owner == self.owner);
            found.grant != self.grant && same_owner
        };
        self.shared_owner
            && member::holders(&self.resource.folder).is_ok_and(|found| found.iter().any(is_other))
    }
}
