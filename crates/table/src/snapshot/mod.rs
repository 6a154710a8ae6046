//! A table as bytes: to be kept, to be sent to another replica, and to be compared.
//!
//! A snapshot is a row of [records](record), packed into [blocks](block) with a checksum each, and written one after the other, so that a large
//! table is written and read in little memory beside its own. It says nothing about where things lie: the same state gives the
//! same bytes, however the table came to it, and the [hash](StateHash) of a state is the hash of its records. `docs/format.md`
//! has the bytes.

mod block;
mod read;
mod record;
mod write;

use std::fmt;
use std::io;

use sha2::{Digest, Sha256};

use crate::table::Table;

use self::record::{Record, TableRecord};

/// A value that is equal exactly if states are equal.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct StateHash([u8; 32]);

impl StateHash {
    /// Its bytes.
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for StateHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for StateHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Why there is no table to be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The bytes could not be read.
    #[error("the snapshot could not be read")]
    Io(#[from] io::Error),
    /// It is something else.
    #[error("this is no snapshot of a lock table")]
    NotASnapshot,
    /// It was written by another version.
    #[error(
        "the snapshot has version {found}, and this program reads version {known}: use the program that wrote it"
    )]
    Version {
        /// Its version.
        found: u16,
        /// The version that can be read.
        known: u16,
    },
    /// The table follows rules that this program does not know.
    #[error(
        "the snapshot needs version {found} of the rules, and this program knows {known}: use a newer program"
    )]
    Rules {
        /// The version that it needs.
        found: u32,
        /// The newest version that this program knows.
        known: u32,
    },
    /// Its bytes are not those that were written.
    #[error("the snapshot is damaged at byte {at}: {what}; take another one")]
    Damaged {
        /// Where.
        at: u64,
        /// How that shows.
        what: &'static str,
    },
    /// Its bytes are intact, and what they say cannot be.
    #[error("the snapshot contradicts itself: {what}; take another one, and report this")]
    Contradiction {
        /// What is wrong with it.
        what: String,
    },
}

impl Table {
    /// Writes all that the table knows. It is written in pieces, so whatever it is written to should be buffered or not mind that.
    pub fn write_snapshot(&self, to: impl io::Write) -> io::Result<()> {
        let mut blocks = block::Writer::new(to)?;
        self.write_records(|record| blocks.put(record))?;
        blocks.finish()
    }

    /// Reads a table that was written by [`write_snapshot`](Self::write_snapshot), to the end of what there is to be read. The seed
    /// is that of [`new`](Self::new).
    pub fn read_snapshot(from: impl io::Read, seed: u64) -> Result<Self, SnapshotError> {
        let mut blocks = block::Reader::new(from)?;
        let mut restored = read::Restored::new(seed);
        while let Some(record) = blocks.next_record()? {
            if let Record::Table(TableRecord { rules: found, .. }) = record
                && found > Self::RULES
            {
                return Err(SnapshotError::Rules { found, known: Self::RULES });
            }
            restored.put(record).map_err(|what| SnapshotError::Contradiction { what })?;
        }
        restored.finish().map_err(|what| SnapshotError::Contradiction { what })
    }

    /// The hash of the state. Looks at everything.
    pub fn state_hash(&self) -> StateHash {
        let mut hash = Sha256::new();
        let mut bytes = Vec::new();
        let hashed = self.write_records(|record| {
            bytes.clear();
            record.write(&mut bytes);
            hash.update(&bytes);
            Ok(())
        });
        hashed.expect("a hash takes all that it is given");
        StateHash(hash.finalize().into())
    }
}
