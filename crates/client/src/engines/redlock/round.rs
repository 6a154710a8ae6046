//! What all instances are asked at once, each with the same time for its answer.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::{Sleep, sleep};

use super::instances::Vote;
use crate::engines::redis::fault::Fault;
use crate::engines::redis::link::Link;

/// What an instance answers, by its number.
pub(super) type Heard = (usize, Result<Vote, Fault>);

/// Requests to several instances. When they are woken all are looked at, since they are few; and one timer is enough for them.
pub(super) struct Round<F> {
    links: Arc<[Arc<Link>]>,
    /// Those who were not heard yet.
    under_way: Vec<(usize, Pin<Box<F>>)>,
    limit: Duration,
    over: Pin<Box<Sleep>>,
}

impl<F: Future<Output = Result<Vote, Fault>>> Round<F> {
    /// Nothing is sent before it is [heard](Self::hear) for the first time. This runtime sees to the limit.
    pub(super) fn new(
        links: Arc<[Arc<Link>]>,
        limit: Duration,
        runtime: &Handle,
        ask: impl Fn(usize, Arc<Link>) -> F,
    ) -> Self {
        let ask = |(instance, link): (usize, &Arc<Link>)| (instance, Box::pin(ask(instance, link.clone())));
        let under_way = links.iter().enumerate().map(ask).collect();
        let _timers_of = runtime.enter();
        Self { links, under_way, limit, over: Box::pin(sleep(limit)) }
    }

    /// What has been said since the last time; ready, when all were heard. Whoever is silent when its time is over did not answer.
    pub(super) fn hear(&mut self, context: &mut Context<'_>, hear: &mut impl FnMut(Heard)) -> Poll<()> {
        self.under_way.retain_mut(|(instance, request)| match request.as_mut().poll(context) {
            Poll::Ready(answer) => {
                hear((*instance, answer));
                false
            }
            Poll::Pending => true,
        });
        if !self.is_over() && self.over.as_mut().poll(context).is_ready() {
            for (instance, request) in self.under_way.drain(..) {
                drop(request);
                hear((instance, Err(self.links[instance].is_silent(self.limit))));
            }
        }
        if self.is_over() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Whether all were heard.
    pub(super) fn is_over(&self) -> bool {
        self.under_way.is_empty()
    }
}
