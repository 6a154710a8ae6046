//! Wakes waiters and tells holders, by inotify on lock files: whoever lets go of a lock closes its file, also the kernel
//! for one that was killed; whoever deletes, replaces or pokes it changes its attributes.
//!
//! One inotify instance for all locks of a client. Where there is none to be had (a user may have 128 by default), waiters
//! poll and holders look when they renew: slower, and as safe.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::{Stream, StreamExt};
use inotify::{EventMask, EventOwned, Inotify, WatchDescriptor, WatchMask, Watches};
use tokio::runtime::Handle;
use tokio::sync::watch;

/// How many watches that nobody uses are kept, for the next acquire of the same lock.
const KEPT: usize = 64;

/// What is seen of lock files.
pub(super) struct Watcher {
    table: Mutex<Table>,
}

struct Table {
    inotify: Watches,
    watches: HashMap<WatchDescriptor, Watch>,
    /// Watches that nobody uses, the longest unused first; some may be in use again.
    unused: VecDeque<WatchDescriptor>,
}

#[derive(Debug)]
struct Watch {
    path: PathBuf,
    users: usize,
    changes: watch::Sender<()>,
}

/// What somebody looks out for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interest {
    /// Somebody may have let go.
    Freed,
    /// Somebody meddled with the file.
    Tampered,
}

/// One user's interest in one lock file.
#[derive(Debug)]
pub(super) struct Subscription {
    watcher: Arc<Watcher>,
    id: WatchDescriptor,
    changes: watch::Receiver<()>,
}

impl Subscription {
    /// Resolves when something has happened since it was last called, or since the subscription.
    pub(super) async fn changed(&mut self) {
        if self.changes.changed().await.is_err() {
            // The file that was watched is gone, and will not say anything any more.
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
    /// Begins to watch. `meddled` is told the lock files that somebody meddled with.
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

    /// Begins to look out at a lock file. Nothing if it cannot be watched, for instance because it is gone.
    pub(super) fn subscribe(self: &Arc<Self>, path: &Path, interest: Interest) -> Option<Subscription> {
        let mut table = self.table();
        let tampered = WatchMask::ATTRIB | WatchMask::MOVE_SELF | WatchMask::DELETE_SELF;
        let flags = match interest {
            Interest::Tampered => tampered,
            Interest::Freed => tampered | WatchMask::CLOSE_WRITE | WatchMask::CLOSE_NOWRITE,
        };
        // The same file has the same id again, with more to look out for.
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

    /// Wakes whom an event concerns; the lock files that somebody meddled with.
    fn take_in(&self, event: &EventOwned) -> Vec<PathBuf> {
        let mut table = self.table();
        if event.mask.contains(EventMask::Q_OVERFLOW) {
            // Something was missed: everybody looks.
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

/// Reads what inotify has to say, for as long as the client's runtime lives.
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
