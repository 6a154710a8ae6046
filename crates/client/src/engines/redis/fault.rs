//! What Redis says when it says no, in words that say what to do.

use redis::RedisError;

use crate::error::{AcquireError, BreakError, EngineError, InspectError, ReleaseError};

/// Why a request has no answer, or not the one that it asked for.
#[derive(Debug)]
pub(in crate::engines) struct Fault {
    pub(in crate::engines) what: What,
    pub(in crate::engines) error: EngineError,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engines) enum What {
    /// There was no connection, so nothing was asked.
    NotSent,
    /// No answer came: whether the request was done is not known.
    NoAnswer,
    /// Redis refused, and did nothing.
    Refused,
    /// The key of the lock is no lock.
    WrongType,
}

impl What {
    /// Whether the same request may succeed later.
    pub(in crate::engines) const fn is_silence(self) -> bool {
        matches!(self, Self::NotSent | Self::NoAnswer)
    }
}

impl Fault {
    /// There is no connection, for the reason that opening it gave.
    pub(super) fn not_connected(engine: &'static str, what: What, message: String) -> Self {
        let cause = None;
        if what.is_silence() {
            return Self { what: What::NotSent, error: EngineError::Unreachable { engine, message, cause } };
        }
        Self { what, error: EngineError::Refused { engine, message, cause } }
    }

    /// The same, of a request that was sent before and not answered, if it was.
    pub(super) fn after(self, sent_before: bool) -> Self {
        let what = if sent_before && self.what != What::WrongType { What::NoAnswer } else { self.what };
        Self { what, ..self }
    }

    pub(in crate::engines) fn no_answer(
        engine: &'static str,
        message: String,
        cause: Option<RedisError>,
    ) -> Self {
        let cause = cause.map(Into::into);
        Self { what: What::NoAnswer, error: EngineError::Unreachable { engine, message, cause } }
    }

    pub(in crate::engines) fn refused(
        engine: &'static str,
        message: String,
        cause: Option<RedisError>,
    ) -> Self {
        let cause = cause.map(Into::into);
        Self { what: What::Refused, error: EngineError::Refused { engine, message, cause } }
    }

    /// What an error of the client crate means.
    pub(in crate::engines) fn of(engine: &'static str, at: &str, error: RedisError) -> Self {
        let Some(code) = code(&error) else {
            let is_io = error.is_io_error() || error.is_connection_dropped() || error.is_timeout();
            if is_io && is_certificate(&error) {
                let message = format!(
                    "{at} shows a certificate that is not trusted: give the file of its authority as `?ca=`"
                );
                return Self::refused(engine, message, Some(error));
            }
            if is_io {
                let message =
                    format!("{at} does not answer: see whether it runs, and whether this host may reach it");
                return Self::no_answer(engine, message, Some(error));
            }
            let login = error.kind() == redis::ErrorKind::AuthenticationFailed;
            let advice = if login { "check user and password in the URL" } else { "see what it says" };
            return Self::refused(engine, format!("{at} does not do it: {advice}"), Some(error));
        };
        let advice = match code {
            "NOAUTH" => "it asks for a password: put it into the URL, as in `redis://user:password@host`",
            "WRONGPASS" => "user or password is wrong: correct the URL",
            "NOPERM" => {
                "this user may not do it: allow it the keys of the locks and `tenure:*`, the channels `tenure:wake:*`, and scripts"
            }
            "READONLY" => "it is a read-only replica: connect to its master",
            "OOM" => {
                "it is out of memory: raise `maxmemory`, or delete something; what is held can still be renewed and released"
            }
            "MISCONF" => "it cannot write its data to the disk, and refuses to change anything: repair that",
            "NOREPLICAS" => "it has fewer replicas than `min-replicas-to-write` asks for: repair those",
            "MOVED" | "ASK" | "CROSSSLOT" | "CLUSTERDOWN" => CLUSTER,
            "WRONGTYPE" => {
                let message = format!(
                    "the key of this lock at {at} is something else than a lock: choose another name, or `?prefix=` for all locks"
                );
                let cause = Some(error.into());
                return Self {
                    what: What::WrongType,
                    error: EngineError::Refused { engine, message, cause },
                };
            }
            // It will answer later.
            _ => {
                let message = format!("{at} is busy ({code}): try again");
                return Self::no_answer(engine, message, Some(error));
            }
        };
        Self::refused(engine, format!("{at} does not do it: {advice}"), Some(error))
    }
}

pub(in crate::engines) const CLUSTER: &str =
    "it is a Redis Cluster, which this engine does not speak: use a single Redis, or `redlock:` on several";

const CODES: [&str; 16] = [
    "NOAUTH",
    "WRONGPASS",
    "NOPERM",
    "READONLY",
    "OOM",
    "MISCONF",
    "NOREPLICAS",
    "MOVED",
    "ASK",
    "CROSSSLOT",
    "CLUSTERDOWN",
    "WRONGTYPE",
    "LOADING",
    "BUSY",
    "MASTERDOWN",
    "TRYAGAIN",
];

/// The code of an error, which older servers hide in the text if it comes out of a script.
fn code(error: &RedisError) -> Option<&'static str> {
    let text = error.to_string();
    CODES.into_iter().find(|code| {
        error.code() == Some(code)
            || text.contains(&format!("-{code} "))
            || text.contains(&format!(" {code}: "))
    })
}

/// What an error says, with all that is behind it.
pub(super) fn text(error: &EngineError) -> String {
    let mut text = match error {
        EngineError::Unreachable { message, .. } | EngineError::Refused { message, .. } => message.clone(),
        other => other.to_string(),
    };
    let mut cause = std::error::Error::source(error);
    while let Some(behind) = cause {
        text = format!("{text}: {behind}");
        cause = behind.source();
    }
    text
}

fn is_certificate(error: &RedisError) -> bool {
    error.to_string().contains("certificate")
}

macro_rules! fault_into {
    ($($error:ident),*) => {$(
        impl From<Fault> for $error {
            fn from(fault: Fault) -> Self {
                Self::Engine(fault.error)
            }
        }
    )*};
}
fault_into!(AcquireError, BreakError, InspectError, ReleaseError);
