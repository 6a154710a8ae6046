//! The table's state, and how it applies a command.
//!
//! A command has four steps, always in this order. Its request is carried out and answered. Requests that can no longer be granted are
//! refused. The queues of all touched resources are served. Holders are notified of requests that wait behind them.

use std::collections::{BTreeSet, VecDeque};

use crate::arena::{Arena, Place};
use crate::index::{Found, Index, KeyHash};
use crate::list::Links;
use crate::lock::{Holder, Lock, Queued, Set};
use crate::owner::{Owner, Party};
use crate::resource::Resource;
use crate::session::{Session, Waiting};
use crate::{
    Command, Effect, FencingToken, GrantId, Limits, LockName, Mode, Outcome, OwnerId, Refusal, Request,
    SessionEnd, SessionId, SessionRefusal,
};

/// A lock manager as a pure state machine.
#[derive(Debug)]
pub struct Table {
    pub(crate) limits: Limits,
    pub(crate) rules: u32,
    pub(crate) now_ms: u64,
    pub(crate) last_token: u64,
    /// The order number of the request that queued last.
    pub(crate) last_order: u64,
    pub(crate) sessions: Arena<Session>,
    pub(crate) session_ids: Index<Session>,
    pub(crate) resources: Arena<Resource>,
    pub(crate) names: Index<Resource>,
    pub(crate) locks: Arena<Lock>,
    pub(crate) grants: Index<Lock>,
    pub(crate) owners: Arena<Owner>,
    pub(crate) owner_ids: Index<Owner>,
    pub(crate) queued: Arena<Queued>,
    pub(crate) sets: Arena<Set>,
    /// Resources with a recorded start, sorted by the time until which it is kept.
    pub(crate) starts: BTreeSet<(i64, LockName)>,
    /// The place of the last request's session, if it is still open.
    pub(crate) last_session: Option<(SessionId, Place<Session>)>,
    pub(crate) work: Work,
}

/// The work that a command has left to do. Empty between commands, and kept for its allocations.
#[derive(Debug, Default)]
pub(crate) struct Work {
    /// Resources whose queues are to be served.
    pub(crate) serve: VecDeque<Place<Resource>>,
    /// Requests that have just queued in a mode that no other request waited for.
    pub(crate) wanting: Vec<(Place<Resource>, Place<Lock>, Mode)>,
    /// New grants whose holders asked for notices.
    pub(crate) granted: Vec<GrantId>,
    /// Owners whose waiting requests may now be part of a deadlock, although they have not just queued. With the grant whose request is no
    /// longer tied, if that is the reason.
    pub(crate) recheck: Vec<(OwnerId, Option<GrantId>)>,
    /// Observed resources whose holders have changed. May contain duplicates.
    pub(crate) changed: Vec<Place<Resource>>,
}

impl Work {
    /// Whether no work is left. A single comparison, because every command asks.
    pub(crate) fn is_done(&self) -> bool {
        let Self { serve, wanting, granted, recheck, changed } = self;
        serve.len() + wanting.len() + granted.len() + recheck.len() + changed.len() == 0
    }

    /// Records that a lock was granted, or converted, for a holder that asked for notices.
    pub(crate) fn note_granted(&mut self, lock: &Lock) {
        if lock.notify {
            self.granted.push(lock.grant);
        }
    }
}

impl Table {
    /// The newest version of the rules that this crate knows.
    pub const RULES: u32 = 1;

    /// Creates an empty table. The seed is for its hash maps, and does not affect the table's decisions. Keep it secret from clients that
    /// choose names.
    pub fn new(limits: Limits, seed: u64) -> Self {
        Self {
            limits,
            rules: 1,
            now_ms: 0,
            last_token: 0,
            last_order: 0,
            sessions: Arena::new(),
            session_ids: Index::new(seed),
            resources: Arena::new(),
            names: Index::new(seed),
            locks: Arena::new(),
            grants: Index::new(seed),
            owners: Arena::new(),
            owner_ids: Index::new(seed),
            queued: Arena::new(),
            sets: Arena::new(),
            starts: BTreeSet::new(),
            last_session: None,
            work: Work::default(),
        }
    }

    /// Applies a command, and appends its effects.
    #[inline(never)]
    pub fn apply(&mut self, command: Command, effects: &mut Vec<Effect>) {
        match command {
            Command::Request { session, number, seen, request } => {
                self.request(session, number, seen, request, effects);
            }
            other => self.other_command(other, effects),
        }
    }

    /// Applies the less frequent commands. Separate, because one large function makes the frequent ones slower.
    #[inline(never)]
    fn other_command(&mut self, command: Command, effects: &mut Vec<Effect>) {
        match command {
            Command::OpenSession { session, ttl_ms, label } => {
                effects.push(self.open_session(session, ttl_ms, label));
            }
            Command::KeepSession { session } => effects.push(self.keep_session(session)),
            Command::CloseSession { session } => self.end_session(session, SessionEnd::Closed, effects),
            Command::ExpireSession { session, epoch } => match self.session(session) {
                Some(place) if self.sessions[place].epoch != epoch => {
                    effects.push(Effect::SessionOpen { session, epoch: self.sessions[place].epoch });
                }
                _ => self.end_session(session, SessionEnd::Expired, effects),
            },
            Command::Acknowledge { session, number } => {
                if let Some(place) = self.session(session) {
                    self.sessions[place].memory.seen_one(number);
                }
            }
            Command::EndDelay { grant } => self.end_delay(grant),
            Command::AdvanceTime { to_ms } => self.advance_time(to_ms),
            Command::SetLimits(limits) => self.limits = limits,
            Command::SetRules { version } if version > Self::RULES => {
                effects.push(Effect::RulesUnknown { version, known: Self::RULES });
            }
            Command::SetRules { version } => self.rules = self.rules.max(version),
            Command::Request { .. } => unreachable!("this was done before"),
        }
        self.finish(effects);
    }

    /// Ends every command. Most leave no work to do.
    fn finish(&mut self, effects: &mut Vec<Effect>) {
        if !self.work.is_done() {
            self.do_rest(effects);
        }
    }

    #[inline(never)]
    fn do_rest(&mut self, effects: &mut Vec<Effect>) {
        loop {
            if !self.work.recheck.is_empty() {
                self.recheck(effects);
            } else if let Some(resource) = self.work.serve.pop_front() {
                self.serve(resource, effects);
            } else {
                break;
            }
        }
        self.tell_holders(effects);
        self.tell_observers(effects);
    }

    /// Checks one owner again for a deadlock.
    fn recheck(&mut self, effects: &mut Vec<Effect>) {
        // Sorted by id, because the locks of a session end in an arbitrary order.
        self.work.recheck.sort_unstable_by(|a, b| b.cmp(a));
        let Some((owner, untied)) = self.work.recheck.pop() else { return };
        // If the request was settled or has ended meanwhile, it waits for no new owner.
        let waits = |grant| {
            let lock = self.grants.find(&self.locks, &grant).map(|lock| &self.locks[lock]);
            lock.is_some_and(|lock| lock.queued.is_some() && !lock.held)
        };
        if untied.is_none_or(waits)
            && let Some(owner) = self.find_owner(owner)
        {
            self.refuse_deadlocked(owner, effects);
        }
    }

    /// Returns the session of a new request. Answers any other request, and returns `None`.
    fn admit(
        &mut self,
        session: SessionId,
        number: u64,
        seen: u64,
        effects: &mut Vec<Effect>,
    ) -> Option<Place<Session>> {
        let Some(place) = self.session_of_request(session) else {
            effects.push(Effect::Answer { session, number, outcome: Err(Refusal::NoSession) });
            return None;
        };
        let memory = &mut self.sessions[place].memory;
        memory.seen(seen);
        if let Some(outcome) = memory.repeat(number) {
            effects.push(Effect::Answer { session, number, outcome });
            return None;
        }
        let limit = self.limits.answers_per_session;
        if memory.kept() >= limit as usize {
            effects.push(Effect::Answer { session, number, outcome: Err(Refusal::TooManyAnswers { limit }) });
            return None;
        }
        Some(place)
    }

    #[inline(never)]
    fn request(
        &mut self,
        session: SessionId,
        number: u64,
        seen: u64,
        request: Request,
        effects: &mut Vec<Effect>,
    ) {
        let Some(session) = self.admit(session, number, seen, effects) else { return };
        let done = match request {
            Request::Acquire(acquire) => self.acquire(session, number, acquire, effects),
            Request::Release { grant, value } => self.release(session, number, grant, value, effects),
            other => {
                let outcome = self.other_request(session, number, other, effects);
                self.answer(session, number, outcome, effects);
                Ok(())
            }
        };
        if let Err(refusal) = done {
            self.answer(session, number, Err(refusal), effects);
        }
        self.finish(effects);
    }

    /// Carries out the less frequent requests. Separate, because one large function makes the frequent ones slower.
    #[inline(never)]
    fn other_request(
        &mut self,
        place: Place<Session>,
        number: u64,
        request: Request,
        effects: &mut Vec<Effect>,
    ) -> Outcome {
        match request {
            Request::AcquireAll(all) => self.acquire_all(place, number, &all),
            Request::Convert { grant, to, wait, value } => {
                self.convert(place, number, grant, to, wait, value)
            }
            Request::Cancel { number } => self.cancel(place, number, effects),
            Request::SetValue { grant, bytes } => self.set_value(place, grant, &bytes),
            Request::Remember { grant, ago_ms, window_ms } => self.remember(place, grant, ago_ms, window_ms),
            Request::Break { name, how } => self.break_lock(&name, how, effects),
            Request::Observe { name } => self.observe(place, &name),
            Request::Unobserve { name } => Ok(self.unobserve(place, &name)),
            Request::Acquire(_) | Request::Release { .. } => unreachable!("these were done before"),
        }
    }

    /// Returns the session of a request. Consecutive requests are often of one session, so the last one is cached.
    fn session_of_request(&mut self, session: SessionId) -> Option<Place<Session>> {
        match self.last_session {
            Some((id, place)) if id == session => Some(place),
            _ => {
                let place = self.session(session)?;
                self.last_session = Some((session, place));
                Some(place)
            }
        }
    }

    fn open_session(
        &mut self,
        session: SessionId,
        ttl_ms: u64,
        label: Option<crate::label::Label>,
    ) -> Effect {
        if let Some(place) = self.session(session) {
            return Effect::SessionOpen { session, epoch: self.sessions[place].epoch };
        }
        let limit = self.limits.label_bytes;
        if label.as_ref().is_some_and(|label| label.len() > limit as usize) {
            return Effect::SessionRefused { session, why: SessionRefusal::LabelTooLong { limit } };
        }
        let limit = self.limits.sessions;
        if self.session_ids.len() >= limit as usize {
            return Effect::SessionRefused { session, why: SessionRefusal::TooManySessions { limit } };
        }
        self.session_ids.put(&mut self.sessions, Session::new(session, 1, ttl_ms, label));
        Effect::SessionOpen { session, epoch: 1 }
    }

    fn keep_session(&mut self, session: SessionId) -> Effect {
        let Some(place) = self.session(session) else { return Effect::SessionUnknown { session } };
        self.sessions[place].epoch += 1;
        Effect::SessionOpen { session, epoch: self.sessions[place].epoch }
    }

    pub(crate) fn session(&self, id: SessionId) -> Option<Place<Session>> {
        self.session_ids.find(&self.sessions, &id)
    }

    /// Returns the lock of a grant that this session holds.
    pub(crate) fn held(&self, session: Place<Session>, grant: GrantId) -> Result<Place<Lock>, Refusal> {
        let lock = self.grants.find(&self.locks, &grant);
        let stands = |lock: &Lock| lock.held && lock.is_of(session);
        lock.filter(|lock| stands(&self.locks[*lock])).ok_or(Refusal::NotHeld)
    }

    /// Returns the resource of this name, and creates it if it does not exist. A resource that stays unused must be [touched](Self::touch).
    pub(crate) fn resource(&mut self, name: &LockName) -> Place<Resource> {
        let hash = self.names.hash(name);
        let known = self.names.find_hashed(&self.resources, hash, name);
        known.unwrap_or_else(|| self.names.put_hashed(&mut self.resources, hash, Resource::new(name.clone())))
    }

    /// Notes that a resource has changed: it is served before the command ends, or removed if it is idle.
    pub(crate) fn touch(&mut self, resource: Place<Resource>) {
        let here = &mut self.resources[resource];
        match &mut here.rest {
            Some(rest) if rest.touched => {}
            Some(rest) => {
                rest.touched = true;
                self.work.serve.push_back(resource);
            }
            None if here.held.is_empty() => self.forget(resource),
            None => {}
        }
    }

    /// Removes an idle resource.
    pub(crate) fn forget(&mut self, resource: Place<Resource>) {
        self.names.take(&mut self.resources, resource);
    }

    pub(crate) const fn next_token(&mut self) -> FencingToken {
        self.last_token += 1;
        FencingToken::new(self.last_token)
    }

    /// Adds a lock that is neither held nor queued yet.
    pub(crate) fn put_lock(&mut self, lock: Lock) -> Place<Lock> {
        let hash = self.grants.hash(&lock.grant);
        self.put_lock_hashed(hash, lock)
    }

    pub(crate) fn put_lock_hashed(&mut self, hash: KeyHash, lock: Lock) -> Place<Lock> {
        let holder = lock.holder;
        let place = self.grants.put_hashed(&mut self.locks, hash, lock);
        if let Some(holder) = holder {
            self.join_holder(holder, place);
        }
        place
    }

    /// Adds a lock to its holder's session and owner.
    pub(crate) fn join_holder(&mut self, holder: Holder, lock: Place<Lock>) {
        let session = &mut self.sessions[holder.session];
        session.locks.push(&mut self.locks, lock);
        session.lock_count += 1;
        if let Some(owner) = holder.owner {
            self.add_to_owner(owner, lock);
        }
    }

    /// Removes a lock that is not queued. Returns its resource, which must be [touched](Self::touch).
    pub(crate) fn take_lock(&mut self, place: Place<Lock>) -> Place<Resource> {
        let found = self.grants.look_up_place(&self.locks, place);
        self.take_found(&found)
    }

    /// As [`take_lock`](Self::take_lock), for a lock that has just been looked up.
    pub(crate) fn take_found(&mut self, found: &Found<Lock>) -> Place<Resource> {
        let lock = self.grants.take_found(&mut self.locks, found);
        debug_assert!(lock.queued.is_none());
        if lock.held {
            self.resources[lock.resource].remove(&mut self.locks, &lock);
            self.note_changed(lock.resource);
        }
        if let Some(holder) = lock.holder {
            self.leave_holder(holder, &lock.of_session, &lock.of_owner);
        }
        lock.resource
    }

    /// Removes a lock, which had these neighbours, from its holder's session and owner.
    pub(crate) fn leave_holder(&mut self, holder: Holder, of_session: &Links<Lock>, of_owner: &Links<Lock>) {
        let session = &mut self.sessions[holder.session];
        session.locks.close(&mut self.locks, of_session);
        session.lock_count -= 1;
        if let Some(owner) = holder.owner {
            self.take_from_owner(owner, of_owner);
        }
    }

    /// Queues a lock: behind the waiters, or, if it is held, behind the waiting conversions.
    pub(crate) fn enqueue(
        &mut self,
        lock: Place<Lock>,
        mode: Mode,
        number: u64,
        order: u64,
    ) -> Place<Queued> {
        let place = self.queued.put(Queued::new(lock, mode, number, order, self.now_ms));
        self.stand_in_line(place);
        place
    }

    /// Adds a queued request to the resource's queue and to its owner's requests.
    pub(crate) fn stand_in_line(&mut self, place: Place<Queued>) {
        let (lock, mode) = (self.queued[place].lock, self.queued[place].mode);
        self.locks[lock].queued = Some(place);
        let Lock { held, resource, holder, .. } = self.locks[lock];
        if let Some(owner) = holder.expect("only what has an owner waits").owner {
            self.queued[place].tied = !held && self.first_of(Party::Recorded(owner), resource).is_some();
            self.owners[owner].queued.push(&mut self.queued, place);
        }
        let rest = self.resources[resource].rest(&self.locks);
        rest.wanted.add(mode);
        if held {
            rest.converting.push(&mut self.queued, place);
            rest.converting_count += 1;
        } else {
            rest.waiting.push(&mut self.queued, place);
            rest.waiting_count += 1;
        }
    }

    /// Removes a request from the queue.
    pub(crate) fn dequeue(&mut self, place: Place<Queued>) -> Queued {
        let (lock, mode) = (self.queued[place].lock, self.queued[place].mode);
        self.locks[lock].queued = None;
        let Lock { held, resource, holder, .. } = self.locks[lock];
        let owner = holder.expect("only what has an owner waits").owner;
        if let Some(owner) = owner {
            self.owners[owner].queued.remove(&mut self.queued, place);
        }
        let rest = self.resources[resource].rest(&self.locks);
        rest.wanted.subtract(mode);
        if held {
            rest.converting.remove(&mut self.queued, place);
            rest.converting_count -= 1;
        } else {
            rest.waiting.remove(&mut self.queued, place);
            rest.waiting_count -= 1;
        }
        let queued = self.queued.take(place);
        // A request that was tied to this one now waits by itself, perhaps in a deadlock.
        if !held
            && !queued.tied
            && let Some(owner) = owner
            && let Some(next) = self.first_of(Party::Recorded(owner), resource)
        {
            self.queued[next].tied = false;
            let untied = self.locks[self.queued[next].lock].grant;
            self.work.recheck.push((self.owners[owner].id(), Some(untied)));
        }
        queued
    }

    /// Returns an owner's first waiting request for a resource. Searches the shorter of the two lists.
    pub(crate) fn first_of(&self, owner: Party, resource: Place<Resource>) -> Option<Place<Queued>> {
        let rest = self.resources[resource].rest.as_ref()?;
        if rest.waiting_count < owner.lock_count(&self.owners) {
            return rest.waiting.iter(&self.queued).find(|queued| self.owner_of(*queued) == owner);
        }
        self.queued_of(owner).find(|queued| {
            let lock = &self.locks[self.queued[*queued].lock];
            lock.resource == resource && !lock.held
        })
    }

    /// Records in the session that a request waits.
    pub(crate) fn note_waiting(
        &mut self,
        session: Place<Session>,
        number: u64,
        place: u32,
        queued: Place<Queued>,
    ) {
        self.sessions[session].memory.wait(Waiting { number, place, queued });
    }

    /// Returns the limits.
    pub const fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Returns the version of the rules that this table follows.
    pub const fn rules(&self) -> u32 {
        self.rules
    }

    /// Returns the table's time.
    pub const fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// Returns the token of the last grant that received a new one.
    pub const fn last_token(&self) -> FencingToken {
        FencingToken::new(self.last_token)
    }
}
