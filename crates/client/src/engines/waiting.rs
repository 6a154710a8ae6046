//! Those of one client who wait, and are told by a message whose turn it is.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure_table::{GrantId, LockName};
use tokio::sync::Notify;

#[derive(Debug, Default)]
pub(super) struct Waiting {
    present: Mutex<Present>,
}

#[derive(Debug, Default)]
struct Present {
    woken: HashMap<GrantId, Arc<Notify>>,
    /// How many wait for each lock.
    names: HashMap<LockName, usize>,
}

impl Waiting {
    fn present(&self) -> MutexGuard<'_, Present> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on, a message to this grant wakes it.
    pub(super) fn register(self: &Arc<Self>, grant: GrantId, name: &LockName) -> Waiter {
        let woken = Arc::new(Notify::new());
        let mut present = self.present();
        present.woken.insert(grant, woken.clone());
        *present.names.entry(name.clone()).or_default() += 1;
        drop(present);
        Waiter { waiting: self.clone(), grant, name: name.clone(), woken }
    }

    /// Whether somebody here waits for this lock: whoever comes next will have to wait, too.
    pub(super) fn anybody_for(&self, name: &LockName) -> bool {
        self.present().names.contains_key(name)
    }

    /// Wakes one, if it still waits.
    pub(super) fn wake(&self, grant: GrantId) {
        let woken = self.present().woken.get(&grant).cloned();
        if let Some(woken) = woken {
            woken.notify_one();
        }
    }

    pub(super) fn wake_all(&self) {
        for woken in self.present().woken.values() {
            woken.notify_one();
        }
    }
}

/// One who waits, until it is dropped.
#[derive(Debug)]
pub(super) struct Waiter {
    waiting: Arc<Waiting>,
    grant: GrantId,
    name: LockName,
    woken: Arc<Notify>,
}

impl Waiter {
    /// Resolves when it is to look.
    pub(super) async fn woken(&self) {
        self.woken.notified().await;
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        let mut present = self.waiting.present();
        present.woken.remove(&self.grant);
        if let Entry::Occupied(mut count) = present.names.entry(self.name.clone()) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}
