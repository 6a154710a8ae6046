//! Owners, and how they re-enter what they hold.
//!
//! Within a client, re-entering costs no request: the guards share one hold, and the last of them releases. Across clients
//! it is the engine's, where that has shared owners.

use std::sync::Arc;

use tenure_table::OwnerId;

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
        LockAllRequest::new(self.shared.clone(), names, Some(self.id))
    }
}
