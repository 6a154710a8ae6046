//! The keeper: one task for all holds of a client, which renews each hold in time and ends it at its deadline.
//!
//! A hold that is released before it is due costs two map operations and no wake-up: the keeper is woken only for an instant that is
//! earlier than the planned end of its sleep.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tenure_table::GrantId;
use tokio::sync::Notify;

use crate::clock::BootTime;
use crate::hold::{Due, Hold};
use crate::inner::ClientInner;

/// The instants at which holds are due.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    queue: Mutex<Queue>,
    earlier: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    due: BTreeMap<(BootTime, GrantId), Arc<Hold>>,
    /// All holds, also those that are never due.
    all: HashMap<GrantId, Arc<Hold>>,
    /// The planned end of the keeper's sleep; `None` while it is awake, or sleeps until it is woken.
    asleep_until: Option<BootTime>,
    /// Whether a hold was scheduled since the keeper last began to sleep.
    stirred: bool,
}

/// The keeper's sleep when nothing is due but holds were scheduled lately. Without a planned end, the next hold would wake the keeper.
const NAP: Duration = Duration::from_secs(1);

impl Schedule {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a hold that has begun.
    pub(crate) fn add(&self, hold: &Arc<Hold>) {
        let mut queue = self.queue();
        // The hold may have been lost already. A loss from now on removes it again.
        if hold.is_held() {
            queue.all.insert(hold.id, hold.clone());
        }
        self.put_into(&mut queue, hold);
    }

    /// Schedules a hold for its next instant, if it has one.
    pub(crate) fn put(&self, hold: &Arc<Hold>) {
        self.put_into(&mut self.queue(), hold);
    }

    fn put_into(&self, queue: &mut Queue, hold: &Arc<Hold>) {
        let next = hold.next_due();
        if let Some(before) = hold.set_scheduled(next) {
            queue.due.remove(&(before, hold.id));
        }
        if let Some(at) = next {
            queue.due.insert((at, hold.id), hold.clone());
            queue.stirred = true;
            if queue.asleep_until.is_none_or(|until| at < until) {
                self.earlier.notify_one();
            }
        }
    }

    pub(crate) fn remove(&self, hold: &Arc<Hold>) {
        let mut queue = self.queue();
        queue.all.remove(&hold.id);
        if let Some(at) = hold.set_scheduled(None) {
            queue.due.remove(&(at, hold.id));
        }
    }

    /// Returns all holds.
    pub(crate) fn all(&self) -> Vec<Arc<Hold>> {
        self.queue().all.values().cloned().collect()
    }

    fn take_due(&self, now: BootTime) -> Vec<Arc<Hold>> {
        let mut queue = self.queue();
        queue.asleep_until = None;
        let mut due = Vec::new();
        while let Some(first) = queue.due.first_entry() {
            if first.key().0 > now {
                break;
            }
            let hold = first.remove();
            hold.set_scheduled(None);
            due.push(hold);
        }
        due
    }

    /// Plans the next sleep and returns its end; `None` if the keeper sleeps until it is woken.
    fn fall_asleep(&self, now: BootTime) -> Option<BootTime> {
        let mut queue = self.queue();
        let nap = std::mem::take(&mut queue.stirred).then_some(now + NAP);
        queue.asleep_until = queue.due.first_key_value().map(|((at, _), _)| *at).or(nap);
        queue.asleep_until
    }
}

/// Runs on the client's thread for as long as the client lives.
pub(crate) async fn keep(client: Weak<ClientInner>) {
    let Some((clock, schedule)) =
        client.upgrade().map(|shared| (shared.clock.clone(), shared.schedule.clone()))
    else {
        return;
    };
    loop {
        let now = clock.now();
        for hold in schedule.take_due(now) {
            let Some(shared) = client.upgrade() else { return };
            match hold.due(now) {
                Due::Renew(grant) => shared.renew(&hold, grant),
                Due::Lose(reason) => shared.lose(&hold, reason),
                Due::Release(task) => {
                    schedule.remove(&hold);
                    shared.release_in_background(task);
                }
                Due::Nothing => {}
            }
            schedule.put(&hold);
        }
        match schedule.fall_asleep(now) {
            Some(at) => {
                tokio::select! {
                    () = clock.sleep_until(at) => {}
                    () = schedule.earlier.notified() => {}
                }
            }
            None => schedule.earlier.notified().await,
        }
    }
}
