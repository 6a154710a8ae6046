//! Why a write was not let through.

use tenure_table::{FencingToken, LockName, Mode, NameError};

use crate::error::Cause;

/// Why a write was not let through. Unless a variant says otherwise, nothing was written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FenceError {
    /// Somebody with a newer token was here before: this holder has lost its lock, whether it knows or not.
    #[error(
        "token {token} of `{resource}` is stale, since {newest} has been here: the lock was lost, and somebody else had it since. Write nothing, roll back, and acquire the lock again"
    )]
    Stale {
        /// The resource.
        resource: LockName,
        /// The token that came.
        token: FencingToken,
        /// The newest that has been accepted.
        newest: FencingToken,
    },
    /// The guard has no token.
    #[error(
        "the guard of `{resource}` has no fencing token, since its engine gives none: use an engine that does, and require `Capability::Fencing`"
    )]
    NoToken {
        /// The resource.
        resource: LockName,
    },
    /// The guard shares its lock, and tokens of holders at the same time cannot be compared.
    #[error(
        "`{resource}` is held in mode {mode}, whose tokens cannot be compared: acquire it in mode EX or PW before you write"
    )]
    Mode {
        /// The resource.
        resource: LockName,
        /// The mode in which it is held.
        mode: Mode,
    },
    /// The resource is not a name that a lock could have.
    #[error("the resource of the fence must be named as a lock is: {0}")]
    Resource(#[from] NameError),
    /// The store has no room for a number of that size, and does not guess.
    #[error(
        "token {token} of `{resource}` does not fit: {store} keeps tokens up to {largest}. No engine of Tenure gives larger ones, so look where this one comes from"
    )]
    TooLarge {
        /// The resource.
        resource: LockName,
        /// The token that came.
        token: FencingToken,
        /// Where it does not fit.
        store: &'static str,
        /// The largest that does.
        largest: FencingToken,
    },
    /// The table that keeps the tokens is not there.
    #[error(
        "there is no table `{table}` to keep fencing tokens in: create it once with `SqlFence::create_table`, or have it created with the text of `SqlFence::create_table_sql`"
    )]
    NoTable {
        /// Its name.
        table: String,
        /// What the database said.
        #[source]
        cause: Cause,
    },
    /// Another transaction was in the way.
    #[error(
        "another transaction was in the way at `{resource}`: roll back, and run the whole transaction again"
    )]
    Contended {
        /// The resource.
        resource: LockName,
        /// What the database said.
        #[source]
        cause: Cause,
    },
    /// Another transaction held the row of this resource for longer than the time limit.
    #[error(
        "another transaction holds the fence of `{resource}` for too long: {cause}; roll back, and see which client does not end its transaction"
    )]
    TimedOut {
        /// The resource.
        resource: LockName,
        /// What the database said.
        #[source]
        cause: Cause,
    },
    /// What is kept as the newest token is not one.
    #[error(
        "what is kept as the newest token of `{resource}` is no token ({found}): find out who wrote it, and put the number of the newest grant there"
    )]
    Damaged {
        /// The resource.
        resource: LockName,
        /// What is there instead.
        found: String,
    },
    /// The store answered, and said no; or the user's own script failed. In Redis the token may have been accepted, and what the script did
    /// before it failed stands.
    #[error("the fenced write to `{resource}` was refused: {cause}")]
    Refused {
        /// The resource.
        resource: LockName,
        /// What the store said.
        #[source]
        cause: Cause,
    },
    /// The store could not be asked, or did not answer. Outside of a transaction, whether the write was done is not known.
    #[error(
        "the fence of `{resource}` did not answer: {cause}; look whether the write was done, or repeat it with the same token where twice is as good as once"
    )]
    NoAnswer {
        /// The resource.
        resource: LockName,
        /// What went wrong.
        #[source]
        cause: Cause,
    },
}

/// The one comparison, where it is made here and not by the store.
pub(super) fn compare(
    resource: LockName,
    token: FencingToken,
    newest: FencingToken,
) -> Result<(), FenceError> {
    if token < newest { Err(FenceError::Stale { resource, token, newest }) } else { Ok(()) }
}
