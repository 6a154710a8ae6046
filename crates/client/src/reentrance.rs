//! Re-entrance: an owner that acquires what it holds gets a further guard for the same grant.
//!
//! Within a client that costs no request: the guards share one hold, and the last of them releases. Across clients it is the engine's, where
//! that has shared owners.

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

/// What the named owners of one client hold.
#[derive(Debug, Default)]
pub(crate) struct Reentry {
    slots: Mutex<HashMap<Place, Arc<Slot>>>,
}

type Place = (OwnerId, LockName);

/// One owner's place at one lock.
#[derive(Debug, Default)]
pub(crate) struct Slot {
    /// What the owner holds there.
    held: Mutex<Weak<Hold>>,
    /// Two acquires by one owner pass one after the other, so that the second finds what the first got.
    pub(crate) gate: tokio::sync::Mutex<()>,
    /// How many grants that the owner has let go of are not yet released at the engine: it must not meet its own.
    releases: watch::Sender<usize>,
}

impl Slot {
    pub(crate) fn held(&self) -> Option<Arc<Hold>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).upgrade()
    }

    pub(crate) fn hold(&self, hold: &Arc<Hold>) {
        *self.held.lock().unwrap_or_else(PoisonError::into_inner) = Arc::downgrade(hold);
    }

    /// Resolves when nothing is being released.
    pub(crate) async fn released(&self) {
        // The sender is this slot's own, so it cannot be gone.
        let _ = self.releases.subscribe().wait_for(|under_way| *under_way == 0).await;
    }
}

impl Reentry {
    fn slots(&self) -> MutexGuard<'_, HashMap<Place, Arc<Slot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The place of an owner at a lock, for as long as it is used.
    pub(crate) fn slot(self: &Arc<Self>, owner: OwnerId, name: &LockName) -> SlotInUse {
        let place = (owner, name.clone());
        let slot = self.slots().entry(place.clone()).or_default().clone();
        SlotInUse { reentry: self.clone(), place, slot: Some(slot) }
    }

    /// Says that a hold is about to be released, until that is done.
    pub(crate) fn releasing(self: &Arc<Self>, hold: &Hold) -> Option<Releasing> {
        hold.reenters.then(|| {
            let slot = self.slot(hold.owner, &hold.name);
            slot.releases.send_modify(|under_way| *under_way += 1);
            Releasing(slot)
        })
    }
}

/// A slot that somebody uses. Its place goes when nobody uses it any more and nothing is held through it, also if the one who used
/// it was dropped in the middle.
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

/// A release that is under way.
#[derive(Debug)]
pub(crate) struct Releasing(SlotInUse);

impl Drop for Releasing {
    fn drop(&mut self) {
        self.0.releases.send_modify(|under_way| *under_way -= 1);
    }
}

impl Acquire<'_> {
    /// Through a named owner's slot: re-enters what the owner holds, or gets it from the engine.
    pub(crate) async fn through(&self, owner: OwnerId) -> Result<Guard, AcquireError> {
        let slot = self.shared.reentry.slot(owner, &self.name);
        if let Some(reentered) = self.reenter(&slot) {
            return reentered;
        }
        // One after the other, so that a second acquire finds what the first got, and not before the engine has heard of what
        // this owner let go of: it must not meet its own grant.
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

    /// A further guard for what the owner holds, if it holds it.
    fn reenter(&self, slot: &Slot) -> Option<Result<Guard, AcquireError>> {
        let (hold, now) = (slot.held()?, self.shared.clock.now());
        if let Err(reason) = hold.check(now) {
            // Whoever looks first ends belief for all.
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
    /// One more guard for the same grant, if it stands; the mode that is held, if that does not cover `mode`.
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
