//! What a table is told. Whoever tells it has put the commands into one order, which is all that replicas must agree on.

use crate::label::Label;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{GrantId, Limits, LockName, Mode, OwnerId, SessionId};

/// One step of the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Opens a session; a session that is open stays as it is.
    OpenSession {
        /// Its id, drawn by the client.
        session: SessionId,
        /// How long it lives unheard of. The table only keeps it, for the leader that watches the time.
        ttl_ms: u64,
        /// What the client calls itself.
        label: Option<Label>,
    },
    /// Gives a session a new epoch, so that an expiry which was proposed before this has no effect after it.
    KeepSession {
        /// Which.
        session: SessionId,
    },
    /// Ends a session cleanly: what it holds is released, what it waits for is given up.
    CloseSession {
        /// Which.
        session: SessionId,
    },
    /// Ends a session that was not heard of, if it still has the epoch that the leader saw.
    ExpireSession {
        /// Which.
        session: SessionId,
        /// The epoch that the leader saw when it found the session silent.
        epoch: u64,
    },
    /// A request of a session. The same number twice is one request.
    Request {
        /// Whose.
        session: SessionId,
        /// Its number, larger than 0 and used once by the session. Numbers need not come in their order.
        number: u64,
        /// The client has the answers to all its requests up to this number, except those that wait or have waited, and will not
        /// ask for them again.
        seen: u64,
        /// What is asked for.
        request: Request,
    },
    /// Says that a session has seen the last answer to a request that has waited.
    Acknowledge {
        /// Whose.
        session: SessionId,
        /// The request's number.
        number: u64,
    },
    /// Ends the lock-delay that a dead grant left behind.
    EndDelay {
        /// The dead grant.
        grant: GrantId,
    },
    /// Moves the table's time forward; a time that has passed changes nothing.
    AdvanceTime {
        /// The leader's time, in milliseconds since whenever it likes.
        to_ms: u64,
    },
    /// Sets the limits for what is asked from now on. What is there stays.
    SetLimits(Limits),
    /// Raises the version of the rules that the table follows, once every replica knows that version. An older version changes
    /// nothing; an unknown one is [`RulesUnknown`](crate::Effect::RulesUnknown).
    SetRules {
        /// The version.
        version: u32,
    },
}

impl Command {
    /// A request of a session that acknowledges nothing.
    pub const fn request(session: SessionId, number: u64, request: Request) -> Self {
        Self::Request { session, number, seen: 0, request }
    }
}

/// What a session asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Request {
    /// One lock.
    Acquire(Acquire),
    /// Several locks at one instant.
    AcquireAll(AcquireAll),
    /// Another mode for a grant.
    Convert {
        /// Which grant.
        grant: GrantId,
        /// The new mode.
        to: Mode,
        /// What to do if it cannot be had now.
        wait: Wait,
        /// A value to write while the old mode still allows it. Only with a conversion down.
        value: Option<Bytes>,
    },
    /// Frees a grant, and ends a conversion of it that waits.
    Release {
        /// Which.
        grant: GrantId,
        /// A value to write with it.
        value: Option<Bytes>,
    },
    /// Gives up a request of this session that waits.
    Cancel {
        /// The number of that request.
        number: u64,
    },
    /// Writes a resource's value.
    SetValue {
        /// The grant by which it may.
        grant: GrantId,
        /// The bytes.
        bytes: Bytes,
    },
    /// Notes down that what a grant protects was started.
    Remember {
        /// The grant by which it may.
        grant: GrantId,
        /// How long ago it was started.
        ago_ms: u64,
        /// For how long after it no other start is to follow.
        window_ms: u64,
    },
    /// Breaks a lock: an operator's request.
    Break {
        /// Which lock.
        name: LockName,
        /// How.
        how: Break,
    },
    /// Observes a resource: the session is told when its holders change, until it stops or ends.
    Observe {
        /// Which resource.
        name: LockName,
    },
    /// Stops observing a resource.
    Unobserve {
        /// Which resource.
        name: LockName,
    },
}

/// A request for one lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Acquire {
    /// The id that the grant will have, drawn by the client.
    pub grant: GrantId,
    /// What is to be locked.
    pub name: LockName,
    /// How.
    pub mode: Mode,
    /// For whom.
    pub owner: OwnerId,
    /// What to do if it cannot be had now.
    pub wait: Wait,
    /// What the caller calls itself.
    pub label: Option<Label>,
    /// For how long nobody else gets the lock if this grant's session *expires*.
    pub lock_delay_ms: u64,
    /// Whether the holder is to be told when somebody waits behind it.
    pub notify: bool,
}

impl Acquire {
    /// A request by an owner of its own, that waits in the queue.
    pub const fn new(grant: GrantId, name: LockName, mode: Mode) -> Self {
        let owner = OwnerId::from_u128(grant.as_u128());
        Self { grant, name, mode, owner, wait: Wait::Queue, label: None, lock_delay_ms: 0, notify: false }
    }
}

/// A request for several locks, which are all granted at one instant.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcquireAll {
    /// For whom.
    pub owner: OwnerId,
    /// The locks.
    pub items: Vec<Item>,
    /// What to do if they cannot all be had now.
    pub wait: Wait,
    /// What the caller calls itself.
    pub label: Option<Label>,
    /// As with [`Acquire`], for each of them.
    pub lock_delay_ms: u64,
    /// As with [`Acquire`], for each of them.
    pub notify: bool,
}

/// One lock of several.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// The id that the grant will have.
    pub grant: GrantId,
    /// What is to be locked.
    pub name: LockName,
    /// How.
    pub mode: Mode,
}

/// What to do about a lock that cannot be had now.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wait {
    /// Refuse.
    Try,
    /// Queue. How long is not the table's affair: whoever has waited enough cancels.
    Queue,
}

/// How an operator breaks a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Break {
    /// Mark the grants and tell their holders.
    Ask,
    /// Free them at once, and end the delays that dead ones left.
    Force,
}
