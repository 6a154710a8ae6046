//! A resource: its holders, its queue, and the state that stays with it.
//!
//! Most resources have one holder, no waiter, no value and no recorded start. Those take little memory. The rest is allocated when it is
//! needed, and freed afterwards.

use std::collections::BTreeSet;

use crate::arena::{Arena, Place};
use crate::index::Keyed;
use crate::list::List;
use crate::lock::{InLine, Lock, OfResource, Queued};
use crate::owner::{Owner, Party};
use crate::{LockName, Mode, SessionId, SharedValue};

/// A resource, which locks are for.
#[derive(Debug)]
pub(crate) struct Resource {
    name: LockName,
    /// The held locks and the lock-delays.
    pub(crate) held: List<Lock, OfResource>,
    /// `None` if at most one lock is held and there is no other state.
    pub(crate) rest: Option<Box<Rest>>,
}

/// The state of a resource beyond a single holder.
#[derive(Debug, Default)]
pub(crate) struct Rest {
    /// The number of held locks, by mode.
    pub(crate) held: Counts,
    /// The number of held locks whose holders asked for notices.
    pub(crate) notified: u32,
    /// The number of queued requests, by mode.
    pub(crate) wanted: Counts,
    pub(crate) converting: List<Queued, InLine>,
    pub(crate) converting_count: u32,
    pub(crate) waiting: List<Queued, InLine>,
    pub(crate) waiting_count: u32,
    pub(crate) value: SharedValue,
    pub(crate) start: Option<StartNote>,
    /// The sessions that are notified when the holders change.
    pub(crate) observers: BTreeSet<SessionId>,
    /// Whether the queue is to be served before the command ends.
    pub(crate) touched: bool,
}

/// The recorded start of the work that a lock protects, by the table's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StartNote {
    pub(crate) at_ms: i64,
    /// The time until which the start is kept.
    pub(crate) until_ms: i64,
}

/// A count for each mode.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts([u32; 6]);

impl Counts {
    pub(crate) const fn of(&self, mode: Mode) -> u32 {
        self.0[mode as usize]
    }

    pub(crate) const fn add(&mut self, mode: Mode) {
        self.0[mode as usize] += 1;
    }

    pub(crate) const fn subtract(&mut self, mode: Mode) {
        self.0[mode as usize] -= 1;
    }

    pub(crate) fn without(mut self, others: &Self) -> Self {
        self.0.iter_mut().zip(others.0).for_each(|(count, other)| *count -= other);
        self
    }

    pub(crate) fn total(&self) -> u32 {
        self.0.iter().sum()
    }

    /// Iterates over the modes whose count is not 0.
    pub(crate) fn modes(self) -> impl Iterator<Item = Mode> {
        Mode::ALL.into_iter().filter(move |mode| self.of(*mode) > 0)
    }
}

impl Rest {
    pub(crate) const fn in_line(&self) -> u32 {
        self.converting_count + self.waiting_count
    }

    /// Iterates over the queue: conversions first.
    pub(crate) fn line<'a>(
        &self,
        queued: &'a Arena<Queued>,
    ) -> impl Iterator<Item = Place<Queued>> + use<'a> {
        self.converting.iter(queued).chain(self.waiting.iter(queued))
    }

    fn count(&mut self, lock: &Lock) {
        self.held.add(lock.mode);
        self.notified += u32::from(lock.notify);
    }

    fn discount(&mut self, lock: &Lock) {
        self.held.subtract(lock.mode);
        self.notified -= u32::from(lock.notify);
    }

    fn is_needed(&self) -> bool {
        self.held.total() > 1
            || self.in_line() > 0
            || !self.value.bytes.is_empty()
            || self.start.is_some()
            || !self.observers.is_empty()
    }
}

impl Resource {
    pub(crate) fn new(name: LockName) -> Self {
        Self { name, held: List::default(), rest: None }
    }

    pub(crate) const fn name(&self) -> &LockName {
        &self.name
    }

    /// Whether the resource has no state, and can be removed.
    pub(crate) fn is_idle(&self) -> bool {
        self.held.is_empty() && self.rest.is_none()
    }

    pub(crate) fn in_line(&self) -> u32 {
        self.rest.as_ref().map_or(0, |rest| rest.in_line())
    }

    /// Whether a value was written.
    pub(crate) fn has_value(&self) -> bool {
        self.rest.as_ref().is_some_and(|rest| !rest.value.is_default())
    }

    pub(crate) fn value(&self) -> SharedValue {
        self.rest.as_ref().map_or_else(SharedValue::default, |rest| rest.value.clone())
    }

    /// Returns the state beyond a single holder, and creates it if needed. After something is removed from it, [`Resource::tidy`] must be
    /// called.
    pub(crate) fn rest(&mut self, locks: &Arena<Lock>) -> &mut Rest {
        let held = self.held;
        self.rest.get_or_insert_with(|| {
            let mut rest = Box::<Rest>::default();
            held.iter(locks).for_each(|lock| rest.count(&locks[lock]));
            rest
        })
    }

    /// Frees the state that is no longer needed.
    pub(crate) fn tidy(&mut self) {
        self.rest.take_if(|rest| !rest.is_needed());
    }

    /// Adds a held lock.
    pub(crate) fn add(&mut self, locks: &mut Arena<Lock>, lock: Place<Lock>) {
        if !self.held.is_empty() {
            self.rest(locks);
        }
        self.held.push(locks, lock);
        if let Some(rest) = &mut self.rest {
            rest.count(&locks[lock]);
        }
    }

    /// Removes a lock that was held, after it was taken from the arena.
    pub(crate) fn remove(&mut self, locks: &mut Arena<Lock>, lock: &Lock) {
        self.held.close(locks, &lock.of_resource);
        if let Some(rest) = &mut self.rest {
            rest.discount(lock);
        }
    }

    /// Stops counting a lock among those whose holders asked for notices.
    pub(crate) fn ignore(&mut self, lock: &Lock) {
        if let Some(rest) = &mut self.rest {
            rest.notified -= u32::from(lock.notify);
        }
    }

    /// Changes the mode of a held lock.
    pub(crate) fn change(&mut self, locks: &mut Arena<Lock>, lock: Place<Lock>, to: Mode) {
        let from = std::mem::replace(&mut locks[lock].mode, to);
        if let Some(rest) = &mut self.rest {
            rest.held.subtract(from);
            rest.held.add(to);
        }
    }

    /// Iterates over the locks that an owner holds here. Searches the shorter of the two lists.
    pub(crate) fn held_by<'a>(
        &self,
        here: Place<Self>,
        locks: &'a Arena<Lock>,
        all: &Arena<Owner>,
        owner: Party,
    ) -> impl Iterator<Item = &'a Lock> + use<'a> {
        let count = self.rest.as_ref().map_or(1, |rest| rest.held.total());
        let (of_owner, of_resource) = if owner.lock_count(all) < count {
            (Some(owner.locks(locks, all)), None)
        } else {
            (None, Some(self.held.iter(locks)))
        };
        let all = of_owner.into_iter().flatten().chain(of_resource.into_iter().flatten());
        all.filter(move |lock| owner.has(locks, *lock))
            .map(|lock| &locks[lock])
            .filter(move |lock| lock.held && lock.resource == here)
    }

    /// Whether an owner without a grant here could be granted this mode now.
    pub(crate) fn fits_stranger(&self, locks: &Arena<Lock>, mode: Mode) -> bool {
        match &self.rest {
            Some(rest) => rest.held.modes().all(|held| held.compatible_with(mode)),
            None => self.held.first().is_none_or(|lock| locks[lock].mode.compatible_with(mode)),
        }
    }

    /// Whether this owner could be granted this mode now, beside the grants of others.
    pub(crate) fn fits(
        &self,
        here: Place<Self>,
        locks: &Arena<Lock>,
        all: &Arena<Owner>,
        owner: Party,
        mode: Mode,
    ) -> bool {
        if self.fits_stranger(locks, mode) {
            return true;
        }
        let Some(rest) = &self.rest else {
            return self.held.first().is_none_or(|lock| owner.has(locks, lock));
        };
        let mut others = rest.held;
        self.held_by(here, locks, all, owner).for_each(|lock| others.subtract(lock.mode));
        others.modes().all(|held| held.compatible_with(mode))
    }
}

impl Keyed for Resource {
    type Key = LockName;

    fn key(&self) -> &LockName {
        &self.name
    }
}
