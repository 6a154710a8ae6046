//! Releases on an instance that did not answer.
//!
//! Each instance has one task, for any number of keys. The task releases all of them when the instance answers again. A key expires after
//! its TTL, and is then dropped from the list.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_table::GrantId;
use tokio_util::sync::CancellationToken;

use super::acquire::{release_command, release_once};
use crate::clock::{BootTime, Clock};
use crate::engines::redis::link::Link;
use crate::random;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The time after which a request on another connection has arrived.
const ARRIVED_AFTER: Duration = Duration::from_secs(5);

/// The time limit of one request.
const LIMIT: Duration = Duration::from_secs(1);

/// The longest list: more than an application holds at once. Further keys are left to their TTL.
const MOST: usize = 10_000;

/// The keys to release on one instance.
#[derive(Debug, Default)]
pub(super) struct Cleaner {
    list: Mutex<List>,
}

#[derive(Debug, Default)]
struct List {
    /// By key and value.
    entries: HashMap<(String, GrantId), Entry>,
    is_running: bool,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// When the key has expired.
    until: BootTime,
    /// When the key is released once more: the first release may overtake the request for the key.
    again: Option<BootTime>,
    /// Whether the first release is done.
    released: bool,
}

/// Whether the request for the key may still be under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestStatus {
    Answered,
    Unanswered,
}

impl Cleaner {
    fn list(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a key. Returns true if no task runs: the caller then starts [`run`](Self::run).
    pub(super) fn add(
        &self,
        key: String,
        value: GrantId,
        ttl: Duration,
        status: RequestStatus,
        now: BootTime,
    ) -> bool {
        let mut list = self.list();
        if list.entries.len() >= MOST {
            return false;
        }
        let again = (status == RequestStatus::Unanswered).then(|| now + ARRIVED_AFTER);
        let until = now + ttl + ARRIVED_AFTER;
        list.entries.entry((key, value)).or_insert(Entry { until, again, released: false });
        !std::mem::replace(&mut list.is_running, true)
    }

    /// Releases until the list is empty.
    pub(super) async fn run(
        self: Arc<Self>,
        link: Arc<Link>,
        clock: Arc<dyn Clock>,
        closing: CancellationToken,
    ) {
        let mut pause = FIRST_PAUSE;
        loop {
            let answers = self.release_due(&link, &*clock).await;
            {
                let mut list = self.list();
                list.entries.retain(|_, entry| entry.until > clock.now());
                if list.entries.is_empty() || closing.is_cancelled() {
                    list.is_running = false;
                    return;
                }
            }
            pause = if answers { FIRST_PAUSE } else { (pause * 2).min(LONGEST_PAUSE) };
            tokio::select! {
                () = closing.cancelled() => {}
                () = clock.sleep_until(clock.now() + random::jittered(pause)) => {}
            }
        }
    }

    /// Releases all keys that are due. Returns false as soon as the instance does not answer.
    async fn release_due(&self, link: &Arc<Link>, clock: &dyn Clock) -> bool {
        let now = clock.now();
        let is_due = |entry: &Entry| !entry.released || entry.again.is_none_or(|again| again <= now);
        let due: Vec<_> = {
            let list = self.list();
            list.entries.iter().filter(|(_, entry)| is_due(entry)).map(|(what, _)| what.clone()).collect()
        };
        for (key, value) in due {
            let (connection, release) = (link.current_connection(), release_command(&key, value));
            if link.within(LIMIT, release_once(link, &connection, &release)).await.is_err() {
                return false;
            }
            let mut list = self.list();
            let what = (key, value);
            match list.entries.get_mut(&what) {
                Some(entry) if entry.again.is_some_and(|again| again > now) => entry.released = true,
                _ => drop(list.entries.remove(&what)),
            }
        }
        true
    }
}
