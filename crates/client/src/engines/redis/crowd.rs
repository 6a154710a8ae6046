//! Those who come where a crowd of the same client waits already: they are put into the queue together, by one message and one script.
//!
//! Nobody has to wait longer for that. All who stand before them come first, and there are more of these than have their turn
//! in the moment for which newcomers gather. Who was not put into the queue is woken and asks for itself, and so does everybody after a
//! while, as all who wait do.
//!
//! **Nobody is put there who has gone, has asked for itself, or has had its turn.** Whoever goes away or asks hears first what became of its claim; and
//! where that is not to be heard, what it sends follows on the way that the claim took.

use std::collections::BTreeMap;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tenure_table::GrantId;
use tokio::sync::oneshot;

use super::link::{Link, Way};
use super::scripts::{self, Call};
use super::wakeups::Wakeups;
use crate::clock::BootTime;
use crate::engine::{AcquireRequest, EngineContext, WaitUntil};

/// So many are a crowd.
const CROWD: usize = 32;

/// For so long newcomers gather. It is short beside the time in which a crowd is served.
const GATHER: Duration = Duration::from_millis(1);

/// Who does not wait longer than this asks for itself, and at once.
const SHORT_WAIT: Duration = Duration::from_millis(10);

/// So many go into one message: a script takes a few thousand arguments.
const TOGETHER: usize = 256;

/// Those of one client who came last.
#[derive(Debug)]
pub(super) struct Crowd {
    link: Arc<Link>,
    limit: Duration,
    context: EngineContext,
    wakeups: Arc<Wakeups>,
    newcomers: Mutex<Newcomers>,
}

#[derive(Debug, Default)]
struct Newcomers {
    all: Vec<Newcomer>,
    /// Whether somebody sees to them: one at a time, so that nobody is overtaken.
    are_seen_to: bool,
}

/// One who is to have a place.
#[derive(Debug)]
struct Newcomer {
    key: String,
    way: Way,
    grant: GrantId,
    /// What is written there, but for the time until which it is kept.
    entry: String,
    placed: oneshot::Sender<()>,
}

/// A place that is asked for, or is about to be.
#[derive(Debug)]
pub(super) struct Claim {
    pub(super) way: Way,
    grant: GrantId,
    placed: oneshot::Receiver<()>,
}

impl Crowd {
    pub(super) fn new(
        link: Arc<Link>,
        limit: Duration,
        context: EngineContext,
        wakeups: Arc<Wakeups>,
    ) -> Arc<Self> {
        Arc::new(Self { link, limit, context, wakeups, newcomers: Mutex::default() })
    }

    /// Whether there is one for such a request to join.
    pub(super) fn awaits(&self, request: &AcquireRequest, now: BootTime) -> bool {
        let waits_long = match request.wait {
            WaitUntil::Try => false,
            WaitUntil::At { at, .. } => at > now + SHORT_WAIT,
            WaitUntil::Forever => true,
        };
        waits_long && self.wakeups.how_many_wait_for(&request.name) >= CROWD
    }

    /// Soon it has a place, or is woken.
    pub(super) fn join(self: &Arc<Self>, key: String, way: Way, grant: GrantId, entry: String) -> Claim {
        let (send, placed) = oneshot::channel();
        let claim = Claim { way: way.clone(), grant, placed };
        let mut newcomers = self.newcomers();
        newcomers.all.push(Newcomer { key, way, grant, entry, placed: send });
        if !mem::replace(&mut newcomers.are_seen_to, true) {
            self.context.runtime.spawn(self.clone().see_to_newcomers());
        }
        claim
    }

    /// Waits until it is known what became of the place of one who goes away, or is about to ask for itself; whether it is. After that, it is not
    /// asked for.
    pub(super) async fn is_settled(&self, claim: Claim) -> bool {
        let is_not_asked_for = {
            let all = &mut self.newcomers().all;
            let before = all.len();
            all.retain(|newcomer| newcomer.grant != claim.grant);
            all.len() < before
        };
        is_not_asked_for || claim.placed.await.is_ok()
    }

    fn newcomers(&self) -> MutexGuard<'_, Newcomers> {
        self.newcomers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn see_to_newcomers(self: Arc<Self>) {
        let clock = &self.context.clock;
        loop {
            clock.sleep_until(clock.now() + GATHER).await;
            let mut lines: BTreeMap<_, Vec<_>> = BTreeMap::new();
            {
                let mut newcomers = self.newcomers();
                if newcomers.all.is_empty() {
                    newcomers.are_seen_to = false;
                    return;
                }
                for newcomer in newcomers.all.drain(..) {
                    let line = (Arc::as_ptr(&newcomer.way).addr(), newcomer.key.clone());
                    lines.entry(line).or_default().push(newcomer);
                }
            }
            // All at once: one that is not answered holds up no other.
            join_all(lines.into_values().map(|line| self.line_up(line))).await;
        }
    }

    /// Those who come to one lock on one way.
    async fn line_up(&self, mut line: Vec<Newcomer>) {
        let mut is_heard = true;
        while !line.is_empty() {
            let rest = line.split_off(line.len().min(TOGETHER));
            let some = mem::replace(&mut line, rest);
            if is_heard {
                is_heard = self.line_up_together(some).await;
            } else {
                self.have_them_ask(some);
            }
        }
    }

    /// Whether that is answered.
    async fn line_up_together(&self, some: Vec<Newcomer>) -> bool {
        let (present, gone): (Vec<_>, Vec<_>) =
            some.into_iter().partition(|newcomer| self.wakeups.is_waiting(newcomer.grant));
        self.have_them_ask(gone);
        let Some(Newcomer { key, way, .. }) = present.first().filter(|first| first.way.is_open()) else {
            self.have_them_ask(present);
            return true;
        };
        let mut script = Call::new(&scripts::LINE_UP, key);
        for Newcomer { grant, entry, .. } in &present {
            script.arg(grant.to_string()).arg(entry);
        }
        // Once and not again: who has had its turn meanwhile must not stand there a second time.
        match self.link.script_behind::<u8>(way, self.limit, &script).await {
            Some(1) => {
                for newcomer in present {
                    // Most do not listen.
                    let _ = newcomer.placed.send(());
                }
                true
            }
            Some(_) => {
                self.have_them_ask(present);
                true
            }
            None => {
                for newcomer in present {
                    self.wakeups.have_ask(newcomer.grant);
                }
                false
            }
        }
    }

    /// Those who have no place are to ask for it, if they still want one.
    fn have_them_ask(&self, newcomers: Vec<Newcomer>) {
        for newcomer in newcomers {
            self.wakeups.have_ask(newcomer.grant);
            let _ = newcomer.placed.send(());
        }
    }
}
