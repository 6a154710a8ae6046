//! An answer as a session keeps it: most answers are one word, or a word and a token, and are kept as such.

use crate::{Answer, FencingToken, Granted, Outcome, SharedValue};

/// An answer that is kept.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Brief {
    /// Granted, where nobody ever wrote a value.
    Granted(FencingToken),
    /// Granted without a word about the value.
    GivenUp(FencingToken),
    Released,
    Cancelled,
    Written,
    Remembered,
    /// Any other, as it is.
    Other(Box<Outcome>),
}

impl Brief {
    pub(crate) fn of(outcome: &Outcome) -> Self {
        match outcome {
            Ok(Answer::Granted(Granted { token, value: None })) => Self::GivenUp(*token),
            Ok(Answer::Granted(Granted { token, value: Some(value) })) if value.is_default() => {
                Self::Granted(*token)
            }
            Ok(Answer::Released) => Self::Released,
            Ok(Answer::Cancelled) => Self::Cancelled,
            Ok(Answer::Written) => Self::Written,
            Ok(Answer::Remembered) => Self::Remembered,
            other => Self::Other(Box::new(other.clone())),
        }
    }

    /// The answer, to be given again.
    pub(crate) fn outcome(&self) -> Outcome {
        let granted = |token, value| Answer::Granted(Granted { token, value });
        Ok(match self {
            Self::Granted(token) => granted(*token, Some(SharedValue::default())),
            Self::GivenUp(token) => granted(*token, None),
            Self::Released => Answer::Released,
            Self::Cancelled => Answer::Cancelled,
            Self::Written => Answer::Written,
            Self::Remembered => Answer::Remembered,
            Self::Other(outcome) => return (**outcome).clone(),
        })
    }
}
