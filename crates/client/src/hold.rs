//! A client's local state of a grant: whether the grant is valid, until when, and why it ended.
//!
//! Two rules: no check reports a grant as valid after its deadline; and a lost grant stays lost, also if a renewal that was under way
//! succeeds after all.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tenure_table::{FencingToken, GrantId, LockName, Mode, ModeSet, OwnerId, Value};
use tokio::sync::watch;

use crate::clock::BootTime;
use crate::conversion::UnderWay;
use crate::engine::{Grant, Granted};
use crate::error::{LostReason, RenewError};
use crate::lease::{Term, Ttl};
use crate::random;
use crate::reentrance::Releasing;
use crate::renewal::{Begun, Renewal};
use crate::session_lease::SessionLease;
use crate::watch::{GuardWatch, Shown};

/// The state of a guard's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GuardState {
    /// The lock is held.
    Held,
    /// The lock is held and safe, but renewal is failing.
    Jeopardy {
        /// The instant at which the lock is lost if renewal keeps failing. `None` if only the end of a connection ends it.
        until: Option<BootTime>,
    },
    /// The lock is no longer held.
    Lost(LostReason),
}

/// What the client does with a lock that is lost while the engine still has the grant: an operator broke it, `max_hold` is over, or the
/// client cannot confirm it in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum WhenLost {
    /// The client releases it at once, whatever the holder does.
    #[default]
    Release,
    /// The client releases it when its last guard is released or dropped, or its lease ends: for a holder that must stop something before
    /// the lock is granted again.
    Keep,
}

/// How a guard's hold on a lock ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The last guard was released or dropped.
    Released,
    /// The lock was lost.
    Lost(LostReason),
}

/// A grant and its local state, shared by all guards that re-entered it.
pub(crate) struct Hold {
    pub(crate) id: GrantId,
    pub(crate) name: LockName,
    pub(crate) owner: OwnerId,
    /// Whether the caller named the owner, which may then re-enter.
    pub(crate) reenters: bool,
    /// Admits one conversion at a time: taken before the conversion begins, and kept until it is settled.
    pub(crate) conversion_gate: OnceLock<Arc<tokio::sync::Mutex<()>>>,
    ttl: Ttl,
    pub(crate) renews: bool,
    when_lost: WhenLost,
    /// Whether a request for the grant was not answered, and may still arrive.
    unanswered: AtomicBool,
    belief: Mutex<Belief>,
}

#[derive(Debug)]
pub(crate) struct Belief {
    pub(crate) phase: Phase,
    /// The number of guards that share the grant.
    pub(crate) guards: usize,
    pub(crate) mode: Mode,
    pub(crate) conversion: Option<UnderWay>,
    pub(crate) token: Option<FencingToken>,
    pub(crate) value: Value,
    pub(crate) lease_ends: Option<BootTime>,
    /// The session on which the grant depends, if any.
    pub(crate) session: Option<SessionLease>,
    max_hold_ends: Option<BootTime>,
    renewal: Renewal,
    /// The instant under which the hold is in the schedule.
    scheduled: Option<BootTime>,
    /// The modes that other requests wait for, as the engine reported. Some may be compatible with the current mode.
    wanted: ModeSet,
    /// What the engine may still hold of a lost grant.
    leftover: Leftover,
    /// Created with the first watch: most locks are never watched.
    watched: Option<watch::Sender<Shown>>,
}

/// What the engine may still hold of a lost grant.
#[derive(Debug)]
enum Leftover {
    /// The grant is not lost, or its last guard has taken over the release.
    Nothing,
    /// The grant, until its last guard is released or dropped, or until an instant: a session does not end by itself. The owner's next
    /// acquire waits for the release.
    Kept { releasing: Option<Releasing>, until: Option<BootTime> },
    /// The grant, until the background release is done.
    Releasing(watch::Receiver<Progress>),
}

/// The progress of a background release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// The engine has not answered yet.
    Asked,
    /// The release has failed so far, and is repeated.
    Failed,
    /// The engine has freed the grant, or did not hold it.
    Done,
}

/// A grant that the client releases in the background.
#[derive(Debug)]
pub(crate) struct ReleaseTask {
    pub(crate) grant: Grant,
    /// Delays the owner's next acquire of the lock until the release is done.
    releasing: Option<Releasing>,
    progress: Option<watch::Sender<Progress>>,
}

impl ReleaseTask {
    pub(crate) const fn new(grant: Grant, releasing: Option<Releasing>) -> Self {
        Self { grant, releasing, progress: None }
    }

    /// Publishes that the engine could not be asked.
    pub(crate) fn failed(&self) {
        self.publish(Progress::Failed);
    }

    /// Publishes that the engine has freed the grant.
    pub(crate) fn done(mut self) {
        // Dropped first: a caller that sees `Done` may acquire again at once.
        drop(self.releasing.take());
        self.publish(Progress::Done);
    }

    fn publish(&self, progress: Progress) {
        if let Some(sender) = &self.progress {
            sender.send_replace(progress);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Pending,
    Held { in_jeopardy: bool },
    Ended(Ended),
}

/// The action that is due for a hold.
pub(crate) enum Due {
    Renew(Grant),
    Lose(LostReason),
    /// A lost grant that was kept for its guards, and is no longer kept.
    Release(ReleaseTask),
    Nothing,
}

/// The result of removing a guard from its hold.
pub(crate) enum LetGo {
    /// It was the last guard: this grant must be released.
    Last(Grant),
    /// Other guards of the same owner remain.
    StillHeld,
    /// The lock had been lost before. Its release is under way, unless another guard keeps the grant.
    Lost(LostReason, Option<watch::Receiver<Progress>>),
    /// The lock had been lost before, and this was the last guard that kept the grant from being released.
    Kept(Grant, LostReason, Option<Releasing>),
}

/// A grant that has just been lost.
pub(crate) enum LostGrant {
    /// It must be released now.
    Release(ReleaseTask),
    /// It must be released with its last guard.
    Keep(Grant),
}

/// The granted lock cannot be used: its deadline had passed, or the engine had already reported it as lost.
pub(crate) struct Unusable;

impl Hold {
    pub(crate) fn pending(
        name: LockName,
        owner: OwnerId,
        reenters: bool,
        mode: Mode,
        ttl: Ttl,
        renews: bool,
        when_lost: WhenLost,
    ) -> Self {
        let belief = Belief {
            phase: Phase::Pending,
            guards: 0,
            mode,
            conversion: None,
            token: None,
            value: Value::default(),
            lease_ends: None,
            session: None,
            max_hold_ends: None,
            renewal: Renewal::off(),
            scheduled: None,
            wanted: ModeSet::of(&[]),
            leftover: Leftover::Nothing,
            watched: None,
        };
        Self {
            id: random::grant_id(),
            name,
            owner,
            reenters,
            conversion_gate: OnceLock::new(),
            ttl,
            renews,
            when_lost,
            unanswered: AtomicBool::new(false),
            belief: Mutex::new(belief),
        }
    }

    pub(crate) fn belief(&self) -> MutexGuard<'_, Belief> {
        // A panic under this short lock leaves nothing half-changed: each change is one assignment.
        self.belief.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn note_unanswered(&self) {
        self.unanswered.store(true, Ordering::Release);
    }

    /// Returns whether a request for the grant may still arrive.
    pub(crate) fn may_arrive(&self) -> bool {
        self.unanswered.load(Ordering::Acquire)
    }

    pub(crate) fn grant_of(&self, belief: &Belief) -> Grant {
        Grant {
            id: self.id,
            name: self.name.clone(),
            owner: self.owner,
            mode: belief.mode,
            token: belief.token,
            ttl: self.ttl,
            may_arrive: self.may_arrive(),
        }
    }

    pub(crate) fn grant(&self) -> Grant {
        self.grant_of(&self.belief())
    }

    /// Marks the grant as held, with one guard.
    pub(crate) fn begin(&self, granted: Granted, now: BootTime) -> Result<(), Unusable> {
        let mut belief = self.belief();
        match belief.phase {
            Phase::Pending => {}
            Phase::Ended(_) => return Err(Unusable),
            Phase::Held { .. } => unreachable!("a hold begins once"),
        }
        belief.lease_ends = match (&granted.term, self.renews) {
            // A lease without renewal ends here also where the engine would keep the grant for as long as the process lives.
            (Term::Open | Term::Session(_), false) => Some(now + self.ttl.get()),
            (Term::Session(_), true) => None,
            (term, _) => term.deadline(),
        };
        if let Term::Session(session) = &granted.term {
            belief.session = Some(session.clone());
        }
        if belief.has_ended(now).is_some() {
            return Err(Unusable);
        }
        if self.renews {
            belief.renewal = Renewal::on(&granted.term, self.ttl, now);
            if let Some(within) = granted.first_renewal {
                belief.renewal.hasten(now + within);
            }
        }
        belief.token = granted.token;
        belief.value = granted.value;
        belief.guards = 1;
        belief.phase = Phase::Held { in_jeopardy: false };
        belief.show();
        Ok(())
    }

    /// Limits how long the lock may be held from now on. The earliest limit counts.
    pub(crate) fn limit(&self, longest: Option<Duration>, now: BootTime) {
        let mut belief = self.belief();
        belief.max_hold_ends =
            [belief.max_hold_ends, longest.map(|longest| now + longest)].into_iter().flatten().min();
        belief.show();
    }

    /// Removes one guard.
    pub(crate) fn let_go(&self) -> LetGo {
        let mut belief = self.belief();
        belief.guards = belief.guards.saturating_sub(1);
        let is_last = belief.guards == 0;
        match belief.phase {
            Phase::Ended(Ended::Lost(reason)) => match &mut belief.leftover {
                Leftover::Kept { releasing, .. } if is_last => {
                    let releasing = releasing.take();
                    belief.leftover = Leftover::Nothing;
                    LetGo::Kept(self.grant_of(&belief), reason, releasing)
                }
                Leftover::Releasing(progress) => LetGo::Lost(reason, Some(progress.clone())),
                Leftover::Kept { .. } | Leftover::Nothing => LetGo::Lost(reason, None),
            },
            Phase::Held { .. } if !is_last => LetGo::StillHeld,
            Phase::Held { .. } => {
                belief.end(Ended::Released);
                LetGo::Last(self.grant_of(&belief))
            }
            Phase::Pending | Phase::Ended(Ended::Released) => {
                unreachable!("a guard stands for a grant that was begun")
            }
        }
    }

    /// Marks the lock as lost. Returns the grant if it was held until now.
    pub(crate) fn lose(
        &self,
        reason: LostReason,
        releasing: Option<Releasing>,
        now: BootTime,
    ) -> Option<LostGrant> {
        let mut belief = self.belief();
        // On every path the lock on the belief is dropped before `releasing`, whose drop may take it again.
        let grant = match belief.phase {
            Phase::Pending => {
                belief.end(Ended::Lost(reason));
                return None;
            }
            Phase::Held { .. } => self.grant_of(&belief),
            Phase::Ended(_) => return None,
        };
        belief.end(Ended::Lost(reason));
        // A closed client keeps no grant.
        if self.when_lost == WhenLost::Keep && reason != LostReason::Closed {
            let until = belief.session.is_some().then(|| now + self.ttl.get());
            belief.leftover = Leftover::Kept { releasing, until };
            return Some(LostGrant::Keep(grant));
        }
        Some(LostGrant::Release(belief.release_leftover(grant, releasing)))
    }

    /// Begins the release of a lost grant that is kept for its guards. Returns `None` if none is kept.
    pub(crate) fn give_up_kept(&self) -> Option<ReleaseTask> {
        let mut belief = self.belief();
        let Leftover::Kept { releasing, .. } = &mut belief.leftover else { return None };
        let releasing = releasing.take();
        let grant = self.grant_of(&belief);
        Some(belief.release_leftover(grant, releasing))
    }

    /// Checks that the lock is not lost at this instant. The error is the reason.
    pub(crate) fn check(&self, now: BootTime) -> Result<(), LostReason> {
        let belief = self.belief();
        match belief.phase {
            Phase::Ended(Ended::Lost(reason)) => Err(reason),
            Phase::Held { .. } => belief.has_ended(now).map_or(Ok(()), Err),
            Phase::Pending | Phase::Ended(Ended::Released) => Ok(()),
        }
    }

    /// Returns the action that is due at this instant.
    pub(crate) fn due(&self, now: BootTime) -> Due {
        let mut belief = self.belief();
        if belief.kept_until().is_some_and(|until| until <= now) {
            drop(belief);
            return self.give_up_kept().map_or(Due::Nothing, Due::Release);
        }
        if !belief.is_held() {
            return Due::Nothing;
        }
        if let Some(reason) = belief.has_ended(now) {
            return Due::Lose(reason);
        }
        match belief.renewal.begin_if_due(now) {
            Some(begun) => {
                if begun == Begun::Late {
                    belief.phase = Phase::Held { in_jeopardy: true };
                    belief.show();
                }
                Due::Renew(self.grant_of(&belief))
            }
            None => Due::Nothing,
        }
    }

    /// Applies the result of a renewal. Returns the reason if the lock is lost by it.
    pub(crate) fn renewed(&self, result: &Result<Term, RenewError>, now: BootTime) -> Option<LostReason> {
        let mut belief = self.belief();
        if !belief.is_held() {
            return None;
        }
        if let Some(reason) = belief.has_ended(now) {
            return Some(reason);
        }
        match result {
            Ok(term) => {
                // Responses may arrive out of order: the longest lease counts.
                belief.lease_ends = belief.lease_ends.max(term.deadline());
                belief.renewal.succeeded(term, now);
                belief.phase = Phase::Held { in_jeopardy: false };
                belief.show();
                None
            }
            Err(RenewError::Lost(reason)) => Some(*reason),
            Err(RenewError::Engine(_)) => {
                belief.renewal.failed(now);
                belief.phase = Phase::Held { in_jeopardy: true };
                belief.show();
                None
            }
        }
    }

    /// Records that another request waits for this mode.
    pub(crate) fn wanted(&self, mode: Mode) {
        let mut belief = self.belief();
        belief.wanted = belief.wanted.with(mode);
        belief.show();
    }

    /// Stores a value that was written.
    pub(crate) fn wrote(&self, value: Value) {
        self.belief().value = value;
    }

    /// Returns the next instant at which an action is due.
    pub(crate) fn next_due(&self) -> Option<BootTime> {
        let belief = self.belief();
        if !belief.is_held() {
            return belief.kept_until();
        }
        [belief.ends().map(|(at, _)| at), belief.renewal.due_at()].into_iter().flatten().min()
    }

    /// Stores the instant under which the schedule has the hold, and returns the previous one.
    pub(crate) fn set_scheduled(&self, at: Option<BootTime>) -> Option<BootTime> {
        std::mem::replace(&mut self.belief().scheduled, at)
    }

    /// Returns whether the hold has begun and not ended, without a look at the deadline.
    pub(crate) fn is_held(&self) -> bool {
        self.belief().is_held()
    }

    pub(crate) fn deadline(&self) -> Option<BootTime> {
        self.belief().ends().map(|(at, _)| at)
    }

    /// Returns the mode that is certainly held, also during a conversion.
    pub(crate) fn mode(&self) -> Mode {
        self.belief().sure_mode()
    }

    pub(crate) fn token(&self) -> Option<FencingToken> {
        self.belief().token
    }

    pub(crate) fn value(&self) -> Value {
        self.belief().value.clone()
    }

    pub(crate) fn state(&self) -> GuardState {
        let belief = self.belief();
        match belief.phase {
            Phase::Ended(Ended::Lost(reason)) => GuardState::Lost(reason),
            Phase::Held { .. } if belief.is_in_jeopardy() => {
                GuardState::Jeopardy { until: belief.ends().map(|(at, _)| at) }
            }
            Phase::Pending | Phase::Held { .. } | Phase::Ended(Ended::Released) => GuardState::Held,
        }
    }

    pub(crate) fn watch(self: &Arc<Self>) -> GuardWatch {
        let mut belief = self.belief();
        if belief.watched.is_none()
            && let Some(session) = &belief.session
        {
            session.watch(self);
        }
        let shown = belief.shown();
        let watched = belief.watched.get_or_insert_with(|| watch::Sender::new(shown));
        GuardWatch::new(watched)
    }

    /// Updates the watches after a change of the session on which the grant depends.
    pub(crate) fn session_has_changed(&self) {
        self.belief().show();
    }
}

impl Belief {
    /// Creates the task that releases a lost grant. Guards that are released meanwhile wait for it.
    fn release_leftover(&mut self, grant: Grant, releasing: Option<Releasing>) -> ReleaseTask {
        let (sender, progress) = watch::channel(Progress::Asked);
        self.leftover = Leftover::Releasing(progress);
        ReleaseTask { grant, releasing, progress: Some(sender) }
    }

    /// Returns the instant until which a lost grant is kept for its guards, if there is one.
    const fn kept_until(&self) -> Option<BootTime> {
        match self.leftover {
            Leftover::Kept { until, .. } => until,
            Leftover::Nothing | Leftover::Releasing(_) => None,
        }
    }

    fn end(&mut self, how: Ended) {
        self.phase = Phase::Ended(how);
        if let Some(conversion) = &self.conversion {
            conversion.cancel.cancel();
        }
        self.show();
    }

    fn shown(&self) -> Shown {
        let (ended, in_jeopardy) = match self.phase {
            Phase::Pending => (None, false),
            Phase::Held { .. } => (None, self.is_in_jeopardy()),
            Phase::Ended(how) => (Some(how), false),
        };
        let wanted = self.wanted.iter().rev().find(|wanted| !self.mode.compatible_with(*wanted));
        Shown { ended, in_jeopardy, deadline: self.ends().map(|(at, _)| at), wanted }
    }

    /// Notifies the watches of a change.
    pub(crate) fn show(&self) {
        if let Some(watched) = &self.watched {
            let now = self.shown();
            watched.send_if_modified(|shown| std::mem::replace(shown, now) != now);
        }
    }

    fn is_in_jeopardy(&self) -> bool {
        matches!(self.phase, Phase::Held { in_jeopardy: true })
            || self.session.as_ref().is_some_and(SessionLease::is_in_jeopardy)
    }

    pub(crate) const fn is_held(&self) -> bool {
        matches!(self.phase, Phase::Held { .. })
    }

    /// Returns the deadline without further renewals, and the reason of a loss at that instant.
    fn ends(&self) -> Option<(BootTime, LostReason)> {
        let lease = self.lease_ends.map(|at| (at, LostReason::Expired));
        let session = self.session.as_ref().map(|session| (session.deadline(), LostReason::Expired));
        let most = self.max_hold_ends.map(|at| (at, LostReason::MaxHold));
        [lease, session, most].into_iter().flatten().min_by_key(|(at, _)| *at)
    }

    /// Returns why the lock is lost by this instant, if its deadline has passed.
    pub(crate) fn has_ended(&self, now: BootTime) -> Option<LostReason> {
        self.ends().filter(|(at, _)| *at <= now).map(|(_, reason)| reason)
    }

    pub(crate) fn sure_mode(&self) -> Mode {
        match &self.conversion {
            Some(conversion) if self.mode.covers(conversion.to) => conversion.to,
            _ => self.mode,
        }
    }
}

impl std::fmt::Debug for Hold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hold")
            .field("name", &self.name)
            .field("id", &self.id)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}
