//! Where the newest tokens are kept, for a check that stands alone.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tenure_table::{FencingToken, LockName};

use super::error::{FenceError, compare};

/// Keeps the newest token of each resource, and refuses older ones: what `FenceLayer` asks before each request.
///
/// It must be **durable** and **shared**: a token that it has accepted is still there after a restart, and all instances of the service
/// ask the same one. Implementations are `SqlFence::store` on a pool, and `RedisFence::store` on a connection.
pub trait FenceStore: Send + Sync + 'static {
    /// Accepts a token that is not older than the newest of that resource, and remembers it before it returns; else
    /// [`FenceError::Stale`]. Comparing and remembering must be one step.
    ///
    /// # Cancellation safety
    /// May be dropped at any point: then the token may have been remembered, or not.
    fn accept<'a>(
        &'a self,
        resource: &'a LockName,
        token: FencingToken,
    ) -> BoxFuture<'a, Result<(), FenceError>>;
}

impl<S: FenceStore + ?Sized> FenceStore for Arc<S> {
    fn accept<'a>(
        &'a self,
        resource: &'a LockName,
        token: FencingToken,
    ) -> BoxFuture<'a, Result<(), FenceError>> {
        (**self).accept(resource, token)
    }
}

/// A store that forgets everything when the process ends, and that no other process sees. **For tests**: after a restart it
/// accepts whatever comes first, also a token that was refused before. Clones share what they know.
///
/// ```
/// use tenure::fence::{FenceError, FenceStore, MemoryStore};
/// use tenure::{FencingToken, LockName};
///
/// # tokio::runtime::Runtime::new()?.block_on(async {
/// let store = MemoryStore::new();
/// let orders = LockName::parse("orders/42")?;
/// store.accept(&orders, FencingToken::new(7)).await?;
/// store.accept(&orders, FencingToken::new(7)).await?; // the same grant once more
/// let late = store.accept(&orders, FencingToken::new(6)).await;
/// assert!(matches!(late, Err(FenceError::Stale { newest, .. }) if newest.get() == 7));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    newest: Arc<Mutex<HashMap<LockName, FencingToken>>>,
}

impl MemoryStore {
    /// One that has seen nothing yet.
    pub fn new() -> Self {
        Self::default()
    }
}

impl FenceStore for MemoryStore {
    fn accept<'a>(
        &'a self,
        resource: &'a LockName,
        token: FencingToken,
    ) -> BoxFuture<'a, Result<(), FenceError>> {
        async move {
            // Each change is one insert, so what a panic elsewhere left behind is whole.
            let mut all = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
            match all.entry(resource.clone()) {
                Entry::Occupied(mut newest) => {
                    compare(resource.clone(), token, *newest.get())?;
                    newest.insert(token);
                }
                Entry::Vacant(new) => {
                    new.insert(token);
                }
            }
            Ok(())
        }
        .boxed()
    }
}
