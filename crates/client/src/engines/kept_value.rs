//! The stored form of a lock's value on engines that only store bytes: the bytes, an in-doubt flag and the mark of a possible writer.
//!
//! A grant that allows writing marks an existing value when it acquires the lock. It removes the mark in the same step that releases the
//! lock. A mark whose grant no longer exists therefore means that its holder died.

use bytes::Bytes;
use tenure_table::{GrantId, Value};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct KeptValue {
    pub(super) bytes: Bytes,
    in_doubt: bool,
    /// The grant that may be about to write the value: the mark.
    writer: Option<GrantId>,
}

const SURE: u8 = b'c';
const IN_DOUBT: u8 = b'd';
const SURE_AND_MARKED: u8 = b'o';
const IN_DOUBT_AND_MARKED: u8 = b'x';
const MARK: usize = size_of::<u128>();

impl KeptValue {
    /// Parses the stored form: a letter, the mark if there is one, and the bytes. Returns `None` for a text in another form.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let (letter, rest) = text.split_first()?;
        let in_doubt = matches!(*letter, IN_DOUBT | IN_DOUBT_AND_MARKED);
        let (writer, bytes) = match *letter {
            SURE | IN_DOUBT => (None, rest),
            SURE_AND_MARKED | IN_DOUBT_AND_MARKED => {
                let (mark, bytes) = rest.split_first_chunk::<MARK>()?;
                (Some(GrantId::from_u128(u128::from_be_bytes(*mark))), bytes)
            }
            _ => return None,
        };
        Some(Self { bytes: Bytes::copy_from_slice(bytes), in_doubt, writer })
    }

    pub(super) fn text(&self) -> Vec<u8> {
        let letter = match (self.in_doubt, self.writer) {
            (false, None) => SURE,
            (true, None) => IN_DOUBT,
            (false, Some(_)) => SURE_AND_MARKED,
            (true, Some(_)) => IN_DOUBT_AND_MARKED,
        };
        let mut text = vec![letter];
        if let Some(writer) = self.writer {
            text.extend(writer.as_u128().to_be_bytes());
        }
        text.extend_from_slice(&self.bytes);
        text
    }

    /// Whether some grant may be about to write the value.
    #[cfg(feature = "zookeeper")]
    pub(super) const fn is_marked(&self) -> bool {
        self.writer.is_some()
    }

    /// Returns the value for a reader, given a predicate that says which grants exist.
    pub(super) fn value(&self, stands: impl Fn(GrantId) -> bool) -> Value {
        let died = self.writer.is_some_and(|writer| !stands(writer));
        Value { bytes: self.bytes.clone(), in_doubt: self.in_doubt || died }
    }

    /// Builds the value that a grant found, with the mark of that grant.
    pub(super) fn marked(found: Value, writer: GrantId) -> Self {
        Self { bytes: found.bytes, in_doubt: found.in_doubt, writer: Some(writer) }
    }

    /// Builds the value that the marked grant writes.
    pub(super) fn written(bytes: Bytes, writer: GrantId) -> Self {
        Self { bytes, in_doubt: false, writer: Some(writer) }
    }

    /// Returns the value without its mark, as a release leaves it.
    #[must_use]
    pub(super) fn unmarked(self) -> Self {
        Self { writer: None, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random;

    #[test]
    fn it_is_read_as_it_was_written() {
        let writer = random::grant_id();
        let sure = KeptValue::written("half-done".into(), writer);
        let doubtful = KeptValue::marked(Value { bytes: "x".into(), in_doubt: true }, writer);
        for value in
            [sure.clone(), sure.unmarked(), doubtful.clone(), doubtful.unmarked(), KeptValue::default()]
        {
            assert_eq!(KeptValue::parse(&value.text()), Some(value));
        }
        for text in [&b""[..], b"o123", b"?", b"\xff"] {
            assert_eq!(KeptValue::parse(text), None);
        }
    }

    #[test]
    fn who_dies_with_the_mark_leaves_a_doubt_until_somebody_writes() {
        let (dead, next) = (random::grant_id(), random::grant_id());
        let written = KeptValue::written("half-done".into(), dead);
        assert!(!written.value(|grant| grant == dead).in_doubt, "it is still there");
        let found = written.value(|_| false);
        assert!(found.in_doubt);
        let seen = KeptValue::marked(found, next).unmarked();
        assert!(seen.value(|_| true).in_doubt, "who only looked has not resolved anything");
        assert!(!KeptValue::written("done".into(), next).unmarked().value(|_| false).in_doubt);
    }
}
