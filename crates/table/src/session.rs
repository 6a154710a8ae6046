//! A session, and the answers that it has not acknowledged: what makes a request that comes twice be done once.

use std::collections::{BTreeSet, VecDeque};

use crate::label::Label;

use crate::arena::Place;
use crate::brief::{Brief, Briefs};
use crate::index::Keyed;
use crate::list::List;
use crate::lock::{Lock, OfSession, Queued};
use crate::{Answer, LockName, Outcome, Refusal, SessionId};

/// The liveness of a client.
#[derive(Debug)]
pub(crate) struct Session {
    id: SessionId,
    pub(crate) epoch: u64,
    pub(crate) ttl_ms: u64,
    pub(crate) label: Option<Label>,
    pub(crate) locks: List<Lock, OfSession>,
    pub(crate) lock_count: u32,
    pub(crate) observed: BTreeSet<LockName>,
    pub(crate) memory: Memory,
}

/// What a session's requests were answered.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    /// The client has seen the answers up to this number, but for those to requests that waited.
    pub(crate) floor: u64,
    /// Answers that were given at once, to numbers above the floor.
    pub(crate) answers: Briefs,
    /// Last answers to requests that waited, in the order of the numbers. The client may have raised the floor before it heard of
    /// them, so each is kept until it is acknowledged by itself.
    pub(crate) late: Vec<(u64, Brief)>,
    /// Requests that wait, in the order of their numbers: the oldest are most often the first to go.
    pub(crate) waiting: VecDeque<Waiting>,
    /// The largest number among all these so far: whatever is above it is new, and need not be looked for.
    newest: u64,
}

/// A request that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) number: u64,
    /// What was ahead of it when it queued, to be told again.
    pub(crate) place: u32,
    /// Its place in line; of several, the first.
    pub(crate) queued: Place<Queued>,
}

impl Session {
    pub(crate) fn new(id: SessionId, epoch: u64, ttl_ms: u64, label: Option<Label>) -> Self {
        Self {
            id,
            epoch,
            ttl_ms,
            label,
            locks: List::default(),
            lock_count: 0,
            observed: BTreeSet::new(),
            memory: Memory::default(),
        }
    }

    pub(crate) const fn id(&self) -> SessionId {
        self.id
    }
}

impl Keyed for Session {
    type Key = SessionId;

    fn key(&self) -> &SessionId {
        &self.id
    }
}

impl Memory {
    /// The client has seen all answers up to this number.
    pub(crate) fn seen(&mut self, number: u64) {
        self.answers.forget(number);
        self.floor = self.floor.max(number);
    }

    /// The client has seen the last answer to this number, which waited.
    pub(crate) fn seen_one(&mut self, number: u64) {
        if let Ok(at) = self.late.binary_search_by_key(&number, |(answered, _)| *answered) {
            drop(self.late.remove(at));
        }
    }

    /// What is to be said to a number that is not new.
    pub(crate) fn repeat(&self, number: u64) -> Option<Outcome> {
        // Numbers come in their order, but for what was sent again.
        if number > self.newest.max(self.floor) { None } else { self.find(number) }
    }

    #[cold]
    fn find(&self, number: u64) -> Option<Outcome> {
        if let Some(answer) = self.answers.find(number) {
            return Some(answer.outcome());
        }
        if let Some(waiting) = self.waits(number) {
            return Some(Ok(Answer::Queued { place: waiting.place }));
        }
        if let Ok(at) = self.late.binary_search_by_key(&number, |(answered, _)| *answered) {
            return Some(self.late[at].1.outcome());
        }
        (number <= self.floor).then_some(Err(Refusal::Forgotten))
    }

    pub(crate) fn waits(&self, number: u64) -> Option<&Waiting> {
        let at = self.waiting.binary_search_by_key(&number, |waiting| waiting.number).ok()?;
        Some(&self.waiting[at])
    }

    pub(crate) fn waits_mut(&mut self, number: u64) -> Option<&mut Waiting> {
        let at = self.waiting.binary_search_by_key(&number, |waiting| waiting.number).ok()?;
        Some(&mut self.waiting[at])
    }

    /// How many last answers are kept.
    pub(crate) fn kept(&self) -> usize {
        self.answers.len() + self.late.len()
    }

    pub(crate) fn wait(&mut self, waiting: Waiting) {
        let at = self.waiting.partition_point(|other| other.number < waiting.number);
        self.waiting.insert(at, waiting);
        self.newest = self.newest.max(waiting.number);
    }

    /// The last answer to a number.
    #[inline]
    pub(crate) fn keep(&mut self, number: u64, answer: Brief) {
        if number > self.newest {
            self.newest = number;
            self.answers.push(number, answer);
        } else {
            self.keep_older(number, answer);
        }
    }

    /// The last answer to a number that waited, or came after a larger one.
    #[inline(never)]
    fn keep_older(&mut self, number: u64, answer: Brief) {
        if let Ok(at) = self.waiting.binary_search_by_key(&number, |waiting| waiting.number) {
            self.waiting.remove(at);
            self.keep_late(number, answer);
        } else {
            self.answers.insert(number, answer);
        }
    }

    /// The last answer to a number that waited.
    pub(crate) fn keep_late(&mut self, number: u64, answer: Brief) {
        let at = self.late.partition_point(|(answered, _)| *answered < number);
        self.late.insert(at, (number, answer));
        self.newest = self.newest.max(number);
    }
}
