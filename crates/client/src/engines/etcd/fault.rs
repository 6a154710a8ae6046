//! What etcd says when it says no, in words that say what to do.

use etcd_client::Error;

use super::ENGINE;
use crate::error::{
    AcquireError, BreakError, EngineError, InspectError, ReleaseError, RememberError, RenewError, ValueError,
};

/// Why a request has no answer, or not the one that it asked for.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) what: What,
    pub(super) error: EngineError,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// There was no connection, so nothing was asked.
    NotSent,
    /// No answer came: whether the request was done is not known.
    NoAnswer,
    /// etcd refused, and did nothing.
    Refused,
    /// The lease is not there any more; nothing was done.
    LeaseGone,
    /// The database is full; nothing was done.
    Full,
    /// The login is older than the last change of users or rights: a new one is needed.
    OldLogin,
}

impl What {
    /// Whether the same request may succeed later, or elsewhere.
    pub(super) const fn is_silence(self) -> bool {
        matches!(self, Self::NotSent | Self::NoAnswer)
    }
}

// The codes of gRPC.
const CANCELLED: i32 = 1;
const UNKNOWN: i32 = 2;
const DEADLINE_EXCEEDED: i32 = 4;
const PERMISSION_DENIED: i32 = 7;
const RESOURCE_EXHAUSTED: i32 = 8;
const ABORTED: i32 = 10;
const UNIMPLEMENTED: i32 = 12;
const INTERNAL: i32 = 13;
const UNAVAILABLE: i32 = 14;
const DATA_LOSS: i32 = 15;

impl Fault {
    fn new(what: What, message: String, cause: Option<String>) -> Self {
        let cause = cause.map(Into::into);
        let error = if what.is_silence() {
            EngineError::Unreachable { engine: ENGINE, message, cause }
        } else {
            EngineError::Refused { engine: ENGINE, message, cause }
        };
        Self { what, error }
    }

    pub(super) fn no_answer(message: String) -> Self {
        Self::new(What::NoAnswer, message, None)
    }

    pub(super) fn refused(message: String) -> Self {
        Self::new(What::Refused, message, None)
    }

    pub(super) fn lease_gone(at: &str) -> Self {
        Self::new(What::LeaseGone, format!("{at} does not know the lease any more"), None)
    }

    /// An answer that is none.
    pub(super) fn too_little() -> Self {
        Self::refused("etcd answered less than it was asked: see what listens there".to_owned())
    }

    /// The same, of a request that was sent before and not answered, if it was.
    pub(super) fn after(self, sent_before: bool) -> Self {
        // What stands under a lease that is gone is gone, too.
        let unknown = sent_before && self.what != What::LeaseGone;
        Self { what: if unknown { What::NoAnswer } else { self.what }, ..self }
    }

    /// The same for another who waits for the same thing.
    pub(super) fn again(&self) -> Self {
        Self::new(self.what, text(&self.error), None)
    }

    /// What an error of the client crate means.
    pub(super) fn of(at: &str, error: Error) -> Self {
        let (code, said, chain) = match error {
            Error::GRpcStatus(status) => {
                (status.code() as i32, status.message().to_owned(), chain(std::error::Error::source(&status)))
            }
            Error::TransportError(error) => {
                (UNAVAILABLE, error.to_string(), chain(std::error::Error::source(&error)))
            }
            Error::LeaseKeepAliveError(said) if said == LEASE_NOT_FOUND => {
                return Self::lease_gone(at);
            }
            // A stream that has ended.
            Error::LeaseKeepAliveError(said) | Error::WatchError(said) => (UNAVAILABLE, said, String::new()),
            other => {
                let message = format!("{at} cannot be used: check the URL and its certificates");
                return Self::new(What::Refused, message, Some(other.to_string()));
            }
        };
        let cause = Some(if chain.is_empty() { said.clone() } else { format!("{said}: {chain}") });
        let says = |text: &str| said.contains(text);
        let does_not = |advice: &str| format!("{at} does not do it: {advice}");
        if says("requested lease not found") {
            return Self::new(What::LeaseGone, format!("{at} does not know the lease any more"), cause);
        }
        if says("auth store is old") {
            return Self::new(
                What::OldLogin,
                does_not("users or rights were changed just now: try again"),
                cause,
            );
        }
        if says("database space exceeded") {
            return Self::new(What::Full, does_not(FULL), cause);
        }
        let refusal = match code {
            PERMISSION_DENIED => Some(
                "this user may not do it: grant its role `readwrite` on all keys with the prefix of the locks",
            ),
            UNIMPLEMENTED => Some("it does not speak version 3 of etcd's API: see what listens there"),
            _ if says("user name is empty") => {
                Some("it asks for a login: put it into the URL, as in `etcd://user:password@host`")
            }
            _ if says("authentication failed") => Some("user or password is wrong: correct the URL"),
            _ if says("authentication is not enabled") => Some(
                "it knows no users, since authentication is not enabled there: take the login out of the URL",
            ),
            _ if says("auth token") => {
                Some("it does not accept the login any more: correct user and password in the URL")
            }
            _ if chain.to_lowercase().contains("certificate") => {
                let message = format!(
                    "{at} shows a certificate that is not trusted, or does not trust ours: give the file of its authority as `?ca=`, and `?cert=` and `?key=` if it asks for one"
                );
                return Self::new(What::Refused, message, cause);
            }
            _ => None,
        };
        if let Some(advice) = refusal {
            return Self::new(What::Refused, does_not(advice), cause);
        }
        if code == DATA_LOSS || says("etcdserver: corrupt") {
            let message = format!(
                "{at} has found that its data is damaged: {said}. Restore that member from the others, as etcd's documentation says"
            );
            return Self { what: What::Refused, error: EngineError::Damaged { engine: ENGINE, message } };
        }
        if chain.contains("tcp connect error")
            || chain.contains("dns error")
            || chain.contains("Connection refused")
        {
            let message =
                format!("{at} does not answer: see whether it runs, and whether this host may reach it");
            return Self::new(What::NotSent, message, cause);
        }
        match code {
            _ if says("no leader") => {
                let message =
                    format!("{at} has no leader: a majority of the members must run, and reach each other");
                Self::new(What::NoAnswer, message, cause)
            }
            RESOURCE_EXHAUSTED => Self::new(What::NoAnswer, format!("{at} is busy: try again"), cause),
            CANCELLED | UNKNOWN | DEADLINE_EXCEEDED | ABORTED | INTERNAL | UNAVAILABLE => {
                let message = format!(
                    "{at} did not answer: see whether it runs, whether this host may reach it, and whether it speaks TLS (`etcds:`) or asks for a certificate (`?cert=`, `?key=`)"
                );
                Self::new(What::NoAnswer, message, cause)
            }
            _ => Self::new(What::Refused, does_not("see what it says"), cause),
        }
    }
}

/// What the client crate says of a keep-alive that was answered with a ttl of zero.
const LEASE_NOT_FOUND: &str = "lease not found";

const FULL: &str = "its database is full (alarm NOSPACE): compact and defragment it, or raise `--quota-backend-bytes`, and then `etcdctl alarm disarm`; what is held is kept alive and can be released";

/// What is behind an error.
fn chain(mut behind: Option<&(dyn std::error::Error + 'static)>) -> String {
    let mut texts: Vec<String> = Vec::new();
    while let Some(error) = behind {
        let text = error.to_string();
        if texts.last() != Some(&text) {
            texts.push(text);
        }
        behind = error.source();
    }
    texts.join(": ")
}

/// What an error says, with all that is behind it.
fn text(error: &EngineError) -> String {
    let message = match error {
        EngineError::Unreachable { message, .. } | EngineError::Refused { message, .. } => message.clone(),
        other => other.to_string(),
    };
    match std::error::Error::source(error) {
        Some(behind) => format!("{message}: {behind}"),
        None => message,
    }
}

impl From<EngineError> for Fault {
    fn from(error: EngineError) -> Self {
        Self { what: What::Refused, error }
    }
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
fault_into!(AcquireError, BreakError, InspectError, ReleaseError, RememberError, RenewError, ValueError);
