//! What follows from a command, for whoever runs the table to carry out.

use std::sync::Arc;

use crate::label::Label;
use serde::{Deserialize, Serialize};

use crate::{FencingToken, GrantId, LockName, Mode, OwnerId, SessionId, SharedValue};

/// Something that somebody outside is to be told, or to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect {
    /// The answer to a request. One that queues has two: [`Answer::Queued`], and later the final one.
    Answer {
        /// Whose.
        session: SessionId,
        /// The request's number.
        number: u64,
        /// The answer.
        outcome: Outcome,
    },
    /// A session is open, or was open already, or was kept.
    SessionOpen {
        /// Which.
        session: SessionId,
        /// Its epoch: the one to expire it by.
        epoch: u64,
    },
    /// A session was not opened.
    SessionRefused {
        /// Which.
        session: SessionId,
        /// Why.
        why: SessionRefusal,
    },
    /// There is no such session.
    SessionUnknown {
        /// Which.
        session: SessionId,
    },
    /// A session has ended, and all that it held and waited for with it.
    SessionEnded {
        /// Which.
        session: SessionId,
        /// How.
        end: SessionEnd,
    },
    /// A grant has ended by somebody else's doing: its holder must stop.
    Lost {
        /// Whose.
        session: SessionId,
        /// Which.
        grant: GrantId,
        /// Why.
        reason: LossReason,
    },
    /// An operator asks a holder to let go.
    LetGo {
        /// Whose.
        session: SessionId,
        /// Which.
        grant: GrantId,
    },
    /// Somebody waits behind a grant whose holder asked to be told. A hint: it may be over when it is read.
    Wanted {
        /// Whose.
        session: SessionId,
        /// Which.
        grant: GrantId,
        /// The mode that is wanted.
        mode: Mode,
    },
    /// A lock-delay has begun: [`EndDelay`](crate::Command::EndDelay) is due after that time.
    Delay {
        /// The dead grant.
        grant: GrantId,
        /// For how long.
        for_ms: u64,
    },
    /// The holders of a resource that this session observes have changed: [`inspect`](crate::Table::inspect) shows them. Sent once
    /// for each command.
    Changed {
        /// Whose.
        session: SessionId,
        /// Which resource.
        name: LockName,
    },
    /// The command asks for rules that this program does not know. The replica must stop: it would decide differently from the
    /// others from here on.
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
    /// It was not heard of.
    Expired,
}

/// Why a session was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum SessionRefusal {
    /// There are too many.
    #[error("there are {limit} sessions already, which is the limit: close some, or raise it")]
    TooManySessions {
        /// The limit.
        limit: u32,
    },
    /// Its label is too long.
    #[error("a label has at most {limit} bytes")]
    LabelTooLong {
        /// The limit.
        limit: u32,
    },
}

/// Why a grant ended without its holder's doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum LossReason {
    /// An operator broke it.
    Broken,
}

/// The answer to a request, and what is remembered of it until the client has seen it.
pub type Outcome = Result<Answer, Refusal>;

/// A request that was done, or waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// It waits. Not the last answer.
    Queued {
        /// How many were ahead of it when it queued; of several locks, at the first one.
        place: u32,
    },
    /// The lock, or the new mode, is held.
    Granted(Granted),
    /// All the locks are held, in the order in which they were asked for.
    GrantedAll(Arc<[Granted]>),
    /// It is free.
    Released,
    /// The request that was to be given up waits no more; it was answered so itself.
    Cancelled,
    /// The value is written.
    Written,
    /// The start is noted down.
    Remembered,
    /// Another start stands in its way, and nothing was changed.
    AlreadyStarted {
        /// How long ago that was.
        ago_ms: u64,
    },
    /// These grants are marked or gone, in the order in which they were granted.
    Broken(Arc<[GrantId]>),
    /// The resource is observed.
    Observed,
    /// The resource is not observed any more, or was not observed.
    Unobserved,
}

/// What a holder gets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Granted {
    /// The fencing token.
    pub token: FencingToken,
    /// The resource's value. Not with a conversion that gives something up: what is read must be what the mode protects.
    pub value: Option<SharedValue>,
}

/// One request of a cycle. It waits for the owner of the next one, and the last one for the owner of the first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CycleMember {
    /// What it waits for.
    pub name: LockName,
    /// Which grant is to come of it, or to be converted by it.
    pub grant: GrantId,
    /// Who waits.
    pub owner: OwnerId,
    /// In which mode.
    pub mode: Mode,
    /// What it called itself.
    pub label: Option<Label>,
    /// How many are ahead of it in the resource's queue: conversions first, then waiters.
    pub place: u32,
}

/// Why a request was not done. It has changed nothing, and nothing of it waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The session is not open.
    #[error("the session is not open: open another one")]
    NoSession,
    /// The client said that it has seen the answer to this number.
    #[error("the answer to this request was acknowledged and is forgotten")]
    Forgotten,
    /// The session has not acknowledged enough.
    #[error("{limit} answers of this session are not acknowledged: say which were seen")]
    TooManyAnswers {
        /// The limit.
        limit: u32,
    },
    /// It cannot be had now, and the request was not to wait.
    #[error("`{name}` cannot be had now: somebody else holds it, or waits for it")]
    Busy {
        /// The resource.
        name: LockName,
    },
    /// It would wait for ever.
    #[error("this would wait for ever")]
    Deadlock {
        /// The whole cycle, beginning with the owner that is refused.
        cycle: Arc<[CycleMember]>,
    },
    /// The request was given up while it waited.
    #[error("the request was given up")]
    Cancelled,
    /// Its owner holds the lock in a mode that does not cover the one asked for.
    #[error("the owner holds `{name}` in mode {held}, which does not cover {asked}: convert it")]
    NotCovered {
        /// The resource.
        name: LockName,
        /// The mode that is held.
        held: Mode,
        /// The mode that was asked for.
        asked: Mode,
    },
    /// Its owner holds one of several locks already: several at once are for those who hold none of them.
    #[error("the owner holds `{name}` already: leave it out")]
    AlreadyHeld {
        /// The resource.
        name: LockName,
    },
    /// There is no such grant in this session, or nobody holds what was to be broken.
    #[error("it is not held")]
    NotHeld,
    /// There is nothing to give up.
    #[error("no request of that number waits")]
    NotQueued,
    /// The grant's id is in use.
    #[error("the grant's id is in use: draw another one")]
    GrantTaken,
    /// The grant is being converted.
    #[error("the grant is being converted already: wait for that, or cancel it")]
    Converting,
    /// The mode does not allow to write the value.
    #[error("a value is written in mode PW or EX, and this is {mode}")]
    MayNotWrite {
        /// The mode that is held.
        mode: Mode,
    },
    /// A value goes with a release or with a conversion down.
    #[error("a conversion writes a value only when it goes down")]
    ValueOnTheWayUp,
    /// Several locks were asked for, and none was named.
    #[error("no lock was named")]
    NoNames,
    /// Several locks were asked for, and one was named twice.
    #[error("`{name}` was named twice")]
    NamedTwice {
        /// Which.
        name: LockName,
    },
    /// Too many locks in one request.
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
    /// Too many resources are known.
    #[error("the table knows {limit} names, which is the limit")]
    TooManyNames {
        /// The limit.
        limit: u32,
    },
    /// Too many wait.
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
