//! The state of a store: the lock table, the leases of its grants, and what is not yet told.
//!
//! A grant's table session has the grant's id. It is there from the request on, and its lease begins with the grant: who waits does not expire.

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
    grants: HashMap<SessionId, Entry>,
    /// The sessions of clients.
    sessions: HashMap<u128, ClientSession>,
    /// What ends when.
    ends: BTreeSet<(BootTime, End)>,
    /// Breaks and observes locks.
    operator: SessionId,
    operator_number: u64,
    /// Who observes which lock.
    observers: BTreeMap<LockName, watch::Sender<()>>,
    links: Vec<LinkState>,
    paused: bool,
    /// What is to be told, and by which link.
    messages: Vec<(LinkId, Message)>,
}

/// A grant, or a request for one that waits.
#[derive(Debug)]
struct Entry {
    name: LockName,
    ttl: Duration,
    /// The client's session that keeps it alive once it is granted, if it has no lease of its own.
    hangs_on: Option<u128>,
    /// From when on its lease counts; nothing while it waits.
    since: Option<BootTime>,
    epoch: u64,
    /// The number of its last request.
    number: u64,
    link: LinkId,
    events: GrantEvents,
    waits: Option<Waits>,
    /// Its last conversion, if that may have to be undone.
    conversion: Option<u64>,
}

/// What ends at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    /// The lease of a grant.
    Lease(SessionId),
    /// The session of a client.
    Session(u128),
    /// What a dead grant left standing.
    Delay(GrantId),
}

/// A request that waits in the table.
#[derive(Debug)]
struct Waits {
    number: u64,
    converts: bool,
    answer: oneshot::Sender<Settled>,
}

/// What happens on a link.
#[derive(Debug, Default)]
struct LinkState {
    cut: bool,
    /// So many answers get lost.
    losing: usize,
}

/// Something that a client is told without having asked just now.
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
                // Whoever does not wait any more has withdrawn, or is about to.
                let _ = answer.send(settled);
            }
            Self::Lost(events) => events.lost(LostReason::Broken),
            Self::Wanted(events, mode) => events.wanted(mode),
        }
    }
}

/// How a request for a lock or a mode ended.
pub(super) type Settled = Result<Given, Refusal>;

/// What a holder gets.
#[derive(Debug)]
pub(super) struct Given {
    token: FencingToken,
    value: Value,
    term: Term,
    /// Whether it lives as long as its client's session.
    pub(super) in_session: bool,
}

/// A client's session, as the client names it.
#[derive(Clone, Copy, Debug)]
pub(super) struct SessionRef {
    pub(super) id: u128,
    pub(super) ttl: Duration,
    /// Whether it is to be opened if it is not there: the client does not know that it was there before.
    pub(super) may_open: bool,
}

/// A client's session.
#[derive(Debug)]
struct ClientSession {
    ttl: Duration,
    since: BootTime,
    /// What hangs on it.
    grants: BTreeSet<SessionId>,
    /// How often it was kept alive without any.
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

const fn session_of(grant: GrantId) -> SessionId {
    SessionId::from_u128(grant.as_u128())
}

fn milliseconds(duration: Duration) -> u64 {
    duration.as_millis().try_into().unwrap_or(u64::MAX)
}

impl State {
    pub(super) fn new(time: Time) -> Self {
        // Each grant has a session, and one session observes for all clients: how much there may be is for a test's memory to say.
        let limits = Limits { sessions: u32::MAX, observed_per_session: u32::MAX, ..Limits::default() };
        let mut table = Table::new(limits, random::seed());
        let operator = session_of(random::grant_id());
        table.apply(Command::OpenSession { session: operator, ttl_ms: 0, label: None }, &mut Vec::new());
        Self {
            now: time.now(),
            time,
            table,
            grants: HashMap::new(),
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

    /// Looks at the clock, and ends what is over.
    pub(super) fn begin_step(&mut self) {
        self.now = self.time.now();
        let to_ms = milliseconds(self.now.since_boot());
        self.apply(Command::AdvanceTime { to_ms });
        self.end_what_is_over();
    }

    /// One that stands still ends nothing.
    fn end_what_is_over(&mut self) {
        while !self.paused
            && let Some((at, end)) = self.ends.first().copied()
            && at <= self.now
        {
            self.ends.pop_first();
            match end {
                End::Lease(session) => self.expire(session),
                End::Session(id) => {
                    let grants = self.sessions.remove(&id).map(|session| session.grants);
                    grants.into_iter().flatten().for_each(|session| self.expire(session));
                }
                End::Delay(grant) => self.apply(Command::EndDelay { grant }),
            }
        }
    }

    fn expire(&mut self, session: SessionId) {
        if let Some(epoch) = self.grants.get(&session).map(|entry| entry.epoch) {
            self.apply(Command::ExpireSession { session, epoch });
        }
    }

    /// When the next lease or lock-delay ends.
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

    /// What is over when it goes on ends with the next step, before anything gets through.
    pub(super) fn set_paused(&mut self, paused: bool) {
        self.paused = paused;
    }

    pub(super) fn is_open(&self, link: LinkId) -> bool {
        !self.paused && !self.links[link.0].cut
    }

    /// Whether the answer to what was just done by this link is lost.
    pub(super) fn loses_answer(&mut self, link: LinkId) -> bool {
        let losing = &mut self.links[link.0].losing;
        let loses = *losing > 0;
        *losing = losing.saturating_sub(1);
        loses
    }

    /// What gets through of what is to be told.
    pub(super) fn take_messages(&mut self) -> Vec<Message> {
        let all = std::mem::take(&mut self.messages);
        let (open, shut): (Vec<_>, _) = all.into_iter().partition(|(link, _)| self.is_open(*link));
        self.messages = shut;
        open.into_iter().map(|(_, message)| message).collect()
    }

    /// Begins a lease, or lengthens it by its ttl from now.
    fn keep(&mut self, session: SessionId) {
        self.apply(Command::KeepSession { session });
        if let Some(entry) = self.grants.get_mut(&session) {
            let client = entry.hangs_on.and_then(|id| self.sessions.get_mut(&id));
            if let Some(client) = client {
                client.grants.insert(session);
                entry.since = Some(self.now);
                return;
            }
            // Its client was not heard of for so long that its session ended while this waited.
            entry.hangs_on = None;
            if let Some(end) = entry.end() {
                self.ends.remove(&(end, End::Lease(session)));
            }
            entry.since = Some(self.now);
            self.ends.extend(entry.end().map(|end| (end, End::Lease(session))));
        }
    }

    fn given(&self, session: SessionId, granted: tenure_table::Granted) -> Option<Given> {
        let entry = self.grants.get(&session)?;
        // The table tells it with a conversion up only, and the common layer takes it with one sideways, too.
        let value = granted.value.map(Value::from).or_else(|| Some(self.table.inspect(&entry.name)?.value));
        let (term, in_session) = self.lease_of(entry)?;
        Some(Given { token: granted.token, value: value.unwrap_or_default(), term, in_session })
    }

    /// How long a grant lives, and whether it does by its client's session.
    fn lease_of(&self, entry: &Entry) -> Option<(Term, bool)> {
        entry.since?;
        match entry.hangs_on {
            Some(id) => Some((self.sessions.get(&id)?.term(), true)),
            None => Some((entry.term()?, false)),
        }
    }

    /// Has a session ask the table for something; the request's number, and the answer.
    fn request(&mut self, session: SessionId, request: Request) -> (u64, Outcome) {
        let Some(entry) = self.grants.get_mut(&session) else { return (0, Err(Refusal::NotHeld)) };
        entry.number += 1;
        let number = entry.number;
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

    /// Tells the table something that has no answer.
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
                    if let Some(entry) = self.grants.get_mut(&session) {
                        entry.epoch = epoch;
                    }
                }
                // Whoever waits through it finds that nobody will answer.
                Effect::SessionEnded { session, .. } => {
                    let Some(entry) = self.grants.remove(&session) else { continue };
                    if let Some(end) = entry.end() {
                        self.ends.remove(&(end, End::Lease(session)));
                    }
                    if let Some(client) = entry.hangs_on.and_then(|id| self.sessions.get_mut(&id)) {
                        client.grants.remove(&session);
                    }
                }
                Effect::LetGo { session, .. } => self.tell(session),
                Effect::Lost { session, .. } => {
                    self.tell(session);
                    self.apply(Command::CloseSession { session });
                }
                Effect::Wanted { session, mode, .. } => {
                    if let Some(entry) = self.grants.get(&session) {
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
                // There is no limit on sessions, and nobody asks for other rules.
                Effect::SessionRefused { .. }
                | Effect::SessionUnknown { .. }
                | Effect::RulesUnknown { .. } => {}
            }
        }
    }

    fn tell(&mut self, session: SessionId) {
        if let Some(entry) = self.grants.get(&session) {
            self.messages.push((entry.link, Message::Lost(entry.events.clone())));
        }
    }

    /// Takes in the last answer to a request that waited.
    fn settle(&mut self, session: SessionId, number: u64, outcome: Outcome) {
        let Some(entry) = self.grants.get_mut(&session) else { return };
        let Some(waits) = entry.waits.take_if(|waits| waits.number == number) else { return };
        let link = entry.link;
        self.apply(Command::Acknowledge { session, number });
        let settled = match outcome {
            Ok(Answer::Granted(granted)) => {
                if !waits.converts {
                    self.keep(session);
                }
                self.given(session, granted).ok_or(Refusal::NotHeld)
            }
            Ok(_) => return,
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
    /// When its lease ends, if it has begun.
    fn end(&self) -> Option<BootTime> {
        self.since.filter(|_| self.hangs_on.is_none()).map(|since| since + self.ttl)
    }

    fn term(&self) -> Option<Term> {
        self.since.map(|sent_at| Term::Lease { sent_at, ttl: self.ttl, margin: Duration::ZERO })
    }
}
