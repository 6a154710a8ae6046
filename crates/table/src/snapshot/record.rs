//! What a snapshot is made of. The order is: one `Table`, then the sessions by id, each followed by its answers, then the resources by
//! name, each followed by the locks that stand there, those who convert and those who wait, each in their order, then the requests
//! for several locks by age.

use crate::label::Label;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{FencingToken, GrantId, Limits, LockName, Mode, Outcome, OwnerId, SessionId};

/// One thing that a table knows. New kinds go to the end; a change of one is a new version of the format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Record {
    Table(TableRecord),
    Session(SessionRecord),
    /// An answer of the last session.
    Answer(AnswerRecord),
    Resource(ResourceRecord),
    /// A lock that stands at the last resource.
    Held(HeldRecord),
    /// A conversion of a lock that stands at the last resource.
    Converting(ConvertingRecord),
    /// A request that waits for the last resource.
    Waiting(WaitingRecord),
    /// A request for several locks: the grants that wait as one.
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
    /// Whether the request has waited: then it is kept until it is acknowledged by itself.
    pub(crate) waited: bool,
    pub(crate) outcome: Outcome,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ResourceRecord {
    pub(crate) name: LockName,
    pub(crate) value: Bytes,
    pub(crate) in_doubt: bool,
    /// When it was last started, and until when that is remembered.
    pub(crate) start: Option<(i64, i64)>,
    /// In the order of their ids.
    pub(crate) observers: Vec<SessionId>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HeldRecord {
    pub(crate) grant: GrantId,
    pub(crate) mode: Mode,
    pub(crate) token: FencingToken,
    pub(crate) since_ms: u64,
    /// Session and owner; nobody's, if it is a delay.
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

/// A place in line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LineRecord {
    pub(crate) mode: Mode,
    pub(crate) number: u64,
    pub(crate) order: u64,
    pub(crate) since_ms: u64,
    /// What was ahead when it queued.
    pub(crate) place: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SetRecord {
    pub(crate) grants: Vec<GrantId>,
}

impl Record {
    /// Appends it.
    pub(crate) fn write(&self, to: &mut Vec<u8>) {
        postcard::to_io(self, to).expect("a record can be written, and memory takes it");
    }

    /// The first record, and the bytes behind it.
    pub(crate) fn read(bytes: &[u8]) -> Option<(Self, &[u8])> {
        postcard::take_from_bytes(bytes).ok()
    }
}
