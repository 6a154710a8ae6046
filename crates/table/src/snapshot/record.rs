//! The records of a snapshot. One `Table` comes first. Then follow the sessions by id, each with its answers, and the resources by name,
//! each with its held locks, conversions and waiters in their order. The requests for several locks come last, by age.

use crate::label::Label;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{FencingToken, GrantId, Limits, LockName, Mode, Outcome, OwnerId, SessionId};

/// One record of the state. A new kind is added at the end. A change of a kind needs a new version of the format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Record {
    Table(TableRecord),
    Session(SessionRecord),
    /// An answer of the session before it.
    Answer(AnswerRecord),
    Resource(ResourceRecord),
    /// A held lock of the resource before it.
    Held(HeldRecord),
    /// A waiting conversion of a lock of the resource before it.
    Converting(ConvertingRecord),
    /// A request that waits for the resource before it.
    Waiting(WaitingRecord),
    /// A request for several locks: its grants.
    Set(SetRecord),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct TableRecord {
    pub(crate) limits: Limits,
    pub(crate) rules: u32,
    pub(crate) now_ms: u64,
    pub(crate) last_token: u64,
    pub(crate) last_order: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SessionRecord {
    pub(crate) id: SessionId,
    pub(crate) epoch: u64,
    pub(crate) ttl_ms: u64,
    pub(crate) label: Option<Label>,
    pub(crate) floor: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AnswerRecord {
    pub(crate) number: u64,
    /// Whether the request has waited. If so, the answer is kept until it is acknowledged separately.
    pub(crate) waited: bool,
    pub(crate) outcome: Outcome,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ResourceRecord {
    pub(crate) name: LockName,
    pub(crate) value: Bytes,
    pub(crate) in_doubt: bool,
    /// The recorded start, and the time until which it is kept.
    pub(crate) start: Option<(i64, i64)>,
    /// Sorted by id.
    pub(crate) observers: Vec<SessionId>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HeldRecord {
    pub(crate) grant: GrantId,
    pub(crate) mode: Mode,
    pub(crate) token: FencingToken,
    pub(crate) since_ms: u64,
    /// Session and owner. `None` for a lock-delay.
    pub(crate) holder: Option<(SessionId, OwnerId)>,
    pub(crate) label: Option<Label>,
    pub(crate) lock_delay_ms: u64,
    pub(crate) notify: bool,
    pub(crate) let_go: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ConvertingRecord {
    pub(crate) grant: GrantId,
    pub(crate) line: LineRecord,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WaitingRecord {
    pub(crate) grant: GrantId,
    pub(crate) session: SessionId,
    pub(crate) owner: OwnerId,
    pub(crate) label: Option<Label>,
    pub(crate) lock_delay_ms: u64,
    pub(crate) notify: bool,
    pub(crate) line: LineRecord,
}

/// A place in a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LineRecord {
    pub(crate) mode: Mode,
    pub(crate) number: u64,
    pub(crate) order: u64,
    pub(crate) since_ms: u64,
    /// How many requests were ahead when it queued.
    pub(crate) place: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SetRecord {
    pub(crate) grants: Vec<GrantId>,
}

impl Record {
    /// Appends the record.
    pub(crate) fn write(&self, to: &mut Vec<u8>) {
        postcard::to_io(self, to).expect("a record can be written, and memory takes it");
    }

    /// Returns the first record, and the bytes behind it.
    pub(crate) fn read(bytes: &[u8]) -> Option<(Self, &[u8])> {
        postcard::take_from_bytes(bytes).ok()
    }
}
