//! Storage of locks, resources, sessions and owners: an arena for each type, with stable places.
//!
//! Places depend on the history and differ between replicas. So no place is shown, written to a snapshot or compared for order.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::ops::{Index, IndexMut};

/// A place in the arena of `T`s. Takes four bytes, as an `Option` too.
pub(crate) struct Place<T>(NonZeroU32, PhantomData<fn() -> T>);

impl<T> Place<T> {
    fn of(slot: usize) -> Self {
        let number = u32::try_from(slot).ok().and_then(NonZeroU32::new);
        Self(number.expect("limits keep every arena below four billion places"), PhantomData)
    }

    const fn slot(self) -> usize {
        self.0.get() as usize
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

/// The values of one type.
#[derive(Debug)]
pub(crate) struct Arena<T> {
    /// The first slot stays empty, so that a place is the index of its slot.
    slots: Vec<Slot<T>>,
    /// The place that was emptied last.
    empty: Option<Place<T>>,
}

#[derive(Debug)]
enum Slot<T> {
    Full(T),
    /// With the place that was emptied before this one.
    Empty(Option<Place<T>>),
}

impl<T> Arena<T> {
    pub(crate) fn new() -> Self {
        Self { slots: vec![Slot::Empty(None)], empty: None }
    }

    pub(crate) fn put(&mut self, value: T) -> Place<T> {
        let place = self.empty.unwrap_or_else(|| self.append());
        let slot = &mut self.slots[place.slot()];
        let Slot::Empty(before) = *slot else { unreachable!("what is called empty is empty") };
        self.empty = before;
        *slot = Slot::Full(value);
        place
    }

    /// Adds an empty slot.
    #[inline(never)]
    fn append(&mut self) -> Place<T> {
        self.slots.push(Slot::Empty(None));
        Place::of(self.slots.len() - 1)
    }

    pub(crate) fn take(&mut self, place: Place<T>) -> T {
        let slot = &mut self.slots[place.slot()];
        match std::mem::replace(slot, Slot::Empty(self.empty)) {
            Slot::Full(value) => {
                self.empty = Some(place);
                value
            }
            Slot::Empty(_) => nothing_there(),
        }
    }

    /// Returns all places in an arbitrary order: only for counting, or for sorting by something else.
    pub(crate) fn places(&self) -> impl Iterator<Item = Place<T>> {
        let full = |(_, slot): &(usize, &Slot<T>)| matches!(slot, Slot::Full(_));
        self.slots.iter().enumerate().filter(full).map(|(number, _)| Place::of(number))
    }
}

impl<T> Index<Place<T>> for Arena<T> {
    type Output = T;

    fn index(&self, place: Place<T>) -> &T {
        match self.slots.get(place.slot()) {
            Some(Slot::Full(value)) => value,
            _ => nothing_there(),
        }
    }
}

impl<T> IndexMut<Place<T>> for Arena<T> {
    fn index_mut(&mut self, place: Place<T>) -> &mut T {
        match self.slots.get_mut(place.slot()) {
            Some(Slot::Full(value)) => value,
            _ => nothing_there(),
        }
    }
}

#[cold]
fn nothing_there() -> ! {
    panic!("whoever knows a place takes care that something lies there")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_used_again_and_what_lies_elsewhere_stays() {
        let mut arena = Arena::new();
        let [one, two, three] = ["one", "two", "three"].map(|value| arena.put(value));
        assert_eq!((arena.take(two), arena.take(one)), ("two", "one"));
        assert_eq!(arena.places().collect::<Vec<_>>(), [three]);
        let [four, five, six] = ["four", "five", "six"].map(|value| arena.put(value));
        assert_eq!([four, five], [one, two], "the one that became empty last is the first to be used");
        assert_eq!([three, four, five, six].map(|place| arena[place]), ["three", "four", "five", "six"]);
    }

    #[test]
    #[should_panic(expected = "something lies there")]
    fn an_empty_place_is_not_looked_at() {
        let mut arena = Arena::new();
        let place = arena.put("a");
        arena.take(place);
        let _ = arena[place];
    }
}
