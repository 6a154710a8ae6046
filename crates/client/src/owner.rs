//! Owners, and how they re-enter what they hold.
//!
//! Within a client, re-entering costs no request: the guards share one hold, and the last of them releases. Across clients
//! it is the engine's, where that has shared owners.

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use tenure_table::{LockName, OwnerId};
use tokio::sync::watch;

use crate::hold::Hold;
use crate::inner::ClientInner;
use crate::lock_all::LockAllRequest;
use crate::request::LockRequest;

/// Somebody who holds locks, known by a 128-bit id. Locks that are acquired through one owner re-enter: a
/// second acquire of the same lock succeeds at once, where the held mode covers the asked one, and the last guard releases.
///
/// A re-entered guard shares the first one's grant, with its ttl, its renewal and its label; of several `max_hold`s, the
/// earliest counts.
///
/// Without one, every acquire is an owner of its own, and a second acquire of a lock waits for the first.
///
/// ```
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// # let dir = tempfile::tempdir()?;
/// # let url = format!("file:{}", dir.path().display());
/// let client = tenure::Client::connect(&url).await?;
/// let owner = client.owner();
/// let outer = owner.lock("orders/42").acquire().await?;
/// let inner = owner.lock("orders/42").acquire().await?; // re-enters
/// assert_eq!(outer.token(), inner.token());
/// assert!(client.lock("orders/42").try_acquire().await?.is_none()); // somebody else
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Owner {
    shared: Arc<ClientInner>,
    id: OwnerId,
}

impl Owner {
    pub(crate) const fn new(shared: Arc<ClientInner>, id: OwnerId) -> Self {
        Self { shared, id }
    }

    /// Its id, with which another process can be the same owner: see [`Client::owner_with_id`](crate::Client::owner_with_id).
    pub const fn id(&self) -> OwnerId {
        self.id
    }

    /// A request for a lock, by this owner.
    pub fn lock(&self, name: impl AsRef<str>) -> LockRequest {
        LockRequest::new(self.shared.clone(), name.as_ref(), Some(self.id))
    }

    /// A request for several locks at once, by this owner.
    pub fn lock_all<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> LockAllRequest {
        LockAllRequest::new(self.shared.clone(), names, self.id)
    }
}

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
