//! The ids of owners, grants and sessions: 128 random bits, so that they can be drawn without asking a server.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub struct $name([u8; 16]);

        impl $name {
            /// Returns the id with these bits.
            pub const fn from_u128(bits: u128) -> Self {
                Self(bits.to_be_bytes())
            }

            /// Returns the id's bits.
            pub const fn as_u128(self) -> u128 {
                u128::from_be_bytes(self.0)
            }
        }

        impl Hash for $name {
            /// Hashes the id as one number, which is faster than sixteen bytes.
            fn hash<H: Hasher>(&self, state: &mut H) {
                state.write_u128(u128::from_ne_bytes(self.0));
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                const DIGITS: &[u8; 16] = b"0123456789abcdef";
                let mut text = [0; 32];
                for (two, byte) in text.chunks_exact_mut(2).zip(self.0) {
                    two.copy_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
                }
                f.write_str(str::from_utf8(&text).expect("digits are text"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                if text.len() == 32 && text.bytes().all(|b| b.is_ascii_hexdigit()) {
                    if let Ok(bits) = u128::from_str_radix(text, 16) {
                        return Ok(Self::from_u128(bits));
                    }
                }
                Err(IdError { what: $what, text: text.to_owned() })
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                if serializer.is_human_readable() {
                    serializer.collect_str(self)
                } else {
                    self.0.serialize(serializer)
                }
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                if deserializer.is_human_readable() {
                    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
                } else {
                    <[u8; 16]>::deserialize(deserializer).map(Self)
                }
            }
        }
    };
}

id! {
    /// The owner of a lock. Every acquire has a new owner, unless the caller shares one among several.
    OwnerId, "an owner"
}

id! {
    /// A grant. The client draws the id before it sends the request, so that a request which is sent twice is recognized. A renewal,
    /// conversion or release names the grant, so it never affects the grant of another holder.
    GrantId, "a grant"
}

id! {
    /// The session that keeps a lock alive. The client draws the id, so that opening a session twice opens it once.
    SessionId, "a session"
}

/// Why a text is not an id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not the id of {what}: that has 32 hexadecimal digits")]
pub struct IdError {
    what: &'static str,
    text: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_read_as_it_is_written() {
        let id = OwnerId::from_u128(0x0123_4567_89ab_cdef);
        assert_eq!(id.to_string(), "00000000000000000123456789abcdef");
        assert_eq!(id.to_string().parse(), Ok(id));
        assert!("+0000000000000000000000000000001".parse::<GrantId>().is_err());
        assert!("12".parse::<GrantId>().is_err());
    }
}
