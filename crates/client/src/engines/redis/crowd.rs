//! Those who come where a crowd of the same client waits already: they are put into the queue together, by one message and one script.
//!
//! Nobody has to wait longer for that. All who stand before them come first, and there are more of these than have their turn
//! in the moment for which newcomers gather. Who was not put into the queue is woken and asks for itself, and so does everybody after a
//! while, as all who wait do.
//!
//! **Nobody is put there who has gone, has asked for itself, or has had its turn.** Whoever goes away or asks hears first what became of its claim; and
//! where that is not to be heard, what it sends follows on the way that the claim took.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{Hash, Hasher};
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_table::GrantId;
use tokio::sync::oneshot;

use super::link::Link;
use super::scripts::{self, Call};
use super::wakeups::Wakeups;
use super::way::Way;
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
    /// By where they go. Each line is seen to by a task of its own, so that one that is not answered holds up no other, and by one alone, so that nobody
    /// is overtaken.
    newcomers: Mutex<HashMap<Line, Vec<Newcomer>>>,
}

/// Those who come to one lock on one way go together.
#[derive(Clone, Debug)]
struct Line {
    key: String,
    way: Way,
}

impl PartialEq for Line {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key && Arc::ptr_eq(&self.way, &other.way)
    }
}

impl Eq for Line {}

impl Hash for Line {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key.hash(state);
    }
}

/// One who is to have a place.
#[derive(Debug)]
struct Newcomer {
    grant: GrantId,
    /// What is written there, but for the time until which it is kept.
    entry: String,
    placed: oneshot::Sender<()>,
}

/// A place that is asked for, or is about to be.
#[derive(Debug)]
pub(super) struct Claim {
    line: Line,
    grant: GrantId,
    placed: oneshot::Receiver<()>,
}

impl Claim {
    /// The way that it takes.
    pub(super) const fn way(&self) -> &Way {
        &self.line.way
    }
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
        let (line, newcomer) = (Line { key, way }, Newcomer { grant, entry, placed: send });
        match self.newcomers().entry(line.clone()) {
            Entry::Occupied(mut others) => others.get_mut().push(newcomer),
            Entry::Vacant(first) => {
                first.insert(vec![newcomer]);
                self.context.runtime.spawn(self.clone().see_to(line.clone()));
            }
        }
        Claim { line, grant, placed }
    }

    /// Waits until it is known what became of the place of one who goes away, or is about to ask for itself; whether it is. After that, it is not
    /// asked for.
    pub(super) async fn is_settled(&self, claim: Claim) -> bool {
        let of_grant = |newcomer: &mut Newcomer| newcomer.grant == claim.grant;
        let not_asked_for = {
            let mut newcomers = self.newcomers();
            newcomers.get_mut(&claim.line).is_some_and(|all| all.extract_if(.., of_grant).count() > 0)
        };
        not_asked_for || claim.placed.await.is_ok()
    }

    fn newcomers(&self) -> MutexGuard<'_, HashMap<Line, Vec<Newcomer>>> {
        self.newcomers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts newcomers into the queue, until no more come.
    async fn see_to(self: Arc<Self>, line: Line) {
        let clock = &self.context.clock;
        loop {
            clock.sleep_until(clock.now() + GATHER).await;
            let Some(all) = self.gathered(&line) else { return };
            self.line_up(&line, all).await;
        }
    }

    /// Those who have come. If nobody has, the next one is the first.
    fn gathered(&self, line: &Line) -> Option<Vec<Newcomer>> {
        let mut newcomers = self.newcomers();
        let all = mem::take(newcomers.get_mut(line)?);
        if all.is_empty() {
            newcomers.remove(line);
            return None;
        }
        Some(all)
    }

    async fn line_up(&self, line: &Line, mut all: Vec<Newcomer>) {
        let mut is_heard = true;
        while !all.is_empty() {
            let rest = all.split_off(all.len().min(TOGETHER));
            let some = mem::replace(&mut all, rest);
            if is_heard {
                is_heard = self.line_up_together(line, some).await;
            } else {
                self.have_them_ask(some);
            }
        }
    }

    /// Whether that is answered.
    async fn line_up_together(&self, line: &Line, some: Vec<Newcomer>) -> bool {
        let (present, gone): (Vec<_>, Vec<_>) =
            some.into_iter().partition(|newcomer| self.wakeups.is_waiting(newcomer.grant));
        self.have_them_ask(gone);
        if present.is_empty() || !line.way.is_open() {
            self.have_them_ask(present);
            return true;
        }
        let mut script = Call::new(&scripts::LINE_UP, &line.key);
        for Newcomer { grant, entry, .. } in &present {
            script.arg(grant.to_string()).arg(entry);
        }
        // Once and not again: who has had its turn meanwhile must not stand there a second time.
        match self.link.script_behind::<u8>(&line.way, self.limit, &script).await {
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
