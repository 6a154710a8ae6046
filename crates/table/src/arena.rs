//! Where locks, resources, sessions and owners lie: each kind in a slab, each at a place that says what lies there.
//!
//! Which place something gets depends on what was there before, and differs between replicas. So no place is ever shown,
//! written down or compared for order.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::ops::{Index, IndexMut};

use slab::Slab;

/// A place in the arena of `T`s. Four bytes, also where it is optional.
pub(crate) struct Place<T>(NonZeroU32, PhantomData<fn() -> T>);

impl<T> Place<T> {
    fn of(key: usize) -> Self {
        let number = u32::try_from(key + 1).ok().and_then(NonZeroU32::new);
        Self(number.expect("limits keep every arena below four billion places"), PhantomData)
    }

    fn key(self) -> usize {
        self.0.get() as usize - 1
    }
}

impl<T> Clone for Place<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Place<T> {}

impl<T> PartialEq for Place<T> {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<T> Eq for Place<T> {}

impl<T> Hash for Place<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl<T> fmt::Debug for Place<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{}", self.0)
    }
}

/// All of one kind.
#[derive(Debug)]
pub(crate) struct Arena<T>(Slab<T>);

impl<T> Arena<T> {
    pub(crate) const fn new() -> Self {
        Self(Slab::new())
    }

    pub(crate) fn put(&mut self, value: T) -> Place<T> {
        Place::of(self.0.insert(value))
    }

    pub(crate) fn take(&mut self, place: Place<T>) -> T {
        self.0.remove(place.key())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// In an order that means nothing: for counting, and for sorting by something that means something.
    pub(crate) fn places(&self) -> impl Iterator<Item = Place<T>> {
        self.0.iter().map(|(key, _)| Place::of(key))
    }
}

impl<T> Index<Place<T>> for Arena<T> {
    type Output = T;

    fn index(&self, place: Place<T>) -> &T {
        self.0.get(place.key()).unwrap_or_else(|| nothing_there())
    }
}

impl<T> IndexMut<Place<T>> for Arena<T> {
    fn index_mut(&mut self, place: Place<T>) -> &mut T {
        self.0.get_mut(place.key()).unwrap_or_else(|| nothing_there())
    }
}

#[cold]
fn nothing_there() -> ! {
    panic!("whoever knows a place takes care that something lies there")
}
