//! The client's own thread, with its own runtime: renewals and releases run here, so that a busy or ended application
//! runtime loses no lock and leaks none.

use std::future::Future;
use std::io;
use std::time::Duration;

use tokio::runtime::{Builder, EnterGuard, Handle};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How long a dropped client's thread goes on to finish releases. Beyond that, leases do the rest.
const DRAIN_LIMIT: Duration = Duration::from_secs(30);

/// The thread. It ends, once what was begun is finished, when this is dropped.
#[derive(Debug)]
pub(crate) struct ClientThread {
    handle: ThreadHandle,
    stop: CancellationToken,
}

/// A way to hand work to the thread.
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
        let stop = CancellationToken::new();
        let (stopped, unfinished) = (stop.clone(), handle.unfinished.clone());
        std::thread::Builder::new().name("tenure".into()).spawn(move || {
            runtime.block_on(async {
                stopped.cancelled().await;
                unfinished.close();
                // Nobody is left to be told about what is still open then.
                let _ = tokio::time::timeout(DRAIN_LIMIT, unfinished.wait()).await;
            });
            runtime.shutdown_background();
        })?;
        Ok(Self { handle, stop })
    }

    pub(crate) const fn handle(&self) -> &ThreadHandle {
        &self.handle
    }
}

impl Drop for ClientThread {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

impl ThreadHandle {
    pub(crate) const fn runtime(&self) -> &Handle {
        &self.runtime
    }

    /// Runs work that may be left undone when the client goes away.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(work);
    }

    /// Runs work that is finished before the client goes away.
    pub(crate) fn finish(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.unfinished.spawn_on(work, &self.runtime);
    }

    /// Resolves when all such work is finished.
    pub(crate) async fn finished(&self) {
        self.unfinished.close();
        self.unfinished.wait().await;
    }

    pub(crate) fn unfinished(&self) -> usize {
        self.unfinished.len()
    }

    /// The thread's runtime as the current one, unless the caller is on a runtime already.
    pub(crate) fn enter_if_outside(&self) -> Option<EnterGuard<'_>> {
        Handle::try_current().is_err().then(|| self.runtime.enter())
    }
}
