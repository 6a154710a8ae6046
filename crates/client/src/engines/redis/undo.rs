//! What is taken back: of a request of which nothing is to be left, and of a lock for which nobody is there any more.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
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

/// How long closing waits for what is under way, at most. A Redis that answers does so in a fraction of that.
const CLOSE_LIMIT: Duration = Duration::from_secs(2);

/// How long a connection has to answer before another one is tried as well.
const HEAD_START: Duration = Duration::from_millis(500);

/// How far a request is undone.
pub(super) enum Undone {
    /// Nothing of it can be left.
    Behind,
    /// What Redis had done of it is undone. It may still arrive.
    Once,
    Not,
}

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
        Undo { link, limit: self.limit, context, key, grant, ttl, closing }
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
            () = clock.sleep_until(clock.now() + self.limit.min(CLOSE_LIMIT)) => {}
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
    ttl: Duration,
    closing: CancellationToken,
}

impl Undo {
    fn script(&self) -> Call {
        scripts::release(&self.key, self.grant)
    }

    /// Behind the request, on the way that it went: whether that was heard.
    pub(super) async fn behind(&self, way: &Way) -> bool {
        self.link.undo_behind::<u8>(way, self.limit, &self.script()).await.is_some()
    }

    /// Behind the request; or by another connection, if that one's runtime does not drive it: its thread may be the one that waits for this.
    pub(super) async fn behind_or_once(&self, way: &Way) -> Undone {
        let clock = &self.context.clock;
        let (mut behind, give_up) = (pin!(self.behind(way)), clock.now() + HEAD_START);
        let is_behind = tokio::select! {
            biased;
            is_behind = &mut behind => is_behind,
            () = clock.sleep_until(give_up) => match select(behind, pin!(self.once())).await {
                Either::Left((is_behind, _)) => is_behind,
                Either::Right((true, _)) => return Undone::Once,
                Either::Right((false, behind)) => behind.await,
            }
        };
        match is_behind {
            true => Undone::Behind,
            false if self.once().await => Undone::Once,
            false => Undone::Not,
        }
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
            self.sleep(random::jittered(pause)).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
        if sent_on.is_none() {
            return;
        }
        // It may have overtaken the request.
        for after in ARRIVED_AFTER {
            self.sleep(after).await;
            self.once().await;
            if self.closing.is_cancelled() {
                return;
            }
        }
    }

    /// Until then, or until the client is closed.
    async fn sleep(&self, pause: Duration) {
        let clock = &self.context.clock;
        self.closing.run_until_cancelled(clock.sleep_until(clock.now() + pause)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::runtime::Handle;

    use super::*;
    use crate::clock::SystemClock;

    /// A Redis that is paused answers after the time limit of a request, which may be a minute.
    #[tokio::test]
    async fn closing_does_not_wait_for_a_request_to_end() {
        let runtime = Handle::current();
        let context =
            EngineContext { runtime: runtime.clone(), clock: Arc::new(SystemClock::on(runtime.clone())) };
        let client = redis::Client::open("redis://127.0.0.1:1").unwrap();
        let link = Link::new("redis", client, "127.0.0.1:1".into(), runtime);
        let undoing = Undoing::new(link, Duration::from_hours(1), context);
        undoing.spawn(pending());
        tokio::time::timeout(Duration::from_mins(2), undoing.close()).await.expect("it is closed");
    }
}
