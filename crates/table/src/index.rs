//! Lookup by name or id: a hash table of places. The keys are in the arena.
//!
//! Each table's hashes are seeded, because clients choose names and ids. The order of a hash table is never used.

use std::hash::{Hash, Hasher};

use foldhash::SharedSeed;
use foldhash::fast::FoldHasher;
use hashbrown::HashTable;

use crate::arena::{Arena, Place};

/// A value that carries the key by which it is found.
pub(crate) trait Keyed {
    type Key: Eq + Hash + ?Sized;
    fn key(&self) -> &Self::Key;
}

/// The hash of a key, valid for one index.
#[derive(Clone, Copy)]
pub(crate) struct KeyHash(u64);

/// A value that was looked up, with its position in the index, so that it can be removed without another lookup. Valid until the next
/// insertion.
pub(crate) struct Found<T> {
    pub(crate) place: Place<T>,
    bucket: usize,
}

/// The places of all `T`s, by key.
#[derive(Debug)]
pub(crate) struct Index<T> {
    places: HashTable<Place<T>>,
    hasher: KeyHasher,
}

/// The hash function. It depends only on the seed: with a constant that an attacker knows, collisions would be easy to make.
#[derive(Debug)]
struct KeyHasher {
    seed: u64,
    shared: SharedSeed,
}

impl KeyHasher {
    #[inline]
    fn hash_one<K: Hash + ?Sized>(&self, key: &K) -> u64 {
        let mut hasher = FoldHasher::with_seed(self.seed, &self.shared);
        key.hash(&mut hasher);
        hasher.finish()
    }
}

impl<T: Keyed> Index<T> {
    pub(crate) fn new(seed: u64) -> Self {
        let hasher = KeyHasher { seed, shared: SharedSeed::from_u64(seed) };
        Self { places: HashTable::new(), hasher }
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns the hash of a key, for a lookup that is followed by an insertion.
    pub(crate) fn hash(&self, key: &T::Key) -> KeyHash {
        KeyHash(self.hasher.hash_one(key))
    }

    pub(crate) fn find(&self, arena: &Arena<T>, key: &T::Key) -> Option<Place<T>> {
        self.find_hashed(arena, self.hash(key), key)
    }

    #[inline]
    pub(crate) fn find_hashed(&self, arena: &Arena<T>, hash: KeyHash, key: &T::Key) -> Option<Place<T>> {
        // Common: in most tables, no owner has a record.
        if self.places.is_empty() {
            return None;
        }
        self.places.find(hash.0, |place| arena[*place].key() == key).copied()
    }

    /// Adds a value to the arena, under a key that is not in use.
    pub(crate) fn put(&mut self, arena: &mut Arena<T>, value: T) -> Place<T> {
        self.put_hashed(arena, self.hash(value.key()), value)
    }

    #[inline]
    pub(crate) fn put_hashed(&mut self, arena: &mut Arena<T>, hash: KeyHash, value: T) -> Place<T> {
        let place = arena.put(value);
        self.places.insert_unique(hash.0, place, |place| self.hasher.hash_one(arena[*place].key()));
        place
    }

    /// As [`find`](Self::find), for a value that may be removed next.
    pub(crate) fn look_up(&mut self, arena: &Arena<T>, key: &T::Key) -> Option<Found<T>> {
        let same = |place: &Place<T>| arena[*place].key() == key;
        let entry = self.places.find_entry(self.hasher.hash_one(key), same).ok()?;
        Some(Found { place: *entry.get(), bucket: entry.bucket_index() })
    }

    /// Returns the index position of the value at a place.
    pub(crate) fn look_up_place(&self, arena: &Arena<T>, place: Place<T>) -> Found<T> {
        let hash = self.hash(arena[place].key());
        let bucket = self.places.find_bucket_index(hash.0, |other| *other == place);
        Found { place, bucket: bucket.expect("whatever is in the arena is in its index") }
    }

    /// Removes a value from the arena.
    pub(crate) fn take(&mut self, arena: &mut Arena<T>, place: Place<T>) -> T {
        let found = self.look_up_place(arena, place);
        self.take_found(arena, &found)
    }

    pub(crate) fn take_found(&mut self, arena: &mut Arena<T>, found: &Found<T>) -> T {
        let Found { place, bucket } = *found;
        let entry = self.places.get_bucket_entry(bucket).ok().filter(|entry| *entry.get() == place);
        entry.expect("nothing was put in since it was found").remove();
        arena.take(place)
    }
}
