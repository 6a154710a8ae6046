//! What is taken back: of a request of which nothing is to be left, and of a lock for which nobody is there any more.

use std::sync::Arc;
use std::time::Duration;

use tenure_table::GrantId;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::fault::What;
use super::link::{Link, Repeat};
use super::scripts::{self, Call};
use super::way::Way;
use crate::engine::EngineContext;
use crate::random;

/// After that long, and then again, what may have been under way on a connection that broke has arrived.
const ARRIVED_AFTER: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(15)];

/// All that a client takes back.
#[derive(Debug)]
pub(super) struct Undoing {
    link: Arc<Link>,
    limit: Duration,
    context: EngineContext,
    /// What is done in the background.
    tasks: TaskTracker,
    closing: CancellationToken,
}

impl Undoing {
    pub(super) fn new(link: Arc<Link>, limit: Duration, context: EngineContext) -> Arc<Self> {
        let (tasks, closing) = (TaskTracker::new(), CancellationToken::new());
        Arc::new(Self { link, limit, context, tasks, closing })
    }

    /// What one grant may hold of a lock, and its place in the queue.
    pub(super) fn of(&self, key: String, grant: GrantId, ttl: Duration) -> Undo {
        let (link, context, closing) = (self.link.clone(), self.context.clone(), self.closing.clone());
        Undo { link, limit: self.limit, context, key, grant, before: Vec::new(), ttl, closing }
    }

    /// In the background.
    pub(super) fn spawn(&self, undoing: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn_on(undoing, &self.context.runtime);
    }

    /// Waits for what is under way, but not for long.
    pub(super) async fn close(&self) {
        self.closing.cancel();
        self.tasks.close();
        let clock = &self.context.clock;
        tokio::select! {
            () = self.tasks.wait() => {}
            () = clock.sleep_until(clock.now() + self.limit) => {}
        }
    }
}

/// Something of which nothing is to be left.
pub(super) struct Undo {
    link: Arc<Link>,
    limit: Duration,
    context: EngineContext,
    key: String,
    grant: GrantId,
    before: Vec<GrantId>,
    ttl: Duration,
    closing: CancellationToken,
}

impl Undo {
    /// The same for one to whom others passed the lock on (see `relay`).
    pub(super) fn after(self, before: Vec<GrantId>) -> Self {
        Self { before, ..self }
    }

    fn script(&self) -> Call {
        scripts::release_after(&self.key, self.grant, "", &self.before)
    }

    /// Behind the request, on the way that it went: whether that was heard.
    pub(super) async fn behind(&self, way: &Way) -> bool {
        self.link.undo_behind::<u8>(way, self.limit, &self.script()).await.is_some()
    }

    pub(super) async fn once(&self) -> bool {
        match self.link.script::<u8>(self.limit, Repeat::Harmless, &self.script()).await {
            Ok(_) => true,
            Err(fault) => fault.what == What::WrongType,
        }
    }

    /// As soon as Redis can be reached. After the ttl there is nothing left to give back.
    pub(super) async fn go_on(self, sent_on: Option<Way>, undone: bool) {
        const FIRST_PAUSE: Duration = Duration::from_millis(50);
        const LONGEST_PAUSE: Duration = Duration::from_secs(2);
        let clock = self.context.clock.clone();
        if let Some(way) = &sent_on
            && !undone
            && self.behind(way).await
        {
            return;
        }
        let gone = clock.now() + self.limit * 2 + self.ttl;
        let mut pause = FIRST_PAUSE;
        while !undone && !self.once().await {
            if clock.now() > gone || self.closing.is_cancelled() {
                return;
            }
            clock.sleep_until(clock.now() + random::jittered(pause)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        if sent_on.is_none() {
            return;
        }
        // It may have overtaken the request.
        for after in ARRIVED_AFTER {
            tokio::select! {
                () = self.closing.cancelled() => return,
                () = clock.sleep_until(clock.now() + after) => {}
            }
            self.once().await;
        }
    }
}
