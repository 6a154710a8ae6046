//! A grant as its holder sees it: what is believed, until when, and why no longer.
//!
//! Two rules: belief never outlives the deadline, whoever looks; and what is lost stays lost, also if a renewal
//! that was under way succeeds after all.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::clock::BootTime;
use crate::engine::{Grant, Granted};
use crate::error::{LostReason, RenewError};
use crate::ids::{GrantId, OwnerId};
use crate::lease::{Term, Ttl};
use crate::mode::Mode;
use crate::name::LockName;
use crate::random;
use crate::token::FencingToken;
use crate::value::Value;

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

/// A grant and what is believed of it. Shared by all guards that re-entered it.
pub(crate) struct Hold {
    pub(crate) id: GrantId,
    pub(crate) name: LockName,
    pub(crate) owner: OwnerId,
    ttl: Ttl,
    renews: bool,
    longest: Option<Duration>,
    belief: Mutex<Belief>,
    state: watch::Sender<GuardState>,
}

struct Belief {
    phase: Phase,
    /// How many guards stand for it.
    guards: usize,
    mode: Mode,
    token: Option<FencingToken>,
    value: Value,
    lease_ends: Option<BootTime>,
    max_hold_ends: Option<BootTime>,
    interval: Duration,
    renewal: Renewal,
    /// Under which instant the schedule has it.
    scheduled: Option<BootTime>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Pending,
    Held { in_jeopardy: bool },
    Lost(LostReason),
    Released,
}

#[derive(Clone, Copy)]
enum Renewal {
    Off,
    At(BootTime),
    UnderWay { late_at: BootTime },
    Late,
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
}

/// A grant that arrived cannot be believed in: its deadline had passed, or the engine had already said that it is lost.
pub(crate) struct Unusable;

impl Hold {
    pub(crate) fn pending(
        name: LockName,
        owner: OwnerId,
        mode: Mode,
        ttl: Ttl,
        renews: bool,
        longest: Option<Duration>,
    ) -> Self {
        let belief = Belief {
            phase: Phase::Pending,
            guards: 0,
            mode,
            token: None,
            value: Value::default(),
            lease_ends: None,
            max_hold_ends: None,
            interval: ttl.renewal_interval(),
            renewal: Renewal::Off,
            scheduled: None,
        };
        let state = watch::Sender::new(GuardState::Held);
        Self { id: GrantId::random(), name, owner, ttl, renews, longest, belief: Mutex::new(belief), state }
    }

    fn belief(&self) -> MutexGuard<'_, Belief> {
        // Nothing is left half-changed if a holder of this short lock panics: each change is one assignment.
        self.belief.lock().unwrap_or_else(PoisonError::into_inner)
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
            Phase::Lost(_) => return Err(Unusable),
            Phase::Held { .. } | Phase::Released => unreachable!("a hold begins once"),
        }
        belief.lease_ends = match (granted.term.deadline(), self.renews) {
            // A fixed lease ends here also where the engine would keep the grant for as long as the process lives.
            (None, false) => Some(now + self.ttl.get()),
            (deadline, _) => deadline,
        };
        belief.max_hold_ends = self.longest.map(|most| now + most);
        if belief.ends().is_some_and(|(at, _)| at <= now) {
            return Err(Unusable);
        }
        if let Term::Lease { ttl, .. } = granted.term {
            belief.interval = ttl.min(self.ttl.get()) / 3;
        }
        if self.renews {
            belief.renewal = Renewal::At(now + random::slightly_below(belief.interval));
        }
        belief.token = granted.token;
        belief.value = granted.value;
        belief.guards = 1;
        belief.phase = Phase::Held { in_jeopardy: false };
        Ok(())
    }

    /// One more guard for the same grant, if it stands; the mode that is held, if that does not cover `mode`.
    pub(crate) fn reenter(&self, mode: Mode, now: BootTime) -> Option<Result<(), Mode>> {
        let mut belief = self.belief();
        if !matches!(belief.phase, Phase::Held { .. }) || belief.ends().is_some_and(|(at, _)| at <= now) {
            return None;
        }
        if !belief.mode.covers(mode) {
            return Some(Err(belief.mode));
        }
        belief.guards += 1;
        Some(Ok(()))
    }

    /// One guard less.
    pub(crate) fn let_go(&self) -> LetGo {
        let mut belief = self.belief();
        belief.guards = belief.guards.saturating_sub(1);
        match belief.phase {
            Phase::Lost(reason) => LetGo::Lost(reason),
            Phase::Held { .. } if belief.guards > 0 => LetGo::StillHeld,
            Phase::Held { .. } => {
                belief.phase = Phase::Released;
                LetGo::Last(self.grant_of(&belief))
            }
            Phase::Pending | Phase::Released => unreachable!("a guard stands for a grant that was begun"),
        }
    }

    /// Ends belief. The grant, if there is one to be released; nothing if belief had ended already.
    pub(crate) fn lose(&self, reason: LostReason) -> Option<Grant> {
        let mut belief = self.belief();
        let grant = match belief.phase {
            Phase::Pending => None,
            Phase::Held { .. } => Some(self.grant_of(&belief)),
            Phase::Lost(_) | Phase::Released => return None,
        };
        belief.phase = Phase::Lost(reason);
        self.publish(&belief);
        grant
    }

    /// What may be believed at this instant, and why not if nothing.
    pub(crate) fn check(&self, now: BootTime) -> Result<(), LostReason> {
        let belief = self.belief();
        match (belief.phase, belief.ends()) {
            (Phase::Lost(reason), _) => Err(reason),
            (Phase::Held { .. }, Some((at, reason))) if at <= now => Err(reason),
            _ => Ok(()),
        }
    }

    /// What is to be done at this instant.
    pub(crate) fn due(&self, now: BootTime) -> Due {
        let mut belief = self.belief();
        let Phase::Held { in_jeopardy } = belief.phase else {
            return Due::Nothing;
        };
        if let Some((at, reason)) = belief.ends()
            && at <= now
        {
            return Due::Lose(reason);
        }
        match belief.renewal {
            Renewal::At(at) if at <= now => {
                belief.renewal = Renewal::UnderWay { late_at: now + belief.interval / 2 };
                Due::Renew(self.grant_of(&belief))
            }
            Renewal::UnderWay { late_at } if late_at <= now => {
                belief.renewal = Renewal::Late;
                if !in_jeopardy {
                    belief.phase = Phase::Held { in_jeopardy: true };
                    self.publish(&belief);
                }
                Due::Nothing
            }
            _ => Due::Nothing,
        }
    }

    /// Takes in how a renewal ended; the reason, if the lock is lost by it.
    pub(crate) fn renewed(&self, result: &Result<Term, RenewError>, now: BootTime) -> Option<LostReason> {
        let mut belief = self.belief();
        if !matches!(belief.phase, Phase::Held { .. }) {
            return None;
        }
        if let Some((at, reason)) = belief.ends()
            && at <= now
        {
            return Some(reason);
        }
        let in_jeopardy = match result {
            Ok(term) => {
                // Answers may overtake each other; the lease is as long as the longest of them says.
                belief.lease_ends = belief.lease_ends.max(term.deadline());
                belief.renewal = Renewal::At(now + random::slightly_below(belief.interval));
                false
            }
            Err(RenewError::Lost(reason)) => return Some(*reason),
            Err(RenewError::Engine(_)) => {
                let again = (belief.interval / 4).min(Duration::from_secs(1));
                belief.renewal = Renewal::At(now + random::jittered(again));
                true
            }
        };
        if belief.phase != (Phase::Held { in_jeopardy }) {
            belief.phase = Phase::Held { in_jeopardy };
            self.publish(&belief);
        }
        None
    }

    /// Takes in a new mode.
    pub(crate) fn converted(&self, to: Mode, granted: Granted) {
        let mut belief = self.belief();
        if belief.mode.covers(to) && belief.mode != to {
            // A conversion down does not read the value.
        } else {
            belief.value = granted.value;
        }
        belief.mode = to;
        belief.token = granted.token;
        belief.lease_ends = belief.lease_ends.max(granted.term.deadline());
    }

    /// Takes in a value that was written.
    pub(crate) fn wrote(&self, value: Value) {
        self.belief().value = value;
    }

    /// The next instant at which something is to be done.
    pub(crate) fn next_due(&self) -> Option<BootTime> {
        let belief = self.belief();
        if !matches!(belief.phase, Phase::Held { .. }) {
            return None;
        }
        let renewal = match belief.renewal {
            Renewal::At(at) | Renewal::UnderWay { late_at: at } => Some(at),
            Renewal::Off | Renewal::Late => None,
        };
        [belief.ends().map(|(at, _)| at), renewal].into_iter().flatten().min()
    }

    /// Remembers under which instant the schedule has it, and returns what it was before.
    pub(crate) fn set_scheduled(&self, at: Option<BootTime>) -> Option<BootTime> {
        std::mem::replace(&mut self.belief().scheduled, at)
    }

    /// Whether it has begun and not ended; the deadline is not looked at.
    pub(crate) fn is_held(&self) -> bool {
        matches!(self.belief().phase, Phase::Held { .. })
    }

    pub(crate) fn deadline(&self) -> Option<BootTime> {
        self.belief().ends().map(|(at, _)| at)
    }

    pub(crate) fn mode(&self) -> Mode {
        self.belief().mode
    }

    pub(crate) fn token(&self) -> Option<FencingToken> {
        self.belief().token
    }

    pub(crate) fn value(&self) -> Value {
        self.belief().value.clone()
    }

    pub(crate) fn lease_ends(&self) -> Option<BootTime> {
        self.belief().lease_ends
    }

    pub(crate) fn state(&self) -> GuardState {
        self.belief().state()
    }

    pub(crate) fn watch(&self) -> watch::Receiver<GuardState> {
        self.state.subscribe()
    }

    fn publish(&self, belief: &Belief) {
        self.state.send_replace(belief.state());
    }
}

impl Belief {
    /// When belief ends if nothing more is heard, and what will then have been the reason.
    fn ends(&self) -> Option<(BootTime, LostReason)> {
        let lease = self.lease_ends.map(|at| (at, LostReason::Expired));
        let most = self.max_hold_ends.map(|at| (at, LostReason::MaxHold));
        [lease, most].into_iter().flatten().min_by_key(|(at, _)| *at)
    }

    fn state(&self) -> GuardState {
        match self.phase {
            Phase::Lost(reason) => GuardState::Lost(reason),
            Phase::Held { in_jeopardy: true } => {
                GuardState::Jeopardy { until: self.ends().map(|(at, _)| at) }
            }
            Phase::Pending | Phase::Held { in_jeopardy: false } | Phase::Released => GuardState::Held,
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
