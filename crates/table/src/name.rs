//! The name of a resource. Every `LockName` has passed the checks of [`LockName::parse`], so every engine can store it.

use std::fmt;
use std::str::FromStr;

use compact_str::CompactString;
use serde::{Deserialize, Serialize};

/// The name of a resource: 1 to 512 bytes of UTF-8 without control characters. A `/` separates the parts of a path, and a list can be
/// limited to a prefix.
///
/// ```
/// # use tenure_table::{LockName, NameError};
/// assert_eq!(LockName::parse("orders/42")?.as_str(), "orders/42");
/// assert!(LockName::parse("").is_err());
/// # Ok::<(), NameError>(())
/// ```
///
/// A name of up to 24 bytes needs no allocation.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "UncheckedName")]
pub struct LockName(CompactString);

/// A deserialized text that has not been checked.
#[derive(Deserialize)]
#[serde(transparent)]
struct UncheckedName(CompactString);

/// Why a text is not a [`LockName`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// The text is empty.
    #[error("a lock name must not be empty: name what is locked, for example `orders/42`")]
    Empty,
    /// The text is longer than [`LockName::MAX_BYTES`].
    #[error("a lock name has at most {max} bytes, and this one has {bytes}: shorten it, or lock a hash of it", max = LockName::MAX_BYTES)]
    TooLong {
        /// The length of the text in bytes.
        bytes: usize,
    },
    /// The text contains a control character.
    #[error("a lock name has no control characters, and this one has {character:?} at byte {at}")]
    Control {
        /// The character.
        character: char,
        /// Its position in bytes.
        at: usize,
    },
}

impl LockName {
    /// The largest length of a name in bytes. It fits the keys of every engine, with room for a prefix.
    pub const MAX_BYTES: usize = 512;

    /// Checks a text and returns it as a name.
    pub fn parse(text: impl AsRef<str>) -> Result<Self, NameError> {
        let text = text.as_ref();
        Self::check(text)?;
        Ok(Self(text.into()))
    }

    fn check(text: &str) -> Result<(), NameError> {
        if text.is_empty() {
            return Err(NameError::Empty);
        }
        if text.len() > Self::MAX_BYTES {
            return Err(NameError::TooLong { bytes: text.len() });
        }
        if let Some((at, character)) = text.char_indices().find(|(_, c)| c.is_control()) {
            return Err(NameError::Control { character, at });
        }
        Ok(())
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for LockName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl TryFrom<UncheckedName> for LockName {
    type Error = NameError;

    fn try_from(UncheckedName(text): UncheckedName) -> Result<Self, NameError> {
        Self::check(&text)?;
        Ok(Self(text))
    }
}

impl FromStr for LockName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::parse(text)
    }
}

impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_one_to_512_bytes_and_no_control_characters() {
        assert_eq!(LockName::parse(""), Err(NameError::Empty));
        assert!(LockName::parse("é".repeat(256)).is_ok());
        assert_eq!(LockName::parse("é".repeat(257)), Err(NameError::TooLong { bytes: 514 }));
        assert_eq!(LockName::parse("a\nb"), Err(NameError::Control { character: '\n', at: 1 }));
        assert!(LockName::parse("../.. /é/日本").is_ok());
    }
}
