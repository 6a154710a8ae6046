//! The label of a session or a holder, for people to read.

use std::fmt;
use std::ops::Deref;

use compact_str::CompactString;
use serde::{Deserialize, Serialize};

/// The label of a session or a holder. Any text. [`Limits::label_bytes`](crate::Limits::label_bytes) limits its length.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Label(CompactString);

impl Label {
    /// Returns the label as text.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl From<&str> for Label {
    fn from(text: &str) -> Self {
        Self(text.into())
    }
}

impl Deref for Label {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
