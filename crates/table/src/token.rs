//! The fencing token: storage uses it to refuse writes of a holder that has lost the lock without noticing.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A number that grows with the grants of a resource: of two incompatible grants, the later one has the larger token. Send the token with
/// every write. The storage must refuse a token that is smaller than the largest it has seen.
///
/// A re-entered grant keeps its token. Fencing is for [`Mode::Pw`](crate::Mode::Pw) and [`Mode::Ex`](crate::Mode::Ex).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FencingToken(u64);

impl FencingToken {
    /// Returns the token with this number: for engines, and for storage that reads one back.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Returns the token's number, for storage.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "token {}", self.0)
    }
}
