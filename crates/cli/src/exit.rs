//! Exit codes. They are stable, because scripts depend on them. They follow sysexits.h if it has a matching one.

use std::error::Error;
use std::fmt::Display;

use tenure::{AcquireError, BreakError, ConnectError, EngineError, InspectError, OncePerError};

/// Success.
pub(crate) const OK: u8 = 0;
/// The lock is free: no holder to show, or to break the lock for.
pub(crate) const NOT_HELD: u8 = 1;
/// Bad usage, or bad input: `EX_USAGE`.
pub(crate) const USAGE: u8 = 64;
/// The engine cannot be reached, or refuses service: `EX_UNAVAILABLE`.
pub(crate) const UNREACHABLE: u8 = 69;
/// An operation of the operating system failed: `EX_OSERR`.
pub(crate) const SYSTEM: u8 = 71;
/// The engine does not support the request: `EX_CANTCREAT`.
pub(crate) const CANNOT: u8 = 73;
/// The lock was not acquired, and nothing was run; or its holder did not release it in time: `EX_TEMPFAIL`.
pub(crate) const NOT_GOT: u8 = 75;
/// The lock was lost while the command ran: `EX_PROTOCOL`, which is the next unused one.
pub(crate) const LOST: u8 = 76;
/// The engine rejected the login or a permission is missing: `EX_NOPERM`.
pub(crate) const DENIED: u8 = 77;
/// The URL names a host, a database or a directory that does not exist: `EX_CONFIG`.
pub(crate) const NO_SUCH_PLACE: u8 = 78;
/// The command was found but could not be executed, as in shells.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// The command was not found, as in shells.
pub(crate) const NOT_FOUND: u8 = 127;

/// Returns the exit code that shells use for a command that a signal ended.
pub(crate) fn of_signal(signal: i32) -> u8 {
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

/// Why a command failed: a sentence for people, and a code for scripts.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    /// Not printed if it is empty.
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(code: u8, message: impl Display) -> Self {
        Self { code, message: message.to_string() }
    }

    /// Creates a failure from an error of the library.
    fn of(code: u8, error: &(dyn Error + 'static)) -> Self {
        Self::new(code, with_causes(error))
    }

    pub(crate) fn usage(message: impl Display) -> Self {
        Self::new(USAGE, message)
    }

    pub(crate) fn system(what: &str, error: impl Display) -> Self {
        Self::new(SYSTEM, format!("{what}: {error}"))
    }
}

/// Returns the text of an error, with the texts of those causes that it does not contain yet.
pub(crate) fn with_causes(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let causes = std::iter::successors(error.source(), |cause: &&(dyn Error + 'static)| (*cause).source());
    for cause in causes.map(ToString::to_string) {
        if !says(&text, &cause) {
            text = format!("{text}; cause: {cause}");
        }
    }
    text
}

/// Whether a text contains the words of a cause. Client crates put their own words before and after the server's.
fn says(text: &str, cause: &str) -> bool {
    let (text, cause) = (text.to_lowercase(), cause.to_lowercase());
    let cause = cause.split(" (os error").next().unwrap_or_default();
    let cause = cause.split(" at line ").next().unwrap_or_default();
    let sentences = cause.split(": ").filter(|sentence| sentence.split_whitespace().count() > 2);
    std::iter::once(cause).chain(sentences).any(|words| text.contains(words))
}

const fn of_engine(error: &EngineError) -> u8 {
    match error {
        EngineError::Unsupported(_) => CANNOT,
        EngineError::Denied { .. } => DENIED,
        EngineError::NotFound { .. } => NO_SUCH_PLACE,
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
        Self::of(code, &error)
    }
}

impl From<AcquireError> for Failure {
    fn from(error: AcquireError) -> Self {
        let code = match &error {
            AcquireError::Name(_)
            | AcquireError::Ttl(_)
            | AcquireError::MaxHold
            | AcquireError::LockDelay { .. } => USAGE,
            AcquireError::NotCovered { .. } => CANNOT,
            AcquireError::Engine(engine) => of_engine(engine),
            _ => NOT_GOT,
        };
        Self::of(code, &error)
    }
}

impl From<InspectError> for Failure {
    fn from(error: InspectError) -> Self {
        let code = match &error {
            InspectError::Engine(engine) => of_engine(engine),
            _ => USAGE,
        };
        Self::of(code, &error)
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
        Self::of(code, &error)
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
        Self::of(code, &error)
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn unreachable(message: &str, cause: io::Error) -> ConnectError {
        let (message, cause) = (message.to_owned(), Some(cause.into()));
        EngineError::Unreachable { engine: "redis", message, cause }.into()
    }

    #[test]
    fn each_text_of_an_error_and_its_causes_is_shown_once() {
        let refused = || io::Error::from_raw_os_error(111);
        let hidden = Failure::from(unreachable("10.0.0.1:6379: start the server", refused()));
        assert_eq!(
            hidden.message,
            "redis cannot be reached: 10.0.0.1:6379: start the server; cause: Connection refused (os error 111)"
        );
        let shown = Failure::from(unreachable("10.0.0.1:6379: connection refused", refused()));
        assert_eq!(shown.message, "redis cannot be reached: 10.0.0.1:6379: connection refused");
        let wrapped =
            || io::Error::other("error returned from database: role \"app\" does not exist at line 768");
        let said = Failure::from(unreachable("the login failed: role \"app\" does not exist", wrapped()));
        assert_eq!(said.message, "redis cannot be reached: the login failed: role \"app\" does not exist");
        let release = tenure::ReleaseError::from(EngineError::Closed);
        assert_eq!(with_causes(&release).matches("the client was closed").count(), 1);
    }

    #[test]
    fn a_denied_login_and_a_missing_name_have_codes_of_their_own() {
        let denied = EngineError::Denied { engine: "redis", message: String::new(), cause: None };
        let missing = EngineError::NotFound { engine: "redis", message: String::new(), cause: None };
        assert_eq!((of_engine(&denied), of_engine(&missing)), (77, 78));
    }
}
