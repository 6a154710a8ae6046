//! Wakes waiters and notifies holders, by inotify on lock files. A process that releases a lock closes its file, and the kernel closes it
//! for a killed process. A program that deletes, replaces or pokes the file changes its attributes.
//!
//! One inotify instance serves all locks of a client. If none is available (a user may have 128 by default), waiters poll, and holders
//! check at each renewal: slower, and as safe.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::{Stream, StreamExt};
use inotify::{EventMask, EventOwned, Inotify, WatchDescriptor, WatchMask, Watches};
use tokio::runtime::Handle;
use tokio::sync::watch;

/// The number of unused watches that are kept, for the next acquire of the same lock.
const KEPT: usize = 64;

/// The watches on lock files.
pub(super) struct Watcher {
    table: Mutex<Table>,
}

struct Table {
    inotify: Watches,
    watches: HashMap<WatchDescriptor, Watch>,
    /// Unused watches, the longest unused first; some may be in use again.
    unused: VecDeque<WatchDescriptor>,
}

#[derive(Debug)]
struct Watch {
    path: PathBuf,
    users: usize,
    changes: watch::Sender<()>,
}

/// The kind of event that a subscriber waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interest {
    /// The lock may have been released.
    Freed,
    /// Another program changed the file.
    Tampered,
}

/// One subscriber's interest in one lock file.
#[derive(Debug)]
pub(super) struct Subscription {
    watcher: Arc<Watcher>,
    id: WatchDescriptor,
    changes: watch::Receiver<()>,
}

impl Subscription {
    /// Waits for an event since the last call, or since the subscription.
    pub(super) async fn changed(&mut self) {
        if self.changes.changed().await.is_err() {
            // The watched file is gone, and reports no more events.
            std::future::pending::<()>().await;
        }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.watcher.leave(&self.id);
    }
}

impl Watcher {
    /// Starts to watch. Calls `meddled` with each lock file that another program changed.
    pub(super) fn start(runtime: &Handle, meddled: impl Fn(&Path) + Send + 'static) -> io::Result<Arc<Self>> {
        let inotify = Inotify::init()?;
        let table = Table { inotify: inotify.watches(), watches: HashMap::new(), unused: VecDeque::new() };
        let watcher = Arc::new(Self { table: Mutex::new(table) });
        let events = {
            let _of_the_client = runtime.enter();
            inotify.into_event_stream([0; 4096])?
        };
        runtime.spawn(read(events, watcher.clone(), meddled));
        Ok(watcher)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Subscribes to a lock file. Returns `None` if it cannot be watched, for instance because it is gone.
    pub(super) fn subscribe(self: &Arc<Self>, path: &Path, interest: Interest) -> Option<Subscription> {
        let mut table = self.table();
        let tampered = WatchMask::ATTRIB | WatchMask::MOVE_SELF | WatchMask::DELETE_SELF;
        let flags = match interest {
            Interest::Tampered => tampered,
            Interest::Freed => tampered | WatchMask::CLOSE_WRITE | WatchMask::CLOSE_NOWRITE,
        };
        // The kernel returns the same id for the same file, and adds the new events to its watch.
        let id = table.inotify.add(path, flags | WatchMask::MASK_ADD).ok()?;
        let watch = table.watches.entry(id.clone()).or_insert_with(|| Watch {
            path: path.into(),
            users: 0,
            changes: watch::Sender::new(()),
        });
        watch.users += 1;
        let changes = watch.changes.subscribe();
        Some(Subscription { watcher: self.clone(), id, changes })
    }

    fn leave(&self, id: &WatchDescriptor) {
        let mut table = self.table();
        let Some(watch) = table.watches.get_mut(id) else { return };
        watch.users -= 1;
        if watch.users > 0 {
            return;
        }
        table.unused.push_back(id.clone());
        while table.unused.len() > KEPT {
            let Some(oldest) = table.unused.pop_front() else { return };
            if table.watches.get(&oldest).is_some_and(|watch| watch.users == 0) {
                table.watches.remove(&oldest);
                let _ = table.inotify.remove(oldest);
            }
        }
    }

    /// Wakes the subscribers of an event. Returns the lock files that another program changed.
    fn take_in(&self, event: &EventOwned) -> Vec<PathBuf> {
        let mut table = self.table();
        if event.mask.contains(EventMask::Q_OVERFLOW) {
            // Events were lost: all subscribers check.
            return table.watches.values().map(Watch::wake).collect();
        }
        let Some(watch) = table.watches.get(&event.wd) else { return Vec::new() };
        let path = watch.wake();
        if event.mask.contains(EventMask::IGNORED) {
            table.watches.remove(&event.wd);
        }
        let closed = EventMask::CLOSE_WRITE | EventMask::CLOSE_NOWRITE;
        if closed.contains(event.mask) { Vec::new() } else { vec![path] }
    }
}

impl Watch {
    fn wake(&self) -> PathBuf {
        self.changes.send_replace(());
        self.path.clone()
    }
}

/// Reads inotify events for as long as the client's runtime lives.
async fn read(
    events: impl Stream<Item = io::Result<EventOwned>>,
    watcher: Arc<Watcher>,
    meddled: impl Fn(&Path),
) {
    let mut events = std::pin::pin!(events);
    while let Some(Ok(event)) = events.next().await {
        for path in watcher.take_in(&event) {
            meddled(&path);
        }
    }
}

impl std::fmt::Debug for Watcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Watcher({} files)", self.table().watches.len())
    }
}
