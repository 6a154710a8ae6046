//! The instances, asked all at once; and what their answers come to.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use tenure_table::GrantId;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::cleaner::{Asked, Cleaner};
use super::latecomers::Latecomers;
use super::round::{Heard, Round};
use crate::engine::EngineContext;
use crate::engines::redis::fault::{Fault, What};
use crate::engines::redis::link::Link;
use crate::error::EngineError;
use crate::lease::Ttl;

/// What one instance said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Vote {
    /// With its counter, where that was asked for.
    Yes(u64),
    No,
    /// An operator broke it.
    Broken,
}

/// What was heard so far.
#[derive(Debug)]
pub(super) struct Tally {
    instances: usize,
    pub(super) yes: Vec<u64>,
    pub(super) no: usize,
    pub(super) broken: usize,
    faults: Vec<Fault>,
    /// Those who did not answer, and whether they may have been asked.
    pub(super) silent: Vec<(usize, What)>,
}

impl Tally {
    const fn new(instances: usize) -> Self {
        Self { instances, yes: Vec::new(), no: 0, broken: 0, faults: Vec::new(), silent: Vec::new() }
    }

    /// More than half.
    const fn quorum(&self) -> usize {
        self.instances / 2 + 1
    }

    fn count(&mut self, answer: Result<Vote, Fault>) {
        match answer {
            Ok(Vote::Yes(counter)) => self.yes.push(counter),
            Ok(Vote::No) => self.no += 1,
            Ok(Vote::Broken) => self.broken += 1,
            Err(fault) => self.faults.push(fault),
        }
    }

    fn hear(&mut self, (instance, answer): Heard) {
        if let Err(fault) = &answer {
            self.silent.push((instance, fault.what));
        }
        self.count(answer);
    }

    pub(super) fn has_majority(&self) -> bool {
        self.yes.len() >= self.quorum()
    }

    fn heard(&self) -> usize {
        self.yes.len() + self.no + self.broken + self.faults.len()
    }

    /// Whether more answers change nothing about whether there is a majority.
    pub(super) fn is_decided(&self) -> bool {
        self.has_majority() || self.yes.len() + (self.instances - self.heard()) < self.quorum()
    }

    /// Whether more than half have answered, whatever they said.
    pub(super) fn is_answered(&self) -> bool {
        self.heard() - self.faults.len() >= self.quorum()
    }

    /// Whether there is a majority, or will not be even if all who are silent now should turn out to be for it.
    pub(super) fn is_settled(&self) -> bool {
        self.has_majority() || self.is_hopeless()
    }

    pub(super) fn is_hopeless(&self) -> bool {
        self.no + self.broken > self.instances - self.quorum()
    }

    /// Whether so many do not answer that there is no majority to be had.
    pub(super) fn is_unreachable(&self) -> bool {
        self.faults.len() > self.instances - self.quorum()
    }

    /// Says so, with what each of them said.
    pub(super) fn unreachable(self) -> EngineError {
        let (instances, quorum, silent) = (self.instances, self.quorum(), self.faults.len());
        let each: Vec<_> = self.faults.iter().map(|fault| said(&fault.error)).collect();
        let message = format!(
            "of {instances} instances {silent} do not answer, and {quorum} are needed: {}",
            each.join("; ")
        );
        let mut faults = self.faults;
        // If they answer and refuse, that is what is to be repaired.
        if faults.iter().all(|fault| !fault.what.is_silence()) {
            return faults.swap_remove(0).error;
        }
        EngineError::Unreachable { engine: "redlock", message, cause: None }
    }
}

fn said(error: &EngineError) -> String {
    match error {
        EngineError::Unreachable { message, .. } | EngineError::Refused { message, .. } => message.clone(),
        other => other.to_string(),
    }
}

/// All instances.
#[derive(Debug)]
pub(super) struct Instances {
    links: Arc<[Arc<Link>]>,
    cleaners: Vec<Arc<Cleaner>>,
    latecomers: Arc<Latecomers>,
    context: EngineContext,
    /// What goes on in the background.
    background: TaskTracker,
    closing: CancellationToken,
}

impl Instances {
    pub(super) fn new(links: Vec<Arc<Link>>, context: EngineContext) -> Self {
        let cleaners = links.iter().map(|_| Arc::default()).collect();
        let (background, closing) = (TaskTracker::new(), CancellationToken::new());
        let links = links.into();
        Self { links, cleaners, latecomers: Arc::default(), context, background, closing }
    }

    pub(super) fn links(&self) -> &[Arc<Link>] {
        &self.links
    }

    /// Asks all at once, each within this time, until enough is heard; and what is then still under way.
    pub(super) async fn ask_until<F>(
        &self,
        limit: Duration,
        enough: impl Fn(&Tally) -> bool,
        ask: impl Fn(usize, Arc<Link>) -> F,
    ) -> (Tally, Round<F>)
    where
        F: Future<Output = Result<Vote, Fault>>,
    {
        let mut round = Round::new(self.links.clone(), limit, &self.context.runtime, ask);
        let mut tally = Tally::new(self.links.len());
        poll_fn(|context| {
            let all = round.hear(context, &mut |heard| tally.hear(heard));
            if enough(&tally) { Poll::Ready(()) } else { all }
        })
        .await;
        // Whoever has answered by now is not late; and who is wakes nobody.
        let _ = round.hear(&mut Context::from_waker(Waker::noop()), &mut |heard| tally.hear(heard));
        (tally, round)
    }

    /// Asks all at once, and hears all answers.
    pub(super) async fn ask_all<T, F>(&self, ask: impl Fn(Arc<Link>) -> F) -> Vec<Result<T, Fault>>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        join_all(self.links.iter().map(|link| ask(link.clone()))).await
    }

    /// What all answered, if a majority did.
    pub(super) fn majority_of<T>(&self, answers: Vec<Result<T, Fault>>) -> Result<Vec<T>, EngineError> {
        let mut tally = Tally::new(self.links.len());
        let mut heard = Vec::new();
        for answer in answers {
            match answer {
                Ok(answer) => heard.push(answer),
                Err(fault) => tally.count(Err(fault)),
            }
        }
        if tally.is_unreachable() { Err(tally.unreachable()) } else { Ok(heard) }
    }

    /// Whether a majority can be reached, and all that can are servers of their own that keep locks.
    pub(super) async fn reach(&self, limit: Duration) -> Result<(), EngineError> {
        let reached = self.ask_all(|link| async move { link.reach(limit).await }).await;
        let mut by_run_id: HashMap<String, &str> = HashMap::new();
        for link in &*self.links {
            let Some(run_id) = link.run_id() else { continue };
            if let Some(same) = by_run_id.insert(run_id, link.at()) {
                let message = format!(
                    "{same} and {} are one and the same server: a majority of instances must be several servers",
                    link.at()
                );
                return Err(EngineError::Refused { engine: "redlock", message, cause: None });
            }
        }
        let mut silent = Vec::new();
        for answer in reached {
            match answer {
                Err(fault) if !fault.what.is_silence() => return Err(fault.error),
                answer => silent.push(answer),
            }
        }
        self.majority_of(silent).map(drop)
    }

    /// Goes on releasing there, until that is heard or there is nothing left to release.
    pub(super) fn clean(&self, instance: usize, key: &str, value: GrantId, ttl: Ttl, asked: Asked) {
        let (cleaner, clock) = (self.cleaners[instance].clone(), self.context.clock.clone());
        if cleaner.add(key.to_owned(), value, ttl.get(), asked, clock.now()) {
            let link = self.links[instance].clone();
            self.in_background(cleaner.work(link, clock, self.closing.clone()));
        }
    }

    /// Lets those go on who are late, and does this with what they say.
    pub(super) fn finish<F>(&self, mut late: Round<F>, mut hear: impl FnMut(Heard) + Send + 'static)
    where
        F: Future<Output = Result<Vote, Fault>> + Send + 'static,
    {
        if late.is_over() {
            return;
        }
        let finish = poll_fn(move |context| late.hear(context, &mut hear));
        if self.latecomers.add(finish.boxed()) {
            let (clock, closing) = (self.context.clock.clone(), self.closing.clone());
            self.in_background(self.latecomers.clone().finish(clock, closing));
        }
    }

    /// Does something that nobody waits for.
    pub(super) fn in_background(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.background.spawn_on(work, &self.context.runtime);
    }

    /// Lets go of all connections, when what goes on in the background has ended or that time has passed.
    pub(super) async fn close(&self, limit: Duration) {
        self.closing.cancel();
        self.background.close();
        let give_up = self.context.clock.now() + limit;
        tokio::select! {
            () = self.background.wait() => {}
            () = self.context.clock.sleep_until(give_up) => {}
        }
        for link in &*self.links {
            link.close();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(of: usize, yes: usize, no: usize, silent: usize) -> Tally {
        let mut tally = Tally::new(of);
        for _ in 0..yes {
            tally.count(Ok(Vote::Yes(0)));
        }
        for _ in 0..no {
            tally.count(Ok(Vote::No));
        }
        for _ in 0..silent {
            tally.count(Err(Fault::no_answer("redlock", "h does not answer".into(), None)));
        }
        tally
    }

    #[test]
    fn more_than_half_decide() {
        for (of, quorum) in [(1, 1), (3, 2), (5, 3), (7, 4)] {
            assert!(!tally(of, quorum - 1, 0, 0).has_majority());
            assert!(tally(of, quorum, 0, 0).has_majority());
            assert!(tally(of, 0, quorum, 0).is_decided() && !tally(of, 0, quorum - 1, 0).is_decided());
            assert!(
                tally(of, 0, 0, quorum).is_unreachable() && !tally(of, 0, 0, quorum - 1).is_unreachable()
            );
        }
        assert!(tally(5, 2, 1, 2).is_decided(), "all were heard, and there is no majority");
        assert!(!tally(5, 2, 1, 2).is_unreachable(), "a majority answered: it is busy");
    }

    #[test]
    fn who_does_not_answer_is_named() {
        let text = tally(5, 2, 0, 3).unreachable().to_string();
        assert!(
            text.contains("of 5 instances 3 do not answer, and 3 are needed: h does not answer"),
            "{text}"
        );
    }
}
