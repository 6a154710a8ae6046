//! Errors of ZooKeeper and of the connection to it, with the servers' own words and advice.

use std::io;
use std::time::Duration;

use zookeeper_client::{Error, MultiWriteError};

use crate::error::EngineError;

/// The reason why a request has no response, or another one than expected.
#[derive(Debug)]
pub(super) enum Fault {
    /// No response arrived in this time. It is unknown whether the request was done.
    Silent(Duration),
    /// An error of ZooKeeper, or of the client crate.
    Said(Error),
    /// The stored data cannot be valid.
    Damaged(String),
}

/// The meaning of an error for its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// The connection broke before the response arrived. It is unknown whether the request was done.
    AnswerLost,
    /// The session has ended, and all its nodes with it.
    SessionOver,
    /// The request was not done.
    Refused,
}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Said(error)
    }
}

impl From<MultiWriteError> for Fault {
    fn from(error: MultiWriteError) -> Self {
        Self::Said(error.into())
    }
}

/// Returns the meaning of an error for its request.
pub(super) fn what(error: &Error) -> What {
    match error {
        Error::SessionExpired | Error::AuthFailed | Error::ClientClosed | Error::NoHosts => What::SessionOver,
        Error::BadArguments(_)
        | Error::NoNode
        | Error::NoAuth
        | Error::BadVersion
        | Error::NoChildrenForEphemerals
        | Error::NodeExists
        | Error::NotEmpty
        | Error::InvalidAcl
        | Error::NotReadOnly
        | Error::NoWatcher
        | Error::QuotaExceeded
        | Error::Throttled
        | Error::MarshallingError
        | Error::Unimplemented
        | Error::ReconfigDisabled
        | Error::RuntimeInconsistent
        // A code that the crate does not know is a response all the same.
        | Error::UnexpectedErrorCode(_)
        | Error::UnmarshalError { .. } => What::Refused,
        // Includes the crate's errors for a connection that broke in some other way.
        _ => What::AnswerLost,
    }
}

impl Fault {
    pub(super) fn what(&self) -> What {
        match self {
            Self::Silent(_) => What::AnswerLost,
            Self::Damaged(_) => What::Refused,
            Self::Said(error) => what(error),
        }
    }

    /// Whether ZooKeeper returned exactly this error.
    pub(super) fn is(&self, error: &Error) -> bool {
        matches!(self, Self::Said(said) if said == error)
    }

    /// Returns the error for users of the servers at `at`. It quotes the answer once: the servers send a code, and the client crate has a
    /// text for each.
    pub(super) fn error(self, at: &str) -> EngineError {
        let error = match self {
            Self::Silent(limit) => {
                return unreachable(format!("{at} did not answer within {limit:?}: {CHECK_SERVERS}"));
            }
            Self::Damaged(message) => return EngineError::Damaged { engine: ENGINE, message },
            Self::Said(error) => error,
        };
        let answered = |advice: &str| format!("{at} answered `{error}`: {advice}");
        let advice = match &error {
            Error::NoAuth => {
                let message = answered(
                    "the user of the URL lacks permissions on these nodes; log in as the user who made them, or choose another root",
                );
                return EngineError::Denied { engine: ENGINE, message, cause: None };
            }
            Error::AuthFailed => {
                let message = answered("check user and password in the URL");
                return EngineError::Denied { engine: ENGINE, message, cause: None };
            }
            Error::NotReadOnly => {
                "the server is read-only because it has lost the majority; repair the others"
            }
            Error::NoChildrenForEphemerals => {
                "a node above this lock is another program's ephemeral node; choose another name, or another root"
            }
            Error::UnexpectedErrorCode(-120) => {
                "sessions are local to one server and cannot hold a lock; set `localSessionsUpgradingEnabled=true`"
            }
            Error::UnexpectedErrorCode(_) | Error::UnmarshalError { .. } => {
                "this is not an answer of ZooKeeper; check what listens there"
            }
            Error::QuotaExceeded => "raise the quota on these nodes",
            Error::Unimplemented => "ZooKeeper 3.6 or later is needed",
            Error::BadArguments(_) | Error::InvalidAcl | Error::MarshallingError => {
                "the server does not accept this request"
            }
            Error::Throttled => return unreachable(answered("the server is overloaded; try again")),
            error if what(error) != What::Refused => {
                return unreachable(format!("the connection to {at} ended (`{error}`): {CHECK_SERVERS}"));
            }
            _ => "another program changed the nodes of this lock",
        };
        EngineError::Refused { engine: ENGINE, message: answered(advice), cause: None }
    }
}

const ENGINE: &str = "zookeeper";

const CHECK_SERVERS: &str = "check that a majority of the servers runs, and that this host can reach them";

fn unreachable(message: String) -> EngineError {
    EngineError::Unreachable { engine: ENGINE, message, cause: None }
}

/// Returns the error for unreachable servers, with a reason for each: a name that does not resolve, or a connection that is refused.
pub(super) fn no_server(reasons: Vec<NoServer>) -> EngineError {
    let unknown = reasons.iter().all(|reason| matches!(reason, NoServer::UnknownHost { .. }));
    let texts: Vec<_> = reasons
        .into_iter()
        .map(|reason| match reason {
            NoServer::UnknownHost { host, error } => format!("host `{host}`: {error}"),
            NoServer::NoConnection { at, error } => format!("{at}: {error}"),
        })
        .collect();
    let texts = texts.join("; ");
    if unknown {
        let message = format!("{texts}; correct the URL, or the name resolution of this host");
        EngineError::NotFound { engine: ENGINE, message, cause: None }
    } else {
        unreachable(format!("{texts}; {CHECK_SERVERS}"))
    }
}

/// The reason why one server cannot be reached.
pub(super) enum NoServer {
    UnknownHost { host: String, error: io::Error },
    NoConnection { at: String, error: io::Error },
}
