//! Owners: they hold locks and wait for them.
//!
//! Most owners only ever have one lock, and share its id. Such an owner has no record, because its lock contains everything about it. An
//! owner has a record only if it has several locks, or another id than its lock.

use crate::arena::{Arena, Place};
use crate::index::Keyed;
use crate::list::{self, Links, List};
use crate::lock::{Holder, Lock, OfOwner, Queued};
use crate::table::Table;
use crate::{GrantId, OwnerId};

/// An owner that holds a lock or waits for one. The value is valid until the owner gets another lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Party {
    /// An owner without a record. It has this lock, and the same id.
    Alone(Place<Lock>),
    /// An owner with a record.
    Recorded(Place<Owner>),
}

/// The record of an owner.
#[derive(Debug)]
pub(crate) struct Owner {
    id: OwnerId,
    pub(crate) locks: List<Lock, OfOwner>,
    pub(crate) lock_count: u32,
    pub(crate) queued: List<Queued, OfOwner>,
}

impl Owner {
    pub(crate) fn new(id: OwnerId) -> Self {
        Self { id, locks: List::default(), lock_count: 0, queued: List::default() }
    }

    pub(crate) const fn id(&self) -> OwnerId {
        self.id
    }

    fn add(&mut self, locks: &mut Arena<Lock>, lock: Place<Lock>) {
        self.locks.push(locks, lock);
        self.lock_count += 1;
    }
}

impl Keyed for Owner {
    type Key = OwnerId;

    fn key(&self) -> &OwnerId {
        &self.id
    }
}

impl Party {
    /// Whether this lock belongs to the owner.
    pub(crate) fn has(self, locks: &Arena<Lock>, lock: Place<Lock>) -> bool {
        match self {
            Self::Alone(own) => own == lock,
            Self::Recorded(owner) => locks[lock].holder.is_some_and(|holder| holder.owner == Some(owner)),
        }
    }

    /// Iterates over its locks, held or waiting.
    pub(crate) fn locks<'a>(
        self,
        locks: &'a Arena<Lock>,
        owners: &Arena<Owner>,
    ) -> impl Iterator<Item = Place<Lock>> + use<'a> {
        let first = match self {
            Self::Alone(lock) => Some(lock),
            Self::Recorded(owner) => owners[owner].locks.first(),
        };
        list::onward::<_, OfOwner>(locks, first)
    }

    pub(crate) fn lock_count(self, owners: &Arena<Owner>) -> u32 {
        match self {
            Self::Alone(_) => 1,
            Self::Recorded(owner) => owners[owner].lock_count,
        }
    }
}

impl Table {
    /// Returns the owner of a lock, or `None` for a lock-delay.
    pub(crate) fn party(&self, lock: Place<Lock>) -> Option<Party> {
        let holder = self.locks[lock].holder?;
        Some(holder.owner.map_or(Party::Alone(lock), Party::Recorded))
    }

    /// Returns the owner of a queued request.
    pub(crate) fn owner_of(&self, queued: Place<Queued>) -> Party {
        self.party(self.queued[queued].lock).expect("only what has an owner waits")
    }

    /// Iterates over an owner's queued requests, in the order in which they queued.
    pub(crate) fn queued_of(&self, owner: Party) -> impl Iterator<Item = Place<Queued>> {
        let first = match owner {
            Party::Alone(lock) => self.locks[lock].queued,
            Party::Recorded(owner) => self.owners[owner].queued.first(),
        };
        list::onward::<_, OfOwner>(&self.queued, first)
    }

    /// Returns the id of a lock's owner.
    pub(crate) fn owner_id(&self, lock: &Lock, holder: Holder) -> OwnerId {
        holder.owner.map_or(OwnerId::from_u128(lock.grant.as_u128()), |owner| self.owners[owner].id())
    }

    /// Finds an owner that holds a lock or waits for one.
    pub(crate) fn find_owner(&self, id: OwnerId) -> Option<Party> {
        if let Some(owner) = self.owner_ids.find(&self.owners, &id) {
            return Some(Party::Recorded(owner));
        }
        let lock = self.grants.find(&self.locks, &GrantId::from_u128(id.as_u128()))?;
        self.party(lock).filter(|owner| matches!(owner, Party::Alone(_)))
    }

    /// Returns the owner record for a new lock, or `None` if the lock needs none.
    pub(crate) fn owner_of_new(
        &mut self,
        known: Option<Party>,
        id: OwnerId,
        grant: GrantId,
    ) -> Option<Place<Owner>> {
        match known {
            Some(owner) => Some(self.recorded(owner)),
            None if id.as_u128() == grant.as_u128() => None,
            None => Some(self.new_owner(id)),
        }
    }

    pub(crate) fn new_owner(&mut self, id: OwnerId) -> Place<Owner> {
        self.owner_ids.put(&mut self.owners, Owner::new(id))
    }

    /// Returns the record of an owner that gets another lock, and creates it if needed.
    pub(crate) fn recorded(&mut self, owner: Party) -> Place<Owner> {
        let lock = match owner {
            Party::Recorded(owner) => return owner,
            Party::Alone(lock) => lock,
        };
        let owner = self.new_owner(OwnerId::from_u128(self.locks[lock].grant.as_u128()));
        if let Some(holder) = &mut self.locks[lock].holder {
            holder.owner = Some(owner);
        }
        self.add_to_owner(owner, lock);
        if let Some(queued) = self.locks[lock].queued {
            self.owners[owner].queued.push(&mut self.queued, queued);
        }
        owner
    }

    pub(crate) fn add_to_owner(&mut self, owner: Place<Owner>, lock: Place<Lock>) {
        self.owners[owner].add(&mut self.locks, lock);
    }

    /// Removes a lock from its owner. The record is removed with the last lock.
    pub(crate) fn take_from_owner(&mut self, owner: Place<Owner>, lock: &Links<Lock>) {
        let of = &mut self.owners[owner];
        of.locks.close(&mut self.locks, lock);
        of.lock_count -= 1;
        if of.lock_count == 0 {
            self.owner_ids.take(&mut self.owners, owner);
        }
    }
}
