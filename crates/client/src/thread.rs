//! The client's own thread, with its own runtime. Renewals and releases run here, so that a busy or ended application runtime loses no
//! lock and leaks none.

use std::future::Future;
use std::io;
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread::{self, ThreadId};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::runtime::{Builder, EnterGuard, Handle};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// The time in which a dropped client's thread finishes releases. After it, the leases free the locks.
const DRAIN_LIMIT: Duration = Duration::from_secs(30);

/// The time for which the drop of the last client, or of a blocking guard, waits for releases: the process may end right after it.
pub(crate) const DROP_LIMIT: Duration = Duration::from_secs(2);

/// The thread. When this is dropped, it ends once all work that has begun is finished.
pub(crate) struct ClientThread {
    handle: ThreadHandle,
    id: ThreadId,
    end: Option<oneshot::Sender<LastWork>>,
    /// Disconnected when no work is unfinished.
    drained: Mutex<mpsc::Receiver<()>>,
}

/// The work that is done when all other work is finished.
type LastWork = BoxFuture<'static, ()>;

/// A handle to give work to the thread.
#[derive(Clone, Debug)]
pub(crate) struct ThreadHandle {
    runtime: Handle,
    /// Operations that must be finished before the thread may end.
    unfinished: TaskTracker,
}

impl ClientThread {
    pub(crate) fn start() -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().thread_name("tenure-blocking").build()?;
        let handle = ThreadHandle { runtime: runtime.handle().clone(), unfinished: TaskTracker::new() };
        let (end, ended) = oneshot::channel::<LastWork>();
        let (draining, drained) = mpsc::channel();
        let unfinished = handle.unfinished.clone();
        let thread = std::thread::Builder::new().name("tenure".into()).spawn(move || {
            runtime.block_on(async {
                let last = ended.await.ok();
                unfinished.close();
                let finish = async {
                    unfinished.wait().await;
                    drop(draining);
                    if let Some(last) = last {
                        last.await;
                    }
                };
                // After the time limit, no caller is left to report unfinished work to.
                let _ = tokio::time::timeout(DRAIN_LIMIT, finish).await;
            });
            runtime.shutdown_background();
        })?;
        Ok(Self { handle, id: thread.thread().id(), end: Some(end), drained: Mutex::new(drained) })
    }

    pub(crate) const fn handle(&self) -> &ThreadHandle {
        &self.handle
    }

    /// Ends the thread, with this as its last work. Waits for unfinished work, for at most `limit`.
    pub(crate) fn end_with(&mut self, last: LastWork, limit: Duration) {
        let is_unfinished = self.handle.unfinished() > 0;
        if let Some(end) = self.end.take() {
            let _ = end.send(last);
        }
        if is_unfinished && thread::current().id() != self.id {
            let drained = self.drained.get_mut().unwrap_or_else(PoisonError::into_inner);
            let _ = drained.recv_timeout(limit);
        }
    }
}

impl std::fmt::Debug for ClientThread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ClientThread({} unfinished)", self.handle.unfinished())
    }
}

impl ThreadHandle {
    pub(crate) const fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Runs work that ends with the client.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(work);
    }

    /// Runs work that must be finished before the client ends.
    pub(crate) fn finish(&self, work: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        self.unfinished.spawn_on(work, &self.runtime)
    }

    /// Returns a token that counts as unfinished work for as long as it exists.
    pub(crate) fn unfinished_token(&self) -> TaskTrackerToken {
        self.unfinished.token()
    }

    /// Resolves when all unfinished work is finished.
    pub(crate) async fn finished(&self) {
        self.unfinished.close();
        self.unfinished.wait().await;
    }

    pub(crate) fn unfinished(&self) -> usize {
        self.unfinished.len()
    }

    /// Blocks until these tasks of the thread are done, for at most [`DROP_LIMIT`]. Returns at once on a thread of a runtime, which async
    /// code must not block, and on a thread that is ending.
    pub(crate) fn wait_for(&self, tasks: impl IntoIterator<Item = JoinHandle<()>>) {
        if Handle::try_current().is_err_and(|error| error.is_missing_context()) {
            let done = futures_util::future::join_all(tasks);
            let _ = self.runtime.block_on(async { tokio::time::timeout(DROP_LIMIT, done).await });
        }
    }

    /// Enters the thread's runtime, unless the caller is on a runtime already.
    pub(crate) fn enter_if_outside(&self) -> Option<EnterGuard<'_>> {
        Handle::try_current().is_err().then(|| self.runtime.enter())
    }
}
