//! A table as bytes: to store it, to send it to another replica, and to compare it.
//!
//! A snapshot is a sequence of [records](record) in checksummed [blocks](block). It is written and read block by block, so even a large
//! table needs little extra memory. It does not contain memory positions: equal states give equal bytes, whatever their history. The
//! [hash](StateHash) of a state is the hash of its records. `docs/format.md` describes the bytes.

mod block;
mod read;
mod record;
mod write;

use std::fmt;
use std::io;

use sha2::{Digest, Sha256};

use crate::table::Table;

use self::record::{Record, TableRecord};

/// A hash of the state. Two states are equal if and only if their hashes are.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct StateHash([u8; 32]);

impl StateHash {
    /// Returns the bytes of the hash.
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

/// Why a snapshot cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    /// The bytes could not be read.
    #[error("the snapshot could not be read")]
    Io(#[from] io::Error),
    /// The bytes are not a snapshot.
    #[error("this is no snapshot of a lock table")]
    NotASnapshot,
    /// The snapshot has another format version.
    #[error(
        "the snapshot has version {found}, and this program reads version {known}: use the program that wrote it"
    )]
    Version {
        /// The snapshot's version.
        found: u16,
        /// The version that this program reads.
        known: u16,
    },
    /// The table follows rules that this program does not know.
    #[error(
        "the snapshot needs version {found} of the rules, and this program knows {known}: use a newer program"
    )]
    Rules {
        /// The version that the table follows.
        found: u32,
        /// The newest version that this program knows.
        known: u32,
    },
    /// The bytes are not those that were written.
    #[error("the snapshot is damaged at byte {at}: {what}; take another one")]
    Damaged {
        /// The position in bytes.
        at: u64,
        /// The kind of damage.
        what: &'static str,
    },
    /// The bytes are intact, but their content is not a valid table.
    #[error("the snapshot contradicts itself: {what}; take another one, and report this")]
    Contradiction {
        /// The first contradiction found.
        what: String,
    },
}

impl Table {
    /// Writes the whole state. Writes in small pieces, so the writer should be buffered.
    pub fn write_snapshot(&self, to: impl io::Write) -> io::Result<()> {
        let mut blocks = block::Writer::new(to)?;
        self.write_records(|record| blocks.put(record))?;
        blocks.finish()
    }

    /// Reads a table that [`write_snapshot`](Self::write_snapshot) wrote. Reads to the end of the input. The seed is that of
    /// [`new`](Self::new).
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

    /// Returns the hash of the state. Reads the whole table.
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
