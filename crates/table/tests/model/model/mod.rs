//! A second lock table, to hold the real one against: every rule of `docs/lock-table.md` in its plainest form, with lists that
//! are searched from the front. It shares no code with the real one but the words of commands, effects and views.
//!
//! There is one list of grants, in the order in which they were granted, and one of requests that wait, in the order in which
//! they queued. The holders and the line of a resource are what is left of the two if one looks at that resource alone.

mod cycles;
mod ending;
mod getting;
mod kept;
mod limits;
mod lines;
mod notices;
mod views;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use tenure_table::Label;
use tenure_table::{
    Answer, Break, Command, DelayView, Effect, GrantId, HolderView, Item, Limits, LockName, Mode, Outcome,
    OwnerId, Refusal, Request, SessionEnd, SessionId, SessionRefusal, Value,
};

/// The whole state. Two that are equal behave in the same way from then on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Model {
    limits: Limits,
    now_ms: u64,
    last_token: u64,
    /// How many requests ever queued. It decides nothing, but a table has it in its hash.
    last_order: u64,
    sessions: BTreeMap<SessionId, Session>,
    /// In the order in which they were granted, with those that a delay is left of.
    grants: Vec<Held>,
    /// In the order in which they queued.
    pending: Vec<Pending>,
    /// Those that are not empty.
    values: BTreeMap<LockName, Value>,
    /// Those whose window has not passed.
    starts: BTreeMap<LockName, Start>,
    observers: BTreeSet<(LockName, SessionId)>,
}

#[derive(Clone, Debug, PartialEq)]
struct Session {
    epoch: u64,
    ttl_ms: u64,
    label: Option<Label>,
    /// Up to this number the client has seen the answers.
    floor: u64,
    /// What a repeated number is told.
    answers: BTreeMap<u64, Kept>,
}

#[derive(Clone, Debug, PartialEq)]
struct Kept {
    /// `Queued`, if the request waits.
    outcome: Outcome,
    /// It waits, or has waited.
    waited: bool,
}

impl Kept {
    fn is_settled(&self) -> bool {
        !matches!(self.outcome, Ok(Answer::Queued { .. }))
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Held {
    name: LockName,
    holder: HolderView,
    /// When its session expired: it only stands as a delay since then.
    died_ms: Option<u64>,
}

/// A request that waits, or would.
#[derive(Clone, Debug, PartialEq)]
struct Pending {
    asker: Asker,
    order: u64,
    kind: Kind,
    owner: OwnerId,
    items: Vec<Item>,
    label: Option<Label>,
    lock_delay_ms: u64,
    notify: bool,
    since_ms: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Convert,
    One,
    All,
}

/// A request's name: which number of which session.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Asker {
    session: SessionId,
    number: u64,
}

#[derive(Clone, Debug, PartialEq)]
struct Start {
    /// May lie before the beginning of the table's time.
    at_ms: i128,
    until_ms: i128,
}

/// What happens in the course of one command.
#[derive(Default)]
struct Step {
    effects: Vec<Effect>,
    /// Resources whose lines are to be served, each once.
    unserved: VecDeque<LockName>,
    /// The request that this command put in line.
    queued: Option<Asker>,
    /// The grants that this command made or converted.
    got: Vec<GrantId>,
    /// Owners whose requests may have somebody new to wait for, although they did not just queue. With the order of the request that waits by
    /// itself from now on, if that is why: if it is settled in the same step, nothing is new.
    recheck: BTreeSet<(OwnerId, Option<u64>)>,
}

impl Step {
    fn serve_later(&mut self, name: &LockName) {
        if !self.unserved.contains(name) {
            self.unserved.push_back(name.clone());
        }
    }
}

fn count(n: usize) -> u32 {
    u32::try_from(n).unwrap()
}

impl Model {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            limits,
            now_ms: 0,
            last_token: 0,
            last_order: 0,
            sessions: BTreeMap::new(),
            grants: Vec::new(),
            pending: Vec::new(),
            values: BTreeMap::new(),
            starts: BTreeMap::new(),
            observers: BTreeSet::new(),
        }
    }

    pub(crate) fn apply(&mut self, command: &Command) -> Vec<Effect> {
        let mut step = Step::default();
        let before = self.observed_holders();
        match command {
            Command::OpenSession { session, ttl_ms, label } => {
                let effect = self.open(*session, *ttl_ms, label.as_ref());
                step.effects.push(effect);
            }
            Command::KeepSession { session } => {
                let effect = self.keep(*session);
                step.effects.push(effect);
            }
            Command::CloseSession { session } => self.end(*session, SessionEnd::Closed, &mut step),
            Command::ExpireSession { session, epoch } => match self.sessions.get(session) {
                Some(state) if state.epoch != *epoch => {
                    step.effects.push(Effect::SessionOpen { session: *session, epoch: state.epoch });
                }
                _ => self.end(*session, SessionEnd::Expired, &mut step),
            },
            Command::Request { session, number, seen, request } => {
                self.request(Asker { session: *session, number: *number }, *seen, request, &mut step);
            }
            Command::Acknowledge { session, number } => self.acknowledge(*session, *number),
            Command::EndDelay { grant } => {
                let ended = |held: &mut Held| held.died_ms.is_some() && held.holder.grant == *grant;
                for held in self.grants.extract_if(.., ended) {
                    step.serve_later(&held.name);
                }
            }
            Command::AdvanceTime { to_ms } => {
                // The largest time that a table counts with.
                self.now_ms = self.now_ms.max(*to_ms).min(i64::MAX.unsigned_abs());
                self.forget_starts();
            }
            Command::SetLimits(limits) => self.limits = *limits,
            // There is but one version of the rules.
            Command::SetRules { version: 0 | 1 } => {}
            Command::SetRules { version } => {
                step.effects.push(Effect::RulesUnknown { version: *version, known: 1 });
            }
        }
        loop {
            if let Some((owner, untied)) = step.recheck.pop_first() {
                if untied.is_none_or(|order| self.pending.iter().any(|pending| pending.order == order)) {
                    self.refuse_cycles_of(owner, &mut step);
                }
            } else if let Some(name) = step.unserved.pop_front() {
                while self.serve_first(&name, &mut step) {}
            } else {
                break;
            }
        }
        self.tell_holders(&mut step);
        self.tell_observers(&before, &mut step);
        step.effects
    }

    // Sessions: rules 1 to 4.

    fn open(&mut self, session: SessionId, ttl_ms: u64, label: Option<&Label>) -> Effect {
        if let Some(state) = self.sessions.get(&session) {
            return Effect::SessionOpen { session, epoch: state.epoch };
        }
        let limit = self.limits.label_bytes;
        if label.is_some_and(|label| count(label.len()) > limit) {
            return Effect::SessionRefused { session, why: SessionRefusal::LabelTooLong { limit } };
        }
        let limit = self.limits.sessions;
        if count(self.sessions.len()) >= limit {
            return Effect::SessionRefused { session, why: SessionRefusal::TooManySessions { limit } };
        }
        let state = Session { epoch: 1, ttl_ms, label: label.cloned(), floor: 0, answers: BTreeMap::new() };
        self.sessions.insert(session, state);
        Effect::SessionOpen { session, epoch: 1 }
    }

    fn keep(&mut self, session: SessionId) -> Effect {
        let Some(state) = self.sessions.get_mut(&session) else { return Effect::SessionUnknown { session } };
        state.epoch += 1;
        Effect::SessionOpen { session, epoch: state.epoch }
    }

    fn end(&mut self, session: SessionId, end: SessionEnd, step: &mut Step) {
        if self.sessions.remove(&session).is_none() {
            step.effects.push(Effect::SessionUnknown { session });
            return;
        }
        self.observers.retain(|(_, observer)| *observer != session);
        let mut touched = BTreeSet::new();
        let given_up: Vec<_> =
            self.pending.extract_if(.., |pending| pending.asker.session == session).collect();
        for pending in given_up {
            self.untie(&pending, step);
            touched.extend(pending.items.into_iter().map(|item| item.name));
        }
        let mut delays = Vec::new();
        for held in self.grants.iter_mut().filter(|held| held.is_of(session)) {
            let HolderView { grant, mode, lock_delay_ms, .. } = held.holder;
            touched.insert(held.name.clone());
            if end == SessionEnd::Expired {
                doubt(&mut self.values, &held.name, mode);
                if lock_delay_ms > 0 {
                    held.died_ms = Some(self.now_ms);
                    delays.push((&held.name, grant, lock_delay_ms));
                }
            }
        }
        delays.sort();
        step.effects
            .extend(delays.iter().map(|(_, grant, for_ms)| Effect::Delay { grant: *grant, for_ms: *for_ms }));
        self.grants.retain(|held| !held.is_of(session));
        step.effects.push(Effect::SessionEnded { session, end });
        step.unserved.extend(touched);
    }

    // Requests, exactly once: rules 5 to 7.

    fn request(&mut self, asker: Asker, seen: u64, request: &Request, step: &mut Step) {
        let Asker { session, number } = asker;
        let Some(state) = self.sessions.get_mut(&session) else {
            step.effects.push(Effect::Answer { session, number, outcome: Err(Refusal::NoSession) });
            return;
        };
        state.floor = state.floor.max(seen);
        state.answers.retain(|number, kept| *number > seen || kept.waited);
        let limit = self.limits.answers_per_session;
        let unkept = if let Some(kept) = state.answers.get(&number) {
            Some(kept.outcome.clone())
        } else if number <= state.floor {
            Some(Err(Refusal::Forgotten))
        } else if count(state.answers.values().filter(|kept| kept.is_settled()).count()) >= limit {
            Some(Err(Refusal::TooManyAnswers { limit }))
        } else {
            None
        };
        if let Some(outcome) = unkept {
            step.effects.push(Effect::Answer { session, number, outcome });
            return;
        }
        let outcome = match request {
            Request::Acquire(acquire) => self.acquire(asker, acquire, step),
            Request::AcquireAll(all) => self.acquire_all(asker, all, step),
            Request::Convert { grant, to, wait, value } => {
                self.convert(asker, *grant, *to, *wait, value.as_ref(), step)
            }
            Request::Release { grant, value } => self.release(asker, *grant, value.as_ref(), step),
            Request::Cancel { number } => self.cancel(Asker { session, number: *number }, step),
            Request::SetValue { grant, bytes } => self.set_value(session, *grant, bytes),
            Request::Remember { grant, ago_ms, window_ms } => {
                self.remember(session, *grant, *ago_ms, *window_ms)
            }
            Request::Break { name, how: Break::Ask } => self.ask(name, step),
            Request::Break { name, how: Break::Force } => self.force(name, step),
            Request::Observe { name } => self.observe(session, name),
            Request::Unobserve { name } => {
                self.observers.remove(&(name.clone(), session));
                Ok(Answer::Unobserved)
            }
        };
        self.answer(asker, outcome, step);
    }

    /// Tells the answer to a request, and keeps it.
    fn answer(&mut self, asker: Asker, outcome: Outcome, step: &mut Step) {
        let Asker { session, number } = asker;
        let answers = &mut self.sessions.get_mut(&session).unwrap().answers;
        let waited = answers.contains_key(&number) || step.queued == Some(asker);
        answers.insert(number, Kept { outcome: outcome.clone(), waited });
        step.effects.push(Effect::Answer { session, number, outcome });
    }

    /// Only the answer to a request that has waited is acknowledged by itself.
    fn acknowledge(&mut self, session: SessionId, number: u64) {
        if let Some(state) = self.sessions.get_mut(&session) {
            state.answers.retain(|other, kept| *other != number || !kept.waited || !kept.is_settled());
        }
    }

    // What there is.

    /// All that stands at a resource, the dead too.
    fn standing(&self, name: &LockName) -> impl Iterator<Item = &Held> {
        self.grants.iter().filter(move |held| held.name == *name)
    }

    fn holders(&self, name: &LockName) -> impl Iterator<Item = &HolderView> {
        self.standing(name).filter(|held| held.died_ms.is_none()).map(|held| &held.holder)
    }

    fn holds(&self, owner: OwnerId, name: &LockName) -> bool {
        self.holders(name).any(|holder| holder.owner == owner)
    }

    /// Whether a mode goes with all that others have there.
    fn compatible(&self, owner: OwnerId, name: &LockName, mode: Mode) -> bool {
        let mut others =
            self.standing(name).filter(|held| held.died_ms.is_some() || held.holder.owner != owner);
        others.all(|held| held.holder.mode.compatible_with(mode))
    }

    fn at_once(&self, owner: OwnerId, item: &Item) -> bool {
        self.line(&item.name).is_empty() && self.compatible(owner, &item.name, item.mode)
    }

    fn held_by(&self, session: SessionId, grant: GrantId) -> Result<Held, Refusal> {
        let mut held = self.grants.iter().filter(|held| held.is_of(session));
        held.find(|held| held.holder.grant == grant).cloned().ok_or(Refusal::NotHeld)
    }

    fn conversion_of(&self, grant: GrantId) -> Option<usize> {
        self.pending
            .iter()
            .position(|pending| pending.kind == Kind::Convert && pending.items[0].grant == grant)
    }

    /// A delay is known by the dead grant's id, so that is in use too.
    fn in_use(&self, grant: GrantId) -> bool {
        self.grants.iter().any(|held| held.holder.grant == grant)
            || self.pending.iter().flat_map(|pending| &pending.items).any(|item| item.grant == grant)
    }

    fn names(&self) -> BTreeSet<&LockName> {
        let mut names: BTreeSet<&LockName> = self.busy_names();
        names.extend(self.values.keys());
        names.extend(self.starts.keys());
        names.extend(self.observers.iter().map(|(name, _)| name));
        names
    }

    fn busy_names(&self) -> BTreeSet<&LockName> {
        let held = self.grants.iter().map(|held| &held.name);
        let wanted = self.pending.iter().flat_map(|pending| &pending.items).map(|item| &item.name);
        held.chain(wanted).collect()
    }

    fn locks(&self, session: SessionId) -> usize {
        let waiting = self.pending.iter().filter(|p| p.asker.session == session && p.kind != Kind::Convert);
        self.grants.iter().filter(|held| held.is_of(session)).count()
            + waiting.map(|pending| pending.items.len()).sum::<usize>()
    }
}

impl Held {
    /// Whether a session has it. What is left of a dead one is nobody's, also if a session has that id again.
    fn is_of(&self, session: SessionId) -> bool {
        self.holder.session == session && self.died_ms.is_none()
    }

    fn delay(&self) -> Option<DelayView> {
        let HolderView { grant, mode, lock_delay_ms, .. } = self.holder;
        let (name, since_ms) = (self.name.clone(), self.died_ms?);
        Some(DelayView { grant, name, mode, for_ms: lock_delay_ms, since_ms })
    }
}

impl Pending {
    fn item(&self, name: &LockName) -> &Item {
        self.items.iter().find(|item| item.name == *name).unwrap()
    }
}

/// A holder in this mode is gone without its doing.
fn doubt(values: &mut BTreeMap<LockName, Value>, name: &LockName, mode: Mode) {
    if let Some(value) = values.get_mut(name).filter(|_| mode.may_write()) {
        value.in_doubt = true;
    }
}

/// The one with the largest token. Those that rest on one another have the same, and the strongest mode says most.
fn refuse_if(refused: bool, why: Refusal) -> Result<(), Refusal> {
    if refused { Err(why) } else { Ok(()) }
}

/// A request has left its lines while one of them is being served: the others follow.
fn serve_others(pending: &Pending, served: &LockName, step: &mut Step) {
    for item in pending.items.iter().filter(|item| item.name != *served) {
        step.serve_later(&item.name);
    }
}

fn tell(holder: &HolderView, mode: Mode, effects: &mut Vec<Effect>) {
    if holder.notify && !holder.mode.compatible_with(mode) {
        effects.push(Effect::Wanted { session: holder.session, grant: holder.grant, mode });
    }
}
