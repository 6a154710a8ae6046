//! The messages of etcd's API, version 3, as far as locks need them. The field numbers are those of etcd's `rpc.proto` and `kv.proto`.
//!
//! They are written by hand, so that building this crate needs no protobuf compiler. As in all of protobuf, fields that are not listed here
//! are skipped when a response is read.

use prost::{Message, Oneof};

#[derive(Clone, PartialEq, Message)]
pub(super) struct Header {
    #[prost(uint64, tag = "2")]
    pub(super) member_id: u64,
    #[prost(int64, tag = "3")]
    pub(super) revision: i64,
    #[prost(uint64, tag = "4")]
    pub(super) raft_term: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyValue {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(int64, tag = "2")]
    pub(super) create_revision: i64,
    #[prost(int64, tag = "3")]
    pub(super) mod_revision: i64,
    #[prost(bytes = "vec", tag = "5")]
    pub(super) value: Vec<u8>,
    #[prost(int64, tag = "6")]
    pub(super) lease: i64,
}

/// A read of a key, or of a range of keys. etcd calls it `RangeRequest`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Get {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    limit: i64,
    #[prost(enumeration = "SortOrder", tag = "5")]
    sort_order: i32,
    #[prost(enumeration = "SortTarget", tag = "6")]
    sort_target: i32,
    #[prost(bool, tag = "8")]
    keys_only: bool,
    #[prost(bool, tag = "9")]
    count_only: bool,
    #[prost(int64, tag = "13")]
    max_create_revision: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
enum SortOrder {
    None = 0,
    Descend = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
enum SortTarget {
    Key = 0,
    Create = 2,
}

impl Get {
    pub(super) fn key(key: impl Into<Vec<u8>>) -> Self {
        Self { key: key.into(), ..Self::default() }
    }

    /// Reads from the first key up to, but not including, the second.
    pub(super) fn range(first: impl Into<Vec<u8>>, end: impl Into<Vec<u8>>) -> Self {
        Self { range_end: end.into(), ..Self::key(first) }
    }

    /// Reads all keys with this prefix.
    pub(super) fn prefix(prefix: impl Into<Vec<u8>>) -> Self {
        let prefix = prefix.into();
        Self { range_end: end_of(&prefix), ..Self::key(prefix) }
    }

    /// Leaves out the values.
    pub(super) fn keys_only(self) -> Self {
        Self { keys_only: true, ..self }
    }

    /// Returns only the number of keys.
    pub(super) fn count_only(self) -> Self {
        Self { count_only: true, ..self }
    }

    pub(super) fn at_most(self, limit: i64) -> Self {
        Self { limit, ..self }
    }

    /// Sorts by creation, latest first.
    pub(super) fn newest_first(self) -> Self {
        Self { sort_order: SortOrder::Descend.into(), sort_target: SortTarget::Create.into(), ..self }
    }

    /// Limits the keys to those created at this revision or before; no limit, if it is 0.
    pub(super) fn created_up_to(self, max_create_revision: i64) -> Self {
        Self { max_create_revision, ..self }
    }
}

/// Returns the end of the keys with this prefix. A single zero is the end of all keys.
pub(super) fn end_of(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while end.pop_if(|last| *last == u8::MAX).is_some() {}
    match end.last_mut() {
        Some(last) => *last += 1,
        None => end = vec![0],
    }
    end
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Found {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    #[prost(message, repeated, tag = "2")]
    pub(super) kvs: Vec<KeyValue>,
    /// Whether there are more keys than requested.
    #[prost(bool, tag = "3")]
    pub(super) more: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Put {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
    #[prost(int64, tag = "3")]
    lease: i64,
    #[prost(bool, tag = "5")]
    ignore_value: bool,
    #[prost(bool, tag = "6")]
    ignore_lease: bool,
}

impl Put {
    pub(super) fn new(key: impl Into<Vec<u8>>, value: impl Into<Vec<u8>>) -> Self {
        Self { key: key.into(), value: value.into(), ..Self::default() }
    }

    /// Attaches the key to a lease, which deletes it at its end.
    pub(super) fn under(self, lease: i64) -> Self {
        Self { lease, ..self }
    }

    /// Writes an existing key again, with its present value and lease.
    pub(super) fn again(key: impl Into<Vec<u8>>) -> Self {
        Self { ignore_value: true, ignore_lease: true, ..Self::new(key, Vec::new()) }
    }
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Delete {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

impl Delete {
    pub(super) fn key(key: impl Into<Vec<u8>>) -> Self {
        Self { key: key.into() }
    }
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Deleted {
    #[prost(int64, tag = "2")]
    pub(super) deleted: i64,
}

/// A condition on a key, or on all keys of a range.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Compare {
    #[prost(enumeration = "Operator", tag = "1")]
    result: i32,
    #[prost(enumeration = "Target", tag = "2")]
    target: i32,
    #[prost(bytes = "vec", tag = "3")]
    key: Vec<u8>,
    #[prost(oneof = "Operand", tags = "5, 6")]
    operand: Option<Operand>,
    #[prost(bytes = "vec", tag = "64")]
    range_end: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
enum Operator {
    Equal = 0,
    Greater = 1,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
enum Target {
    Version = 0,
    Create = 1,
    Mod = 2,
}

#[derive(Clone, PartialEq, Oneof)]
enum Operand {
    #[prost(int64, tag = "5")]
    CreateRevision(i64),
    #[prost(int64, tag = "6")]
    ModRevision(i64),
}

impl Compare {
    fn new(key: impl Into<Vec<u8>>, operator: Operator, target: Target, operand: Operand) -> Self {
        let (result, target) = (operator.into(), target.into());
        Self { result, target, key: key.into(), operand: Some(operand), range_end: Vec::new() }
    }

    /// The key exists and was created at this revision.
    pub(super) fn created_at(key: impl Into<Vec<u8>>, revision: i64) -> Self {
        Self::new(key, Operator::Equal, Target::Create, Operand::CreateRevision(revision))
    }

    /// The key was last written at this revision; or it does not exist, if that is 0.
    pub(super) fn written_at(key: impl Into<Vec<u8>>, revision: i64) -> Self {
        Self::new(key, Operator::Equal, Target::Mod, Operand::ModRevision(revision))
    }

    pub(super) fn exists(key: impl Into<Vec<u8>>) -> Self {
        Self::new(key, Operator::Greater, Target::Create, Operand::CreateRevision(0))
    }

    pub(super) fn is_missing(key: impl Into<Vec<u8>>) -> Self {
        Self::created_at(key, 0)
    }

    /// No key has this prefix.
    pub(super) fn prefix_is_missing(prefix: &str) -> Self {
        Self { range_end: end_of(prefix.as_bytes()), ..Self::is_missing(prefix) }
    }
}

/// A transaction: one list of steps if all conditions are met, and else another one. etcd calls it `TxnRequest`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Txn {
    #[prost(message, repeated, tag = "1")]
    conditions: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    success: Vec<Step>,
    #[prost(message, repeated, tag = "3")]
    failure: Vec<Step>,
}

impl Txn {
    pub(super) fn new() -> Self {
        Self::default()
    }

    pub(super) fn when(self, conditions: impl Into<Vec<Compare>>) -> Self {
        Self { conditions: conditions.into(), ..self }
    }

    pub(super) fn and_then(self, steps: impl Into<Vec<Step>>) -> Self {
        Self { success: steps.into(), ..self }
    }

    pub(super) fn or_else(self, steps: impl Into<Vec<Step>>) -> Self {
        Self { failure: steps.into(), ..self }
    }
}

/// A step of a transaction. etcd calls it `RequestOp`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Step {
    #[prost(oneof = "StepKind", tags = "1, 2, 3, 4")]
    kind: Option<StepKind>,
}

#[derive(Clone, PartialEq, Oneof)]
enum StepKind {
    #[prost(message, tag = "1")]
    Get(Get),
    #[prost(message, tag = "2")]
    Put(Put),
    #[prost(message, tag = "3")]
    Delete(Delete),
    #[prost(message, tag = "4")]
    Txn(Txn),
}

macro_rules! step_from {
    ($($kind:ident),*) => {$(
        impl From<$kind> for Step {
            fn from(step: $kind) -> Self {
                Self { kind: Some(StepKind::$kind(step)) }
            }
        }
    )*};
}
step_from!(Get, Put, Delete, Txn);

#[derive(Clone, PartialEq, Message)]
pub(super) struct TxnAnswer {
    #[prost(message, optional, tag = "1")]
    header: Option<Header>,
    /// Whether the conditions were met.
    #[prost(bool, tag = "2")]
    pub(super) succeeded: bool,
    #[prost(message, repeated, tag = "3")]
    answers: Vec<StepAnswer>,
}

impl TxnAnswer {
    pub(super) fn revision(&self) -> i64 {
        self.header.as_ref().map_or(0, |header| header.revision)
    }

    /// Returns the results of the reads.
    pub(super) fn found(self) -> Vec<Found> {
        let found = |answer: StepAnswer| match answer.kind? {
            StepAnswerKind::Found(found) => Some(found),
        };
        self.answers.into_iter().filter_map(found).collect()
    }
}

#[derive(Clone, PartialEq, Message)]
struct StepAnswer {
    #[prost(oneof = "StepAnswerKind", tags = "1")]
    kind: Option<StepAnswerKind>,
}

#[derive(Clone, PartialEq, Oneof)]
enum StepAnswerKind {
    #[prost(message, tag = "1")]
    Found(Found),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct GrantLease {
    #[prost(int64, tag = "1")]
    pub(super) ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseGranted {
    #[prost(int64, tag = "2")]
    pub(super) id: i64,
    #[prost(int64, tag = "3")]
    pub(super) ttl: i64,
}

/// A request that has only the id of a lease: to revoke it, to keep it alive, or to get its remaining time.
#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseId {
    #[prost(int64, tag = "1")]
    pub(super) id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseRevoked {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseKept {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<Header>,
    /// 0 if the lease does not exist.
    #[prost(int64, tag = "3")]
    pub(super) ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseLives {
    /// Seconds; -1 if the lease does not exist.
    #[prost(int64, tag = "3")]
    pub(super) ttl: i64,
    #[prost(int64, tag = "4")]
    pub(super) granted_ttl: i64,
}

/// A request on a stream of watches. etcd calls it `WatchRequest`.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Watch {
    #[prost(oneof = "WatchKind", tags = "1, 2")]
    kind: Option<WatchKind>,
}

#[derive(Clone, PartialEq, Oneof)]
enum WatchKind {
    #[prost(message, tag = "1")]
    Create(WatchCreate),
    #[prost(message, tag = "2")]
    Cancel(WatchCancel),
}

#[derive(Clone, PartialEq, Message)]
struct WatchCreate {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    range_end: Vec<u8>,
    #[prost(int64, tag = "3")]
    start_revision: i64,
    #[prost(enumeration = "Filter", repeated, tag = "5")]
    filters: Vec<i32>,
    #[prost(int64, tag = "7")]
    watch_id: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
enum Filter {
    NoPut = 0,
}

#[derive(Clone, PartialEq, Message)]
struct WatchCancel {
    #[prost(int64, tag = "1")]
    watch_id: i64,
}

impl Watch {
    /// Watches for a deletion of this key, at this revision or later.
    pub(super) fn deletion(watch_id: i64, key: impl Into<Vec<u8>>, start_revision: i64) -> Self {
        Self::filtered(watch_id, key, Vec::new(), start_revision, vec![Filter::NoPut.into()])
    }

    /// Watches for a write or a deletion of this key, at this revision or later.
    pub(super) fn any_change(watch_id: i64, key: impl Into<Vec<u8>>, start_revision: i64) -> Self {
        Self::filtered(watch_id, key, Vec::new(), start_revision, Vec::new())
    }

    /// Watches for a write or a deletion of any key with this prefix, at this revision or later.
    pub(super) fn any_change_below(watch_id: i64, prefix: impl Into<Vec<u8>>, start_revision: i64) -> Self {
        let prefix = prefix.into();
        let end = end_of(&prefix);
        Self::filtered(watch_id, prefix, end, start_revision, Vec::new())
    }

    fn filtered(
        watch_id: i64,
        key: impl Into<Vec<u8>>,
        range_end: Vec<u8>,
        start_revision: i64,
        filters: Vec<i32>,
    ) -> Self {
        let create = WatchCreate { key: key.into(), range_end, start_revision, filters, watch_id };
        Self { kind: Some(WatchKind::Create(create)) }
    }

    pub(super) fn cancel(watch_id: i64) -> Self {
        Self { kind: Some(WatchKind::Cancel(WatchCancel { watch_id })) }
    }
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct WatchAnswer {
    #[prost(int64, tag = "2")]
    pub(super) watch_id: i64,
    #[prost(bool, tag = "4")]
    pub(super) canceled: bool,
    #[prost(string, tag = "6")]
    pub(super) cancel_reason: String,
    #[prost(message, repeated, tag = "11")]
    pub(super) events: Vec<Event>,
}

/// An event of a key. Its kind is not read, since the request for the watch selects the kinds.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Event {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct StatusOf {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Status {
    #[prost(string, tag = "2")]
    pub(super) version: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LogIn {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) password: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LoggedIn {
    #[prost(string, tag = "2")]
    pub(super) token: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_with_a_prefix_end_where_the_next_one_begins() {
        for (prefix, end) in [("a", &b"b"[..]), ("app/", b"app0"), ("", b"\0")] {
            assert_eq!(end_of(prefix.as_bytes()), end);
        }
        assert_eq!(end_of(b"a\xff\xff"), b"b");
        assert_eq!(end_of(b"\xff"), b"\0");
    }

    /// The expected bytes, as another client writes them, were put together by the field numbers of etcd's definitions.
    #[test]
    fn messages_have_the_bytes_that_etcd_expects() {
        let missing = Compare::prefix_is_missing("a/");
        assert_eq!(missing.encode_to_vec(), b"\x10\x01\x1a\x02a/\x28\x00\x82\x04\x02a0");
        let put = Step::from(Put::new("k", "v").under(300));
        assert_eq!(put.encode_to_vec(), b"\x12\x09\x0a\x01k\x12\x01v\x18\xac\x02");
        let get = Step::from(Get::prefix("a").keys_only().newest_first().at_most(9).created_up_to(7));
        assert_eq!(
            get.encode_to_vec(),
            b"\x0a\x10\x0a\x01a\x12\x01b\x18\x09\x28\x02\x30\x02\x40\x01\x68\x07"
        );
        let watch = Watch::deletion(5, "k", 8);
        assert_eq!(watch.encode_to_vec(), b"\x0a\x0a\x0a\x01k\x18\x08\x2a\x01\x00\x38\x05");
        let answer = WatchAnswer::decode(&b"\x10\x05\x5a\x02\x08\x01"[..]).unwrap();
        assert_eq!((answer.watch_id, answer.events.len(), answer.canceled), (5, 1, false));
    }
}
