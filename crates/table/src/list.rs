//! Linked lists through their elements: an element is removed in constant time and without an allocation.

use std::marker::PhantomData;

use crate::arena::{Arena, Place};

/// The ends of a list of `T`s. A `T` may be in several lists: `K` selects one.
#[derive(Debug)]
pub(crate) struct List<T, K> {
    head: Option<Place<T>>,
    tail: Option<Place<T>>,
    kind: PhantomData<fn() -> K>,
}

/// An element's neighbours in a list.
#[derive(Debug)]
pub(crate) struct Links<T> {
    prev: Option<Place<T>>,
    next: Option<Place<T>>,
}

/// A type whose values can be in lists of kind `K`.
pub(crate) trait Linked<K>: Sized {
    fn links(&self) -> &Links<Self>;
    fn links_mut(&mut self) -> &mut Links<Self>;
}

impl<T> Default for Links<T> {
    fn default() -> Self {
        Self { prev: None, next: None }
    }
}

impl<T, K> Default for List<T, K> {
    fn default() -> Self {
        Self { head: None, tail: None, kind: PhantomData }
    }
}

impl<T, K> Clone for List<T, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, K> Copy for List<T, K> {}

impl<T: Linked<K>, K> List<T, K> {
    /// Returns a list of one element, which must be in no other list of this kind.
    pub(crate) const fn of(one: Place<T>) -> Self {
        Self { head: Some(one), tail: Some(one), kind: PhantomData }
    }

    pub(crate) const fn is_empty(self) -> bool {
        self.head.is_none()
    }

    pub(crate) const fn first(self) -> Option<Place<T>> {
        self.head
    }

    pub(crate) const fn last(self) -> Option<Place<T>> {
        self.tail
    }

    pub(crate) fn push(&mut self, arena: &mut Arena<T>, place: Place<T>) {
        *arena[place].links_mut() = Links { prev: self.tail, next: None };
        match self.tail {
            Some(tail) => arena[tail].links_mut().next = Some(place),
            None => self.head = Some(place),
        }
        self.tail = Some(place);
    }

    pub(crate) fn remove(&mut self, arena: &mut Arena<T>, place: Place<T>) {
        let links = std::mem::take(arena[place].links_mut());
        self.close(arena, &links);
    }

    /// Closes the gap that a removed element with these neighbours has left.
    pub(crate) fn close(&mut self, arena: &mut Arena<T>, gone: &Links<T>) {
        let Links { prev, next } = *gone;
        match prev {
            Some(prev) => arena[prev].links_mut().next = next,
            None => self.head = next,
        }
        match next {
            Some(next) => arena[next].links_mut().prev = prev,
            None => self.tail = prev,
        }
    }

    /// Iterates from the first to the last.
    pub(crate) fn iter(self, arena: &Arena<T>) -> impl Iterator<Item = Place<T>> {
        onward::<T, K>(arena, self.head)
    }
}

/// Iterates from this element to the last of its list. An element in no list is the only one.
pub(crate) fn onward<T: Linked<K>, K>(
    arena: &Arena<T>,
    first: Option<Place<T>>,
) -> impl Iterator<Item = Place<T>> {
    std::iter::successors(first, |place| after::<T, K>(arena, *place))
}

/// Iterates from the element before `place` to the first of its list.
pub(crate) fn before<T: Linked<K>, K>(arena: &Arena<T>, place: Place<T>) -> impl Iterator<Item = Place<T>> {
    let prev = |place: Place<T>| Linked::<K>::links(&arena[place]).prev;
    std::iter::successors(prev(place), move |place| prev(*place))
}

/// Returns the element after `place` in its list.
pub(crate) fn after<T: Linked<K>, K>(arena: &Arena<T>, place: Place<T>) -> Option<Place<T>> {
    Linked::<K>::links(&arena[place]).next
}
