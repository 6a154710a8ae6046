//! The value block: up to 1 KiB that stays with a resource from holder to holder.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// What the last writer left with the resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Value {
    /// The bytes; empty if nobody ever wrote any.
    pub bytes: Bytes,
    /// A holder that could have been about to write died. The bytes are the last ones that were written, and may not
    /// be the last ones that were meant. The next write clears it.
    pub in_doubt: bool,
}

impl Value {
    /// The most bytes that a value may have: a checkpoint or an address, not a document.
    pub const MAX_BYTES: usize = 1024;
}
