//! Re-entrance: an owner that acquires a lock that it holds gets another guard for the same grant.
//!
//! Within a client this costs no request: the guards share one hold, and the last guard releases it. Across clients the engine handles
//! it, if it has shared owners.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use futures_util::FutureExt;
use tenure_table::{LockName, Mode, OwnerId};
use tokio::sync::watch;

use crate::clock::BootTime;
use crate::error::{AcquireError, EngineError};
use crate::guard::Guard;
use crate::hold::Hold;
use crate::request::Acquire;
use crate::wait::WaitUntil;

/// The locks that the named owners of one client hold.
#[derive(Debug, Default)]
pub(crate) struct Reentry {
    slots: Mutex<HashMap<Place, Arc<Slot>>>,
}

type Place = (OwnerId, LockName);

/// One owner's state at one lock.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    /// The owner's hold on the lock.
    held: Mutex<Weak<Hold>>,
    /// Serializes the acquires of one owner, so that the second finds what the first got.
    pub(crate) gate: tokio::sync::Mutex<()>,
    /// The number of grants that the owner has released and the engine has not freed yet: a new request must not conflict with them.
    releases: watch::Sender<usize>,
}

impl Slot {
    pub(crate) fn held(&self) -> Option<Arc<Hold>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).upgrade()
    }

    pub(crate) fn hold(&self, hold: &Arc<Hold>) {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(hold);
    }

    /// Resolves when no release is under way.
    pub(crate) async fn released(&self) {
        // The slot owns the sender, so the channel is open.
        let _ = self.releases.subscribe().wait_for(|under_way| *under_way == 0).await;
    }
}

impl Reentry {
    fn slots(&self) -> MutexGuard<'_, HashMap<Place, Arc<Slot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the slot of an owner at a lock, which is kept for as long as it is used.
    pub(crate) fn slot(self: &Arc<Self>, owner: OwnerId, name: &LockName) -> SlotInUse {
        let place = (owner, name.clone());
        let slot = self.slots().entry(place.clone()).or_default().clone();
        SlotInUse { reentry: self.clone(), place, slot: Some(slot) }
    }

    /// Marks a hold as about to be released, until the returned marker is dropped.
    pub(crate) fn releasing(self: &Arc<Self>, hold: &Hold) -> Option<Releasing> {
        hold.reenters.then(|| {
            let slot = self.slot(hold.owner, &hold.name);
            slot.releases.send_modify(|under_way| *under_way += 1);
            Releasing(slot)
        })
    }
}

/// A slot in use. It is removed when it is unused and nothing is held through it, also if a user of the slot is dropped half-way.
#[derive(Debug)]
pub(crate) struct SlotInUse {
    reentry: Arc<Reentry>,
    place: Place,
    slot: Option<Arc<Slot>>,
}

impl Deref for SlotInUse {
    type Target = Slot;

    fn deref(&self) -> &Slot {
        self.slot.as_deref().expect("it is there until it is dropped")
    }
}

impl Drop for SlotInUse {
    fn drop(&mut self) {
        let mut slots = self.reentry.slots();
        self.slot = None;
        let unused = slots.get_mut(&self.place).and_then(Arc::get_mut);
        if unused.is_some_and(|slot| slot.held().is_none_or(|hold| !hold.is_held())) {
            slots.remove(&self.place);
        }
    }
}

/// The marker of a release that is under way.
#[derive(Debug)]
pub(crate) struct Releasing(SlotInUse);

impl Drop for Releasing {
    fn drop(&mut self) {
        self.0.releases.send_modify(|under_way| *under_way -= 1);
    }
}

impl Acquire<'_> {
    /// Acquires through a named owner's slot: re-enters what the owner holds, or requests it from the engine.
    pub(crate) async fn through(&self, owner: OwnerId) -> Result<Guard, AcquireError> {
        let slot = self.shared.reentry.slot(owner, &self.name);
        if let Some(reentered) = self.reenter(&slot) {
            return reentered;
        }
        // Serialized, so that a second acquire finds what the first got. It also waits until the engine has freed what this owner
        // released: the request must not conflict with the owner's own grant.
        let (_gate, ()) = match self.wait {
            WaitUntil::Try => {
                let gate = slot.gate.try_lock().map_err(|_| self.not_got())?;
                (gate, slot.released().now_or_never().ok_or_else(|| self.not_got())?)
            }
            WaitUntil::At { .. } | WaitUntil::Forever => tokio::select! {
                biased;
                passed = async { (slot.gate.lock().await, slot.released().await) } => passed,
                () = self.shared.closing.cancelled() => return Err(EngineError::Closed.into()),
                () = self.wait.over(&*self.shared.clock) => return Err(self.not_got()),
            },
        };
        if let Some(reentered) = self.reenter(&slot) {
            return reentered;
        }
        let guard = self.ask_engine(owner).await?;
        slot.hold(guard.hold());
        Ok(guard)
    }

    /// Returns another guard for what the owner holds, if it holds the lock.
    fn reenter(&self, slot: &Slot) -> Option<Result<Guard, AcquireError>> {
        let (hold, now) = (slot.held()?, self.shared.clock.now());
        if let Err(reason) = hold.check(now) {
            // The first check after the deadline ends the hold for all guards.
            self.shared.lose(&hold, reason);
            return None;
        }
        match hold.reenter(self.options.mode, now)? {
            Ok(()) => {
                hold.limit(self.options.max_hold, now);
                self.shared.schedule.put(&hold);
                Some(Ok(Guard::new(hold, self.shared.clone())))
            }
            Err(mode) => {
                let (name, asked) = (self.name.clone(), self.options.mode);
                Some(Err(AcquireError::NotCovered { name, held: mode, asked }))
            }
        }
    }
}

impl Hold {
    /// Adds a guard to the grant, if it is still held. Fails with the held mode if that does not cover `mode`.
    pub(crate) fn reenter(&self, mode: Mode, now: BootTime) -> Option<Result<(), Mode>> {
        let mut belief = self.belief();
        if !belief.is_held() || belief.has_ended(now).is_some() {
            return None;
        }
        // While a conversion is under way, only what both modes cover is sure.
        let sure = belief.conversion.as_ref().is_none_or(|conversion| conversion.to.covers(mode));
        if !belief.mode.covers(mode) || !sure {
            return Some(Err(belief.sure_mode()));
        }
        belief.guards += 1;
        Some(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random;

    #[test]
    fn a_slot_goes_when_nobody_uses_it() {
        let reentry = Arc::new(Reentry::default());
        let (owner, name) = (random::owner_id(), LockName::parse("a").unwrap());
        let first = reentry.slot(owner, &name);
        let second = reentry.slot(owner, &name);
        assert!(std::ptr::eq(&raw const *first, &raw const *second), "one owner has one place at a lock");
        drop(first);
        assert_eq!(reentry.slots().len(), 1);
        drop(second);
        assert!(reentry.slots().is_empty());
    }
}
