//! A grant as its holder sees it: what is believed, until when, and why no longer.
//!
//! Two rules: belief never outlives the deadline, whoever looks; and what is lost stays lost, also if a renewal
//! that was under way succeeds after all.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tenure_table::{FencingToken, GrantId, LockName, Mode, OwnerId, Value};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::clock::BootTime;
use crate::engine::{Grant, Granted};
use crate::error::{LostReason, RenewError};
use crate::lease::{Term, Ttl};
use crate::owner::Releasing;
use crate::renewal::{Begun, Renewal};

/// What a guard's holder may believe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardState {
    /// The lock is held.
    Held,
    /// The lock is held and safe, but renewal is failing.
    Jeopardy {
        /// When it will be lost if that goes on; `None` where only the end of a connection ends it.
        until: Option<BootTime>,
    },
    /// The lock is no longer held.
    Lost(LostReason),
}

/// What becomes of a lock that is lost while the engine still has it: an operator broke it, `max_hold` is over, or the client
/// cannot confirm it in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum WhenLost {
    /// The client releases it at once, whatever the holder does.
    #[default]
    Release,
    /// It is released when its last guard is released or dropped, or when its lease ends: for a holder that must stop
    /// something before anybody else may begin.
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

/// A grant and what is believed of it. Shared by all guards that re-entered it.
pub(crate) struct Hold {
    pub(crate) id: GrantId,
    pub(crate) name: LockName,
    pub(crate) owner: OwnerId,
    /// Whether the owner was named by the caller, and may re-enter.
    pub(crate) reenters: bool,
    /// One conversion at a time: taken before it is begun, and kept until it is settled.
    conversion_gate: OnceLock<Arc<tokio::sync::Mutex<()>>>,
    ttl: Ttl,
    renews: bool,
    when_lost: WhenLost,
    belief: Mutex<Belief>,
}

#[derive(Debug)]
struct Belief {
    phase: Phase,
    /// How many guards stand for it.
    guards: usize,
    mode: Mode,
    conversion: Option<UnderWay>,
    token: Option<FencingToken>,
    value: Value,
    lease_ends: Option<BootTime>,
    max_hold_ends: Option<BootTime>,
    renewal: Renewal,
    /// Under which instant the schedule has it.
    scheduled: Option<BootTime>,
    /// It is lost, and is to be released with its last guard.
    kept: Option<Kept>,
    /// There once somebody watches: most locks come and go unwatched.
    watched: Option<Watched>,
}

/// What those see who watch.
#[derive(Debug)]
struct Watched {
    ended: watch::Sender<Option<Ended>>,
    /// When belief ends if nothing more is heard.
    deadline: watch::Sender<Option<BootTime>>,
}

/// What says, to the same owner, that a lost grant is not yet released.
type Kept = Option<Releasing>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Pending,
    Held { in_jeopardy: bool },
    Ended(Ended),
}

/// A conversion that the engine has been asked for.
#[derive(Debug)]
struct UnderWay {
    to: Mode,
    cancel: CancellationToken,
}

/// What is to be done about a hold whose instant has come.
pub(crate) enum Due {
    Renew(Grant),
    Lose(LostReason),
    Nothing,
}

/// What became of a grant that a guard let go of.
pub(crate) enum LetGo {
    /// It was the last guard: this is to be released.
    Last(Grant),
    /// Other guards of the same owner still stand.
    StillHeld,
    /// It had been lost before.
    Lost(LostReason),
    /// It had been lost before, and this was the last guard that kept it from being released.
    Kept(Grant, LostReason, Option<Releasing>),
}

/// A grant of which belief has ended.
pub(crate) struct LostGrant {
    pub(crate) grant: Grant,
    pub(crate) release: ReleaseLost,
}

/// When a lost grant is released.
pub(crate) enum ReleaseLost {
    Now(Option<Releasing>),
    WithItsLastGuard,
}

/// A grant that arrived cannot be believed in: its deadline had passed, or the engine had already said that it is lost.
pub(crate) struct Unusable;

/// Why a conversion is not begun.
pub(crate) enum NotConverted {
    Lost(LostReason),
    /// Other guards rely on the mode that is held.
    Reentered {
        held: Mode,
    },
}

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
            max_hold_ends: None,
            renewal: Renewal::off(),
            scheduled: None,
            kept: None,
            watched: None,
        };
        Self {
            id: GrantId::random(),
            name,
            owner,
            reenters,
            conversion_gate: OnceLock::new(),
            ttl,
            renews,
            when_lost,
            belief: Mutex::new(belief),
        }
    }

    fn belief(&self) -> MutexGuard<'_, Belief> {
        // Nothing is left half-changed if a holder of this short lock panics: each change is one assignment.
        self.belief.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn conversion_gate(&self) -> Arc<tokio::sync::Mutex<()>> {
        self.conversion_gate.get_or_init(Arc::default).clone()
    }

    fn grant_of(&self, belief: &Belief) -> Grant {
        Grant {
            id: self.id,
            name: self.name.clone(),
            owner: self.owner,
            mode: belief.mode,
            token: belief.token,
            ttl: self.ttl,
        }
    }

    pub(crate) fn grant(&self) -> Grant {
        self.grant_of(&self.belief())
    }

    /// Begins to believe, with one guard.
    pub(crate) fn begin(&self, granted: Granted, now: BootTime) -> Result<(), Unusable> {
        let mut belief = self.belief();
        match belief.phase {
            Phase::Pending => {}
            Phase::Ended(_) => return Err(Unusable),
            Phase::Held { .. } => unreachable!("a hold begins once"),
        }
        belief.lease_ends = match (granted.term.deadline(), self.renews) {
            // A fixed lease ends here also where the engine would keep the grant for as long as the process lives.
            (None, false) => Some(now + self.ttl.get()),
            (deadline, _) => deadline,
        };
        if belief.has_ended(now).is_some() {
            return Err(Unusable);
        }
        if self.renews {
            belief.renewal = Renewal::on(granted.term, self.ttl, now);
            if granted.provisional {
                belief.renewal.hasten(now);
            }
        }
        belief.token = granted.token;
        belief.value = granted.value;
        belief.guards = 1;
        belief.phase = Phase::Held { in_jeopardy: false };
        belief.show_deadline();
        Ok(())
    }

    /// From now on it may be held for this long at most. The earliest such limit counts.
    pub(crate) fn limit(&self, longest: Option<Duration>, now: BootTime) {
        let mut belief = self.belief();
        belief.max_hold_ends =
            [belief.max_hold_ends, longest.map(|longest| now + longest)].into_iter().flatten().min();
        belief.show_deadline();
    }

    /// One more guard for the same grant, if it stands; the mode that is held, if that does not cover `mode`.
    pub(crate) fn reenter(&self, mode: Mode, now: BootTime) -> Option<Result<(), Mode>> {
        let mut belief = self.belief();
        if !belief.is_held() || belief.has_ended(now).is_some() {
            return None;
        }
        // While a conversion is under way, only what both modes cover is sure.
        let sure = belief.conversion.as_ref().is_none_or(|conversion| conversion.to.covers(mode));
        if !belief.mode.covers(mode) || !sure {
            return Some(Err(belief.sure_mode()));
        }
        belief.guards += 1;
        Some(Ok(()))
    }

    /// One guard less.
    pub(crate) fn let_go(&self) -> LetGo {
        let mut belief = self.belief();
        belief.guards = belief.guards.saturating_sub(1);
        let is_last = belief.guards == 0;
        match belief.phase {
            Phase::Ended(Ended::Lost(reason)) => match belief.kept.take_if(|_| is_last) {
                Some(releasing) => LetGo::Kept(self.grant_of(&belief), reason, releasing),
                None => LetGo::Lost(reason),
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

    /// Ends belief. The grant, if there is one; nothing if belief had ended already.
    pub(crate) fn lose(&self, reason: LostReason, releasing: Option<Releasing>) -> Option<LostGrant> {
        let mut belief = self.belief();
        // Whichever way this returns, `releasing` is not dropped before the belief's lock.
        let grant = match belief.phase {
            Phase::Pending => {
                belief.end(Ended::Lost(reason));
                return None;
            }
            Phase::Held { .. } => self.grant_of(&belief),
            Phase::Ended(_) => return None,
        };
        belief.end(Ended::Lost(reason));
        // A client that is closed keeps nothing.
        let keep = self.when_lost == WhenLost::Keep && reason != LostReason::Closed;
        let release = if keep {
            belief.kept = Some(releasing);
            ReleaseLost::WithItsLastGuard
        } else {
            ReleaseLost::Now(releasing)
        };
        Some(LostGrant { grant, release })
    }

    /// What was lost and is kept until its last guard is dropped: to be released now after all.
    pub(crate) fn give_up_kept(&self) -> Option<(Grant, Option<Releasing>)> {
        let mut belief = self.belief();
        let releasing = belief.kept.take()?;
        Some((self.grant_of(&belief), releasing))
    }

    /// What may be believed at this instant, and why not if nothing.
    pub(crate) fn check(&self, now: BootTime) -> Result<(), LostReason> {
        let belief = self.belief();
        match belief.phase {
            Phase::Ended(Ended::Lost(reason)) => Err(reason),
            Phase::Held { .. } => belief.has_ended(now).map_or(Ok(()), Err),
            Phase::Pending | Phase::Ended(Ended::Released) => Ok(()),
        }
    }

    /// What is to be done at this instant.
    pub(crate) fn due(&self, now: BootTime) -> Due {
        let mut belief = self.belief();
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
                }
                Due::Renew(self.grant_of(&belief))
            }
            None => Due::Nothing,
        }
    }

    /// Takes in how a renewal ended; the reason, if the lock is lost by it.
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
                // Answers may overtake each other; the lease is as long as the longest of them says.
                belief.lease_ends = belief.lease_ends.max(term.deadline());
                belief.renewal.succeeded(*term, now);
                belief.phase = Phase::Held { in_jeopardy: false };
                belief.show_deadline();
                None
            }
            Err(RenewError::Lost(reason)) => Some(*reason),
            Err(RenewError::Engine(_)) => {
                belief.renewal.failed(now);
                belief.phase = Phase::Held { in_jeopardy: true };
                None
            }
        }
    }

    /// A conversion is about to be asked for; the grant as it is before. If the new mode is weaker, only that is believed in from now on.
    pub(crate) fn begin_conversion(
        &self,
        to: Mode,
        cancel: CancellationToken,
    ) -> Result<Grant, NotConverted> {
        let mut belief = self.belief();
        if let Phase::Ended(Ended::Lost(reason)) = belief.phase {
            return Err(NotConverted::Lost(reason));
        }
        if belief.guards > 1 && !to.covers(belief.mode) {
            return Err(NotConverted::Reentered { held: belief.mode });
        }
        belief.conversion = Some(UnderWay { to, cancel });
        Ok(self.grant_of(&belief))
    }

    /// Takes in how a conversion ended; with an error, if the lock was lost meanwhile.
    pub(crate) fn end_conversion(&self, granted: Option<Granted>) -> Result<(), LostReason> {
        let mut belief = self.belief();
        let conversion = belief.conversion.take();
        if let Phase::Ended(Ended::Lost(reason)) = belief.phase {
            return Err(reason);
        }
        if let (Some(UnderWay { to, .. }), Some(granted)) = (conversion, granted) {
            // A conversion down does not read the value.
            if to.covers(belief.mode) || !belief.mode.covers(to) {
                belief.value = granted.value;
            }
            belief.mode = to;
            belief.token = granted.token;
            if self.renews {
                belief.lease_ends = belief.lease_ends.max(granted.term.deadline());
                belief.show_deadline();
            }
        }
        Ok(())
    }

    /// Takes in a value that was written.
    pub(crate) fn wrote(&self, value: Value) {
        self.belief().value = value;
    }

    /// The next instant at which something is to be done.
    pub(crate) fn next_due(&self) -> Option<BootTime> {
        let belief = self.belief();
        if !belief.is_held() {
            return None;
        }
        [belief.ends().map(|(at, _)| at), belief.renewal.due_at()].into_iter().flatten().min()
    }

    /// Remembers under which instant the schedule has it, and returns what it was before.
    pub(crate) fn set_scheduled(&self, at: Option<BootTime>) -> Option<BootTime> {
        std::mem::replace(&mut self.belief().scheduled, at)
    }

    /// Whether it has begun and not ended; the deadline is not looked at.
    pub(crate) fn is_held(&self) -> bool {
        self.belief().is_held()
    }

    pub(crate) fn deadline(&self) -> Option<BootTime> {
        self.belief().ends().map(|(at, _)| at)
    }

    /// The mode that is surely held.
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
            Phase::Held { in_jeopardy: true } => {
                GuardState::Jeopardy { until: belief.ends().map(|(at, _)| at) }
            }
            Phase::Pending | Phase::Held { in_jeopardy: false } | Phase::Ended(Ended::Released) => {
                GuardState::Held
            }
        }
    }

    pub(crate) fn watch(&self) -> GuardWatch {
        let mut belief = self.belief();
        let ended = match belief.phase {
            Phase::Ended(how) => Some(how),
            Phase::Pending | Phase::Held { .. } => None,
        };
        let ends = belief.ends().map(|(at, _)| at);
        let Watched { ended, deadline } = belief.watched.get_or_insert_with(|| Watched {
            ended: watch::Sender::new(ended),
            deadline: watch::Sender::new(ends),
        });
        GuardWatch { ended: ended.subscribe(), deadline: deadline.subscribe() }
    }
}

impl Belief {
    fn end(&mut self, how: Ended) {
        self.phase = Phase::Ended(how);
        if let Some(conversion) = &self.conversion {
            conversion.cancel.cancel();
        }
        if let Some(watched) = &self.watched {
            watched.ended.send_replace(Some(how));
        }
    }

    fn show_deadline(&self) {
        if let Some(watched) = &self.watched {
            let ends = self.ends().map(|(at, _)| at);
            watched.deadline.send_if_modified(|shown| std::mem::replace(shown, ends) != ends);
        }
    }

    const fn is_held(&self) -> bool {
        matches!(self.phase, Phase::Held { .. })
    }

    /// When belief ends if nothing more is heard, and what will then have been the reason.
    fn ends(&self) -> Option<(BootTime, LostReason)> {
        let lease = self.lease_ends.map(|at| (at, LostReason::Expired));
        let most = self.max_hold_ends.map(|at| (at, LostReason::MaxHold));
        [lease, most].into_iter().flatten().min_by_key(|(at, _)| *at)
    }

    /// Why belief has ended by this instant, if it has.
    fn has_ended(&self, now: BootTime) -> Option<LostReason> {
        self.ends().filter(|(at, _)| *at <= now).map(|(_, reason)| reason)
    }

    fn sure_mode(&self) -> Mode {
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

/// Tells how a guard's hold on its lock ended, without being the guard: for a task or thread beside the work. From
/// [`Guard::watch`](crate::Guard::watch).
#[derive(Clone, Debug)]
pub struct GuardWatch {
    ended: watch::Receiver<Option<Ended>>,
    deadline: watch::Receiver<Option<BootTime>>,
}

impl GuardWatch {
    /// Resolves when the lock is released or lost.
    ///
    /// # Cancellation safety
    /// May be dropped at any point.
    pub async fn ended(mut self) -> Ended {
        match self.ended.wait_for(Option::is_some).await {
            Ok(ended) => ended.unwrap_or(Ended::Released),
            // The last guard is gone, and with it what could have been lost.
            Err(_) => Ended::Released,
        }
    }

    /// The instant at which belief ends unless the lease is renewed before, as it was when this was last looked at.
    pub fn deadline(&mut self) -> Option<BootTime> {
        *self.deadline.borrow_and_update()
    }

    /// Resolves when the deadline is another than [`deadline`](Self::deadline) said; never, once the lock is released.
    ///
    /// # Cancellation safety
    /// May be dropped at any point.
    pub async fn moved(&mut self) {
        if self.deadline.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
