//! Errors of a fenced write.

use tenure_table::{FencingToken, LockName, Mode, NameError};

use crate::error::Cause;

/// Why a fenced write was refused or failed. Unless a variant says otherwise, nothing was written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FenceError {
    /// The resource has accepted a newer token: this holder has lost its lock, whether or not it has noticed.
    #[error(
        "token {token} of `{resource}` is stale, since {newest} has been here: the lock was lost, and somebody else had it since. Write nothing, roll back, and acquire the lock again"
    )]
    Stale {
        /// The resource.
        resource: LockName,
        /// The refused token.
        token: FencingToken,
        /// The newest accepted token.
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
    /// The guard's mode is shared, and tokens of concurrent holders cannot be compared.
    #[error(
        "`{resource}` is held in mode {mode}, whose tokens cannot be compared: acquire it in mode EX or PW before you write"
    )]
    Mode {
        /// The resource.
        resource: LockName,
        /// The held mode.
        mode: Mode,
    },
    /// The resource is not a valid lock name.
    #[error("the resource of the fence must be named as a lock is: {0}")]
    Resource(#[from] NameError),
    /// The store cannot represent a token of this size.
    #[error(
        "token {token} of `{resource}` does not fit: {store} keeps tokens up to {largest}. No engine of Tenure gives larger ones, so look where this one comes from"
    )]
    TooLarge {
        /// The resource.
        resource: LockName,
        /// The token.
        token: FencingToken,
        /// The store.
        store: &'static str,
        /// The largest token that fits.
        largest: FencingToken,
    },
    /// The table for the tokens does not exist.
    #[error(
        "there is no table `{table}` to keep fencing tokens in: create it once with `SqlFence::create_table`, or have it created with the text of `SqlFence::create_table_sql`"
    )]
    NoTable {
        /// The table's name.
        table: String,
        /// The database's error.
        #[source]
        cause: Cause,
    },
    /// Another transaction conflicted with this one.
    #[error(
        "another transaction was in the way at `{resource}`: roll back, and run the whole transaction again"
    )]
    Contended {
        /// The resource.
        resource: LockName,
        /// The database's error.
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
        /// The database's error.
        #[source]
        cause: Cause,
    },
    /// The stored newest token is not a number.
    #[error(
        "what is kept as the newest token of `{resource}` is no token ({found}): find out who wrote it, and put the number of the newest grant there"
    )]
    Damaged {
        /// The resource.
        resource: LockName,
        /// The stored text.
        found: String,
    },
    /// The store refused the request, or the user's own script failed. In Redis, the token may have been accepted, and what the script
    /// did before it failed remains.
    #[error("the fenced write to `{resource}` was refused: {cause}")]
    Refused {
        /// The resource.
        resource: LockName,
        /// The store's error.
        #[source]
        cause: Cause,
    },
    /// The store could not be asked, or did not answer. Outside of a transaction, it is unknown whether the write was done.
    #[error(
        "the fence of `{resource}` did not answer: {cause}; look whether the write was done, or repeat it with the same token where twice is as good as once"
    )]
    NoAnswer {
        /// The resource.
        resource: LockName,
        /// The underlying error.
        #[source]
        cause: Cause,
    },
}

/// Compares a token with the newest, where the store does not do so itself.
pub(super) fn compare(
    resource: LockName,
    token: FencingToken,
    newest: FencingToken,
) -> Result<(), FenceError> {
    if token < newest { Err(FenceError::Stale { resource, token, newest }) } else { Ok(()) }
}
