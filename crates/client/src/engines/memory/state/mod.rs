//! The state of a store: the lock table, the leases of its grants, and the messages not yet sent.
//!
//! Each request for a lock has a session of the table. One grant, or the grants of one set of locks, share it. The session exists from the
//! request on, and its lease begins with the grant: a waiter does not expire.

mod requests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use tenure_table::{
    Answer, Command, Effect, FencingToken, GrantId, Limits, LockName, Mode, Outcome, Refusal, Request,
    SessionId, Table, Value,
};
use tokio::sync::{oneshot, watch};

pub(super) use self::requests::{Reply, UndoOutcome};
use super::server::{LinkId, Time};
use crate::clock::BootTime;
use crate::engine::{GrantEvents, Granted};
use crate::error::LostReason;
use crate::lease::Term;
use crate::random;

#[derive(Debug)]
pub(super) struct State {
    time: Time,
    /// The instant of this step.
    now: BootTime,
    table: Table,
    grants: HashMap<GrantId, Entry>,
    /// The table's sessions.
    requests: HashMap<SessionId, TableSession>,
    /// The sessions of clients.
    sessions: HashMap<u128, ClientSession>,
    /// The end of each lease, session and lock-delay.
    ends: BTreeSet<(BootTime, End)>,
    /// The table's session that breaks and observes locks.
    operator: SessionId,
    operator_number: u64,
    /// The observers of each lock.
    observers: BTreeMap<LockName, watch::Sender<()>>,
    links: Vec<LinkState>,
    paused: bool,
    /// Messages to be sent, each with its link.
    messages: Vec<(LinkId, Message)>,
}

/// A session of the table, for one request.
#[derive(Debug, Default)]
struct TableSession {
    epoch: u64,
    /// The number of the last request in the session.
    number: u64,
    grants: BTreeSet<GrantId>,
}

/// A grant, or a waiting request for one.
#[derive(Debug)]
struct Entry {
    name: LockName,
    session: SessionId,
    ttl: Duration,
    /// The client's session that keeps the grant alive, unless the grant has a separate lease.
    hangs_on: Option<u128>,
    /// The start of the lease; `None` while the request waits.
    since: Option<BootTime>,
    link: LinkId,
    events: GrantEvents,
    /// For several requests that are granted together, only the first has this.
    waits: Option<Waits>,
    /// The last conversion, if it may have to be undone.
    conversion: Option<u64>,
}

/// Something that ends at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    /// The lease of a grant.
    Lease(GrantId),
    /// The session of a client.
    Session(u128),
    /// The lock-delay that a dead grant left behind.
    Delay(GrantId),
}

/// A request that waits in the table.
#[derive(Debug)]
struct Waits {
    number: u64,
    converts: bool,
    /// The requested grants, in the order of the response.
    grants: Vec<GrantId>,
    answer: oneshot::Sender<Settled>,
}

/// The state of a link.
#[derive(Debug, Default)]
struct LinkState {
    cut: bool,
    /// The number of responses still to be lost.
    losing: usize,
}

/// A message to a client that is not the response to its current request.
#[derive(Debug)]
pub(super) enum Message {
    Settled(oneshot::Sender<Settled>, Settled),
    Lost(GrantEvents),
    Wanted(GrantEvents, Mode),
}

impl Message {
    pub(super) fn send(self) {
        match self {
            Self::Settled(answer, settled) => {
                // A client that no longer waits has withdrawn its request, or is about to.
                let _ = answer.send(settled);
            }
            Self::Lost(events) => events.lost(LostReason::Broken),
            Self::Wanted(events, mode) => events.wanted(mode),
        }
    }
}

/// The outcome of a request for locks or for a mode.
pub(super) type Settled = Result<Vec<Given>, Refusal>;

/// The result of a grant.
#[derive(Debug)]
pub(super) struct Given {
    token: FencingToken,
    value: Value,
    term: Term,
    /// Whether the grant lasts as long as its client's session.
    pub(super) in_session: bool,
}

/// A client's session, as the client names it.
#[derive(Clone, Copy, Debug)]
pub(super) struct SessionRef {
    pub(super) id: u128,
    pub(super) ttl: Duration,
    /// Whether to open the session if it does not exist: the client has not named it before.
    pub(super) may_open: bool,
}

/// A client's session.
#[derive(Debug)]
struct ClientSession {
    ttl: Duration,
    since: BootTime,
    /// The grants that depend on the session.
    grants: BTreeSet<GrantId>,
    /// The number of renewals in a row without any grants.
    idle_rounds: u32,
}

impl ClientSession {
    fn ends(&self) -> BootTime {
        self.since + self.ttl
    }

    const fn term(&self) -> Term {
        Term::Lease { sent_at: self.since, ttl: self.ttl, margin: Duration::ZERO }
    }
}

impl From<Given> for Granted {
    fn from(given: Given) -> Self {
        Self::new(Some(given.token), given.term).with_value(given.value)
    }
}

/// Returns the id of the table's session for a request, given its first grant.
const fn session_of(grant: GrantId) -> SessionId {
    SessionId::from_u128(grant.as_u128())
}

fn milliseconds(duration: Duration) -> u64 {
    duration.as_millis().try_into().unwrap_or(u64::MAX)
}

impl State {
    pub(super) fn new(time: Time) -> Self {
        // Each grant has a session, and one session observes locks for all clients. The limits are off, so only memory bounds their number.
        let limits = Limits {
            sessions: u32::MAX,
            observed_per_session: u32::MAX,
            items_per_request: u32::MAX,
            ..Limits::default()
        };
        let mut table = Table::new(limits, random::seed());
        let operator = session_of(random::grant_id());
        table.apply(Command::OpenSession { session: operator, ttl_ms: 0, label: None }, &mut Vec::new());
        Self {
            now: time.now(),
            time,
            table,
            grants: HashMap::new(),
            requests: HashMap::new(),
            sessions: HashMap::new(),
            ends: BTreeSet::new(),
            operator,
            operator_number: 0,
            observers: BTreeMap::new(),
            links: vec![LinkState::default()],
            paused: false,
            messages: Vec::new(),
        }
    }

    /// Reads the clock, and ends what is over.
    pub(super) fn begin_step(&mut self) {
        self.now = self.time.now();
        let to_ms = milliseconds(self.now.since_boot());
        self.apply(Command::AdvanceTime { to_ms });
        self.end_what_is_over();
    }

    /// Ends the leases, sessions and lock-delays that are over, unless the store is paused.
    fn end_what_is_over(&mut self) {
        while !self.paused
            && let Some((at, end)) = self.ends.first().copied()
            && at <= self.now
        {
            self.ends.pop_first();
            match end {
                End::Lease(grant) => self.expire(grant),
                End::Session(id) => {
                    let grants = self.sessions.remove(&id).map(|session| session.grants);
                    grants.into_iter().flatten().for_each(|grant| self.expire(grant));
                }
                End::Delay(grant) => self.apply(Command::EndDelay { grant }),
            }
        }
    }

    /// Expires a grant, and with it all grants of the same request.
    fn expire(&mut self, grant: GrantId) {
        let Some(session) = self.grants.get(&grant).map(|entry| entry.session) else { return };
        if let Some(epoch) = self.requests.get(&session).map(|request| request.epoch) {
            self.apply(Command::ExpireSession { session, epoch });
        }
    }

    /// Returns the next end of a lease, session or lock-delay.
    pub(super) fn next_end(&self) -> Option<BootTime> {
        self.ends.first().filter(|_| !self.paused).map(|(at, _)| *at)
    }

    pub(super) fn add_link(&mut self) -> LinkId {
        self.links.push(LinkState::default());
        LinkId(self.links.len() - 1)
    }

    pub(super) fn set_cut(&mut self, link: LinkId, cut: bool) {
        self.links[link.0].cut = cut;
    }

    pub(super) fn set_losing(&mut self, link: LinkId, answers: usize) {
        self.links[link.0].losing = answers;
    }

    /// Sets the pause. After it, the next step ends what is over, before any request gets through.
    pub(super) fn set_paused(&mut self, paused: bool) {
        self.paused = paused;
    }

    pub(super) fn is_open(&self, link: LinkId) -> bool {
        !self.paused && !self.links[link.0].cut
    }

    /// Whether the response to the last request on this link is lost.
    pub(super) fn loses_answer(&mut self, link: LinkId) -> bool {
        let losing = &mut self.links[link.0].losing;
        let loses = *losing > 0;
        *losing = losing.saturating_sub(1);
        loses
    }

    /// Removes and returns the messages that get through.
    pub(super) fn take_messages(&mut self) -> Vec<Message> {
        let all = std::mem::take(&mut self.messages);
        let (open, shut): (Vec<_>, _) = all.into_iter().partition(|(link, _)| self.is_open(*link));
        self.messages = shut;
        open.into_iter().map(|(_, message)| message).collect()
    }

    /// Begins a lease, or extends it by its TTL from now. This includes the grants that share the table's session, since it ends for all of
    /// them.
    fn keep(&mut self, grant: GrantId) {
        let Some(session) = self.grants.get(&grant).map(|entry| entry.session) else { return };
        self.apply(Command::KeepSession { session });
        let together = self.requests.get(&session).map(|request| request.grants.clone());
        for grant in together.into_iter().flatten() {
            self.keep_one(grant);
        }
    }

    fn keep_one(&mut self, grant: GrantId) {
        if let Some(entry) = self.grants.get_mut(&grant) {
            let client = entry.hangs_on.and_then(|id| self.sessions.get_mut(&id));
            if let Some(client) = client {
                client.grants.insert(grant);
                entry.since = Some(self.now);
                return;
            }
            // The client's session expired while this request waited.
            entry.hangs_on = None;
            if let Some(end) = entry.end() {
                self.ends.remove(&(end, End::Lease(grant)));
            }
            entry.since = Some(self.now);
            self.ends.extend(entry.end().map(|end| (end, End::Lease(grant))));
        }
    }

    fn given(&self, grant: GrantId, granted: tenure_table::Granted) -> Option<Given> {
        let entry = self.grants.get(&grant)?;
        // The table returns the value only with an upward conversion; the common layer also accepts it with a sideways one.
        let value = granted.value.map(Value::from).or_else(|| Some(self.table.inspect(&entry.name)?.value));
        let (term, in_session) = self.lease_of(entry)?;
        Some(Given { token: granted.token, value: value.unwrap_or_default(), term, in_session })
    }

    /// Returns the term of a grant, and whether it is that of the client's session.
    fn lease_of(&self, entry: &Entry) -> Option<(Term, bool)> {
        entry.since?;
        match entry.hangs_on {
            Some(id) => Some((self.sessions.get(&id)?.term(), true)),
            None => Some((entry.term()?, false)),
        }
    }

    /// Returns the grants in the table's response.
    fn all_given(&self, grants: &[GrantId], answer: Answer) -> Settled {
        let all = match answer {
            Answer::Granted(granted) => vec![granted],
            Answer::GrantedAll(granted) => granted.to_vec(),
            other => unreachable!("a request for locks is not answered with {other:?}"),
        };
        let given = |(grant, granted): (&GrantId, _)| self.given(*grant, granted).ok_or(Refusal::NotHeld);
        grants.iter().zip(all).map(given).collect()
    }

    /// Sends the table a request about a grant. Returns the number of the request and its outcome.
    fn request(&mut self, grant: GrantId, request: Request) -> (u64, Outcome) {
        let Some(session) = self.grants.get(&grant).map(|entry| entry.session) else {
            return (0, Err(Refusal::NotHeld));
        };
        let number = self.requests.get_mut(&session).map_or(0, |request| {
            request.number += 1;
            request.number
        });
        (number, self.ask(session, number, request))
    }

    fn ask(&mut self, session: SessionId, number: u64, request: Request) -> Outcome {
        let mut effects = Vec::new();
        let command = Command::Request { session, number, seen: number - 1, request };
        self.table.apply(command, &mut effects);
        let asked = (session, number);
        let ours = |effect: &Effect| matches!(effect, Effect::Answer { session, number, .. } if (*session, *number) == asked);
        let answer = effects.iter().rposition(ours).map(|at| effects.remove(at));
        self.take_in(effects);
        match answer {
            Some(Effect::Answer { outcome, .. }) => outcome,
            _ => unreachable!("the table answers every request"),
        }
    }

    /// Applies a command that has no response.
    fn apply(&mut self, command: Command) {
        let mut effects = Vec::new();
        self.table.apply(command, &mut effects);
        self.take_in(effects);
    }

    fn take_in(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Answer { session, number, outcome } => self.settle(session, number, outcome),
                Effect::SessionOpen { session, epoch } => {
                    if let Some(request) = self.requests.get_mut(&session) {
                        request.epoch = epoch;
                    }
                }
                // A waiter in this session finds its channel closed.
                Effect::SessionEnded { session, .. } => {
                    let Some(request) = self.requests.remove(&session) else { continue };
                    request.grants.into_iter().for_each(|grant| self.forget(grant));
                }
                Effect::LetGo { grant, .. } => self.tell(grant),
                Effect::Lost { grant, .. } => {
                    self.tell(grant);
                    self.end(grant);
                }
                Effect::Wanted { grant, mode, .. } => {
                    if let Some(entry) = self.grants.get(&grant) {
                        self.messages.push((entry.link, Message::Wanted(entry.events.clone(), mode)));
                    }
                }
                Effect::Delay { grant, for_ms } => {
                    self.ends.insert((self.now + Duration::from_millis(for_ms), End::Delay(grant)));
                }
                Effect::Changed { name, .. } => {
                    if let Some(observers) = self.observers.get(&name) {
                        observers.send_replace(());
                    }
                }
                // Sessions have no limit, and no request uses other rules.
                Effect::SessionRefused { .. }
                | Effect::SessionUnknown { .. }
                | Effect::RulesUnknown { .. } => {}
            }
        }
    }

    /// Ends a grant, or withdraws the request for it together with its set.
    fn end(&mut self, grant: GrantId) {
        let Some(session) = self.grants.get(&grant).map(|entry| entry.session) else { return };
        let together = self.requests.get(&session).map(|request| &request.grants);
        let Some(together) = together.filter(|grants| grants.len() > 1) else {
            self.apply(Command::CloseSession { session });
            return;
        };
        let waits = |grant: &GrantId| self.grants.get(grant)?.waits.as_ref().filter(|waits| !waits.converts);
        if let Some(number) = together.iter().find_map(waits).map(|waits| waits.number) {
            // Cancelling one request of a set cancels all.
            let _ = self.request(grant, Request::Cancel { number });
        } else {
            let _ = self.request(grant, Request::Release { grant, value: None });
            self.forget(grant);
        }
    }

    /// Removes a grant that the table no longer has.
    fn forget(&mut self, grant: GrantId) {
        let Some(entry) = self.grants.remove(&grant) else { return };
        if let Some(end) = entry.end() {
            self.ends.remove(&(end, End::Lease(grant)));
        }
        if let Some(client) = entry.hangs_on.and_then(|id| self.sessions.get_mut(&id)) {
            client.grants.remove(&grant);
        }
        if let Some(request) = self.requests.get_mut(&entry.session) {
            request.grants.remove(&grant);
        }
    }

    fn tell(&mut self, grant: GrantId) {
        if let Some(entry) = self.grants.get(&grant) {
            self.messages.push((entry.link, Message::Lost(entry.events.clone())));
        }
    }

    /// Records the final response to a waiting request.
    fn settle(&mut self, session: SessionId, number: u64, outcome: Outcome) {
        if matches!(outcome, Ok(Answer::Queued { .. })) {
            return;
        }
        let Some(request) = self.requests.get(&session) else { return };
        let waiting = request.grants.iter().find_map(|grant| {
            let entry = self.grants.get_mut(grant)?;
            Some((entry.link, entry.waits.take_if(|waits| waits.number == number)?))
        });
        let Some((link, waits)) = waiting else { return };
        self.apply(Command::Acknowledge { session, number });
        let settled = match outcome {
            Ok(answer) => {
                if let (false, Some(first)) = (waits.converts, waits.grants.first()) {
                    self.keep(*first);
                }
                self.all_given(&waits.grants, answer)
            }
            Err(refusal) => {
                if !waits.converts {
                    self.apply(Command::CloseSession { session });
                }
                Err(refusal)
            }
        };
        self.messages.push((link, Message::Settled(waits.answer, settled)));
    }
}

impl Entry {
    /// Returns the end of the grant's separate lease, if it has begun.
    fn end(&self) -> Option<BootTime> {
        self.since.filter(|_| self.hangs_on.is_none()).map(|since| since + self.ttl)
    }

    fn term(&self) -> Option<Term> {
        self.since.map(|sent_at| Term::Lease { sent_at, ttl: self.ttl, margin: Duration::ZERO })
    }
}
