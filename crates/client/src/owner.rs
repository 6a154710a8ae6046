//! Owners, and how they re-enter what they hold.
//!
//! Within a client, re-entering costs no request: the guards share one hold, and the last of them releases. Across clients
//! it is the engine's, where that has shared owners.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::hold::Hold;
use crate::ids::OwnerId;
use crate::lock_all::LockAllRequest;
use crate::name::LockName;
use crate::request::LockRequest;
use crate::shared::Shared;

/// Somebody who holds locks, known by a 128-bit id. Locks that are acquired through one owner re-enter: a
/// second acquire of the same lock succeeds at once, where the held mode covers the asked one, and the last guard releases.
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
    shared: Arc<Shared>,
    id: OwnerId,
}

impl Owner {
    pub(crate) const fn new(shared: Arc<Shared>, id: OwnerId) -> Self {
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
    slots: Mutex<HashMap<(OwnerId, LockName), Arc<Slot>>>,
}

/// One owner's place at one lock. Two acquires by one owner pass its gate one after the other, so that
/// the second finds what the first got.
pub(crate) type Slot = tokio::sync::Mutex<Weak<Hold>>;

impl Reentry {
    fn slots(&self) -> MutexGuard<'_, HashMap<(OwnerId, LockName), Arc<Slot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn slot(&self, owner: OwnerId, name: &LockName) -> Arc<Slot> {
        self.slots().entry((owner, name.clone())).or_default().clone()
    }

    /// Gives back a slot that was asked for. Its place goes when nobody uses it and nothing is held through it.
    pub(crate) fn give_back(&self, owner: OwnerId, name: &LockName, slot: Arc<Slot>) {
        let mut slots = self.slots();
        drop(slot);
        Self::remove_if_unused(&mut slots, &(owner, name.clone()));
    }

    pub(crate) fn forget(&self, hold: &Hold) {
        Self::remove_if_unused(&mut self.slots(), &(hold.owner, hold.name.clone()));
    }

    fn remove_if_unused(slots: &mut HashMap<(OwnerId, LockName), Arc<Slot>>, key: &(OwnerId, LockName)) {
        let unused = slots
            .get_mut(key)
            .and_then(Arc::get_mut)
            .is_some_and(|slot| slot.get_mut().upgrade().is_none_or(|hold| !hold.is_held()));
        if unused {
            slots.remove(key);
        }
    }
}
