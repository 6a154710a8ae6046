//! Exit codes, which are stable: scripts rely on them. They follow sysexits.h where that has one.

use std::fmt::Display;

use tenure::{AcquireError, BreakError, ConnectError, EngineError, InspectError, OncePerError};

/// All went well.
pub(crate) const OK: u8 = 0;
/// There is nobody whose lock could be broken.
pub(crate) const NOT_HELD: u8 = 1;
/// Bad usage, or bad input: `EX_USAGE`.
pub(crate) const USAGE: u8 = 64;
/// The engine cannot be reached, or refuses to serve: `EX_UNAVAILABLE`.
pub(crate) const UNREACHABLE: u8 = 69;
/// The system does not do its part: `EX_OSERR`.
pub(crate) const SYSTEM: u8 = 71;
/// The engine cannot do what was asked: `EX_CANTCREAT`.
pub(crate) const CANNOT: u8 = 73;
/// The lock was not got, and nothing was run: `EX_TEMPFAIL`.
pub(crate) const NOT_GOT: u8 = 75;
/// The lock was lost while the command ran: `EX_PROTOCOL`, the next free one.
pub(crate) const LOST: u8 = 76;
/// The command was found and could not be run, as shells have it.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// The command was not found, as shells have it.
pub(crate) const NOT_FOUND: u8 = 127;

/// What shells say of a command that a signal ended.
pub(crate) fn of_signal(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

/// Why a command ends without having done what it was asked: a sentence for people, a code for scripts.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    /// Nothing to be said if it is empty.
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(code: u8, message: impl Display) -> Self {
        Self { code, message: message.to_string() }
    }

    pub(crate) fn usage(message: impl Display) -> Self {
        Self::new(USAGE, message)
    }

    pub(crate) fn system(what: &str, error: impl Display) -> Self {
        Self::new(SYSTEM, format!("{what}: {error}"))
    }
}

const fn of_engine(error: &EngineError) -> u8 {
    match error {
        EngineError::Unsupported(_) => CANNOT,
        _ => UNREACHABLE,
    }
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Self {
        let code = match &error {
            ConnectError::Url(_) => USAGE,
            ConnectError::Engine(engine) => of_engine(engine),
            _ => SYSTEM,
        };
        Self::new(code, error)
    }
}

impl From<AcquireError> for Failure {
    fn from(error: AcquireError) -> Self {
        let code = match &error {
            AcquireError::Name(_) | AcquireError::Ttl(_) | AcquireError::MaxHold => USAGE,
            AcquireError::NotCovered { .. } => CANNOT,
            AcquireError::Engine(engine) => of_engine(engine),
            _ => NOT_GOT,
        };
        Self::new(code, error)
    }
}

impl From<InspectError> for Failure {
    fn from(error: InspectError) -> Self {
        let code = match &error {
            InspectError::Engine(engine) => of_engine(engine),
            _ => USAGE,
        };
        Self::new(code, error)
    }
}

impl From<BreakError> for Failure {
    fn from(error: BreakError) -> Self {
        let code = match &error {
            BreakError::NotHeld { .. } => NOT_HELD,
            BreakError::HolderKeepsIt { .. } => CANNOT,
            BreakError::Engine(engine) => of_engine(engine),
            _ => USAGE,
        };
        Self::new(code, error)
    }
}

impl From<OncePerError> for Failure {
    fn from(error: OncePerError) -> Self {
        let code = match &error {
            OncePerError::Period { .. } | OncePerError::Spread { .. } | OncePerError::Mode { .. } => USAGE,
            OncePerError::Engine(engine)
            | OncePerError::StartInDoubt { error: engine, .. }
            | OncePerError::SuccessInDoubt { error: engine, .. } => of_engine(engine),
            _ => NOT_GOT,
        };
        Self::new(code, error)
    }
}
