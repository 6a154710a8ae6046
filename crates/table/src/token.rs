//! The fencing token: what lets the storage refuse a holder that has not noticed that it lost the lock.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Of two incompatible grants of a resource, the later has the larger token. Send it along with every write, and let
/// whoever stores the data refuse a token that is smaller than the largest it has seen.
///
/// A re-entered grant keeps its token. Fencing is for [`Mode::Pw`](crate::Mode::Pw) and [`Mode::Ex`](crate::Mode::Ex).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FencingToken(u64);

impl FencingToken {
    /// The token with this number: for engines, and for storage that reads one back.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Its number, for storage.
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
