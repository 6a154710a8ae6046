//! Sessions, and their answers that are not acknowledged: with these, a request that is sent twice is carried out once.

use std::collections::{BTreeSet, VecDeque};

use crate::label::Label;

use crate::arena::Place;
use crate::brief::{Brief, Briefs};
use crate::index::Keyed;
use crate::list::List;
use crate::lock::{Lock, OfSession, Queued};
use crate::{Answer, LockName, Outcome, Refusal, SessionId};

/// A client's session.
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

/// The state of a session's requests.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    /// The client has acknowledged the answers up to this number, except those to requests that waited.
    pub(crate) floor: u64,
    /// Immediate answers, to numbers above the floor.
    pub(crate) answers: Briefs,
    /// Final answers to requests that waited, sorted by number. The client may raise the floor before it receives one, so each is kept
    /// until it is acknowledged separately.
    pub(crate) late: Vec<(u64, Brief)>,
    /// Waiting requests, sorted by number. The oldest is usually the first to end.
    pub(crate) waiting: VecDeque<Waiting>,
    /// The largest number so far. A larger number is new, so it needs no lookup.
    newest: u64,
}

/// A waiting request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) number: u64,
    /// How many requests were ahead when it queued, for repeated answers.
    pub(crate) place: u32,
    /// Its place in the queue. For several locks, the first of them.
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
    /// Records that the client has seen all answers up to this number.
    pub(crate) fn seen(&mut self, number: u64) {
        self.answers.forget(number);
        self.floor = self.floor.max(number);
    }

    /// Records that the client has seen the final answer to this number, whose request waited.
    pub(crate) fn seen_one(&mut self, number: u64) {
        if let Ok(at) = self.late.binary_search_by_key(&number, |(answered, _)| *answered) {
            drop(self.late.remove(at));
        }
    }

    /// Returns the answer to a number that is not new.
    pub(crate) fn repeat(&self, number: u64) -> Option<Outcome> {
        // Numbers arrive in order, except those of repeated requests.
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

    /// Returns how many final answers are kept.
    pub(crate) fn kept(&self) -> usize {
        self.answers.len() + self.late.len()
    }

    pub(crate) fn wait(&mut self, waiting: Waiting) {
        let at = self.waiting.partition_point(|other| other.number < waiting.number);
        self.waiting.insert(at, waiting);
        self.newest = self.newest.max(waiting.number);
    }

    /// Stores the final answer to a number.
    #[inline]
    pub(crate) fn keep(&mut self, number: u64, answer: Brief) {
        if number > self.newest {
            self.newest = number;
            self.answers.push(number, answer);
        } else {
            self.keep_older(number, answer);
        }
    }

    /// Stores the final answer to a number that waited, or that arrived after a larger one.
    #[inline(never)]
    fn keep_older(&mut self, number: u64, answer: Brief) {
        if let Ok(at) = self.waiting.binary_search_by_key(&number, |waiting| waiting.number) {
            self.waiting.remove(at);
            self.keep_late(number, answer);
        } else {
            self.answers.insert(number, answer);
        }
    }

    /// Stores the final answer to a number that waited.
    pub(crate) fn keep_late(&mut self, number: u64, answer: Brief) {
        let at = self.late.partition_point(|(answered, _)| *answered < number);
        self.late.insert(at, (number, answer));
        self.newest = self.newest.max(number);
    }
}
