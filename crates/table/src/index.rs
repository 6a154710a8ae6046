//! How something is found by its name or id: a hash table of places, which keeps no key of its own.
//!
//! Hashes are seeded for each table, since names come from strangers. The order of a hash table is never looked at.

use foldhash::fast::FixedState;
use hashbrown::HashTable;
use std::hash::{BuildHasher, Hash};

use crate::arena::{Arena, Place};

/// What is found by a key that it carries.
pub(crate) trait Keyed {
    type Key: Eq + Hash + ?Sized;
    fn key(&self) -> &Self::Key;
}

/// The places of all `T`s, by their keys.
#[derive(Debug)]
pub(crate) struct Index<T> {
    places: HashTable<Place<T>>,
    hasher: FixedState,
}

impl<T: Keyed> Index<T> {
    pub(crate) const fn new(hasher: FixedState) -> Self {
        Self { places: HashTable::new(), hasher }
    }

    pub(crate) fn find(&self, arena: &Arena<T>, key: &T::Key) -> Option<Place<T>> {
        let hash = self.hasher.hash_one(key);
        self.places.find(hash, |place| arena[*place].key() == key).copied()
    }

    /// Puts a value into the arena, under a key that is not in use.
    pub(crate) fn put(&mut self, arena: &mut Arena<T>, value: T) -> Place<T> {
        let hash = self.hasher.hash_one(value.key());
        let place = arena.put(value);
        self.places.insert_unique(hash, place, |place| self.hasher.hash_one(arena[*place].key()));
        place
    }

    /// Takes a value out of the arena again.
    pub(crate) fn take(&mut self, arena: &mut Arena<T>, place: Place<T>) -> T {
        let value = arena.take(place);
        let hash = self.hasher.hash_one(value.key());
        let entry = self.places.find_entry(hash, |other| *other == place);
        entry.expect("whatever is in the arena is in its index").remove();
        value
    }
}
