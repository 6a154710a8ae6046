//! An operation on an engine that is never dropped half-way.
//!
//! It is polled by its caller, so that the common case costs no change of thread. If the caller goes away, the
//! running future moves to the client's thread, is told to give up, and whatever it still brings is settled there: that is
//! how a dropped `acquire` leaves neither a lock nor a waiter behind, at whichever await point it was dropped.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::engine::Cancellation;
use crate::thread::ThreadHandle;

pub(crate) struct Operation<T, S>
where
    T: Send + 'static,
    S: FnOnce(T) -> BoxFuture<'static, ()> + Send + 'static,
{
    running: Option<Running<T, S>>,
    thread: ThreadHandle,
    cancel: Option<Cancellation>,
}

struct Running<T, S> {
    future: BoxFuture<'static, T>,
    settle: S,
    /// There from the first poll on: closing the client waits for what has begun.
    begun: Option<TaskTrackerToken>,
}

impl<T, S> Operation<T, S>
where
    T: Send + 'static,
    S: FnOnce(T) -> BoxFuture<'static, ()> + Send + 'static,
{
    /// `settle` gets the answer if the caller has gone; `cancel` is raised then, where there is anything to be given up.
    pub(crate) const fn new(
        thread: ThreadHandle,
        cancel: Option<Cancellation>,
        future: BoxFuture<'static, T>,
        settle: S,
    ) -> Self {
        Self { running: Some(Running { future, settle, begun: None }), thread, cancel }
    }
}

// Nothing in it is pinned in place: the future has a box of its own.
impl<T, S> Unpin for Operation<T, S>
where
    T: Send + 'static,
    S: FnOnce(T) -> BoxFuture<'static, ()> + Send + 'static,
{
}

impl<T, S> Future for Operation<T, S>
where
    T: Send + 'static,
    S: FnOnce(T) -> BoxFuture<'static, ()> + Send + 'static,
{
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let this = self.get_mut();
        let running = this.running.as_mut().expect("a future is not polled after it is ready");
        running.begun.get_or_insert_with(|| this.thread.unfinished_token());
        let _runtime = this.thread.enter_if_outside();
        let poll = running.future.as_mut().poll(context);
        if poll.is_ready() {
            this.running = None;
        }
        poll
    }
}

impl<T, S> Drop for Operation<T, S>
where
    T: Send + 'static,
    S: FnOnce(T) -> BoxFuture<'static, ()> + Send + 'static,
{
    fn drop(&mut self) {
        let Some(Running { future, settle, begun: Some(_unfinished) }) = self.running.take() else {
            return;
        };
        if let Some(cancel) = &self.cancel {
            cancel.cancel();
        }
        self.thread.finish(async move { settle(future.await).await });
    }
}
