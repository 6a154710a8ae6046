//! An operation on an engine that is never dropped half-way.
//!
//! The caller polls it, so that the common case needs no change of thread. If the caller drops it, the running future moves to the
//! client's thread, is cancelled, and its result is settled there. So a dropped `acquire` leaves neither a lock nor a waiter behind, at
//! any await point.

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
    /// Present from the first poll on: closing the client waits for operations that have begun.
    begun: Option<TaskTrackerToken>,
}

impl<T, S> Operation<T, S>
where
    T: Send + 'static,
    S: FnOnce(T) -> BoxFuture<'static, ()> + Send + 'static,
{
    /// Creates an operation. If the caller drops it, `cancel` is raised and `settle` gets the result.
    pub(crate) const fn new(
        thread: ThreadHandle,
        cancel: Option<Cancellation>,
        future: BoxFuture<'static, T>,
        settle: S,
    ) -> Self {
        Self { running: Some(Running { future, settle, begun: None }), thread, cancel }
    }
}

// Nothing in it is pinned in place: the future is boxed.
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
