//! The commands of a table. The caller puts them into one order: that order is all that replicas must agree on.

use crate::label::Label;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{GrantId, Limits, LockName, Mode, OwnerId, SessionId};

/// One step of the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Opens a session. A session that is already open does not change.
    OpenSession {
        /// The session's id, drawn by the client.
        session: SessionId,
        /// The session's TTL. The table only stores it, for the leader, which measures the time.
        ttl_ms: u64,
        /// The client's label.
        label: Option<Label>,
    },
    /// Gives a session a new epoch, so that an expiry proposed earlier has no effect when it is applied after this.
    KeepSession {
        /// The session.
        session: SessionId,
    },
    /// Closes a session: its locks are released and its waiting requests are cancelled.
    CloseSession {
        /// The session.
        session: SessionId,
    },
    /// Expires a session that was not renewed in time, if it still has the epoch that the leader saw.
    ExpireSession {
        /// The session.
        session: SessionId,
        /// The epoch that the leader saw when the session's TTL had run out.
        epoch: u64,
    },
    /// A request of a session. A request that is sent again under the same number is carried out once.
    Request {
        /// The session.
        session: SessionId,
        /// The request's number, larger than 0. A session uses each number once. Numbers need not arrive in order.
        number: u64,
        /// The client has the answers to all its requests up to this number, except requests that wait or have waited. It will not ask for
        /// these answers again.
        seen: u64,
        /// The request.
        request: Request,
    },
    /// Acknowledges the final answer to a request that has waited.
    Acknowledge {
        /// The session.
        session: SessionId,
        /// The request's number.
        number: u64,
    },
    /// Ends the lock-delay of an expired grant.
    EndDelay {
        /// The expired grant.
        grant: GrantId,
    },
    /// Moves the table's time forward. An earlier time changes nothing.
    AdvanceTime {
        /// The leader's time, in milliseconds since an arbitrary instant.
        to_ms: u64,
    },
    /// Sets the limits for later requests. What already exceeds them remains.
    SetLimits(Limits),
    /// Raises the version of the rules that the table follows, once every replica knows that version. An older version changes nothing. An
    /// unknown version is reported as [`RulesUnknown`](crate::Effect::RulesUnknown).
    SetRules {
        /// The version.
        version: u32,
    },
}

impl Command {
    /// Returns a request of a session that acknowledges nothing.
    pub const fn request(session: SessionId, number: u64, request: Request) -> Self {
        Self::Request { session, number, seen: 0, request }
    }
}

/// A request of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// Acquires one lock.
    Acquire(Acquire),
    /// Acquires several locks, which are granted together.
    AcquireAll(AcquireAll),
    /// Converts a grant to another mode.
    Convert {
        /// The grant.
        grant: GrantId,
        /// The new mode.
        to: Mode,
        /// What to do if the mode cannot be granted now.
        wait: Wait,
        /// A value to write while the old mode still allows it. Only for a conversion to a mode that the old one covers.
        value: Option<Bytes>,
    },
    /// Releases a grant, and cancels a waiting conversion of it.
    Release {
        /// The grant.
        grant: GrantId,
        /// A value to write before the release.
        value: Option<Bytes>,
    },
    /// Cancels a waiting request of this session.
    Cancel {
        /// The number of the waiting request.
        number: u64,
    },
    /// Writes a resource's value.
    SetValue {
        /// The grant that allows the write.
        grant: GrantId,
        /// The new value.
        bytes: Bytes,
    },
    /// Records that the work which a grant protects was started.
    Remember {
        /// The grant that allows the record.
        grant: GrantId,
        /// How long ago it was started.
        ago_ms: u64,
        /// How long after that start no other start may follow.
        window_ms: u64,
    },
    /// Breaks a lock, for an operator.
    Break {
        /// The lock.
        name: LockName,
        /// Whether holders are asked or removed.
        how: Break,
    },
    /// Observes a resource: the session is notified when its holders change, until the session stops observing or ends.
    Observe {
        /// The resource.
        name: LockName,
    },
    /// Stops observing a resource.
    Unobserve {
        /// The resource.
        name: LockName,
    },
}

/// A request for one lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acquire {
    /// The id that the grant will have, drawn by the client.
    pub grant: GrantId,
    /// The resource to lock.
    pub name: LockName,
    /// The mode to lock it in.
    pub mode: Mode,
    /// The owner that acquires it.
    pub owner: OwnerId,
    /// What to do if the lock cannot be granted now.
    pub wait: Wait,
    /// The caller's label.
    pub label: Option<Label>,
    /// How long the lock stays unavailable to others if this grant's session *expires*.
    pub lock_delay_ms: u64,
    /// Whether the holder is notified when a conflicting request waits behind it.
    pub notify: bool,
}

impl Acquire {
    /// Returns a request that waits in the queue, with an owner that has this one lock.
    pub const fn new(grant: GrantId, name: LockName, mode: Mode) -> Self {
        let owner = OwnerId::from_u128(grant.as_u128());
        Self { grant, name, mode, owner, wait: Wait::Queue, label: None, lock_delay_ms: 0, notify: false }
    }
}

/// A request for several locks, which are all granted together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcquireAll {
    /// The owner that acquires them.
    pub owner: OwnerId,
    /// The locks.
    pub items: Vec<Item>,
    /// What to do if not all of them can be granted now.
    pub wait: Wait,
    /// The caller's label.
    pub label: Option<Label>,
    /// As in [`Acquire`], for each lock.
    pub lock_delay_ms: u64,
    /// As in [`Acquire`], for each lock.
    pub notify: bool,
}

/// One lock of a request for several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// The id that the grant will have.
    pub grant: GrantId,
    /// The resource to lock.
    pub name: LockName,
    /// The mode to lock it in.
    pub mode: Mode,
}

/// What to do about a lock that cannot be granted now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wait {
    /// Refuse the request.
    Try,
    /// Wait in the queue. The table has no timeout: the client cancels a request that has waited long enough.
    Queue,
}

/// How an operator breaks a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Break {
    /// Mark the grants and notify their holders.
    Ask,
    /// Release the grants at once, and end the lock-delays.
    Force,
}
