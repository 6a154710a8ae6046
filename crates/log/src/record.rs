//! The records in a batch, and their encoding.

use bytes::{Buf, BufMut, Bytes};

use crate::log::Identity;

const START: u8 = 1;
const ENTRY: u8 = 2;
const TRUNCATE: u8 = 3;
const HARD_STATE: u8 = 4;
const RESET: u8 = 5;

/// The number of bytes before an entry's own bytes: kind, index, length.
pub(crate) const ENTRY_HEADER: usize = 1 + 8 + 4;

/// One change of a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// The first record of each segment: the state before it, so that older segments can be deleted.
    Start {
        identity: Identity,
        next: u64,
        hard_state: Bytes,
    },
    Entry {
        index: u64,
        bytes: Bytes,
    },
    /// Removes the entries from this index on.
    Truncate {
        from: u64,
    },
    HardState(Bytes),
    /// Removes all entries. The next one has this index.
    Reset {
        next: u64,
    },
}

impl Record {
    pub(crate) fn encode(&self, body: &mut Vec<u8>) {
        match self {
            Self::Start { identity, next, hard_state } => {
                body.put_u8(START);
                body.put_slice(&identity.0);
                body.put_u64_le(*next);
                put_bytes(body, hard_state);
            }
            Self::Entry { index, bytes } => {
                body.put_u8(ENTRY);
                body.put_u64_le(*index);
                put_bytes(body, bytes);
            }
            Self::Truncate { from } => {
                body.put_u8(TRUNCATE);
                body.put_u64_le(*from);
            }
            Self::HardState(bytes) => {
                body.put_u8(HARD_STATE);
                put_bytes(body, bytes);
            }
            Self::Reset { next } => {
                body.put_u8(RESET);
                body.put_u64_le(*next);
            }
        }
    }

    /// Reads the next record and removes its bytes from the body. Returns `None` if the bytes are not a record.
    pub(crate) fn decode(body: &mut Bytes) -> Option<Self> {
        let record = match body.try_get_u8().ok()? {
            START => {
                let mut identity = Identity([0; 32]);
                body.try_copy_to_slice(&mut identity.0).ok()?;
                let next = body.try_get_u64_le().ok()?;
                Self::Start { identity, next, hard_state: get_bytes(body)? }
            }
            ENTRY => Self::Entry { index: body.try_get_u64_le().ok()?, bytes: get_bytes(body)? },
            TRUNCATE => Self::Truncate { from: body.try_get_u64_le().ok()? },
            HARD_STATE => Self::HardState(get_bytes(body)?),
            RESET => Self::Reset { next: body.try_get_u64_le().ok()? },
            _ => return None,
        };
        Some(record)
    }
}

fn put_bytes(body: &mut Vec<u8>, bytes: &[u8]) {
    body.put_u32_le(u32::try_from(bytes.len()).expect("a record is shorter than a segment"));
    body.put_slice(bytes);
}

fn get_bytes(body: &mut Bytes) -> Option<Bytes> {
    let length = body.try_get_u32_le().ok()? as usize;
    (body.len() >= length).then(|| body.split_to(length))
}
