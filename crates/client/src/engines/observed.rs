//! Observation of a lock, and notices to its holders, on an engine that reports when something about a lock has changed.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};

use crate::engine::{AcquireRequest, Engine, EngineContext, Granted};
use crate::error::{AcquireError, InspectError};
use crate::info::LockInfo;
use crate::random;

/// The pause before the next attempt to inspect a lock, after one that failed.
const PAUSE: Duration = Duration::from_millis(200);

/// The state of a lock, and a future that resolves when the state may have changed.
pub(super) struct Look {
    pub(super) info: LockInfo,
    pub(super) change: BoxFuture<'static, ()>,
}

/// Yields the state of a lock at first, and after each change.
pub(super) fn observe(
    look: impl Fn() -> BoxFuture<'static, Result<Look, InspectError>> + Send + 'static,
) -> BoxStream<'static, Result<LockInfo, InspectError>> {
    Box::pin(stream::unfold((look, None), |(look, change): (_, Option<BoxFuture<'static, ()>>)| async move {
        if let Some(change) = change {
            change.await;
        }
        match look().await {
            Ok(Look { info, change }) => Some((Ok(info), (look, Some(change)))),
            Err(error) => Some((Err(error), (look, None))),
        }
    }))
}

/// Acquires a lock. If the request asks for notices, reports the modes of the waiters to the holder for as long as the grant exists.
pub(super) fn acquire_with_notices<E: Engine, F>(
    engine: Arc<E>,
    context: &EngineContext,
    request: AcquireRequest,
    acquire: impl FnOnce(Arc<E>, AcquireRequest) -> F,
) -> BoxFuture<'static, Result<Granted, AcquireError>>
where
    F: Future<Output = Result<Granted, AcquireError>> + Send + 'static,
{
    if !request.notify {
        return Box::pin(acquire(engine, request));
    }
    let (grant, events, context) = (request.grant, request.events.clone(), context.clone());
    let unread = events.unread();
    let mut changes = engine.clone().observe(request.name.clone());
    let acquiring = acquire(engine, request);
    Box::pin(async move {
        let granted = acquiring.await?;
        context.runtime.clone().spawn(async move {
            let mut unread = std::pin::pin!(unread);
            loop {
                let seen = tokio::select! {
                    biased;
                    () = &mut unread => return,
                    seen = changes.next() => seen,
                };
                match seen {
                    None => return,
                    Some(Ok(info)) if info.holders.iter().all(|holder| holder.grant != grant) => return,
                    Some(Ok(info)) => info.waiters.iter().for_each(|waiter| events.wanted(waiter.mode)),
                    Some(Err(_)) => {
                        let clock = &context.clock;
                        clock.sleep_until(clock.now() + random::jittered(PAUSE)).await;
                    }
                }
            }
        });
        Ok(granted)
    })
}
