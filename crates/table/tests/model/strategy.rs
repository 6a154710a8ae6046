//! Commands at random, of the kind that gets in its own way: few sessions, owners and names, numbers that come again, grants that
//! are not there.
//!
//! What is drawn is bytes, a dozen for a step, and a [`World`] reads commands from them. So a case shrinks well whatever came before
//! it: a step that is left out changes the numbers of the steps after it, and they are still commands that make sense. Zeros
//! mean the simplest thing everywhere.

use std::fmt::Debug;

use bytes::Bytes;
use proptest::prelude::*;
use tenure_table::Label;
use tenure_table::{
    Acquire, AcquireAll, Break, Command, GrantId, Item, Limits, LockName, Mode, OwnerId, Request, SessionId,
    Wait,
};

/// The bytes of one step.
pub(crate) type Step = [u8; 12];

/// What is done to a table.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    Apply(Command),
    /// A snapshot is written, and the table that is read from it takes the table's place.
    Restore,
}

pub(crate) fn steps(at_most: usize) -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(prop::array::uniform12(any::<u8>()), 1..=at_most)
}

/// Steps without `proptest`, the same in every process: splitmix64.
pub(crate) fn fixed_steps(seed: u64, count: usize) -> Vec<Step> {
    let mut state = seed;
    let mut draw = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    };
    let mut step = || {
        let mut step = Step::default();
        step[..8].copy_from_slice(&draw().to_le_bytes());
        step[8..].copy_from_slice(&draw().to_le_bytes()[..4]);
        step
    };
    (0..count).map(|_| step()).collect()
}

/// Kinds of steps with their weights, which are 256 together.
type Weights = &'static [(u8, Kind)];

/// A little of everything.
const ANYTHING: Weights = &[
    (64, Kind::Acquire),
    (30, Kind::Release),
    (40, Kind::Convert),
    (32, Kind::AcquireAll),
    (10, Kind::Cancel),
    (7, Kind::Observe),
    (8, Kind::SetValue),
    (8, Kind::Remember),
    (6, Kind::Break),
    (12, Kind::Repeat),
    (4, Kind::Acknowledge),
    (3, Kind::Keep),
    (6, Kind::Open),
    (4, Kind::Expire),
    (2, Kind::Close),
    (5, Kind::EndDelay),
    (6, Kind::AdvanceTime),
    (6, Kind::SetLimits),
    (1, Kind::SetRules),
    (2, Kind::Restore),
];

/// Only what makes owners wait for one another.
const TANGLE: Weights = &[
    (108, Kind::Acquire),
    (58, Kind::Convert),
    (36, Kind::AcquireAll),
    (14, Kind::Release),
    (32, Kind::Cancel),
    (4, Kind::Restore),
    (4, Kind::Expire),
];

const _: () = assert!(sum(ANYTHING) == 256 && sum(TANGLE) == 256);

const fn sum(weights: Weights) -> u32 {
    let (mut sum, mut i) = (0, 0);
    while i < weights.len() {
        sum += weights[i].0 as u32;
        i += 1;
    }
    sum
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Acquire,
    Release,
    Convert,
    AcquireAll,
    Cancel,
    Observe,
    SetValue,
    Remember,
    Break,
    Repeat,
    Acknowledge,
    Keep,
    Open,
    Expire,
    Close,
    EndDelay,
    AdvanceTime,
    SetLimits,
    SetRules,
    Restore,
}

/// So many names of a tangled world are held weakly from the beginning.
const FOOTHOLDS: usize = 2;

/// Who there is, and what was asked for so far.
pub(crate) struct World {
    /// Nothing is done but to wait for one another.
    tangled: bool,
    owners: usize,
    names: Vec<LockName>,
    /// The epochs that the sessions should have, or 0 for those that should not be open.
    epochs: Vec<u64>,
    /// The last number of each session.
    numbers: Vec<u64>,
    /// The grants that were asked for, each with its session.
    asked: Vec<(usize, GrantId)>,
    /// Those of them that would leave a delay.
    mortal: Vec<GrantId>,
    requests: Vec<(usize, Command)>,
    last_grant: u128,
    now_ms: u64,
}

impl World {
    pub(crate) fn new(sessions: usize, owners: usize, names: usize) -> Self {
        let name = |i| match i {
            0 => "a".to_owned(),
            1 => "b".to_owned(),
            2 => "a/c".to_owned(),
            3 => "a-long-name".to_owned(),
            _ => format!("n/{i}"),
        };
        Self {
            tangled: false,
            owners,
            names: (0..names).map(|i| LockName::parse(name(i)).unwrap()).collect(),
            epochs: vec![0; sessions],
            numbers: vec![0; sessions],
            asked: Vec::new(),
            mortal: Vec::new(),
            requests: Vec::new(),
            last_grant: 0,
            now_ms: 0,
        }
    }

    /// A world in which everybody meets everybody.
    pub(crate) fn small() -> Self {
        Self::new(4, 4, 4)
    }

    /// A world in which everybody waits for everybody, and nothing else is done.
    pub(crate) fn tangled() -> Self {
        Self { tangled: true, ..Self::new(4, 4, 6) }
    }

    pub(crate) fn names(&self) -> &[LockName] {
        &self.names
    }

    /// All sessions but the last are open from the beginning, or the first steps would all be in vain.
    pub(crate) fn acts(&mut self, steps: &[Step]) -> Vec<Act> {
        let mut acts = Vec::new();
        for session in 0..self.epochs.len() - 1 {
            self.epochs[session] = 1;
            let session = session_id(session);
            acts.push(Act::Apply(Command::OpenSession { session, ttl_ms: 30_000, label: None }));
        }
        if self.tangled {
            acts.extend(self.footholds().into_iter().map(Act::Apply));
        }
        for step in steps {
            acts.push(self.act(step));
        }
        acts
    }

    /// Everybody has a weak lock of the first two names, and one who wants nothing more keeps the strong ones out. So conversions of the
    /// weak ones get past others who wait.
    fn footholds(&mut self) -> Vec<Command> {
        let mut commands = Vec::new();
        for name in 0..FOOTHOLDS {
            for owner in 0..=self.owners {
                let grant = self.grant(0);
                let mut acquire = Acquire::new(grant, self.names[name].clone(), Mode::Nl);
                if owner < self.owners {
                    acquire.owner = OwnerId::from_u128(0x1_0000 + owner as u128);
                } else {
                    acquire.mode = [Mode::Pr, Mode::Cr][name];
                }
                let request = Request::Acquire(acquire);
                self.note_grants(0, &request);
                commands.push(self.numbered(0, &Step::default(), request));
            }
        }
        commands
    }

    fn act(&mut self, step: &Step) -> Act {
        let mut kind = step[0];
        for (weight, chosen) in if self.tangled { TANGLE } else { ANYTHING } {
            if kind < *weight {
                return self.command(*chosen, step).map_or(Act::Restore, Act::Apply);
            }
            kind -= weight;
        }
        unreachable!("the weights are 256 together")
    }

    fn command(&mut self, kind: Kind, step: &Step) -> Option<Command> {
        let who = usize::from(step[1]) % self.epochs.len();
        let session = session_id(who);
        let request = match kind {
            Kind::Acquire => Request::Acquire(self.acquire(step)),
            Kind::AcquireAll => Request::AcquireAll(self.acquire_all(step)),
            Kind::Convert => Request::Convert {
                grant: self.asked_before(step).1,
                to: mode(step[5]),
                wait: wait(step),
                value: value(step[10], 6),
            },
            Kind::Release => Request::Release { grant: self.asked_before(step).1, value: value(step[10], 4) },
            Kind::Cancel => Request::Cancel {
                number: self.numbers[self.open_session(step)]
                    .saturating_sub(u64::from(step[6] % if self.tangled { 12 } else { 5 })),
            },
            Kind::Observe if step[7].is_multiple_of(4) => Request::Unobserve { name: self.name(step[4]) },
            Kind::Observe => Request::Observe { name: self.name(step[4]) },
            Kind::SetValue => Request::SetValue {
                grant: self.asked_before(step).1,
                bytes: value(step[10], 1).unwrap_or_default(),
            },
            Kind::Remember => Request::Remember {
                grant: self.asked_before(step).1,
                ago_ms: [0, 0, 5, 30, 100][usize::from(step[7] % 5)],
                window_ms: [50, 10, 200, 0, u64::MAX][usize::from(step[10] % 5)],
            },
            Kind::Break => {
                let how = if step[7].is_multiple_of(2) { Break::Ask } else { Break::Force };
                Request::Break { name: self.name(step[4]), how }
            }
            Kind::Repeat => return Some(self.repeat(step)),
            Kind::Keep => {
                self.epochs[who] += u64::from(self.epochs[who] > 0);
                return Some(Command::KeepSession { session });
            }
            Kind::Open => {
                self.epochs[who] = self.epochs[who].max(1);
                return Some(Command::OpenSession {
                    session,
                    ttl_ms: u64::from(step[10]),
                    label: label(step),
                });
            }
            Kind::Expire => {
                let epoch = self.epochs[who];
                if step[10] % 4 == 3 {
                    return Some(Command::ExpireSession { session, epoch: epoch.saturating_sub(1) });
                }
                self.epochs[who] = 0;
                return Some(Command::ExpireSession { session, epoch });
            }
            Kind::Close => {
                self.epochs[who] = 0;
                return Some(Command::CloseSession { session });
            }
            Kind::Acknowledge => {
                let number = self.numbers[who].saturating_sub(u64::from(step[6] % 8));
                return Some(Command::Acknowledge { session, number });
            }
            Kind::EndDelay => {
                let back = usize::from(step[6]) % 6;
                let grant = self.mortal.iter().rev().nth(back).copied();
                return Some(Command::EndDelay { grant: grant.unwrap_or(GrantId::from_u128(0)) });
            }
            Kind::AdvanceTime => {
                self.now_ms += u64::from(step[10] % 64);
                let late = if step[7] >= 240 { 40 } else { 0 };
                return Some(Command::AdvanceTime { to_ms: self.now_ms.saturating_sub(late) });
            }
            Kind::SetLimits => return Some(Command::SetLimits(limits(step))),
            Kind::SetRules => return Some(Command::SetRules { version: u32::from(step[6] % 4) }),
            Kind::Restore => return None,
        };
        let who = match request {
            Request::Convert { .. }
            | Request::Release { .. }
            | Request::SetValue { .. }
            | Request::Remember { .. }
                if step[1] < 235 =>
            {
                self.asked_before(step).0
            }
            _ => self.open_session(step),
        };
        self.note_grants(who, &request);
        Some(self.numbered(who, step, request))
    }

    /// Gives a request a number: the next, but for a few.
    fn numbered(&mut self, who: usize, step: &Step, request: Request) -> Command {
        let last = self.numbers[who];
        let number = match step[2] {
            _ if self.tangled => last + 1,
            0..240 => last + 1,
            240..246 => last + 4,
            246..254 => last.saturating_sub(u64::from(step[11] % 6)),
            254.. => 0,
        };
        self.numbers[who] = last.max(number);
        let seen = match step[2] % 16 {
            _ if self.tangled => 0,
            0..9 => 0,
            9..12 => number.saturating_sub(1),
            12..14 => number.saturating_sub(3),
            14 => number.saturating_sub(8),
            _ if step[11] % 8 == 7 => number + 2,
            _ if step[11] % 8 == 6 => number,
            _ => number.saturating_sub(2),
        };
        let command = Command::Request { session: session_id(who), number, seen, request };
        self.requests.push((who, command.clone()));
        command
    }

    /// A request once more, in one of several ways.
    fn repeat(&mut self, step: &Step) -> Command {
        let back = usize::from(step[6]) % 10;
        let Some((who, command)) = self.requests.iter().rev().nth(back).cloned() else {
            return Command::KeepSession { session: session_id(0) };
        };
        match (step[7] % 8, command) {
            // The very same.
            (0..4, command) => command,
            // The same under another number.
            (4..7, Command::Request { request, .. }) => self.numbered(who, step, request),
            // Another one under the same number.
            (_, Command::Request { session, number, seen, .. }) => {
                let request = Request::Acquire(self.acquire(step));
                Command::Request { session, number, seen, request }
            }
            (_, command) => command,
        }
    }

    fn acquire(&mut self, step: &Step) -> Acquire {
        let grant = self.grant(step[6]);
        Acquire {
            grant,
            name: self.name(step[4]),
            mode: mode(step[5]),
            owner: self.owner(step[3], grant),
            wait: wait(step),
            label: label(step),
            lock_delay_ms: lock_delay_ms(step),
            notify: step[7] % 2 == 1,
        }
    }

    fn acquire_all(&mut self, step: &Step) -> AcquireAll {
        let count = match step[11] {
            0..120 => 2,
            120..200 => 3,
            200..240 => 1,
            240..250 => 4,
            250.. => 0,
        };
        // Most strides lead to other names.
        let stride = [1, 3, 1, 3, 1, 3, 1, 2][usize::from(step[8] % 8)];
        let mut items = Vec::new();
        for i in 0..count {
            items.push(Item {
                grant: self.grant(step[6].wrapping_add(61 * i)),
                name: self.name(step[4].wrapping_add(stride * i)),
                mode: mode([step[5], step[8] / 8, step[9], step[9] / 8][usize::from(i)]),
            });
        }
        let owner = self.owner(step[3], items.first().map_or(GrantId::from_u128(0), |item| item.grant));
        AcquireAll {
            owner,
            items,
            wait: wait(step),
            label: label(step),
            lock_delay_ms: lock_delay_ms(step),
            notify: step[7] % 2 == 1,
        }
    }

    fn note_grants(&mut self, who: usize, request: &Request) {
        let (grants, lock_delay_ms) = match request {
            Request::Acquire(acquire) => (vec![acquire.grant], acquire.lock_delay_ms),
            Request::AcquireAll(all) => {
                (all.items.iter().map(|item| item.grant).collect(), all.lock_delay_ms)
            }
            // What was released is sometimes asked for again, but not for long.
            Request::Release { grant, .. } => {
                let free = |(_, asked): &(usize, GrantId)| asked == grant;
                if self.asked.last().is_some_and(free) || self.asked.len() > 4 {
                    self.asked.retain(|asked| !free(asked));
                }
                return;
            }
            _ => return,
        };
        self.asked.extend(grants.iter().map(|grant| (who, *grant)));
        if lock_delay_ms > 0 {
            self.mortal.extend(grants);
        }
    }

    /// An id for a new grant: drawn anew, but for some that were asked for before.
    fn grant(&mut self, byte: u8) -> GrantId {
        let back = usize::from(byte % 8);
        match self.asked.iter().rev().nth(back) {
            Some((_, grant)) if byte >= 220 && !self.tangled => *grant,
            _ => {
                self.last_grant += 1;
                GrantId::from_u128(self.last_grant)
            }
        }
    }

    /// One of the few owners, or one of its own, which has the grant's id; or the one whose id another grant has.
    fn owner(&self, byte: u8, grant: GrantId) -> OwnerId {
        let same = |grant: GrantId| OwnerId::from_u128(grant.as_u128());
        match self.asked.iter().rev().nth(usize::from(byte % 4)) {
            _ if byte >= 190 && !self.tangled => same(grant),
            Some((_, other)) if byte >= 170 => same(*other),
            _ => OwnerId::from_u128(0x1_0000 + usize::from(byte) as u128 % self.owners as u128),
        }
    }

    fn name(&self, byte: u8) -> LockName {
        let names = if self.tangled && byte < 240 { &self.names[FOOTHOLDS..] } else { &self.names };
        names[usize::from(byte) % names.len()].clone()
    }

    /// A grant that was asked for not long ago.
    fn asked_before(&self, step: &Step) -> (usize, GrantId) {
        let back = usize::from(step[6]) % (3 * self.epochs.len());
        if self.tangled && step[10] < 150 && !self.asked.is_empty() {
            return self.asked[back % self.asked.len()];
        }
        let found = self.asked.iter().rev().nth(back).or(self.asked.last());
        found.copied().unwrap_or((0, GrantId::from_u128(0)))
    }

    /// The session itself, or the next that should be open.
    fn open_session(&self, step: &Step) -> usize {
        let who = usize::from(step[1]);
        let sessions = self.epochs.len();
        if step[1] >= 250 {
            return who % sessions;
        }
        (who..who + sessions).map(|i| i % sessions).find(|i| self.epochs[*i] > 0).unwrap_or(who % sessions)
    }
}

fn session_id(index: usize) -> SessionId {
    SessionId::from_u128(index as u128)
}

fn mode(byte: u8) -> Mode {
    use Mode::{Cr, Cw, Ex, Nl, Pr, Pw};
    [Ex, Pr, Ex, Cr, Cw, Pw, Pr, Nl][usize::from(byte % 8)]
}

fn wait(step: &Step) -> Wait {
    if step[7] / 2 % 8 == 7 { Wait::Try } else { Wait::Queue }
}

fn lock_delay_ms(step: &Step) -> u64 {
    if step[7] / 16 % 4 == 3 { 500 } else { 0 }
}

fn label(step: &Step) -> Option<Label> {
    [None, Some("a-label"), None, Some("me")][usize::from(step[10] % 4)].map(Label::from)
}

/// Some bytes, one time in so many.
fn value(byte: u8, one_in: u8) -> Option<Bytes> {
    let bytes: [&[u8]; 4] = [b"v", b"w", b"value", b""];
    (byte % one_in == one_in - 1).then(|| Bytes::from_static(bytes[usize::from(byte / one_in % 4)]))
}

/// As they are by default, with a few that are soon reached.
fn limits(step: &Step) -> Limits {
    let mut limits = Limits::default();
    if step[3] < 90 {
        return limits;
    }
    let small = |byte: u8| u32::from(byte % 4) + 1;
    let mut lower = |bit: u8, limit: fn(&mut Limits) -> &mut u32, to: u32| {
        if step[9] & (1 << bit) != 0 && (bit > 5 || step[8] & (1 << bit) != 0) {
            *limit(&mut limits) = to;
        }
    };
    lower(0, |limits| &mut limits.names, small(step[4]));
    lower(1, |limits| &mut limits.locks_per_session, small(step[5]) + 1);
    lower(2, |limits| &mut limits.waiters_per_resource, small(step[6]));
    lower(3, |limits| &mut limits.items_per_request, small(step[7]) / 2 + 1);
    lower(4, |limits| &mut limits.answers_per_session, small(step[10]) * 3);
    lower(5, |limits| &mut limits.name_bytes, 8);
    lower(6, |limits| &mut limits.label_bytes, 4);
    lower(7, |limits| &mut limits.value_bytes, 3);
    if step[11] % 4 == 3 {
        limits.sessions = small(step[10]);
    }
    if step[11].is_multiple_of(2) {
        limits.observed_per_session = small(step[5]) - 1;
        limits.observers_per_resource = small(step[6]) - 1;
    }
    limits
}

/// One thing a line.
pub(crate) fn lines(things: &[impl Debug]) -> String {
    let lines: Vec<_> = things.iter().map(|thing| format!("  {}\n", shorter(thing))).collect();
    lines.concat()
}

/// Without the many zeros of ids that are small here.
pub(crate) fn shorter(thing: &impl Debug) -> String {
    shortened(&format!("{thing:?}"))
}

pub(crate) fn shortened(text: &str) -> String {
    text.replace("00000000000000000000000000000", "")
}
