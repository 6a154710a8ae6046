//! Acquiring: by re-entering, at once, or by waiting in the queue. One lock, or several together.

use crate::arena::Place;
use crate::index::KeyHash;
use crate::list::List;
use crate::lock::{Extras, Holder, Lock, Set};
use crate::owner::Party;
use crate::resource::Resource;
use crate::session::Session;
use crate::table::Table;
use crate::{
    Acquire, AcquireAll, Answer, Effect, FencingToken, GrantId, Granted, Item, LockName, Mode, Outcome,
    OwnerId, Refusal, Wait,
};

/// What an owner already holds of a resource, compared with a requested mode.
pub(crate) enum Own {
    /// No grant.
    Nothing,
    /// A grant whose mode covers the requested one, with its token.
    Covers(FencingToken),
    /// Only a grant in a mode that does not cover the requested one.
    Other(Mode),
}

impl Table {
    /// Acquires one lock or queues for it, and answers the request.
    #[inline(never)]
    pub(crate) fn acquire(
        &mut self,
        session: Place<Session>,
        number: u64,
        acquire: Acquire,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Refusal> {
        self.check_label(acquire.label.as_ref())?;
        self.check_name(&acquire.name)?;
        let hash = self.grants.hash(&acquire.grant);
        if let Some(lock) = self.grants.find_hashed(&self.locks, hash, &acquire.grant) {
            if !self.is_same(lock, session, &acquire) {
                return Err(Refusal::GrantTaken);
            }
            let Lock { resource, token, .. } = self.locks[lock];
            self.answer_granted(session, number, resource, token, effects);
            return Ok(());
        }
        self.check_locks(session, 1)?;
        let Acquire { grant, name, mode, owner, wait, label, lock_delay_ms, notify } = acquire;
        let extras = Extras::of(label, lock_delay_ms);
        let name_hash = self.names.hash(&name);
        if let Some(resource) = self.names.find_hashed(&self.resources, name_hash, &name) {
            let lock = Lock::new(grant, resource, None, mode, extras, notify);
            return self.acquire_at(session, number, owner, (hash, lock), wait, effects);
        }
        self.check_names(1)?;
        // The resource is new: no request is ahead, and it has no value.
        let known = self.owner_of_request(owner, grant, hash);
        let holder = Holder { session, owner: self.owner_of_new(known, owner, grant) };
        let token = self.next_token();
        let resource = self.names.put_hashed(&mut self.resources, name_hash, Resource::new(name));
        let mut lock = Lock::new(grant, resource, Some(holder), mode, extras, notify);
        lock.stand(token, self.now_ms);
        let lock = self.grants.put_hashed(&mut self.locks, hash, lock);
        self.join_holder(holder, lock);
        self.resources[resource].held = List::of(lock);
        self.answer_granted_new(session, number, token, effects);
        Ok(())
    }

    /// Whether an existing lock is the one that the request asks for.
    fn is_same(&self, lock: Place<Lock>, session: Place<Session>, acquire: &Acquire) -> bool {
        let lock = &self.locks[lock];
        let ours = |holder: Holder| holder.session == session && self.owner_id(lock, holder) == acquire.owner;
        lock.held
            && *self.resources[lock.resource].name() == acquire.name
            && lock.mode == acquire.mode
            && lock.holder.is_some_and(ours)
    }

    /// Returns the owner of a request for a new lock, if it is known. `hash` is the hash of the grant.
    fn owner_of_request(&self, owner: OwnerId, grant: GrantId, hash: KeyHash) -> Option<Party> {
        // No lock has the grant's id, as was just checked, so the owner can only have a record. Equal bits have equal hashes.
        if owner.as_u128() == grant.as_u128() {
            self.owner_ids.find_hashed(&self.owners, hash, &owner).map(Party::Recorded)
        } else {
            self.find_owner(owner)
        }
    }

    /// Acquires a lock of an existing resource, or queues for it.
    #[inline(never)]
    fn acquire_at(
        &mut self,
        session: Place<Session>,
        number: u64,
        owner: OwnerId,
        (hash, mut lock): (KeyHash, Lock),
        wait: Wait,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Refusal> {
        let Lock { grant, resource, mode, .. } = lock;
        let known = self.owner_of_request(owner, grant, hash);
        let token = match known.map_or(Own::Nothing, |owner| self.own(resource, owner, mode)) {
            Own::Covers(token) => Some(token),
            Own::Other(held) => {
                let name = self.resources[resource].name().clone();
                return Err(Refusal::NotCovered { name, held, asked: mode });
            }
            Own::Nothing => None,
        };
        let here = &self.resources[resource];
        let open = token.is_some() || here.in_line() == 0 && here.fits_stranger(&self.locks, mode);
        if !open {
            if wait == Wait::Try {
                return Err(Refusal::Busy { name: here.name().clone() });
            }
            self.check_waiters(resource)?;
        }
        let owner = self.owner_of_new(known, owner, grant);
        lock.holder = Some(Holder { session, owner });
        if open {
            let token = token.unwrap_or_else(|| self.next_token());
            lock.stand(token, self.now_ms);
            self.work.note_granted(&lock);
            let lock = self.put_lock_hashed(hash, lock);
            self.resources[resource].add(&mut self.locks, lock);
            self.note_changed(resource);
            self.answer_granted(session, number, resource, token, effects);
            return Ok(());
        }
        let lock = self.put_lock_hashed(hash, lock);
        let ahead = self.resources[resource].in_line();
        let order = self.next_order();
        let queued = self.enqueue(lock, mode, number, order);
        if let Some(cycle) = self.cycle_through(self.owner_of(queued), &[queued]) {
            self.last_order -= 1;
            self.dequeue(queued);
            self.take_lock(lock);
            self.touch(resource);
            return Err(Refusal::Deadlock { cycle });
        }
        self.note_waiting(session, number, ahead, queued);
        self.note_wanting(resource, lock, mode);
        self.answer(session, number, Ok(Answer::Queued { place: ahead }), effects);
        Ok(())
    }

    pub(crate) fn acquire_all(&mut self, session: Place<Session>, number: u64, all: &AcquireAll) -> Outcome {
        let AcquireAll { items, label, .. } = all;
        let limit = self.limits.items_per_request;
        if items.is_empty() {
            return Err(Refusal::NoNames);
        }
        if items.len() > limit as usize {
            return Err(Refusal::TooManyItems { limit });
        }
        self.check_label(label.as_ref())?;
        self.check_items(items)?;
        self.check_locks(session, items.len())?;
        let new = items.iter().filter(|item| self.names.find(&self.resources, &item.name).is_none()).count();
        self.check_names(new)?;
        let mut resources = Vec::with_capacity(items.len());
        for item in items {
            resources.push(self.resource(&item.name));
        }
        let outcome = self.acquire_all_at(session, number, all, &resources);
        if outcome.is_err() {
            for resource in resources {
                self.touch(resource);
            }
        }
        outcome
    }

    fn acquire_all_at(
        &mut self,
        session: Place<Session>,
        number: u64,
        all: &AcquireAll,
        resources: &[Place<Resource>],
    ) -> Outcome {
        let AcquireAll { owner, items, wait, label, lock_delay_ms, notify } = all;
        if let Some(owner) = self.find_owner(*owner) {
            for (item, resource) in items.iter().zip(resources) {
                if !matches!(self.own(*resource, owner, item.mode), Own::Nothing) {
                    return Err(Refusal::AlreadyHeld { name: item.name.clone() });
                }
            }
        }
        let closed = items.iter().zip(resources).find(|(item, resource)| {
            let here = &self.resources[**resource];
            here.in_line() > 0 || !here.fits_stranger(&self.locks, item.mode)
        });
        if let Some((item, _)) = closed {
            if *wait == Wait::Try {
                return Err(Refusal::Busy { name: item.name.clone() });
            }
            resources.iter().try_for_each(|resource| self.check_waiters(*resource))?;
        }
        let open = closed.is_none();
        let owner = match self.find_owner(*owner) {
            Some(owner) => self.recorded(owner),
            None => self.new_owner(*owner),
        };
        let mut locks = Vec::with_capacity(items.len());
        for (item, resource) in items.iter().zip(resources) {
            let extras = Extras::of(label.clone(), *lock_delay_ms);
            let holder = Some(Holder { session, owner: Some(owner) });
            locks.push(self.put_lock(Lock::new(item.grant, *resource, holder, item.mode, extras, *notify)));
        }
        if open {
            let mut granted = Vec::with_capacity(locks.len());
            for lock in locks {
                let token = self.next_token();
                self.stand(lock, token);
                granted.push(self.granted(lock));
            }
            return Ok(Answer::GrantedAll(granted.into()));
        }
        let place = self.resources[resources[0]].in_line();
        let order = self.next_order();
        let places: Vec<_> = locks
            .iter()
            .zip(items)
            .map(|(lock, item)| self.enqueue(*lock, item.mode, number, order))
            .collect();
        let first = places[0];
        let set = self.sets.put(Set { places: places.clone() });
        for queued in &places {
            self.queued[*queued].set = Some(set);
        }
        if let Some(cycle) = self.cycle_through(Party::Recorded(owner), &places) {
            self.last_order -= 1;
            for lock in self.leave_line(first) {
                self.take_lock(lock);
            }
            return Err(Refusal::Deadlock { cycle });
        }
        self.note_waiting(session, number, place, first);
        for (lock, resource) in locks.into_iter().zip(resources) {
            self.note_wanting(*resource, lock, self.locks[lock].mode);
        }
        Ok(Answer::Queued { place })
    }

    /// Returns what this owner holds of a resource. The newest grant counts, because its token is the last that a fence has seen.
    pub(crate) fn own(&self, resource: Place<Resource>, owner: Party, mode: Mode) -> Own {
        let here = &self.resources[resource];
        let (mut covering, mut newest) = (None, None);
        for lock in here.held_by(resource, &self.locks, &self.owners, owner) {
            newest = newest.max(Some((lock.token, lock.mode as usize)));
            if lock.mode.covers(mode) {
                covering = covering.max(Some(lock.token));
            }
        }
        match (covering, newest) {
            (Some(token), _) => Own::Covers(token),
            (None, Some((_, mode))) => Own::Other(Mode::ALL[mode]),
            (None, None) => Own::Nothing,
        }
    }

    /// Grants a lock with this token.
    pub(crate) fn stand(&mut self, lock: Place<Lock>, token: FencingToken) {
        let it = &mut self.locks[lock];
        it.stand(token, self.now_ms);
        self.work.note_granted(it);
        let resource = it.resource;
        self.resources[resource].add(&mut self.locks, lock);
        self.note_changed(resource);
    }

    /// Returns the token and the value for the holder of a lock.
    pub(crate) fn granted(&self, lock: Place<Lock>) -> Granted {
        let Lock { token, resource, .. } = self.locks[lock];
        Granted { token, value: Some(self.resources[resource].value()) }
    }

    pub(crate) const fn next_order(&mut self) -> u64 {
        self.last_order += 1;
        self.last_order
    }

    fn check_items(&self, items: &[Item]) -> Result<(), Refusal> {
        for (at, item) in items.iter().enumerate() {
            self.check_name(&item.name)?;
            let before = &items[..at];
            if before.iter().any(|other| other.name == item.name) {
                return Err(Refusal::NamedTwice { name: item.name.clone() });
            }
            let taken = self.grants.find(&self.locks, &item.grant).is_some();
            if taken || before.iter().any(|other| other.grant == item.grant) {
                return Err(Refusal::GrantTaken);
            }
        }
        Ok(())
    }

    fn check_label(&self, label: Option<&crate::label::Label>) -> Result<(), Refusal> {
        let limit = self.limits.label_bytes;
        let fits = label.is_none_or(|label| label.len() <= limit as usize);
        if fits { Ok(()) } else { Err(Refusal::LabelTooLong { limit }) }
    }

    pub(crate) fn check_name(&self, name: &LockName) -> Result<(), Refusal> {
        let limit = self.limits.name_bytes;
        let fits = name.as_str().len() <= limit as usize;
        if fits { Ok(()) } else { Err(Refusal::NameTooLong { limit }) }
    }

    /// Known names are always allowed, even above a limit that was lowered.
    pub(crate) fn check_names(&self, new: usize) -> Result<(), Refusal> {
        let limit = self.limits.names;
        let fit = new == 0 || self.names.len() + new <= limit as usize;
        if fit { Ok(()) } else { Err(Refusal::TooManyNames { limit }) }
    }

    fn check_locks(&self, session: Place<Session>, count: usize) -> Result<(), Refusal> {
        let limit = self.limits.locks_per_session;
        let fits = self.sessions[session].lock_count as usize + count <= limit as usize;
        if fits { Ok(()) } else { Err(Refusal::TooManyLocks { limit }) }
    }

    pub(crate) fn check_waiters(&self, resource: Place<Resource>) -> Result<(), Refusal> {
        let limit = self.limits.waiters_per_resource;
        let here = &self.resources[resource];
        let fits = here.in_line() < limit;
        if fits { Ok(()) } else { Err(Refusal::TooManyWaiters { name: here.name().clone(), limit }) }
    }
}
