//! The instances: requests to all of them at once, and background work.

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

use super::cleaner::{Cleaner, RequestStatus};
use super::latecomers::Latecomers;
use super::round::{Reply, Round, timer};
use super::tally::{Progress, Tally, Vote};
use crate::engine::EngineContext;
use crate::engines::redis::fault::Fault;
use crate::engines::redis::link::Link;
use crate::error::EngineError;
use crate::lease::Ttl;

/// The shortest time for which missing answers are awaited when a round is [closing](Progress::Closing): longer than a busy host delays a
/// single answer.
const SHORTEST_CLOSING: Duration = Duration::from_millis(10);

/// All instances.
#[derive(Debug)]
pub(super) struct Instances {
    links: Arc<[Arc<Link>]>,
    cleaners: Vec<Arc<Cleaner>>,
    latecomers: Arc<Latecomers>,
    context: EngineContext,
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

    /// Sends a request to all instances at once, each with this time limit, until the replies suffice. Also returns the requests that are
    /// still under way then.
    pub(super) async fn ask_until<F>(
        &self,
        limit: Duration,
        progress: impl Fn(&Tally) -> Progress,
        ask: impl Fn(usize, Arc<Link>) -> F,
    ) -> (Tally, Round<F>)
    where
        F: Future<Output = Result<Vote, Fault>>,
    {
        let (clock, timers) = (&self.context.clock, &self.context.runtime);
        let began = clock.now();
        let mut round = Round::new(self.links.clone(), limit, timers, ask);
        let mut tally = Tally::new(self.links.len());
        let mut closing = None;
        poll_fn(|context| {
            let all = round.poll_replies(context, &mut |reply| tally.add(reply));
            match progress(&tally) {
                Progress::Done => Poll::Ready(()),
                Progress::Closing if all.is_pending() => {
                    let elapsed = clock.now().since(began);
                    closing
                        .get_or_insert_with(|| timer(timers, elapsed.max(SHORTEST_CLOSING)))
                        .as_mut()
                        .poll(context)
                }
                Progress::Open | Progress::Closing => all,
            }
        })
        .await;
        // Answers that have arrived by now are not late. Later answers do not wake this task.
        let _ = round.poll_replies(&mut Context::from_waker(Waker::noop()), &mut |reply| tally.add(reply));
        (tally, round)
    }

    /// Sends a request to all instances at once, and waits for all answers. Returns the answers if they are a majority.
    pub(super) async fn ask_majority<T, F>(&self, ask: impl Fn(Arc<Link>) -> F) -> Result<Vec<T>, EngineError>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        self.majority_of(self.ask_all(ask).await)
    }

    async fn ask_all<T, F>(&self, ask: impl Fn(Arc<Link>) -> F) -> Vec<Result<T, Fault>>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        join_all(self.links.iter().map(|link| ask(link.clone()))).await
    }

    fn majority_of<T>(&self, answers: Vec<Result<T, Fault>>) -> Result<Vec<T>, EngineError> {
        let mut tally = Tally::new(self.links.len());
        let mut came = Vec::new();
        for (instance, answer) in answers.into_iter().enumerate() {
            match answer {
                Ok(answer) => came.push(answer),
                Err(fault) => tally.add((instance, Err(fault))),
            }
        }
        if tally.is_unreachable() { Err(tally.unreachable()) } else { Ok(came) }
    }

    /// Connects to all instances. Fails if no majority can be reached, if an instance cannot keep locks, or if two are the same server.
    pub(super) async fn reach(&self, limit: Duration) -> Result<(), EngineError> {
        let reached = self.ask_all(|link| async move { link.reach(limit).await }).await;
        let mut by_run_id: HashMap<String, &str> = HashMap::new();
        for link in &*self.links {
            let Some(run_id) = link.run_id() else { continue };
            if let Some(same) = by_run_id.insert(run_id, link.at()) {
                let message = format!(
                    "{same} and {} are the same server: each instance must be a server of its own",
                    link.at()
                );
                return Err(EngineError::Refused { engine: "redlock", message, cause: None });
            }
        }
        // An instance that is down, or whose name does not resolve, may recover. Any other error is a mistake in the set-up.
        let may_recover =
            |error: &_| matches!(error, EngineError::Unreachable { .. } | EngineError::NotFound { .. });
        let mut answers = Vec::new();
        for answer in reached {
            match answer {
                Err(fault) if !may_recover(&fault.error) => return Err(fault.error),
                answer => answers.push(answer),
            }
        }
        self.majority_of(answers).map(drop)
    }

    /// Releases a key on an instance in the background, until the instance answers or the key has expired.
    pub(super) fn clean(&self, instance: usize, key: &str, value: GrantId, ttl: Ttl, status: RequestStatus) {
        let (cleaner, clock) = (self.cleaners[instance].clone(), self.context.clock.clone());
        if cleaner.add(key.to_owned(), value, ttl.get(), status, clock.now()) {
            let link = self.links[instance].clone();
            self.in_background(cleaner.run(link, clock, self.closing.clone()));
        }
    }

    /// Finishes a round in the background, and calls `on_reply` with each late reply.
    pub(super) fn finish<F>(&self, mut late: Round<F>, mut on_reply: impl FnMut(Reply) + Send + 'static)
    where
        F: Future<Output = Result<Vote, Fault>> + Send + 'static,
    {
        if late.is_finished() {
            return;
        }
        let finish = poll_fn(move |context| late.poll_replies(context, &mut on_reply));
        if self.latecomers.add(finish.boxed()) {
            let (clock, closing) = (self.context.clock.clone(), self.closing.clone());
            self.in_background(self.latecomers.clone().finish(clock, closing));
        }
    }

    pub(super) fn in_background(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.background.spawn_on(work, &self.context.runtime);
    }

    /// Closes all connections when the background work has ended, or after the time limit.
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
