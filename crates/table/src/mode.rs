//! The six modes of a classic lock manager, which of them are compatible, and which mode covers which.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The mode of a lock. Two grants of one resource may be held together only if their modes are [compatible](Mode::compatible_with):
///
/// | | NL | CR | CW | PR | PW | EX |
/// | --- | --- | --- | --- | --- | --- | --- |
/// | **NL** null | yes | yes | yes | yes | yes | yes |
/// | **CR** concurrent read | yes | yes | yes | yes | yes | - |
/// | **CW** concurrent write | yes | yes | yes | - | - | - |
/// | **PR** protected read | yes | yes | - | yes | - | - |
/// | **PW** protected write | yes | yes | - | - | - | - |
/// | **EX** exclusive | yes | - | - | - | - | - |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "UPPERCASE")]
pub enum Mode {
    /// Null: conflicts with nothing. Such a grant can be converted later.
    Nl,
    /// Concurrent read: conflicts with EX only.
    Cr,
    /// Concurrent write: compatible with other concurrent writers and with concurrent readers.
    Cw,
    /// Protected read: the classic *shared* lock.
    Pr,
    /// Protected write: one writer, together with concurrent readers.
    Pw,
    /// Exclusive: the classic mutex, and the default.
    #[default]
    Ex,
}

impl Mode {
    /// All six modes, from the weakest to the strongest (`Cw` and `Pr` are not comparable).
    pub const ALL: [Self; 6] = [Self::Nl, Self::Cr, Self::Cw, Self::Pr, Self::Pw, Self::Ex];
    /// Another name for [`Mode::Pr`].
    pub const SHARED: Self = Self::Pr;
    /// Another name for [`Mode::Ex`].
    pub const EXCLUSIVE: Self = Self::Ex;

    /// Returns the modes that are compatible with this one: a row of the table.
    pub const fn compatible(self) -> ModeSet {
        use Mode::{Cr, Cw, Nl, Pr, Pw};
        match self {
            Self::Nl => ModeSet::ALL,
            Self::Cr => ModeSet::of(&[Nl, Cr, Cw, Pr, Pw]),
            Self::Cw => ModeSet::of(&[Nl, Cr, Cw]),
            Self::Pr => ModeSet::of(&[Nl, Cr, Pr]),
            Self::Pw => ModeSet::of(&[Nl, Cr]),
            Self::Ex => ModeSet::of(&[Nl]),
        }
    }

    /// Whether two grants of one resource may be held together in these modes. Symmetric.
    pub const fn compatible_with(self, other: Self) -> bool {
        self.compatible().contains(other)
    }

    /// Whether this mode excludes every mode that `other` excludes.
    pub const fn covers(self, other: Self) -> bool {
        self.compatible().0 & !other.compatible().0 == 0
    }

    /// Whether a holder in this mode may write the resource's value, and whether its fencing token protects a write.
    pub const fn may_write(self) -> bool {
        matches!(self, Self::Pw | Self::Ex)
    }

    /// Returns the two letters of the mode.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Nl => "NL",
            Self::Cr => "CR",
            Self::Cw => "CW",
            Self::Pr => "PR",
            Self::Pw => "PW",
            Self::Ex => "EX",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why a text is not a [`Mode`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a lock mode: it is one of NL, CR, CW, PR (or shared), PW, EX (or exclusive)")]
pub struct ModeError(String);

impl FromStr for Mode {
    type Err = ModeError;

    fn from_str(text: &str) -> Result<Self, ModeError> {
        match text.to_ascii_lowercase().as_str() {
            "shared" => Ok(Self::SHARED),
            "exclusive" => Ok(Self::EXCLUSIVE),
            letters => Self::ALL
                .into_iter()
                .find(|mode| mode.as_str().eq_ignore_ascii_case(letters))
                .ok_or_else(|| ModeError(text.to_owned())),
        }
    }
}

/// A set of modes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ModeSet(u8);

impl ModeSet {
    /// All six modes.
    pub const ALL: Self = Self::of(&Mode::ALL);

    /// Returns the set of these modes.
    pub const fn of(modes: &[Mode]) -> Self {
        let mut bits = 0;
        let mut i = 0;
        while i < modes.len() {
            bits |= 1 << modes[i] as u8;
            i += 1;
        }
        Self(bits)
    }

    /// Whether the mode is in the set.
    pub const fn contains(self, mode: Mode) -> bool {
        self.0 & (1 << mode as u8) != 0
    }

    /// Returns the set with one more mode.
    #[must_use]
    pub const fn with(self, mode: Mode) -> Self {
        Self(self.0 | 1 << mode as u8)
    }

    /// Returns the modes in the set, weakest first.
    pub fn iter(self) -> impl DoubleEndedIterator<Item = Mode> {
        Mode::ALL.into_iter().filter(move |mode| self.contains(*mode))
    }
}

impl fmt::Debug for ModeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The compatibility table, written a second time in another form.
    #[test]
    fn the_compatibility_table_is_the_classic_one_and_symmetric() {
        let rows = ["yyyyyy", "yyyyy-", "yyy---", "yy-y--", "yy----", "y-----"];
        for (a, row) in Mode::ALL.into_iter().zip(rows) {
            for (b, cell) in Mode::ALL.into_iter().zip(row.chars()) {
                assert_eq!(a.compatible_with(b), cell == 'y', "{a} with {b}");
                assert_eq!(a.compatible_with(b), b.compatible_with(a), "{a} with {b}");
            }
        }
    }

    #[test]
    fn a_mode_covers_another_if_it_keeps_out_at_least_as_much() {
        for a in Mode::ALL {
            assert!(a.covers(a) && a.covers(Mode::Nl) && Mode::Ex.covers(a));
        }
        assert!(Mode::Pw.covers(Mode::Pr) && Mode::Pw.covers(Mode::Cw));
        assert!(!Mode::Pr.covers(Mode::Cw) && !Mode::Cw.covers(Mode::Pr) && !Mode::Pr.covers(Mode::Ex));
    }

    #[test]
    fn modes_are_read_as_they_are_written() {
        for mode in Mode::ALL {
            assert_eq!(mode.as_str().parse(), Ok(mode));
        }
        assert_eq!("shared".parse(), Ok(Mode::Pr));
        assert_eq!("ex".parse(), Ok(Mode::Ex));
        assert!("exclusiv".parse::<Mode>().is_err());
    }
}
