//! Those of one client who wait, and are told by a message whose turn it is.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure_table::{GrantId, LockName};
use tokio::sync::Notify;

/// With what a message says to the one whom it wakes.
#[derive(Debug, Default)]
pub(super) struct Waiting<T> {
    present: Mutex<Present<T>>,
}

#[derive(Debug, Default)]
struct Present<T> {
    bells: HashMap<GrantId, Arc<Bell<T>>>,
    /// How many wait for each lock.
    names: HashMap<LockName, usize>,
}

#[derive(Debug, Default)]
struct Bell<T> {
    rung: Notify,
    /// What was said last.
    said: Mutex<T>,
}

impl<T: Default> Waiting<T> {
    fn present(&self) -> MutexGuard<'_, Present<T>> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on, a message to this grant wakes it.
    pub(super) fn register(self: &Arc<Self>, grant: GrantId, name: &LockName) -> Waiter<T> {
        let bell = Arc::new(Bell::default());
        let mut present = self.present();
        present.bells.insert(grant, bell.clone());
        *present.names.entry(name.clone()).or_default() += 1;
        drop(present);
        Waiter { waiting: self.clone(), grant, name: name.clone(), bell }
    }

    /// How many here wait for this lock. If somebody does, whoever comes next will have to wait, too.
    pub(super) fn how_many_for(&self, name: &LockName) -> usize {
        self.present().names.get(name).copied().unwrap_or_default()
    }

    /// Wakes one, if it still waits.
    #[cfg(any(feature = "postgres", feature = "mysql"))]
    pub(super) fn ring(&self, grant: GrantId) {
        if let Some(bell) = self.bell(grant) {
            bell.rung.notify_one();
        }
    }

    /// To be rung without the lock on all of them.
    fn bell(&self, grant: GrantId) -> Option<Arc<Bell<T>>> {
        self.present().bells.get(&grant).cloned()
    }

    /// The same with a word.
    #[cfg(feature = "redis")]
    pub(super) fn tell(&self, grant: GrantId, said: T) {
        if let Some(bell) = self.bell(grant) {
            *bell.said() = said;
            bell.rung.notify_one();
        }
    }

    pub(super) fn wake_all(&self) {
        for bell in self.present().bells.values() {
            bell.rung.notify_one();
        }
    }
}

impl<T> Bell<T> {
    fn said(&self) -> MutexGuard<'_, T> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One who waits, until it is dropped.
#[derive(Debug)]
pub(super) struct Waiter<T: Default> {
    waiting: Arc<Waiting<T>>,
    grant: GrantId,
    name: LockName,
    bell: Arc<Bell<T>>,
}

impl<T: Default> Waiter<T> {
    /// Resolves when it is to look, with what it was told; with nothing, if that was said to all.
    pub(super) async fn woken(&self) -> T {
        self.bell.rung.notified().await;
        std::mem::take(&mut *self.bell.said())
    }
}

impl<T: Default> Drop for Waiter<T> {
    fn drop(&mut self) {
        let mut present = self.waiting.present();
        present.bells.remove(&self.grant);
        if let Entry::Occupied(mut count) = present.names.entry(self.name.clone()) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}
