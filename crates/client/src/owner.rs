//! Owners, and how they re-enter the locks that they hold.
//!
//! Within a client, re-entry costs no request: the guards share one hold, and the last guard releases it. Across clients, the engine does
//! it, if it has shared owners.

use std::sync::Arc;

use tenure_table::OwnerId;

use crate::inner::ClientInner;
use crate::lock_all::LockAllRequest;
use crate::request::LockRequest;

/// An owner of locks, identified by a 128-bit id. Locks that are acquired through one owner re-enter: a second acquire of the same lock
/// succeeds at once if the held mode covers the requested one. The last guard releases the lock.
///
/// A re-entered guard shares the first guard's grant, with its TTL, its renewal and its label. Of several `max_hold` limits, the earliest
/// counts.
///
/// Without an `Owner`, every acquire has a new owner, and a second acquire of a lock waits for the first.
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
/// assert!(client.lock("orders/42").try_acquire().await?.is_none()); // another owner
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

    /// Returns the id of this owner. Another process with this id is the same owner: see
    /// [`Client::owner_with_id`](crate::Client::owner_with_id).
    pub const fn id(&self) -> OwnerId {
        self.id
    }

    /// Creates a request for a lock, by this owner.
    pub fn lock(&self, name: impl AsRef<str>) -> LockRequest {
        LockRequest::new(self.shared.clone(), name.as_ref(), Some(self.id))
    }

    /// Creates a request for several locks, all or nothing, by this owner.
    pub fn lock_all<N: AsRef<str>>(&self, names: impl IntoIterator<Item = N>) -> LockAllRequest {
        LockAllRequest::new(self.shared.clone(), names, Some(self.id))
    }
}
