//! Blocks: records are packed into blocks of about 64 KiB, each with its length, number and checksum. An empty block at the end carries the
//! number of blocks before it. A record never crosses the end of a block.

use std::io::{self, Read, Write};

use super::SnapshotError;
use super::record::Record;

/// The first bytes of a snapshot: a magic number, then the format version.
const MAGIC: [u8; 8] = *b"TENURELT";
pub(super) const VERSION: u16 = 2;
/// The number of bytes at which a block is closed.
const BLOCK_BYTES: usize = 64 * 1024;
/// The most bytes that are read, and allocated for, in one step. The length of a block may be damaged.
const READ_BYTES: u64 = 64 * 1024;

/// Writes blocks.
pub(super) struct Writer<W> {
    to: W,
    block: Vec<u8>,
    number: u32,
}

impl<W: Write> Writer<W> {
    pub(super) fn new(mut to: W) -> io::Result<Self> {
        to.write_all(&MAGIC)?;
        to.write_all(&VERSION.to_le_bytes())?;
        Ok(Self { to, block: Vec::with_capacity(BLOCK_BYTES + 4096), number: 0 })
    }

    pub(super) fn put(&mut self, record: &Record) -> io::Result<()> {
        record.write(&mut self.block);
        if self.block.len() >= BLOCK_BYTES { self.close_block() } else { Ok(()) }
    }

    pub(super) fn finish(mut self) -> io::Result<()> {
        if !self.block.is_empty() {
            self.close_block()?;
        }
        // An empty block is the end mark.
        self.close_block()?;
        self.to.flush()
    }

    fn close_block(&mut self) -> io::Result<()> {
        let length = u32::try_from(self.block.len())
            .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "a record has more than 4 GiB"))?;
        let head = head(length, self.number);
        self.to.write_all(&head)?;
        self.to.write_all(&checksum(head, &self.block).to_le_bytes())?;
        self.to.write_all(&self.block)?;
        self.block.clear();
        self.number += 1;
        Ok(())
    }
}

fn head(length: u32, number: u32) -> [u8; 8] {
    let mut head = [0; 8];
    head[..4].copy_from_slice(&length.to_le_bytes());
    head[4..].copy_from_slice(&number.to_le_bytes());
    head
}

fn checksum(head: [u8; 8], records: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&head);
    hasher.update(records);
    hasher.finalize()
}

/// Reads blocks.
pub(super) struct Reader<R> {
    from: R,
    block: Vec<u8>,
    /// How much of the block has been read.
    given: usize,
    number: u32,
    /// The position of the next block.
    at: u64,
    ended: bool,
}

impl<R: Read> Reader<R> {
    pub(super) fn new(mut from: R) -> Result<Self, SnapshotError> {
        let mut magic = [0; 8];
        let mut version = [0; 2];
        read_all(&mut from, &mut magic, 0)?;
        if magic != MAGIC {
            return Err(SnapshotError::NotASnapshot);
        }
        read_all(&mut from, &mut version, 8)?;
        let found = u16::from_le_bytes(version);
        if found != VERSION {
            return Err(SnapshotError::Version { found, known: VERSION });
        }
        Ok(Self { from, block: Vec::new(), given: 0, number: 0, at: 10, ended: false })
    }

    /// Returns the next record, or `None` after the last block.
    pub(super) fn next_record(&mut self) -> Result<Option<Record>, SnapshotError> {
        if self.given == self.block.len() {
            if !self.ended {
                self.next_block()?;
            }
            if self.ended {
                return Ok(None);
            }
        }
        let rest = &self.block[self.given..];
        let Some((record, left)) = Record::read(rest) else {
            let what = format!("block {} holds something that is no record", self.number - 1);
            return Err(SnapshotError::Contradiction { what });
        };
        self.given = self.block.len() - left.len();
        Ok(Some(record))
    }

    fn next_block(&mut self) -> Result<(), SnapshotError> {
        let mut head_bytes = [0; 8];
        let mut sum = [0; 4];
        read_all(&mut self.from, &mut head_bytes, self.at)?;
        read_all(&mut self.from, &mut sum, self.at)?;
        let [a, b, c, d, ..] = head_bytes;
        let length = u32::from_le_bytes([a, b, c, d]);
        self.block.clear();
        self.given = 0;
        // The length may be wrong, so memory is allocated only as bytes arrive.
        let mut left = u64::from(length);
        while left > 0 {
            let step = left.min(READ_BYTES);
            let read = (&mut self.from).take(step).read_to_end(&mut self.block)?;
            if read == 0 {
                return Err(SnapshotError::Damaged { at: self.at, what: "a block ends too soon" });
            }
            left -= read as u64;
        }
        let right = head_bytes == head(length, self.number)
            && checksum(head_bytes, &self.block) == u32::from_le_bytes(sum);
        if !right {
            return Err(SnapshotError::Damaged {
                at: self.at,
                what: "a block's checksum is not that of its bytes",
            });
        }
        self.at += 12 + u64::from(length);
        self.number += 1;
        if length == 0 {
            self.ended = true;
            let mut behind = Vec::new();
            if (&mut self.from).take(1).read_to_end(&mut behind)? != 0 {
                return Err(SnapshotError::Damaged { at: self.at, what: "something comes after the end" });
            }
        }
        Ok(())
    }
}

fn read_all(from: &mut impl Read, bytes: &mut [u8], at: u64) -> Result<(), SnapshotError> {
    from.read_exact(bytes).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => SnapshotError::Damaged { at, what: "it ends too soon" },
        _ => SnapshotError::Io(error),
    })
}
