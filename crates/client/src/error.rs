//! One error enum for each operation. Each error names the resource, says what happened, and says what the reader can do.

use std::fmt::Display;
use std::time::Duration;

use tenure_table::{LockName, Mode, NameError};

use crate::capabilities::Unsupported;
use crate::info::Member;
use crate::lease::TtlError;
use crate::url::UrlError;

/// The cause behind an error of an engine.
pub type Cause = Box<dyn std::error::Error + Send + Sync + 'static>;

/// An error of the engine that any operation can return.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EngineError {
    /// The engine did not answer, or not in time. The same request may succeed later.
    #[error("{engine} cannot be reached: {message}")]
    Unreachable {
        /// The engine.
        engine: &'static str,
        /// The address, what was tried, and what to check.
        message: String,
        /// The error from the system.
        #[source]
        cause: Option<Cause>,
    },
    /// The engine rejected the login, or the login lacks a permission that locks need.
    #[error("{engine} denied access: {message}")]
    Denied {
        /// The engine.
        engine: &'static str,
        /// What was denied, the server's own words, and what to change.
        message: String,
        /// The error from the system.
        #[source]
        cause: Option<Cause>,
    },
    /// The URL names something that does not exist: a host, a database, a directory.
    #[error("{engine} does not find what the URL names: {message}")]
    NotFound {
        /// The engine.
        engine: &'static str,
        /// What is missing, the server's own words, and what to change.
        message: String,
        /// The error from the system.
        #[source]
        cause: Option<Cause>,
    },
    /// The engine answered with an error: a full disk, a limit, a command that is disabled.
    #[error("{engine} refused: {message}")]
    Refused {
        /// The engine.
        engine: &'static str,
        /// The reason, and what to change.
        message: String,
        /// The error from the system.
        #[source]
        cause: Option<Cause>,
    },
    /// The engine's stored data cannot be right. The engine does not guess.
    #[error("{engine} found damage: {message}")]
    Damaged {
        /// The engine.
        engine: &'static str,
        /// The place of the damage, and how to repair it.
        message: String,
    },
    /// The engine does not offer this operation.
    #[error(transparent)]
    Unsupported(#[from] Unsupported),
    /// The client was closed.
    #[error("the client was closed: connect another one")]
    Closed,
}

impl EngineError {
    /// Returns whether the same request may succeed later without a change: the engine could not be reached.
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Unreachable { .. })
    }

    /// Returns whether a wait continues through this error. A connected client does not find its host while the name server is down.
    pub(crate) const fn is_outage(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::NotFound { .. })
    }

    /// Returns whether the error lasts until a person changes something. A full disk may have room again by itself.
    const fn needs_a_person(&self) -> bool {
        !matches!(self, Self::Unreachable { .. } | Self::NotFound { .. } | Self::Refused { .. })
    }
}

/// Why a client could not be created.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The URL does not name an engine.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// The engine could not be opened.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The client's own thread could not be started.
    #[error("could not start the client's thread: raise the limit on threads or open files")]
    Thread(#[source] std::io::Error),
}

impl ConnectError {
    /// Returns whether connecting may succeed later without a change.
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::Engine(error) if error.is_retryable())
    }
}

/// Why a lock was not acquired. The request leaves neither a lock nor a waiter; after an outage, from when the engine can be reached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// The name is invalid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The TTL is invalid.
    #[error(transparent)]
    Ttl(#[from] TtlError),
    /// The `max_hold` limit is zero.
    #[error("max_hold must be longer than zero")]
    MaxHold,
    /// The lock-delay is too long.
    #[error("a lock-delay is at most {most:?}")]
    LockDelay {
        /// The longest lock-delay.
        most: Duration,
    },
    /// Another owner holds the lock, and the request was not to wait.
    #[error("`{name}` is held by somebody else: wait for it, or see who with `inspect`")]
    Busy {
        /// The resource.
        name: LockName,
    },
    /// The lock did not become free within the wait.
    #[error(
        "`{name}` did not become free within {waited:?}: wait longer, or see who holds it with `inspect`"
    )]
    TimedOut {
        /// The resource.
        name: LockName,
        /// How long the request was to wait.
        waited: Duration,
    },
    /// Waiting would never end: the holders and waiters ahead of this request in turn wait for it.
    #[error("deadlock on `{name}`: {}; release something that the others wait for, and try again", cycle_text(.cycle))]
    Deadlock {
        /// The resource.
        name: LockName,
        /// The whole cycle: each member waits for the next, and the last for the first.
        cycle: Vec<CycleMember>,
    },
    /// This owner holds the lock already, in a mode that does not cover the requested one.
    #[error(
        "this owner holds `{name}` in mode {held}, which does not cover {asked}: use `convert` on its guard where the engine has that, or release it first"
    )]
    NotCovered {
        /// The resource.
        name: LockName,
        /// The mode that is held.
        held: Mode,
        /// The mode that was requested.
        asked: Mode,
    },
    /// The lock was granted, but its lease expired before the grant could be used, and further attempts did not help.
    #[error(
        "`{name}` was granted too late to be used: the engine takes longer to answer than the ttl of {ttl:?} allows; use a longer one"
    )]
    Lapsed {
        /// The resource.
        name: LockName,
        /// The ttl of the request.
        ttl: Duration,
    },
    /// The engine failed, or does not offer this operation.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl AcquireError {
    /// Returns whether another owner holds the lock: [`Busy`](Self::Busy) or [`TimedOut`](Self::TimedOut).
    pub const fn is_busy(&self) -> bool {
        matches!(self, Self::Busy { .. } | Self::TimedOut { .. })
    }

    /// Returns whether the same request may succeed later without a change.
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Busy { .. } | Self::TimedOut { .. } | Self::Deadlock { .. } | Self::Lapsed { .. } => true,
            Self::Engine(error) => error.is_retryable(),
            Self::Name(_)
            | Self::Ttl(_)
            | Self::MaxHold
            | Self::LockDelay { .. }
            | Self::NotCovered { .. } => false,
        }
    }
}

/// One request of a deadlock's cycle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CycleMember {
    /// The resource that the request waits for.
    pub name: LockName,
    /// The waiter, with its mode and its label.
    pub member: Member,
    /// The request's place in the resource's queue, from 0.
    pub place: usize,
}

fn cycle_text(cycle: &[CycleMember]) -> String {
    let one = |m: &CycleMember| {
        let who = m.member.label.clone().unwrap_or_else(|| m.member.owner.to_string());
        format!("{who} waits for {} `{}` (place {})", m.member.mode, m.name, m.place)
    };
    cycle.iter().map(one).collect::<Vec<_>>().join(", ")
}

/// Why a lock is no longer held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum LostReason {
    /// The lease expired, because it was not to be renewed or could not be.
    #[error("its lease ran out")]
    Expired,
    /// The lock was held for as long as `max_hold` allowed.
    #[error("it was held for as long as max_hold allowed")]
    MaxHold,
    /// An operator broke the lock.
    #[error("an operator broke it")]
    Broken,
    /// The engine no longer knows the grant: it was freed, or its record was deleted or forgotten.
    #[error("the engine no longer knows the grant")]
    Forgotten,
    /// The connection or session of the grant ended.
    #[error("the connection or session that carried it ended")]
    Disconnected,
    /// The client was closed.
    #[error("the client was closed")]
    Closed,
}

/// The lock is no longer held: stop, and change nothing that it protects.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the lock on `{name}` is lost: {reason}")]
#[non_exhaustive]
pub struct Lost {
    /// The resource.
    pub name: LockName,
    /// The reason.
    pub reason: LostReason,
}

impl Lost {
    /// Creates the error for the loss of this lock.
    pub const fn new(name: LockName, reason: LostReason) -> Self {
        Self { name, reason }
    }
}

/// Why an engine did not renew a grant.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RenewError {
    /// The grant is lost, and there is nothing to renew.
    #[error("the grant is lost: {0}")]
    Lost(LostReason),
    /// The engine failed: whether the lock is still held is not known.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// Why a grant's mode was not changed. The old mode remains, except with `Lost`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConvertError {
    /// The lock is no longer held at all.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// The same owner has re-entered the lock, and other guards rely on the held mode.
    #[error(
        "other guards of the same owner rely on `{name}` being held in mode {held}, which {to} does not cover: release them first"
    )]
    Reentered {
        /// The resource.
        name: LockName,
        /// The mode that is held.
        held: Mode,
        /// The mode that was requested.
        to: Mode,
    },
    /// Other owners hold conflicting modes, and the request was not to wait.
    #[error("`{name}` cannot be converted to {to} now: others hold it in conflicting modes")]
    Busy {
        /// The resource.
        name: LockName,
        /// The mode that was requested.
        to: Mode,
    },
    /// Conflicting modes were still held at the end of the wait.
    #[error("`{name}` could not be converted to {to} within {waited:?}")]
    TimedOut {
        /// The resource.
        name: LockName,
        /// The mode that was requested.
        to: Mode,
        /// How long the request was to wait.
        waited: Duration,
    },
    /// Waiting would never end.
    #[error("deadlock on `{name}`: {}; release something that the others wait for, and try again", cycle_text(.cycle))]
    Deadlock {
        /// The resource.
        name: LockName,
        /// The whole cycle.
        cycle: Vec<CycleMember>,
    },
    /// The engine failed, or does not convert.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl ConvertError {
    /// Returns whether other owners hold conflicting modes: [`Busy`](Self::Busy) or [`TimedOut`](Self::TimedOut).
    pub const fn is_busy(&self) -> bool {
        matches!(self, Self::Busy { .. } | Self::TimedOut { .. })
    }

    /// Returns whether the same conversion may succeed later without a change.
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Busy { .. } | Self::TimedOut { .. } | Self::Deadlock { .. } => true,
            Self::Engine(error) => error.is_retryable(),
            Self::Lost(_) | Self::Reentered { .. } => false,
        }
    }
}

/// Why a release failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// There was nothing to release: the grant had ended before, for this reason. No other owner's lock was touched.
    #[error("there was nothing to release: {0}")]
    NotHeld(LostReason),
    /// The engine failed. The client retries in the background. At the latest, the lock is free when its lease or connection ends.
    #[error("the release is not confirmed: {0}; it goes on in the background")]
    Engine(#[from] EngineError),
}

/// Why a value was not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ValueError {
    /// The value is too long.
    #[error("a lock's value has at most {max} bytes, and this one has {bytes}: store it elsewhere, and its address here", max = crate::Value::MAX_BYTES)]
    TooLong {
        /// The length of the value in bytes.
        bytes: usize,
    },
    /// The mode does not allow writes.
    #[error("the value of `{name}` is written by a holder of PW or EX, and this one holds {held}")]
    Mode {
        /// The resource.
        name: LockName,
        /// The mode that is held.
        held: Mode,
    },
    /// The lock is no longer held: nothing was written.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// The engine failed, or stores no values.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// Why an engine did not record a start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RememberError {
    /// The lock is no longer held: nothing was recorded.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// The engine failed and may or may not have recorded the start; or it records no starts.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// Why a job that is to run once in a period neither ran nor was found to have run, or why its end was not recorded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OncePerError {
    /// The period is zero.
    #[error(
        "the period of `{name}` must be longer than zero: give the time between two starts, such as a minute"
    )]
    Period {
        /// The resource.
        name: LockName,
    },
    /// The spread is as long as the period or longer.
    #[error(
        "the spread of `{name}` must be shorter than its period of {period:?}, and is {spread:?}: give by how much the starts of one turn may lie apart"
    )]
    Spread {
        /// The resource.
        name: LockName,
        /// The period.
        period: Duration,
        /// The spread.
        spread: Duration,
    },
    /// In this mode, several jobs would run at once.
    #[error(
        "a job that runs once in a period holds `{name}` in mode EX or PW, and this one asks for {asked}: leave the mode out"
    )]
    Mode {
        /// The resource.
        name: LockName,
        /// The mode that was requested.
        asked: Mode,
    },
    /// The lock was not acquired, and no start is recorded: nothing was run.
    #[error(transparent)]
    Acquire(#[from] AcquireError),
    /// The lock was lost. From `begin`: nothing was run or recorded. From `succeeded`: the run is not recorded, and another owner may have
    /// begun one.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// The engine failed while the start was recorded. Nothing was run.
    #[error(
        "nothing was run, and whether the start of `{name}` is recorded is not known: {error}; if it is, the next run is one period later"
    )]
    StartInDoubt {
        /// The resource.
        name: LockName,
        /// The error from the engine.
        #[source]
        error: EngineError,
    },
    /// The engine failed while it recorded the start of a run that had succeeded.
    #[error(
        "`{name}` was run, and whether that is recorded is not known: {error}; if it is not, it is run again"
    )]
    SuccessInDoubt {
        /// The resource.
        name: LockName,
        /// The error from the engine.
        #[source]
        error: EngineError,
    },
    /// The records are complete, but the release is not confirmed.
    #[error(transparent)]
    Release(#[from] ReleaseError),
    /// The engine failed, or records no starts. Nothing was run or recorded.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl OncePerError {
    /// Returns whether another owner holds the lock, and no start is recorded.
    pub const fn is_busy(&self) -> bool {
        matches!(self, Self::Acquire(error) if error.is_busy())
    }

    /// Returns whether the same request may succeed later without a change. It is false for `Lost` and the two `InDoubt` errors: the caller
    /// must decide whether a second run does harm.
    pub const fn is_retryable(&self) -> bool {
        match self {
            Self::Acquire(error) => error.is_retryable(),
            Self::Engine(error) => error.is_retryable(),
            _ => false,
        }
    }

    pub(crate) const fn is_outage(&self) -> bool {
        matches!(self, Self::Engine(error) if error.is_outage())
    }

    /// Returns whether every further attempt must fail too, unless a person changes something.
    pub(crate) const fn ends_a_schedule(&self) -> bool {
        match self {
            Self::Period { .. } | Self::Spread { .. } | Self::Mode { .. } => true,
            Self::Acquire(AcquireError::Engine(error)) | Self::Engine(error) => error.needs_a_person(),
            Self::Acquire(error) => !error.is_retryable(),
            Self::Lost(_) | Self::StartInDoubt { .. } | Self::SuccessInDoubt { .. } | Self::Release(_) => {
                false
            }
        }
    }
}

/// Why the state of a lock could not be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InspectError {
    /// The name is invalid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// Why a lock was not broken.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BreakError {
    /// The name is invalid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The lock has no holder.
    #[error("`{name}` is not held by anybody")]
    NotHeld {
        /// The resource.
        name: LockName,
    },
    /// The engine cannot take a lock from a holder that does not release it.
    #[error("`{name}` cannot be taken from its holder: {advice}")]
    HolderKeepsIt {
        /// The resource.
        name: LockName,
        /// The holders of the lock.
        holders: Vec<Member>,
        /// What the operator can do instead.
        advice: String,
    },
    /// The engine failed, or cannot break locks.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

/// The error of an operation that waits.
pub(crate) trait OperationError: Display {
    /// Returns the engine's error, if it is one.
    fn of_engine(&self) -> Option<&EngineError>;

    /// Returns whether the engine could not be reached: the operation may have been carried out or not.
    fn is_outage(&self) -> bool {
        self.of_engine().is_some_and(EngineError::is_outage)
    }

    /// Returns whether the engine did not answer, or was cancelled.
    fn is_of_no_answer(&self) -> bool {
        self.is_outage() || matches!(self.of_engine(), Some(EngineError::Closed))
    }
}

impl OperationError for AcquireError {
    fn of_engine(&self) -> Option<&EngineError> {
        match self {
            Self::Engine(error) => Some(error),
            _ => None,
        }
    }
}

impl OperationError for ConvertError {
    fn of_engine(&self) -> Option<&EngineError> {
        match self {
            Self::Engine(error) => Some(error),
            _ => None,
        }
    }
}

/// The error of a closed client with releases that are not confirmed.
#[derive(Debug, thiserror::Error)]
#[error(
    "{unconfirmed} release(s) are not confirmed: those locks are free when their leases or connections end"
)]
pub struct CloseError {
    /// The number of releases that are not confirmed.
    pub unconfirmed: usize,
}

/// `Unsupported` is an engine's answer to every operation, so it converts into every operation's error.
macro_rules! unsupported_into {
    ($($error:ident),*) => {$(
        impl From<Unsupported> for $error {
            fn from(unsupported: Unsupported) -> Self {
                Self::Engine(EngineError::Unsupported(unsupported))
            }
        }
    )*};
}
unsupported_into!(
    AcquireError,
    ConvertError,
    ValueError,
    RememberError,
    OncePerError,
    InspectError,
    BreakError,
    RenewError,
    ReleaseError
);
