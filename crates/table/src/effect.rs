//! The results of a command, for the caller of the table to carry out.

use std::sync::Arc;

use crate::label::Label;
use serde::{Deserialize, Serialize};

use crate::{FencingToken, GrantId, LockName, Mode, OwnerId, SessionId, SharedValue};

/// A message to deliver or an action to take outside the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect {
    /// The answer to a request. A request that queues has two: first [`Answer::Queued`], later the final one.
    Answer {
        /// The session.
        session: SessionId,
        /// The request's number.
        number: u64,
        /// The answer.
        outcome: Outcome,
    },
    /// The session is open with this epoch: after an opening, a renewal of the epoch, or an expiry that named another epoch.
    SessionOpen {
        /// The session.
        session: SessionId,
        /// The session's epoch: an expiry must name it.
        epoch: u64,
    },
    /// A session was not opened.
    SessionRefused {
        /// The session.
        session: SessionId,
        /// The reason.
        why: SessionRefusal,
    },
    /// The session does not exist.
    SessionUnknown {
        /// The session.
        session: SessionId,
    },
    /// A session has ended, with all its locks and waiting requests.
    SessionEnded {
        /// The session.
        session: SessionId,
        /// How it ended.
        end: SessionEnd,
    },
    /// A grant has ended without its holder's request. The holder must stop its work.
    Lost {
        /// The holder's session.
        session: SessionId,
        /// The grant.
        grant: GrantId,
        /// The reason.
        reason: LossReason,
    },
    /// An operator asks a holder to release a grant.
    LetGo {
        /// The holder's session.
        session: SessionId,
        /// The grant.
        grant: GrantId,
    },
    /// A conflicting request waits behind a grant whose holder asked for notices. A hint: the wait may be over when the client reads it.
    Wanted {
        /// The holder's session.
        session: SessionId,
        /// The grant.
        grant: GrantId,
        /// The mode of the waiting request.
        mode: Mode,
    },
    /// A lock-delay has begun. [`EndDelay`](crate::Command::EndDelay) is due after this time.
    Delay {
        /// The expired grant.
        grant: GrantId,
        /// The length of the lock-delay.
        for_ms: u64,
    },
    /// The holders of a resource that this session observes have changed: [`inspect`](crate::Table::inspect) shows them. Sent once for each
    /// command.
    Changed {
        /// The session.
        session: SessionId,
        /// The resource.
        name: LockName,
    },
    /// The command asks for rules that this program does not know. The replica must stop, because it would decide differently from the
    /// others.
    RulesUnknown {
        /// The version that was asked for.
        version: u32,
        /// The newest version that this program knows.
        known: u32,
    },
}

/// How a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SessionEnd {
    /// Its client closed it.
    Closed,
    /// Its TTL ran out.
    Expired,
}

/// Why a session was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum SessionRefusal {
    /// The table has as many sessions as its limit allows.
    #[error("there are {limit} sessions already, which is the limit: close some, or raise it")]
    TooManySessions {
        /// The limit.
        limit: u32,
    },
    /// The session's label is too long.
    #[error("a label has at most {limit} bytes")]
    LabelTooLong {
        /// The limit.
        limit: u32,
    },
}

/// Why a grant ended without its holder's request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum LossReason {
    /// An operator broke it.
    Broken,
}

/// The answer to a request. The table keeps it until the client has acknowledged it.
pub type Outcome = Result<Answer, Refusal>;

/// The answer to a request that was carried out or waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// The request waits. The final answer follows later.
    Queued {
        /// How many requests were ahead of this one when it queued. For several locks, at the first of them.
        place: u32,
    },
    /// The lock is held, or held in the new mode.
    Granted(Granted),
    /// All the locks are held. They are in the order of the request.
    GrantedAll(Arc<[Granted]>),
    /// The lock is free.
    Released,
    /// The waiting request was cancelled, and has received its own answer.
    Cancelled,
    /// The value is written.
    Written,
    /// The start is recorded.
    Remembered,
    /// An earlier start is still recorded. Nothing was changed.
    AlreadyStarted {
        /// How long ago the earlier start was.
        ago_ms: u64,
    },
    /// These grants were marked or released, in the order in which they were granted.
    Broken(Arc<[GrantId]>),
    /// The resource is observed.
    Observed,
    /// The resource is not observed, or is no longer observed.
    Unobserved,
}

/// A grant, as its holder receives it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Granted {
    /// The fencing token.
    pub token: FencingToken,
    /// The resource's value. Absent after a conversion to a mode that does not cover the old one: the new mode may not protect what would
    /// be read.
    pub value: Option<SharedValue>,
}

/// One request of a cycle. It waits for the owner of the next member, and the last member waits for the owner of the first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CycleMember {
    /// The resource it waits for.
    pub name: LockName,
    /// The grant that the request is for, or that it converts.
    pub grant: GrantId,
    /// The owner that waits.
    pub owner: OwnerId,
    /// The mode it waits for.
    pub mode: Mode,
    /// The label of the request.
    pub label: Option<Label>,
    /// How many requests are ahead of it in the resource's queue: conversions first, then waiters.
    pub place: u32,
}

/// Why a request was not carried out. The request has changed nothing, and no part of it waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The session is not open.
    #[error("the session is not open: open another one")]
    NoSession,
    /// The client has acknowledged the answer to this number.
    #[error("the answer to this request was acknowledged and is forgotten")]
    Forgotten,
    /// The session has too many answers that are not acknowledged.
    #[error("{limit} answers of this session are not acknowledged: say which were seen")]
    TooManyAnswers {
        /// The limit.
        limit: u32,
    },
    /// The lock cannot be granted now, and the request was not to wait.
    #[error("`{name}` cannot be had now: somebody else holds it, or waits for it")]
    Busy {
        /// The resource.
        name: LockName,
    },
    /// The request would wait for ever.
    #[error("this would wait for ever")]
    Deadlock {
        /// The whole cycle, beginning with the owner whose request is refused.
        cycle: Arc<[CycleMember]>,
    },
    /// The request was cancelled while it waited.
    #[error("the request was given up")]
    Cancelled,
    /// The owner holds the lock in a mode that does not cover the requested one.
    #[error("the owner holds `{name}` in mode {held}, which does not cover {asked}: convert it")]
    NotCovered {
        /// The resource.
        name: LockName,
        /// The mode that is held.
        held: Mode,
        /// The requested mode.
        asked: Mode,
    },
    /// The owner already holds one of the locks. A request for several locks requires that it holds none of them.
    #[error("the owner holds `{name}` already: leave it out")]
    AlreadyHeld {
        /// The resource.
        name: LockName,
    },
    /// The session has no such grant, or the lock to break has no holder.
    #[error("it is not held")]
    NotHeld,
    /// No request of that number waits.
    #[error("no request of that number waits")]
    NotQueued,
    /// The grant's id is already in use.
    #[error("the grant's id is in use: draw another one")]
    GrantTaken,
    /// The grant is already being converted.
    #[error("the grant is being converted already: wait for that, or cancel it")]
    Converting,
    /// The mode does not allow writing the value.
    #[error("a value is written in mode PW or EX, and this is {mode}")]
    MayNotWrite {
        /// The mode that is held.
        mode: Mode,
    },
    /// Only a release, or a conversion to a mode that the old one covers, may carry a value.
    #[error("a conversion writes a value only when it goes down")]
    ValueOnTheWayUp,
    /// A request for several locks named none.
    #[error("no lock was named")]
    NoNames,
    /// A request for several locks named one twice.
    #[error("`{name}` was named twice")]
    NamedTwice {
        /// The name.
        name: LockName,
    },
    /// The request names too many locks.
    #[error("a request names at most {limit} locks")]
    TooManyItems {
        /// The limit.
        limit: u32,
    },
    /// The session has too many locks.
    #[error("a session holds and waits for at most {limit} locks")]
    TooManyLocks {
        /// The limit.
        limit: u32,
    },
    /// The table knows too many names.
    #[error("the table knows {limit} names, which is the limit")]
    TooManyNames {
        /// The limit.
        limit: u32,
    },
    /// Too many requests wait for the resource.
    #[error("{limit} requests wait for `{name}` already, which is the limit")]
    TooManyWaiters {
        /// The resource.
        name: LockName,
        /// The limit.
        limit: u32,
    },
    /// The session observes too many resources.
    #[error("a session observes at most {limit} locks")]
    TooManyObserved {
        /// The limit.
        limit: u32,
    },
    /// Too many sessions observe the resource.
    #[error("{limit} sessions observe `{name}` already, which is the limit")]
    TooManyObservers {
        /// The resource.
        name: LockName,
        /// The limit.
        limit: u32,
    },
    /// The name is too long for this table.
    #[error("a name has at most {limit} bytes here")]
    NameTooLong {
        /// The limit.
        limit: u32,
    },
    /// The label is too long.
    #[error("a label has at most {limit} bytes")]
    LabelTooLong {
        /// The limit.
        limit: u32,
    },
    /// The value is too long.
    #[error("a value has at most {limit} bytes")]
    ValueTooLong {
        /// The limit.
        limit: u32,
    },
}
