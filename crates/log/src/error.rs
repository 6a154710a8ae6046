//! What goes wrong with a log.

use std::io;
use std::sync::Arc;

/// Why a log does not do what it is asked to.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The bytes are not those that were written. Nothing was changed.
    #[error(
        "{file} is damaged at offset {offset}: {what}. Restore this data directory from another copy; nothing was changed in it"
    )]
    Damaged {
        /// The file.
        file: String,
        /// Where in it.
        offset: u64,
        /// What is wrong.
        what: String,
    },
    /// The log is another replica's, or another cell's.
    #[error("{file} belongs to another log: check the data directory")]
    Foreign {
        /// The file.
        file: String,
    },
    /// The log was written by a newer program.
    #[error(
        "{file} has format version {version}, and this program knows versions up to {known}: use a newer program"
    )]
    NewerVersion {
        /// The file.
        file: String,
        /// Its version.
        version: u8,
        /// The newest version that this program knows.
        known: u8,
    },
    /// There is no room for the next segment. Nothing was written, and the same write can be tried again.
    #[error("the disk is full: {bytes} bytes are needed for the next segment of the log")]
    Full {
        /// The length of a segment.
        bytes: u64,
    },
    /// The batch is longer than a segment. Nothing was written.
    #[error("a batch of {bytes} bytes is too long: a segment has room for {limit}")]
    TooLong {
        /// The length of the batch.
        bytes: usize,
        /// What fits.
        limit: usize,
    },
    /// Entries before the first one that is kept cannot be read or truncated.
    #[error("entry {index} was purged: the log begins at {first}")]
    Purged {
        /// What was asked for.
        index: u64,
        /// The first entry that is kept.
        first: u64,
    },
    /// The disk refused. If it refused a write or a sync, the log does nothing more: what is durable is known after recovery.
    #[error("{action} failed: {error}")]
    Disk {
        /// What was tried.
        action: String,
        /// What the system said.
        error: Arc<io::Error>,
    },
    /// An earlier write or sync has failed.
    #[error("the log failed before ({0}): restart the process")]
    Failed(String),
}

impl LogError {
    pub(crate) fn disk(action: impl Into<String>, error: io::Error) -> Self {
        Self::Disk { action: action.into(), error: Arc::new(error) }
    }
}
