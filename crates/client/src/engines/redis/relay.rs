//! A lock that goes from one to the next within a client, under one lease.
//!
//! Where many of one client wait, Redis hands the lock to the first of them and says who stand behind it, with a token for each. When that one lets
//! go, the client passes the lock on to the next by itself: what would be a way to Redis and back for each is one for all of them. For
//! Redis, the first holds it all the time, and the others wait. So:
//!
//! - **The lock stays taken until the last of them lets go**, and one lease ends it for all. Whoever has it believes from the request by
//!   which Redis handed it over, and no longer than the shortest lease of those before it, any of whom may have renewed.
//! - **The order is the queue's.** It ends before whoever is not known here, or may be wanted by others of its owner: Redis goes on with that one.
//! - **It is for a moment.** Who has the lock for longer is written down by its first renewal. That names all who had it, and so does
//!   its release: Redis may know it by any of them.
//! - **Whoever writes something under the lock is the last**, since the next one is to read it, and Redis is to know who writes.
//! - **Who has passed it on has let go of it**, though Redis may still know it: until Redis has heard of the last one, it is refused here.
//! - **What nobody takes goes on**, to the next or back to Redis.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_table::{FencingToken, GrantId};

use super::MARGIN;
use super::handed::{self, Handed};
use super::undo::Undoing;
use super::wakeups::Wakeups;
use crate::clock::{BootTime, Clock};
use crate::engine::{AcquireRequest, Grant, Granted};
use crate::lease::Term;

/// So many must wait here. Where there are fewer, Redis hands the lock to each of them, and always knows who has it.
const MANY: usize = 16;

/// So many get it by one handing over, beside the first; but no more than one of four who wait, so that there are others in the queue until these have
/// come back to it.
const MOST: usize = 15;

/// For so long after Redis was asked, the lock is passed on. It is no longer than until the first renewal of whoever has it.
const FRESH: Duration = Duration::from_millis(100);

/// How many may get a lock after the next one, where so many wait for it here.
pub(super) fn most(waiting: usize) -> usize {
    if waiting < MANY { 0 } else { (waiting / 4).min(MOST) }
}

/// What goes with the lock.
#[derive(Debug)]
pub(super) struct Baton {
    key: String,
    /// The instant before Redis was asked.
    sent_at: BootTime,
    lease: Duration,
    /// That of whoever has it.
    token: FencingToken,
    /// Who had it, and at last who has it. Redis was told of the first.
    had: Vec<GrantId>,
    /// Who comes next, the next one last.
    next: Vec<GrantId>,
}

impl Baton {
    /// For those of whom an answer tells that was asked for at this instant: `GRANT TOKEN STAMP LEASE NEXT …`.
    pub(super) fn parse(message: &str, key: &str, sent_at: BootTime) -> Option<Self> {
        let mut words = message.split(' ');
        let first = words.next()?.parse().ok()?;
        let token = FencingToken::new(words.next()?.parse().ok()?);
        let lease = Duration::from_millis(words.nth(1)?.parse().ok()?);
        let mut next = words.map(str::parse).collect::<Result<Vec<GrantId>, _>>().ok()?;
        next.reverse();
        (!next.is_empty()).then(|| Self {
            key: key.to_owned(),
            sent_at,
            lease,
            token,
            had: vec![first],
            next,
        })
    }

    fn before(&self) -> Vec<GrantId> {
        self.had.split_last().map_or_else(Vec::new, |(_, before)| before.to_vec())
    }

    const fn term(&self) -> Term {
        Term::Lease { sent_at: self.sent_at, ttl: self.lease, margin: MARGIN }
    }

    fn is_fresh(&self, now: BootTime) -> bool {
        let is_in_time = |deadline: BootTime| deadline > now + self.lease / 2;
        now < self.sent_at + FRESH && self.term().deadline().is_some_and(is_in_time)
    }
}

/// The locks of a client that go from one to the next.
#[derive(Debug)]
pub(super) struct Relays {
    wakeups: Arc<Wakeups>,
    undoing: Arc<Undoing>,
    clock: Arc<dyn Clock>,
    present: Mutex<Present>,
}

#[derive(Debug, Default)]
struct Present {
    /// By who has the lock.
    batons: HashMap<GrantId, Baton>,
    /// Who had it, as long as Redis has not heard of the last one.
    have_let_go: HashSet<GrantId>,
}

/// What a grant is to Redis.
pub(super) enum Standing {
    /// It was not passed on to it: Redis knows it, if it has the lock.
    Known,
    /// These had it before, and Redis may know it by any of them.
    After(Vec<GrantId>),
    /// It has passed the lock on.
    HasLetGo,
}

impl Relays {
    pub(super) fn new(wakeups: Arc<Wakeups>, undoing: Arc<Undoing>, clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self { wakeups, undoing, clock, present: Mutex::default() })
    }

    fn present(&self) -> MutexGuard<'_, Present> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What one who was told, and last asked at this instant, has got by that, if anything.
    pub(super) fn accept(&self, told: Told, request: &AcquireRequest, sent_at: BootTime) -> Option<Granted> {
        match told {
            Told::Handed(handed, baton) => {
                let granted = handed.accept(sent_at, self.clock.now())?;
                if let Some(baton) = baton.filter(|_| is_nobody_elses(request)) {
                    self.present().batons.insert(request.grant, baton);
                }
                Some(granted)
            }
            Told::Passed(passed) => self.take(passed, request),
        }
    }

    fn take(&self, mut passed: Passed, request: &AcquireRequest) -> Option<Granted> {
        let baton = passed.baton.as_mut()?;
        let Some(lease) = handed::lease(request).filter(|_| is_nobody_elses(request)) else {
            // It is still its turn, and Redis knows what to do about it.
            baton.next.clear();
            return None;
        };
        baton.lease = baton.lease.min(lease);
        if !baton.is_fresh(self.clock.now()) {
            return None;
        }
        baton.had.push(request.grant);
        let granted = Granted::new(Some(baton.token), baton.term()).until_renewed();
        self.present().batons.insert(request.grant, passed.baton.take()?);
        Some(granted)
    }

    /// What this one is to Redis.
    pub(super) fn standing(&self, grant: GrantId) -> Standing {
        self.present().standing(grant)
    }

    /// The same; and it does not pass the lock on any more.
    pub(super) fn end_with(&self, grant: GrantId) -> Standing {
        let mut present = self.present();
        if let Some(baton) = present.batons.get_mut(&grant) {
            baton.next.clear();
        }
        present.standing(grant)
    }

    /// Passes the lock on, if this one has it and there is somebody to whom: then it has let go. Else, what it is to Redis, which is to be asked; until
    /// that is [answered](Self::is_over), it may be asked again.
    pub(super) fn pass_on(self: &Arc<Self>, grant: GrantId) -> Option<Standing> {
        let mut present = self.present();
        let Some(baton) = present.batons.remove(&grant) else { return Some(present.standing(grant)) };
        // Before the next one has it.
        present.have_let_go.insert(grant);
        drop(present);
        let baton = self.pass(baton).err()?;
        let mut present = self.present();
        present.have_let_go.remove(&grant);
        if baton.had.len() > 1 {
            present.batons.insert(grant, baton);
        }
        Some(present.standing(grant))
    }

    /// The grant of this request, if it has the lock so: it is sent once more.
    pub(super) fn granted(&self, request: &AcquireRequest) -> Option<Grant> {
        self.present().batons.get(&request.grant).map(|baton| request.granted(Some(baton.token)))
    }

    /// Redis has heard of the last one.
    pub(super) fn is_over(&self, grant: GrantId) {
        let mut present = self.present();
        if let Some(baton) = present.batons.remove(&grant) {
            present.forget(&baton.had);
        }
    }

    fn pass(self: &Arc<Self>, mut baton: Baton) -> Result<(), Baton> {
        let to = if baton.is_fresh(self.clock.now()) { baton.next.pop() } else { None };
        if let Some(to) = to {
            baton.token = FencingToken::new(baton.token.get() + 1);
            match self.wakeups.pass(to, Passed { baton: Some(baton), relays: self.clone() }) {
                Ok(()) => return Ok(()),
                Err(mut passed) => baton = passed.baton.take().expect("nobody has taken it"),
            }
        }
        baton.next.clear();
        Err(baton)
    }

    /// Nobody has it.
    fn go_on(self: &Arc<Self>, baton: Baton) {
        if let Err(baton) = self.pass(baton) {
            let last = *baton.had.last().expect("the first had it");
            let undo = self.undoing.of(baton.key.clone(), last, baton.lease).after(baton.before());
            let relays = self.clone();
            self.undoing.spawn(async move {
                undo.go_on(None, false).await;
                relays.present().forget(&baton.had);
            });
        }
    }
}

impl Present {
    fn standing(&self, grant: GrantId) -> Standing {
        match self.batons.get(&grant).map(Baton::before) {
            Some(before) if !before.is_empty() => Standing::After(before),
            None if self.have_let_go.contains(&grant) => Standing::HasLetGo,
            _ => Standing::Known,
        }
    }

    fn forget(&mut self, had: &[GrantId]) {
        for grant in had {
            self.have_let_go.remove(grant);
        }
    }
}

/// Whether no other client can come to hold the lock with this request's owner.
const fn is_nobody_elses(request: &AcquireRequest) -> bool {
    !request.reenter
}

/// What one who waits is told.
#[derive(Debug)]
pub(super) enum Told {
    /// Redis has given it the lock; and those behind it may get it from here on.
    Handed(Handed, Option<Baton>),
    /// It gets the lock from another of this client.
    Passed(Passed),
}

/// A lock on its way from one to the next.
#[derive(Debug)]
pub(super) struct Passed {
    /// Until it is taken.
    baton: Option<Baton>,
    relays: Arc<Relays>,
}

impl Passed {
    /// The one whom Redis knew has lost the lock: it goes to nobody else.
    pub(super) fn end(mut self) {
        if let Some(baton) = &mut self.baton {
            baton.next.clear();
        }
    }
}

impl Drop for Passed {
    fn drop(&mut self) {
        if let Some(baton) = self.baton.take() {
            self.relays.go_on(baton);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = "00000000000000000000000000000001";
    const SECOND: &str = "00000000000000000000000000000002";
    const THIRD: &str = "00000000000000000000000000000003";

    fn id(text: &str) -> GrantId {
        text.parse().unwrap()
    }

    #[test]
    fn an_answer_names_those_who_come_after_the_first() {
        let sent_at = BootTime::from_boot(Duration::from_secs(1000));
        let message = format!("{FIRST} 17 999000000000 5000 {SECOND} {THIRD}");
        let baton = Baton::parse(&message, "a", sent_at).unwrap();
        assert_eq!((baton.had.as_slice(), baton.token), ([id(FIRST)].as_slice(), FencingToken::new(17)));
        assert_eq!(baton.next, [id(THIRD), id(SECOND)]);
        assert!(baton.before().is_empty(), "Redis knows the first");
        for nobody in ["", FIRST, &format!("{FIRST} 17 999 5000"), &format!("{FIRST} 17 999 5000 x")] {
            assert!(Baton::parse(nobody, "a", sent_at).is_none(), "{nobody}");
        }
    }

    /// Not from when it was passed on.
    #[test]
    fn belief_counts_from_before_redis_was_asked_and_it_is_passed_on_for_a_moment() {
        let sent_at = BootTime::from_boot(Duration::from_secs(1000));
        let message = format!("{FIRST} 17 999000000000 5000 {SECOND}");
        let mut baton = Baton::parse(&message, "a", sent_at).unwrap();
        assert!(baton.term().deadline().unwrap() < sent_at + Duration::from_secs(5));
        assert!(baton.is_fresh(sent_at + FRESH / 2));
        assert!(!baton.is_fresh(sent_at + FRESH));
        baton.lease = FRESH;
        assert!(!baton.is_fresh(sent_at + FRESH / 2), "half of the lease is not ahead");
    }

    #[test]
    fn where_few_wait_redis_hands_it_to_each() {
        assert_eq!([0, 1, 15, 16, 40, 64, 1000].map(most), [0, 0, 0, 4, 10, 15, 15]);
    }
}
