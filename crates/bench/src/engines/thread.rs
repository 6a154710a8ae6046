//! On which thread a bare loop has its connections.

use std::sync::OnceLock;
use std::thread;

use anyhow::Result;
use tokio::runtime::{Builder, Handle};

/// Which thread drives a connection.
#[derive(Clone, Copy, Debug)]
pub(super) enum Thread {
    /// The one that uses it: the lock is gone with its runtime.
    Same,
    /// Another one, as ours do where a lock is a connection's: it outlives the runtime of whoever asked for it.
    Another,
}

impl Thread {
    pub(super) async fn open<C: Send + 'static>(
        self,
        connecting: impl Future<Output = Result<C>> + Send + 'static,
    ) -> Result<C> {
        static ANOTHER: OnceLock<Handle> = OnceLock::new();
        match self {
            Self::Same => connecting.await,
            Self::Another => {
                let handle = ANOTHER.get_or_init(|| {
                    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
                    let handle = runtime.handle().clone();
                    thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
                    handle
                });
                handle.spawn(connecting).await?
            }
        }
    }
}
