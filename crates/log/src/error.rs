//! The errors of a log.

use std::io;
use std::sync::Arc;

/// Why an operation of a log failed.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LogError {
    /// The bytes on the disk are not those that were written. Nothing was changed.
    #[error(
        "{file} is damaged at offset {offset}: {what}. Restore this data directory from another copy; nothing was changed in it"
    )]
    Damaged {
        /// The file.
        file: String,
        /// The position of the damage in bytes.
        offset: u64,
        /// The kind of damage.
        what: String,
    },
    /// The log belongs to another replica or another cell.
    #[error("{file} belongs to another log: check the data directory")]
    Foreign {
        /// The file.
        file: String,
    },
    /// A newer program has written the log.
    #[error(
        "{file} has format version {version}, and this program knows versions up to {known}: use a newer program"
    )]
    NewerVersion {
        /// The file.
        file: String,
        /// The file's version.
        version: u8,
        /// The newest version that this program knows.
        known: u8,
    },
    /// The disk has no room for the next segment. Nothing was written. The same write can be retried.
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
        /// The largest length that fits.
        limit: usize,
    },
    /// An entry before the first kept one cannot be read or truncated.
    #[error("entry {index} was purged: the log begins at {first}")]
    Purged {
        /// The requested index.
        index: u64,
        /// The index of the first kept entry.
        first: u64,
    },
    /// The disk reported an error. If it was for a write or a sync, the log refuses all later writes, and recovery finds what is durable.
    #[error("{action} failed: {error}")]
    Disk {
        /// The action that failed.
        action: String,
        /// The error of the operating system.
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
