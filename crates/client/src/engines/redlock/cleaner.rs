//! What is still to be released on an instance that did not answer.
//!
//! One task for each instance, however much there is to do: it goes through all of it when the instance answers again. What nobody has
//! renewed for its ttl is gone by itself.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_table::GrantId;
use tokio_util::sync::CancellationToken;

use super::acquire::release_once;
use crate::clock::{BootTime, Clock};
use crate::engines::redis::link::Link;
use crate::engines::redis::scripts;
use crate::random;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// After that long, what may have been under way on another connection has arrived.
const ARRIVED_AFTER: Duration = Duration::from_secs(5);

/// How long an instance may take.
const LIMIT: Duration = Duration::from_secs(1);

/// More than an application holds at once. Beyond that, it is left to the ttl.
const MOST: usize = 10_000;

/// What is to be released on one instance.
#[derive(Debug, Default)]
pub(super) struct Cleaner {
    todo: Mutex<Todo>,
}

#[derive(Debug, Default)]
struct Todo {
    /// The keys, each with the value that is to go.
    entries: HashMap<(String, GrantId), Entry>,
    under_way: bool,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    /// When it is gone by itself.
    until: BootTime,
    /// When it is to be released once more, since the request may have been overtaken.
    again: Option<BootTime>,
    /// Whether it was released a first time.
    released: bool,
}

/// Whether the request that is undone may still be under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    Answered,
    Unanswered,
}

impl Cleaner {
    fn todo(&self) -> MutexGuard<'_, Todo> {
        self.todo.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds something; whether somebody has to begin with the work.
    pub(super) fn add(
        &self,
        key: String,
        value: GrantId,
        ttl: Duration,
        asked: Asked,
        now: BootTime,
    ) -> bool {
        let mut todo = self.todo();
        if todo.entries.len() >= MOST {
            return false;
        }
        let again = (asked == Asked::Unanswered).then(|| now + ARRIVED_AFTER);
        let until = now + ttl + ARRIVED_AFTER;
        todo.entries.entry((key, value)).or_insert(Entry { until, again, released: false });
        !std::mem::replace(&mut todo.under_way, true)
    }

    /// Does the work, until there is none.
    pub(super) async fn work(
        self: Arc<Self>,
        link: Arc<Link>,
        clock: Arc<dyn Clock>,
        closing: CancellationToken,
    ) {
        let mut pause = FIRST_PAUSE;
        loop {
            let answers = self.go_through(&link, &*clock).await;
            {
                let mut todo = self.todo();
                todo.entries.retain(|_, entry| entry.until > clock.now());
                if todo.entries.is_empty() || closing.is_cancelled() {
                    todo.under_way = false;
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

    /// Releases all that is due, as long as the instance answers; whether it did.
    async fn go_through(&self, link: &Arc<Link>, clock: &dyn Clock) -> bool {
        let now = clock.now();
        // What was released once waits for its second time.
        let is_due = |entry: &Entry| !entry.released || entry.again.is_none_or(|again| again <= now);
        let due: Vec<_> = {
            let todo = self.todo();
            todo.entries.iter().filter(|(_, entry)| is_due(entry)).map(|(what, _)| what.clone()).collect()
        };
        for (key, value) in due {
            let (way, script) = (link.present_way(), scripts::release(&key, value));
            if link.within(LIMIT, release_once(link, &way, &script)).await.is_err() {
                return false;
            }
            let mut todo = self.todo();
            let what = (key, value);
            match todo.entries.get_mut(&what) {
                Some(entry) if entry.again.is_some_and(|again| again > now) => entry.released = true,
                _ => drop(todo.entries.remove(&what)),
            }
        }
        true
    }
}
