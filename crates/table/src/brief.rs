//! Answers as a session stores them. Most fit into one word, or a word and a token.

use std::collections::VecDeque;

use crate::{Answer, FencingToken, Granted, Outcome, SharedValue};

/// A stored answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Brief {
    /// Granted, with no value written.
    Granted(FencingToken),
    /// Granted by a conversion whose answer carries no value.
    GivenUp(FencingToken),
    Released,
    Cancelled,
    Written,
    Remembered,
    /// Any other answer.
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

    /// Returns the answer, to be sent again.
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

/// Answers to requests, sorted by number. The newest is stored separately: most clients read each answer before the next request, and have
/// only that one.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Briefs {
    /// Empty if there is no newest answer.
    older: VecDeque<(u64, Brief)>,
    newest: Option<(u64, Brief)>,
}

impl Briefs {
    pub(crate) fn len(&self) -> usize {
        self.older.len() + usize::from(self.newest.is_some())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &(u64, Brief)> + Clone {
        self.older.iter().chain(&self.newest)
    }

    /// Returns the largest number.
    pub(crate) fn last(&self) -> Option<u64> {
        self.newest.as_ref().map(|(number, _)| *number)
    }

    pub(crate) fn find(&self, number: u64) -> Option<&Brief> {
        match &self.newest {
            Some((newest, answer)) if *newest == number => Some(answer),
            _ => {
                let at = self.older.binary_search_by_key(&number, |(answered, _)| *answered).ok()?;
                Some(&self.older[at].1)
            }
        }
    }

    /// Adds the answer to the largest number so far.
    pub(crate) fn push(&mut self, number: u64, answer: Brief) {
        if let Some(before) = self.newest.replace((number, answer)) {
            self.older.push_back(before);
        }
    }

    pub(crate) fn insert(&mut self, number: u64, answer: Brief) {
        if self.last().is_none_or(|newest| newest < number) {
            self.push(number, answer);
        } else {
            let at = self.older.partition_point(|(answered, _)| *answered < number);
            self.older.insert(at, (number, answer));
        }
    }

    /// Removes the answers up to a number.
    pub(crate) fn forget(&mut self, up_to: u64) {
        if self.last().is_some_and(|newest| newest <= up_to) {
            self.newest = None;
        }
        if !self.older.is_empty() {
            self.forget_older(up_to);
        }
    }

    #[inline(never)]
    fn forget_older(&mut self, up_to: u64) {
        while self.older.front().is_some_and(|(answered, _)| *answered <= up_to) {
            self.older.pop_front();
        }
    }
}
