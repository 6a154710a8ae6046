//! Errors of Redis and of the connection to it: their meaning for a request, and the advice to the user.

use redis::RedisError;

use crate::engines::authority::is_unknown_host;
use crate::error::{AcquireError, BreakError, Cause, EngineError, InspectError, ReleaseError};

/// The reason why a request has no answer, or not the requested one.
#[derive(Debug)]
pub(in crate::engines) struct Fault {
    pub(in crate::engines) what: What,
    pub(in crate::engines) error: EngineError,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engines) enum What {
    /// There was no connection, so the request was not sent.
    NotSent,
    /// No answer arrived. It is not known whether the request was carried out.
    NoAnswer,
    /// Redis refused, and did nothing.
    Refused,
    /// The key of the lock has another type.
    WrongType,
}

impl What {
    /// Returns whether the same request may succeed later.
    pub(in crate::engines) const fn is_silence(self) -> bool {
        matches!(self, Self::NotSent | Self::NoAnswer)
    }
}

impl Fault {
    /// Returns a copy of the fault: all requests that wait for a connection get the same error.
    pub(super) fn again(&self) -> Self {
        let cause = |cause: &Option<Cause>| -> Option<Cause> {
            let error = cause.as_ref()?.downcast_ref::<RedisError>()?.clone();
            Some(error.into())
        };
        let error = match &self.error {
            EngineError::Unreachable { engine, message, cause: behind } => {
                EngineError::Unreachable { engine, message: message.clone(), cause: cause(behind) }
            }
            EngineError::Denied { engine, message, cause: behind } => {
                EngineError::Denied { engine, message: message.clone(), cause: cause(behind) }
            }
            EngineError::NotFound { engine, message, cause: behind } => {
                EngineError::NotFound { engine, message: message.clone(), cause: cause(behind) }
            }
            EngineError::Refused { engine, message, cause: behind } => {
                EngineError::Refused { engine, message: message.clone(), cause: cause(behind) }
            }
            EngineError::Damaged { .. } | EngineError::Unsupported(_) | EngineError::Closed => {
                EngineError::Closed
            }
        };
        Self { what: self.what, error }
    }

    /// Marks the fault as one of a connection attempt: the request was not sent.
    pub(super) fn not_sent(self) -> Self {
        Self { what: if self.what.is_silence() { What::NotSent } else { self.what }, ..self }
    }

    /// Marks the fault as unanswered if the request was sent before without an answer.
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

    fn denied(engine: &'static str, message: String, cause: RedisError) -> Self {
        let cause = Some(cause.into());
        Self { what: What::Refused, error: EngineError::Denied { engine, message, cause } }
    }

    fn not_found(engine: &'static str, message: String, cause: RedisError) -> Self {
        let cause = Some(cause.into());
        Self { what: What::Refused, error: EngineError::NotFound { engine, message, cause } }
    }

    /// Returns the meaning of an error of the client crate.
    pub(in crate::engines) fn of(engine: &'static str, at: &str, error: RedisError) -> Self {
        let said = words(&error);
        let Some(code) = code(&error) else {
            return Self::without_code(engine, at, &said, error);
        };
        let advice = match code {
            "NOAUTH" => "put the login into the URL, as in `redis://user:password@host`",
            "WRONGPASS" => "check user and password in the URL",
            "NOPERM" => {
                "allow this user the keys of the locks and `tenure:*`, the channels `tenure:wake:*`, and scripts"
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
                    "the key of this lock at {at} is not a lock ({said}): choose another name, or `?prefix=` for all locks"
                );
                let cause = Some(error.into());
                return Self {
                    what: What::WrongType,
                    error: EngineError::Refused { engine, message, cause },
                };
            }
            // The server is expected to answer later.
            _ => {
                let message = format!("{at} is busy ({said}): try again");
                return Self::no_answer(engine, message, Some(error));
            }
        };
        let message = format!("{at} answered `{said}`: {advice}");
        match code {
            "NOAUTH" | "WRONGPASS" | "NOPERM" => Self::denied(engine, message, error),
            _ => Self::refused(engine, message, Some(error)),
        }
    }

    /// Returns the meaning of an error without one of the [codes](CODES).
    fn without_code(engine: &'static str, at: &str, said: &str, error: RedisError) -> Self {
        let is_io = error.is_io_error() || error.is_connection_dropped() || error.is_timeout();
        if is_io && said.contains("certificate") {
            let message = format!(
                "the certificate of {at} is not trusted ({said}): give the file of its authority as `?ca=`"
            );
            return Self::refused(engine, message, Some(error));
        }
        if is_io && is_unknown_host(said) {
            let message = format!("{at} ({said}): check the host in the URL");
            // A client that was connected before keeps its place in a queue while the name does not resolve.
            return Self { what: What::NotSent, ..Self::not_found(engine, message, error) };
        }
        if is_io {
            let message =
                format!("{at} does not answer ({said}): check that it runs, and that this host can reach it");
            return Self::no_answer(engine, message, Some(error));
        }
        if error.kind() == redis::ErrorKind::AuthenticationFailed {
            let message = format!("{at} rejected user or password: check the login in the URL");
            return Self::denied(engine, message, error);
        }
        if said.contains("DB index is out of range") {
            let message = format!(
                "{at} answered `{said}`: check the number of the database in the URL, or raise `databases` of the server"
            );
            return Self::not_found(engine, message, error);
        }
        Self::refused(engine, format!("{at} answered `{said}`"), Some(error))
    }
}

/// Returns the words of the server or of the system.
fn words(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        (None, Some(detail)) => detail.to_owned(),
        (_, None) => error.to_string(),
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

/// Returns the code of an error. Older servers put the code of an error in a script into the text.
fn code(error: &RedisError) -> Option<&'static str> {
    let text = error.to_string();
    CODES.into_iter().find(|code| {
        error.code() == Some(code)
            || text.contains(&format!("-{code} "))
            || text.contains(&format!(" {code}: "))
    })
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
