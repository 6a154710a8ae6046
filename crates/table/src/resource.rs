//! A resource: who holds it, who is in line, and what stays with it.
//!
//! Most resources are held by one and wanted by nobody, and have neither a value nor a start: those are small, and what the
//! others have beside that comes and goes with need.

use std::collections::BTreeSet;

use crate::arena::{Arena, Place};
use crate::index::Keyed;
use crate::list::List;
use crate::lock::{InLine, Lock, OfResource, Queued};
use crate::owner::{Owner, Party};
use crate::{LockName, Mode, SessionId, SharedValue};

/// What is locked.
#[derive(Debug)]
pub(crate) struct Resource {
    name: LockName,
    /// Those who hold it, and the delays of those who died.
    pub(crate) held: List<Lock, OfResource>,
    /// None, if at most one holds it and there is nothing else to say.
    pub(crate) rest: Option<Box<Rest>>,
}

/// What a resource has that is not just held by one.
#[derive(Debug, Default)]
pub(crate) struct Rest {
    /// How many hold it, in each mode.
    pub(crate) held: Counts,
    /// How many of those want to be told who waits.
    pub(crate) notified: u32,
    /// How many are in line, for each mode.
    pub(crate) wanted: Counts,
    pub(crate) converting: List<Queued, InLine>,
    pub(crate) converting_count: u32,
    pub(crate) waiting: List<Queued, InLine>,
    pub(crate) waiting_count: u32,
    pub(crate) value: SharedValue,
    pub(crate) start: Option<StartNote>,
    /// The sessions that are told when the holders change.
    pub(crate) observers: BTreeSet<SessionId>,
    /// It is to be served before the command is done.
    pub(crate) touched: bool,
}

/// When what a lock protects was started, by the table's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StartNote {
    pub(crate) at_ms: i64,
    /// When it may be forgotten.
    pub(crate) until_ms: i64,
}

/// A number for each mode.
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

    /// The modes that there are some of.
    pub(crate) fn modes(self) -> impl Iterator<Item = Mode> {
        Mode::ALL.into_iter().filter(move |mode| self.of(*mode) > 0)
    }
}

impl Rest {
    pub(crate) const fn in_line(&self) -> u32 {
        self.converting_count + self.waiting_count
    }

    /// The line: conversions first.
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

    /// Whether nobody would notice if it were forgotten.
    pub(crate) fn is_idle(&self) -> bool {
        self.held.is_empty() && self.rest.is_none()
    }

    pub(crate) fn in_line(&self) -> u32 {
        self.rest.as_ref().map_or(0, |rest| rest.in_line())
    }

    /// Whether there is more to say of its value than that nobody wrote one.
    pub(crate) fn has_value(&self) -> bool {
        self.rest.as_ref().is_some_and(|rest| !rest.value.is_default())
    }

    pub(crate) fn value(&self) -> SharedValue {
        self.rest.as_ref().map_or_else(SharedValue::default, |rest| rest.value.clone())
    }

    /// What it has beside a holder, made if it is not there. Whoever takes something out of it calls [`Resource::tidy`].
    pub(crate) fn rest(&mut self, locks: &Arena<Lock>) -> &mut Rest {
        let held = self.held;
        self.rest.get_or_insert_with(|| {
            let mut rest = Box::<Rest>::default();
            held.iter(locks).for_each(|lock| rest.count(&locks[lock]));
            rest
        })
    }

    /// Lets go of what is no longer needed.
    pub(crate) fn tidy(&mut self) {
        self.rest.take_if(|rest| !rest.is_needed());
    }

    /// A lock that stands from now on.
    pub(crate) fn add(&mut self, locks: &mut Arena<Lock>, lock: Place<Lock>) {
        if !self.held.is_empty() {
            self.rest(locks);
        }
        self.held.push(locks, lock);
        if let Some(rest) = &mut self.rest {
            rest.count(&locks[lock]);
        }
    }

    /// A lock that stands no more, and is gone.
    pub(crate) fn remove(&mut self, locks: &mut Arena<Lock>, lock: &Lock) {
        self.held.close(locks, &lock.of_resource);
        if let Some(rest) = &mut self.rest {
            rest.discount(lock);
        }
    }

    /// A lock of which nobody is told any more who waits behind it.
    pub(crate) fn ignore(&mut self, lock: &Lock) {
        if let Some(rest) = &mut self.rest {
            rest.notified -= u32::from(lock.notify);
        }
    }

    /// A lock that stands in another mode.
    pub(crate) fn change(&mut self, locks: &mut Arena<Lock>, lock: Place<Lock>, to: Mode) {
        let from = std::mem::replace(&mut locks[lock].mode, to);
        if let Some(rest) = &mut self.rest {
            rest.held.subtract(from);
            rest.held.add(to);
        }
    }

    /// The locks of an owner that stand here, looked for where there is less to look through.
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

    /// Whether a lock of an owner that holds nothing here may stand here in this mode.
    pub(crate) fn fits_stranger(&self, locks: &Arena<Lock>, mode: Mode) -> bool {
        match &self.rest {
            Some(rest) => rest.held.modes().all(|held| held.compatible_with(mode)),
            None => self.held.first().is_none_or(|lock| locks[lock].mode.compatible_with(mode)),
        }
    }

    /// Whether a lock of this owner may stand here in this mode, beside what others hold.
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
