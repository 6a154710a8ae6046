//! Errors of etcd and of the connection to it, with its own words and advice.

use tonic::{Code, Status, transport};

use super::ENGINE;
use crate::engines::authority::is_unknown_host;
use crate::error::{
    AcquireError, BreakError, EngineError, InspectError, ReleaseError, RememberError, RenewError, ValueError,
};

/// The reason why a request has no response, or another one than expected.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) what: What,
    pub(super) error: EngineError,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// There was no connection, so the request was not sent.
    NotSent,
    /// No response arrived: it is unknown whether the request was done.
    NoAnswer,
    /// etcd refused the request, and did nothing.
    Refused,
    /// The lease does not exist any more; nothing was done.
    LeaseGone,
    /// The database is full; nothing was done.
    Full,
    /// The login is older than the last change of users or rights: a new one is needed.
    OldLogin,
}

impl What {
    /// Whether the same request may succeed later, or with another member.
    pub(super) const fn is_silence(self) -> bool {
        matches!(self, Self::NotSent | Self::NoAnswer)
    }
}

impl Fault {
    fn new(what: What, message: String) -> Self {
        let error = if what.is_silence() {
            EngineError::Unreachable { engine: ENGINE, message, cause: None }
        } else {
            EngineError::Refused { engine: ENGINE, message, cause: None }
        };
        Self { what, error }
    }

    fn denied(message: String) -> Self {
        let error = EngineError::Denied { engine: ENGINE, message, cause: None };
        Self { what: What::Refused, error }
    }

    pub(super) fn no_answer(message: String) -> Self {
        Self::new(What::NoAnswer, message)
    }

    pub(super) fn refused(message: String) -> Self {
        Self::new(What::Refused, message)
    }

    pub(super) fn lease_gone(at: &str) -> Self {
        Self::new(What::LeaseGone, format!("{at} does not know the lease any more"))
    }

    /// Returns the fault for an incomplete response.
    pub(super) fn too_little() -> Self {
        Self::refused("etcd answered less than it was asked: see what listens there".to_owned())
    }

    /// Returns the fault of a request, given whether an earlier copy was sent without a response.
    pub(super) fn after(self, sent_before: bool) -> Self {
        // The keys of a lease that is gone are gone, too.
        let unknown = sent_before && self.what != What::LeaseGone;
        Self { what: if unknown { What::NoAnswer } else { self.what }, ..self }
    }

    /// Returns a copy of the fault, for another request that failed for the same reason.
    pub(super) fn again(&self) -> Self {
        let message = match &self.error {
            EngineError::Unreachable { message, .. }
            | EngineError::Denied { message, .. }
            | EngineError::NotFound { message, .. }
            | EngineError::Refused { message, .. } => message.clone(),
            other => other.to_string(),
        };
        match &self.error {
            EngineError::Denied { .. } => Self::denied(message),
            EngineError::NotFound { .. } => Self::not_found(message),
            _ => Self::new(self.what, message),
        }
    }

    /// Returns the fault for a host name that does not resolve, so that nothing was sent.
    fn not_found(message: String) -> Self {
        let error = EngineError::NotFound { engine: ENGINE, message, cause: None };
        Self { what: What::NotSent, error }
    }

    /// Returns the fault for a wrong address or wrong certificates of a member.
    pub(super) fn unusable(at: &str, error: &transport::Error) -> Self {
        let said = joined("", Some(error));
        Self::refused(format!("{at} cannot be used ({said}): check the URL and its certificates"))
    }

    /// Returns the fault for a call's error. The message quotes the words of etcd, of TLS or of the system once.
    pub(super) fn of(at: &str, status: &Status) -> Self {
        let code = status.code();
        let said = joined(status.message(), std::error::Error::source(status));
        let says = |text: &str| said.contains(text);
        let answered = |advice: &str| format!("{at} answered `{said}`: {advice}");
        if says("requested lease not found") {
            return Self::lease_gone(at);
        }
        if says("auth store is old") {
            return Self::new(What::OldLogin, answered("users or permissions changed; try again"));
        }
        if says("database space exceeded") {
            return Self::new(What::Full, answered(FULL));
        }
        let denied = match code {
            Code::PermissionDenied => {
                Some("grant the role of this user `readwrite` on all keys with the prefix of the locks")
            }
            _ if says("user name is empty") => {
                Some("it asks for a login; put it into the URL, as in `etcd://user:password@host`")
            }
            _ if says("authentication failed") => Some("the user or the password is wrong; correct the URL"),
            _ if says("authentication is not enabled") => {
                Some("this etcd has no users; remove the login from the URL")
            }
            _ if says("auth token") => {
                Some("the login is no longer valid; correct user and password in the URL")
            }
            _ => None,
        };
        if let Some(advice) = denied {
            return Self::denied(answered(advice));
        }
        if code == Code::Unimplemented {
            let advice = "this is not version 3 of etcd's API; check what listens there";
            return Self::new(What::Refused, answered(advice));
        }
        if says("ertificate") {
            let message = format!(
                "TLS with {at} failed ({said}): give the file of its authority as `?ca=`, and `?cert=` and `?key=` if it asks for a certificate"
            );
            return Self::new(What::Refused, message);
        }
        if code == Code::DataLoss || says("etcdserver: corrupt") {
            let message = answered(
                "its data is damaged; restore that member from the others, as etcd's documentation says",
            );
            return Self { what: What::Refused, error: EngineError::Damaged { engine: ENGINE, message } };
        }
        if says("dns error") && is_unknown_host(&said) {
            let advice = "correct the URL, or the name resolution of this host";
            return Self::not_found(format!("{at}: {said}; {advice}"));
        }
        if says("dns error") || says("tcp connect error") || says("Connection refused") {
            let message = format!("no connection to {at} ({said}): {CHECK_SERVER}");
            return Self::new(What::NotSent, message);
        }
        match code {
            _ if says("no leader") => Self::new(
                What::NoAnswer,
                answered("a majority of the members must run, and reach each other"),
            ),
            Code::ResourceExhausted => Self::new(What::NoAnswer, answered("it is overloaded; try again")),
            Code::Cancelled
            | Code::Unknown
            | Code::DeadlineExceeded
            | Code::Aborted
            | Code::Internal
            | Code::Unavailable => {
                let message = format!(
                    "{at} did not answer ({said}): {CHECK_SERVER}, and whether it speaks TLS (`etcds:`) or asks for a certificate (`?cert=`, `?key=`)"
                );
                Self::new(What::NoAnswer, message)
            }
            _ => Self::new(What::Refused, answered("see the documentation of etcd")),
        }
    }
}

const CHECK_SERVER: &str = "check whether it runs and whether this host can reach it";

const FULL: &str = "its database is full (alarm NOSPACE); compact and defragment it, or raise `--quota-backend-bytes`, and then `etcdctl alarm disarm`. Held locks are kept alive and can be released";

/// tonic's text for all errors of the connection.
const TONIC_SAYS: &str = "transport error";

/// Joins a message and those of the errors behind it, each once.
fn joined(first: &str, mut behind: Option<&(dyn std::error::Error + 'static)>) -> String {
    let mut text = if first == TONIC_SAYS { String::new() } else { first.to_owned() };
    while let Some(error) = behind {
        let next = error.to_string();
        if next != TONIC_SAYS && !text.contains(&next) {
            let separator = if text.is_empty() { "" } else { ": " };
            text = format!("{text}{separator}{next}");
        }
        behind = error.source();
    }
    text
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
