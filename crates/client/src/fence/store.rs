//! Stores of the newest tokens, for a check outside of the write's transaction.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tenure_table::{FencingToken, LockName};

use super::error::{FenceError, compare};

/// A store that keeps the newest token of each resource, and refuses older ones. `FenceLayer` asks it before each request.
///
/// It must be **durable** and **shared**: an accepted token survives a restart, and all instances of the service use the same store.
/// Implementations are `SqlFence::store` on a pool, and `RedisFence::store` on a connection.
pub trait FenceStore: Send + Sync + 'static {
    /// Accepts a token that is not older than the resource's newest, and stores it before it returns; otherwise returns
    /// [`FenceError::Stale`]. Comparing and storing must be one atomic step.
    ///
    /// # Cancellation safety
    /// May be dropped at any point: the token may then have been stored or not.
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

/// A store in memory, which is lost when the process ends and not shared with other processes. **For tests**: after a restart it accepts
/// any token, also one that was refused before. Clones share their tokens.
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
    /// Creates an empty store.
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
            // Each change is one insert, so a panic elsewhere leaves nothing half-changed.
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
