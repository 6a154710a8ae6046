//! One request to all instances at once, with one time limit.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Sleep, sleep};

use super::tally::Vote;
use crate::engines::redis::fault::Fault;
use crate::engines::redis::link::Link;

/// The index of an instance, and its answer.
pub(super) type Reply = (usize, Result<Vote, Fault>);

/// The requests of a round. They are few, so each wake-up polls all of them.
pub(super) struct Round<F> {
    links: Arc<[Arc<Link>]>,
    /// The requests without an answer.
    under_way: Vec<(usize, Pin<Box<F>>)>,
    limit: Duration,
    timeout: Pin<Box<Sleep>>,
}

impl<F: Future<Output = Result<Vote, Fault>>> Round<F> {
    /// Creates a round. Nothing is sent before the first [poll](Self::poll_replies). The runtime drives the timeout.
    pub(super) fn new(
        links: Arc<[Arc<Link>]>,
        limit: Duration,
        runtime: &Handle,
        ask: impl Fn(usize, Arc<Link>) -> F,
    ) -> Self {
        let ask = |(instance, link): (usize, &Arc<Link>)| (instance, Box::pin(ask(instance, link.clone())));
        let under_way = links.iter().enumerate().map(ask).collect();
        Self { links, under_way, limit, timeout: timer(runtime, limit) }
    }

    /// Passes on the replies since the last poll. Ready when all have arrived. At the timeout, the missing ones are `NoAnswer`.
    pub(super) fn poll_replies(
        &mut self,
        context: &mut Context<'_>,
        on_reply: &mut impl FnMut(Reply),
    ) -> Poll<()> {
        self.under_way.retain_mut(|(instance, request)| match request.as_mut().poll(context) {
            Poll::Ready(answer) => {
                on_reply((*instance, answer));
                false
            }
            Poll::Pending => true,
        });
        if !self.is_finished() && self.timeout.as_mut().poll(context).is_ready() {
            for (instance, request) in self.under_way.drain(..) {
                drop(request);
                on_reply((instance, Err(self.links[instance].is_silent(self.limit))));
            }
        }
        if self.is_finished() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Returns the instances that have not answered yet.
    pub(super) fn awaited(&self) -> impl Iterator<Item = usize> {
        self.under_way.iter().map(|(instance, _)| *instance)
    }

    /// Returns whether all instances have replied, or the time limit has passed.
    pub(super) fn is_finished(&self) -> bool {
        self.under_way.is_empty()
    }
}

/// Returns a timer that the runtime drives.
pub(super) fn timer(runtime: &Handle, after: Duration) -> Pin<Box<Sleep>> {
    let _timers_of = runtime.enter();
    Box::pin(sleep(after))
}
