//! What ZooKeeper says when it says no, in words that say what to do.

use std::time::Duration;

use zookeeper_client::{Error, MultiWriteError};

use crate::error::EngineError;

/// Why a request has no answer, or not the one that it asked for.
#[derive(Debug)]
pub(super) enum Fault {
    /// No answer came in this time: whether it was done is not known.
    Silent(Duration),
    /// ZooKeeper, or the client crate, said this.
    Said(Error),
    /// What is stored there cannot be right.
    Damaged(String),
}

/// What an answer means for the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// The connection broke before the answer came: whether it was done is not known.
    AnswerLost,
    /// The session has ended, and all that it held with it.
    SessionOver,
    /// It was not done.
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

/// What an error means for the request that it is the answer to.
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
        // A code that the crate does not know is an answer all the same.
        | Error::UnexpectedErrorCode(_)
        | Error::UnmarshalError { .. } => What::Refused,
        // Also what the crate makes of a connection that broke in some other way.
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

    /// Whether ZooKeeper said just this.
    pub(super) fn is(&self, error: &Error) -> bool {
        matches!(self, Self::Said(said) if said == error)
    }

    /// In words, for those who use the servers at `at`.
    pub(super) fn error(self, at: &str) -> EngineError {
        const ENGINE: &str = "zookeeper";
        let error = match self {
            Self::Silent(limit) => {
                let message = format!(
                    "{at} did not answer within {limit:?}: see whether a majority of the servers runs, and whether this host may reach them"
                );
                return EngineError::Unreachable { engine: ENGINE, message, cause: None };
            }
            Self::Damaged(message) => return EngineError::Damaged { engine: ENGINE, message },
            Self::Said(error) => error,
        };
        let advice = match &error {
            Error::NoAuth => {
                "this user may not touch these nodes: log in as the user who made them, in the URL, or choose another root"
            }
            Error::AuthFailed => "the login was refused: check user and password in the URL",
            Error::NotReadOnly => "it is read-only, since it has lost the majority: repair the others",
            Error::NoChildrenForEphemerals => {
                "a node above this lock is another program's ephemeral node: choose another name, or another root"
            }
            Error::UnexpectedErrorCode(-120) => {
                "its sessions are local to one server, and cannot hold anything: set `localSessionsUpgradingEnabled=true`"
            }
            Error::UnexpectedErrorCode(_) | Error::UnmarshalError { .. } => {
                "it answers what no ZooKeeper does"
            }
            Error::QuotaExceeded => "a quota on these nodes is used up: raise it",
            Error::Unimplemented => "it is older than 3.6, or not all of a ZooKeeper: use a newer one",
            Error::BadArguments(_) | Error::InvalidAcl | Error::MarshallingError => {
                "it does not take this request"
            }
            Error::Throttled => {
                let message = format!("{at} is too busy to take it: try again");
                return EngineError::Unreachable { engine: ENGINE, message, cause: Some(error.into()) };
            }
            error if what(error) != What::Refused => {
                let message = format!(
                    "{at} went away: see whether a majority of the servers runs, and whether this host may reach them"
                );
                return EngineError::Unreachable {
                    engine: ENGINE,
                    message,
                    cause: Some(error.clone().into()),
                };
            }
            _ => "somebody else changed these nodes meanwhile: see who",
        };
        let message = format!("{at} does not do it: {advice}");
        EngineError::Refused { engine: ENGINE, message, cause: Some(error.into()) }
    }
}
