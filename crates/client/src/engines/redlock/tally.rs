//! The replies of the instances, and the decision that follows from them.

use super::round::Reply;
use crate::engines::redis::fault::{Fault, What};
use crate::error::EngineError;

/// The answer of one instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Vote {
    /// Yes, with the instance's token counter if the request asks for it.
    Yes(u64),
    No,
    /// An operator broke the lock.
    Broken,
}

/// The progress of a round of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// More answers are needed.
    Open,
    /// The missing answers are awaited for as long again as the first ones took.
    Closing,
    Done,
}

/// The replies so far.
#[derive(Debug)]
pub(super) struct Tally {
    instances: usize,
    pub(super) yes: Vec<u64>,
    pub(super) no: usize,
    pub(super) broken: usize,
    /// The instances that did not answer, or refused, with their faults.
    faults: Vec<(usize, Fault)>,
}

impl Tally {
    pub(super) const fn new(instances: usize) -> Self {
        Self { instances, yes: Vec::new(), no: 0, broken: 0, faults: Vec::new() }
    }

    /// Returns the size of a majority.
    const fn quorum(&self) -> usize {
        self.instances / 2 + 1
    }

    pub(super) fn add(&mut self, (instance, answer): Reply) {
        match answer {
            Ok(Vote::Yes(counter)) => self.yes.push(counter),
            Ok(Vote::No) => self.no += 1,
            Ok(Vote::Broken) => self.broken += 1,
            Err(fault) => self.faults.push((instance, fault)),
        }
    }

    /// Returns the instances that may still carry out the request, although they did not answer.
    pub(super) fn unanswered(&self) -> impl Iterator<Item = usize> {
        self.faults.iter().filter(|(_, fault)| fault.what == What::NoAnswer).map(|(instance, _)| *instance)
    }

    /// Returns the instances that did not answer, or refused.
    pub(super) fn failed(&self) -> impl Iterator<Item = usize> {
        self.faults.iter().map(|(instance, _)| *instance)
    }

    pub(super) fn has_majority(&self) -> bool {
        self.yes.len() >= self.quorum()
    }

    fn replies(&self) -> usize {
        self.yes.len() + self.no + self.broken + self.faults.len()
    }

    /// Returns whether more than half have answered, with any vote.
    fn is_answered(&self) -> bool {
        self.replies() - self.faults.len() >= self.quorum()
    }

    /// Returns the progress of a vote: it ends when more answers change nothing. If a majority has answered and disagrees, another client
    /// contends for the same votes. The missing answers are then not awaited for long: no other client can win while this one keeps its
    /// votes.
    pub(super) fn vote(&self) -> Progress {
        let missing = self.instances - self.replies();
        if self.has_majority() || self.yes.len() + missing < self.quorum() {
            Progress::Done
        } else if self.is_answered() {
            Progress::Closing
        } else {
            Progress::Open
        }
    }

    /// Returns the progress of a renewal or a release: it ends when a majority has said yes, or cannot do so even if the failed instances
    /// have the key.
    pub(super) fn settled(&self) -> Progress {
        if self.has_majority() || self.is_hopeless() { Progress::Done } else { Progress::Open }
    }

    /// Returns the progress of a release of votes: it ends when a majority has answered.
    pub(super) fn answered(&self) -> Progress {
        if self.is_answered() { Progress::Done } else { Progress::Open }
    }

    pub(super) fn is_hopeless(&self) -> bool {
        self.no + self.broken > self.instances - self.quorum()
    }

    /// Returns whether too many instances failed for a majority to answer.
    pub(super) fn is_unreachable(&self) -> bool {
        self.faults.len() > self.instances - self.quorum()
    }

    /// Returns the error of an unreachable majority, with the message of each instance. Its kind is the one on which the instances agree.
    pub(super) fn unreachable(mut self) -> EngineError {
        self.faults.sort_by_key(|(instance, _)| *instance);
        let errors = || self.faults.iter().map(|(_, fault)| &fault.error);
        let message = format!(
            "{} of {} instances failed, and {} must answer: {}",
            self.faults.len(),
            self.instances,
            self.quorum(),
            errors().map(message).collect::<Vec<_>>().join("; ")
        );
        let (engine, cause) = ("redlock", None);
        if errors().all(|error| matches!(error, EngineError::Denied { .. })) {
            EngineError::Denied { engine, message, cause }
        } else if errors().all(|error| matches!(error, EngineError::NotFound { .. })) {
            EngineError::NotFound { engine, message, cause }
        } else if errors().any(|error| matches!(error, EngineError::Unreachable { .. })) {
            EngineError::Unreachable { engine, message, cause }
        } else {
            EngineError::Refused { engine, message, cause }
        }
    }
}

/// Returns the message without the name of the engine.
fn message(error: &EngineError) -> String {
    match error {
        EngineError::Unreachable { message, .. }
        | EngineError::Denied { message, .. }
        | EngineError::NotFound { message, .. }
        | EngineError::Refused { message, .. } => message.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(of: usize, yes: usize, no: usize, silent: usize) -> Tally {
        let mut tally = Tally::new(of);
        for _ in 0..yes {
            tally.add((0, Ok(Vote::Yes(0))));
        }
        for _ in 0..no {
            tally.add((0, Ok(Vote::No)));
        }
        for _ in 0..silent {
            tally.add((0, Err(Fault::no_answer("redlock", "h does not answer".into(), None))));
        }
        tally
    }

    #[test]
    fn more_than_half_decide() {
        for (of, quorum) in [(1, 1), (3, 2), (5, 3), (7, 4)] {
            assert!(!tally(of, quorum - 1, 0, 0).has_majority());
            assert!(tally(of, quorum, 0, 0).has_majority());
            assert!(
                tally(of, 0, quorum, 0).vote() == Progress::Done
                    && tally(of, 0, quorum - 1, 0).vote() == Progress::Open
            );
            assert!(
                tally(of, 0, 0, quorum).is_unreachable() && !tally(of, 0, 0, quorum - 1).is_unreachable()
            );
        }
        assert_eq!(tally(5, 2, 1, 2).vote(), Progress::Done, "all have replied, and there is no majority");
        assert!(!tally(5, 2, 1, 2).is_unreachable(), "a majority answered: it is busy");
    }

    #[test]
    fn a_vote_closes_when_a_majority_has_answered_and_disagrees() {
        assert_eq!(tally(5, 2, 0, 0).vote(), Progress::Open);
        assert_eq!(tally(5, 2, 0, 2).vote(), Progress::Open, "too few have answered");
        assert_eq!(tally(5, 2, 1, 0).vote(), Progress::Closing);
        assert_eq!(tally(5, 2, 2, 0).vote(), Progress::Closing);
        assert_eq!(tally(5, 3, 0, 0).vote(), Progress::Done);
        assert_eq!(tally(5, 1, 3, 0).vote(), Progress::Done);
        assert_eq!(tally(5, 2, 2, 0).settled(), Progress::Open, "the last answer may save the lock");
    }

    #[test]
    fn an_error_has_the_message_of_each_instance_once() {
        let mut tally = Tally::new(3);
        for (instance, host) in [(2, "h2"), (0, "h0")] {
            tally.add((instance, Err(Fault::no_answer("redlock", format!("{host} is down"), None))));
        }
        assert_eq!(
            tally.unreachable().to_string(),
            "redlock cannot be reached: 2 of 3 instances failed, and 2 must answer: \
             h0 is down; h2 is down"
        );
    }

    #[test]
    fn an_error_is_of_the_kind_on_which_the_instances_agree() {
        let denied = || {
            let (engine, message, cause) = ("redlock", "wrong password".to_owned(), None);
            Fault { what: What::Refused, error: EngineError::Denied { engine, message, cause } }
        };
        let missing = || {
            let (engine, message, cause) = ("redlock", "no such host".to_owned(), None);
            Fault { what: What::NotSent, error: EngineError::NotFound { engine, message, cause } }
        };
        let refused = || Fault::refused("redlock", "out of memory".to_owned(), None);
        let silent = || Fault::no_answer("redlock", "h is down".to_owned(), None);
        let error = |faults: [Fault; 2]| {
            let mut tally = Tally::new(3);
            for fault in faults {
                tally.add((0, Err(fault)));
            }
            tally.unreachable()
        };
        assert!(matches!(error([denied(), denied()]), EngineError::Denied { .. }));
        assert!(matches!(error([missing(), missing()]), EngineError::NotFound { .. }));
        assert!(matches!(error([denied(), refused()]), EngineError::Refused { .. }));
        assert!(matches!(error([denied(), silent()]), EngineError::Unreachable { .. }));
    }
}
