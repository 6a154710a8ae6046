//! The requests of clients: each is one step of the store's state.

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use tenure_table::{
    Acquire, AcquireAll, Answer, Break as TableBreak, Command, GrantId, Item, Limits, LockName, Mode,
    Outcome, Refusal, Request, Wait,
};
use tokio::sync::{oneshot, watch};

use super::super::look::{self, Calendar};
use super::super::server::LinkId;
use super::{
    ClientSession, End, Entry, Given, SessionRef, Settled, State, TableSession, Waits, milliseconds,
    session_of,
};
use crate::engine::{AcquireRequest, Break, Conversion, Remembered, Start};
use crate::error::LostReason;
use crate::info::{LockInfo, Member};
use crate::lease::Term;

/// The most renewals of a session in a row while it has no grants.
const MOST_IDLE_ROUNDS: u32 = 6;

/// The response to a request that may wait.
pub(crate) enum Reply {
    Settled(Settled),
    Waits(oneshot::Receiver<Settled>),
    /// The session in which the lock was to be granted has ended.
    NoSession,
}

/// The outcome of undoing a conversion.
pub(crate) enum UndoOutcome {
    /// The old mode is in effect.
    Old,
    /// The new mode is in effect: it was weaker, and other requests have been granted the lock.
    New(Given),
    /// The grant no longer exists.
    Lost,
}

/// Rounds up to whole milliseconds, so that a window or a delay is not shorter than requested.
fn whole_milliseconds(duration: Duration) -> u64 {
    duration.as_nanos().div_ceil(1_000_000).try_into().unwrap_or(u64::MAX)
}

const fn wait(waits: bool) -> Wait {
    if waits { Wait::Queue } else { Wait::Try }
}

/// Builds the table's request. The requests differ only in grant, name and mode.
fn asked_of_table(first: &AcquireRequest, requests: &[AcquireRequest]) -> Request {
    let most = Limits::default().label_bytes as usize;
    let label = first.label.as_deref().map(|label| label[..label.floor_char_boundary(most)].into());
    let (wait, lock_delay_ms) = (wait(first.waits()), whole_milliseconds(first.lock_delay));
    let AcquireRequest { grant, ref name, mode, owner, notify, .. } = *first;
    if requests.len() == 1 {
        let name = name.clone();
        return Request::Acquire(Acquire { grant, name, mode, owner, wait, label, lock_delay_ms, notify });
    }
    let item = |request: &AcquireRequest| Item {
        grant: request.grant,
        name: request.name.clone(),
        mode: request.mode,
    };
    let items = requests.iter().map(item).collect();
    Request::AcquireAll(AcquireAll { owner, items, wait, label, lock_delay_ms, notify })
}

impl State {
    /// Acquires one lock, or several at one instant.
    pub(crate) fn acquire(
        &mut self,
        requests: &[AcquireRequest],
        link: LinkId,
        hangs_on: Option<SessionRef>,
    ) -> Reply {
        let Some(first) = requests.first() else { return Reply::Settled(Ok(Vec::new())) };
        let mut known = self.grants.contains_key(&first.grant);
        if let Some(waits) = self.grants.get_mut(&first.grant).and_then(|entry| entry.waits.as_mut()) {
            // The request keeps its place in the queue, and the response goes to this call.
            if !first.waits() {
                return Reply::Settled(Err(Refusal::Busy { name: first.name.clone() }));
            }
            let (answer, settled) = oneshot::channel();
            waits.answer = answer;
            return Reply::Waits(settled);
        }
        if requests.len() > 1 && requests.iter().any(|request| self.grants.contains_key(&request.grant)) {
            // The response to an earlier attempt was lost.
            self.keep(first.grant);
            let held = requests.iter().map(|request| self.as_it_stands(request.grant));
            if let Some(held) = held.collect::<Option<_>>() {
                return Reply::Settled(Ok(held));
            }
            for request in requests {
                self.end(request.grant);
            }
            known = false;
        }
        if let Some(named) = hangs_on
            && !self.sessions.contains_key(&named.id)
        {
            if !named.may_open {
                return Reply::NoSession;
            }
            self.open_session(named);
        }
        if !known {
            self.open(requests, link, hangs_on.map(|named| named.id));
        }
        let (number, outcome) = self.request(first.grant, asked_of_table(first, requests));
        let grants: Vec<_> = requests.iter().map(|request| request.grant).collect();
        match outcome {
            Ok(Answer::Queued { .. }) => Reply::Waits(self.wait_for(grants, number, false)),
            Ok(answer) => {
                self.keep(first.grant);
                Reply::Settled(self.all_given(&grants, answer))
            }
            Err(refusal) => {
                // The session of a known grant stays open, since an earlier request still uses it.
                if !known {
                    self.apply(Command::CloseSession { session: session_of(first.grant) });
                }
                Reply::Settled(Err(refusal))
            }
        }
    }

    /// Opens the table's session for the grants of a request.
    fn open(&mut self, requests: &[AcquireRequest], link: LinkId, hangs_on: Option<u128>) {
        let Some(first) = requests.first() else { return };
        let (session, ttl_ms) = (session_of(first.grant), milliseconds(first.ttl.get()));
        let grants = requests.iter().map(|request| request.grant).collect();
        self.requests.insert(session, TableSession { grants, ..TableSession::default() });
        for request in requests {
            let entry = Entry {
                name: request.name.clone(),
                session,
                ttl: request.ttl.get(),
                hangs_on,
                since: None,
                link,
                events: request.events.clone(),
                waits: None,
                conversion: None,
            };
            self.grants.insert(request.grant, entry);
        }
        self.apply(Command::OpenSession { session, ttl_ms, label: None });
    }

    fn wait_for(&mut self, grants: Vec<GrantId>, number: u64, converts: bool) -> oneshot::Receiver<Settled> {
        let (answer, settled) = oneshot::channel();
        if let Some(entry) = grants.first().and_then(|first| self.grants.get_mut(first)) {
            entry.waits = Some(Waits { number, converts, grants, answer });
        }
        settled
    }

    /// Ends a grant, or withdraws the request for it.
    pub(crate) fn withdraw(&mut self, grant: GrantId) {
        self.end(grant);
    }

    /// Frees a grant. Returns whether it was held.
    pub(crate) fn release(&mut self, grant: GrantId) -> bool {
        let held = self.grants.get(&grant).is_some_and(|entry| entry.since.is_some());
        if held {
            self.withdraw(grant);
        }
        held
    }

    pub(crate) fn renew(&mut self, grant: GrantId) -> Option<Term> {
        self.grants.get(&grant)?.since?;
        self.keep(grant);
        Some(self.lease_of(self.grants.get(&grant)?)?.0)
    }

    fn open_session(&mut self, named: SessionRef) {
        let opened =
            ClientSession { ttl: named.ttl, since: self.now, grants: BTreeSet::new(), idle_rounds: 0 };
        self.ends.insert((opened.ends(), End::Session(named.id)));
        self.sessions.insert(named.id, opened);
    }

    /// Keeps alive all grants of a client's session. Returns `None` if there is no such session.
    pub(crate) fn keep_session(&mut self, id: u128) -> Option<Term> {
        let session = self.sessions.get_mut(&id)?;
        self.ends.remove(&(session.ends(), End::Session(id)));
        session.idle_rounds = if session.grants.is_empty() { session.idle_rounds + 1 } else { 0 };
        if session.idle_rounds > MOST_IDLE_ROUNDS {
            self.sessions.remove(&id);
            return None;
        }
        session.since = self.now;
        self.ends.insert((session.ends(), End::Session(id)));
        Some(session.term())
    }

    pub(crate) fn convert(&mut self, conversion: &Conversion, attempt: u64) -> Reply {
        let (grant, wait) = (conversion.grant.id, wait(conversion.waits));
        let (number, outcome) =
            self.request(grant, Request::Convert { grant, to: conversion.to, wait, value: None });
        match outcome {
            Ok(Answer::Queued { .. }) => {
                self.note_conversion(grant, attempt);
                Reply::Waits(self.wait_for(vec![grant], number, true))
            }
            Ok(answer) => {
                self.note_conversion(grant, attempt);
                Reply::Settled(self.all_given(&[grant], answer))
            }
            Err(refusal) => Reply::Settled(Err(refusal)),
        }
    }

    fn note_conversion(&mut self, grant: GrantId, attempt: u64) {
        if let Some(entry) = self.grants.get_mut(&grant) {
            entry.conversion = Some(attempt);
        }
    }

    /// Undoes a conversion from this mode, unless a later conversion has followed.
    pub(crate) fn undo_conversion(&mut self, grant: GrantId, attempt: u64, from: Mode) -> UndoOutcome {
        let Some(entry) = self.grants.get_mut(&grant) else { return UndoOutcome::Lost };
        if entry.conversion.take_if(|last| *last == attempt).is_none() {
            return UndoOutcome::Old;
        }
        if let Some(number) = entry.waits.as_ref().map(|waits| waits.number) {
            // The conversion still waits, so it can be cancelled.
            let _ = self.request(grant, Request::Cancel { number });
            return UndoOutcome::Old;
        }
        let back = Request::Convert { grant, to: from, wait: Wait::Try, value: None };
        match self.request(grant, back).1 {
            Ok(_) => UndoOutcome::Old,
            Err(_) => self.as_it_stands(grant).map_or(UndoOutcome::Lost, UndoOutcome::New),
        }
    }

    fn as_it_stands(&self, grant: GrantId) -> Option<Given> {
        let entry = self.grants.get(&grant)?;
        let view = self.table.inspect(&entry.name)?;
        let holder = view.holders.iter().find(|holder| holder.grant == grant)?;
        let (term, in_session) = self.lease_of(entry)?;
        Some(Given { token: holder.token, value: view.value.clone(), term, in_session })
    }

    pub(crate) fn set_value(&mut self, grant: GrantId, bytes: Bytes) -> Result<(), Refusal> {
        self.request(grant, Request::SetValue { grant, bytes }).1.map(drop)
    }

    pub(crate) fn remember(&mut self, grant: GrantId, start: Start) -> Result<Remembered, Refusal> {
        let (ago_ms, window_ms) = (milliseconds(start.ago), whole_milliseconds(start.window));
        match self.request(grant, Request::Remember { grant, ago_ms, window_ms }).1? {
            Answer::AlreadyStarted { ago_ms } => {
                Ok(Remembered::Already { ago: Duration::from_millis(ago_ms) })
            }
            _ => Ok(Remembered::Recorded),
        }
    }

    pub(crate) fn recall(&self, name: &LockName, window: Duration) -> Option<Duration> {
        self.table.recall(name, whole_milliseconds(window)).map(Duration::from_millis)
    }

    fn calendar(&self) -> Calendar {
        Calendar { now_ms: self.table.now_ms(), wall: self.time.wall() }
    }

    pub(crate) fn inspect(&self, name: LockName) -> LockInfo {
        let view = self.table.inspect(&name);
        look::info(name, view, self.calendar())
    }

    pub(crate) fn list(&self, prefix: &str) -> Vec<LockInfo> {
        let infos = self.table.list(prefix, None, usize::MAX).into_iter();
        infos.map(|view| look::info(view.name.clone(), Some(view), self.calendar())).collect()
    }

    /// Breaks a lock. Returns its holders, or `None` if there was nothing to break. By force, reachable holders are notified before the
    /// lock is granted to another client.
    pub(crate) fn break_lock(&mut self, name: &LockName, how: Break) -> Option<Vec<Member>> {
        let calendar = self.calendar();
        let holders = self.table.inspect(name).map(|view| view.holders).unwrap_or_default();
        let how = match how {
            Break::Ask => TableBreak::Ask,
            Break::Force => {
                // In this step, and not by a message: the lock is granted to no other client before the step is over.
                for entry in holders.iter().filter_map(|holder| self.grants.get(&holder.grant)) {
                    if self.is_open(entry.link) {
                        entry.events.lost(LostReason::Broken);
                    }
                }
                TableBreak::Force
            }
        };
        let broken = self.operate(Request::Break { name: name.clone(), how });
        broken.ok().map(|_| holders.iter().map(|view| look::holder(view, calendar)).collect())
    }

    /// Returns a receiver that is notified of changes of a lock's holders, and once immediately.
    pub(crate) fn observe(&mut self, name: &LockName) -> watch::Receiver<()> {
        let gone: Vec<_> = self.observers.extract_if(.., |_, observers| observers.is_closed()).collect();
        for (name, _) in gone {
            let _ = self.operate(Request::Unobserve { name });
        }
        if !self.observers.contains_key(name) {
            // The table does not refuse this, since the limit is off.
            let _ = self.operate(Request::Observe { name: name.clone() });
            self.observers.insert(name.clone(), watch::Sender::new(()));
        }
        let mut changes = self.observers[name].subscribe();
        changes.mark_changed();
        changes
    }

    /// Sends a request to the table in the operator's session.
    fn operate(&mut self, request: Request) -> Outcome {
        self.operator_number += 1;
        self.ask(self.operator, self.operator_number, request)
    }
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use tenure_table::LockName;

    use super::*;
    use crate::clock::ManualClock;
    use crate::engine::Cancellation;
    use crate::engines::memory::server::Time;

    #[test]
    fn a_conversion_is_not_undone_once_another_has_followed() {
        let mut state = State::new(Time::Moved(ManualClock::new()));
        let mut request = AcquireRequest::new(LockName::parse("a").unwrap());
        request.mode = Mode::Pr;
        let Reply::Settled(Ok(_)) = state.acquire(from_ref(&request), LinkId::DIRECT, None) else {
            panic!("it is free")
        };
        let up = || Conversion::new(request.granted(None), Mode::Ex, false, Cancellation::new());
        let mode = |state: &State| state.inspect(request.name.clone()).holders[0].mode;
        let convert = |state: &mut State, attempt| {
            assert!(matches!(state.convert(&up(), attempt), Reply::Settled(Ok(_))));
        };
        convert(&mut state, 1);
        convert(&mut state, 2);
        assert!(matches!(state.undo_conversion(request.grant, 1, Mode::Pr), UndoOutcome::Old));
        assert_eq!(mode(&state), Mode::Ex, "the second one stands");
        for _ in 0..2 {
            assert!(matches!(state.undo_conversion(request.grant, 2, Mode::Pr), UndoOutcome::Old));
            assert_eq!(mode(&state), Mode::Pr);
        }
        convert(&mut state, 3);
        state.withdraw(request.grant);
        assert!(matches!(state.undo_conversion(request.grant, 3, Mode::Pr), UndoOutcome::Lost));
    }
    /// The table ends the grants of a set together, so renewing one renews all.
    #[test]
    fn the_leases_of_a_set_end_together() {
        let clock = ManualClock::new();
        let mut state = State::new(Time::Moved(clock.clone()));
        let request = |name| AcquireRequest::new(LockName::parse(name).unwrap());
        let mut set = [request("a"), request("b")];
        set[1].owner = set[0].owner;
        let Reply::Settled(Ok(given)) = state.acquire(&set, LinkId::DIRECT, None) else {
            panic!("they are free")
        };
        assert_eq!(given.len(), 2);
        let ttl = set[0].ttl.get();
        for _ in 0..3 {
            clock.advance(ttl * 2 / 3);
            state.begin_step();
            assert!(state.renew(set[0].grant).is_some());
        }
        let held = |state: &State, name| state.inspect(LockName::parse(name).unwrap()).holders.len();
        assert_eq!((held(&state, "a"), held(&state, "b")), (1, 1));
        assert!(state.release(set[1].grant));
        assert_eq!((held(&state, "a"), held(&state, "b")), (1, 0));
        clock.advance(ttl * 2);
        state.begin_step();
        assert_eq!((held(&state, "a"), held(&state, "b")), (0, 0));
    }
}
