//! Requests of a client: sending, waiting in the queue, and undoing a conversion whose outcome is unknown.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tenure_table::Refusal;
use tokio::sync::oneshot;

use super::server::{Delivery, REQUEST_LIMIT};
use super::state::{Given, Reply, Settled, State, UndoOutcome};
use super::{ENGINE, MemoryEngine, look, lost};
use crate::engine::{AcquireRequest, Cancellation, Conversion, Granted};
use crate::error::{AcquireError, ConvertError, EngineError, Lost, LostReason};

/// The reason why a request has no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoAnswer {
    /// The client was closed.
    Closed,
    /// The request did not get through.
    NotSent,
    /// The request was done, and its response is lost.
    Unanswered,
}

impl From<NoAnswer> for EngineError {
    fn from(no_answer: NoAnswer) -> Self {
        let because = match no_answer {
            NoAnswer::Closed => return Self::Closed,
            NoAnswer::NotSent => "the store is paused, or the link to it is cut",
            NoAnswer::Unanswered => "the link to the store loses answers",
        };
        let message = format!("no answer within {REQUEST_LIMIT:?}: {because}");
        Self::Unreachable { engine: ENGINE, message, cause: None }
    }
}

impl MemoryEngine {
    /// Sends a request and waits for its response, for as long as a request may take. Gives up when `cancel` is raised.
    pub(super) async fn ask<T, R>(&self, cancel: Option<&Cancellation>, mut request: R) -> Result<T, NoAnswer>
    where
        R: FnOnce(&mut State) -> T,
    {
        let server = self.server().ok_or(NoAnswer::Closed)?;
        let limit = self.context.clock.now() + REQUEST_LIMIT;
        let over = async {
            let cancelled = async {
                match cancel {
                    Some(cancel) => cancel.cancelled().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = cancelled => {}
                () = self.context.clock.sleep_until(limit) => {}
            }
        };
        let mut over = std::pin::pin!(over);
        let mut opened = server.opened();
        loop {
            request = match server.pass(self.link, request) {
                Ok(Delivery::Answered(answer)) => return Ok(answer),
                Ok(Delivery::Unanswered) => {
                    over.await;
                    return Err(NoAnswer::Unanswered);
                }
                Err(request) => request,
            };
            tokio::select! {
                biased;
                // This function holds the server, so the sender exists.
                _ = opened.changed() => {}
                () = &mut over => return Err(NoAnswer::NotSent),
            }
        }
    }

    /// Sends a request like [`ask`](Self::ask), but only if it gets through at once.
    fn ask_now<T>(&self, request: impl FnOnce(&mut State) -> T) -> Result<T, NoAnswer> {
        let server = self.server().ok_or(NoAnswer::Closed)?;
        match server.pass(self.link, request) {
            Ok(Delivery::Answered(answer)) => Ok(answer),
            Ok(Delivery::Unanswered) => Err(NoAnswer::Unanswered),
            Err(_) => Err(NoAnswer::NotSent),
        }
    }

    pub(super) async fn get(self: Arc<Self>, request: AcquireRequest) -> Result<Granted, AcquireError> {
        let granted = self.get_all(&[request]).await?;
        Ok(granted.into_iter().next().expect("one was asked for"))
    }

    /// Acquires the locks of requests by one owner, at one instant. They have the same TTL, and are cancelled together.
    pub(super) async fn get_all(
        self: &Arc<Self>,
        requests: &[AcquireRequest],
    ) -> Result<Vec<Granted>, AcquireError> {
        let Some(first) = requests.first() else { return Ok(Vec::new()) };
        let (settled, session) = loop {
            let session = first.renews.then(|| self.session(first.ttl));
            let acquire = |state: &mut State| {
                state.acquire(requests, self.link, session.as_ref().map(|session| session.name()))
            };
            match self.ask(Some(&first.cancel), acquire).await.map_err(EngineError::from)? {
                Reply::Settled(settled) => break (Some(settled), session),
                Reply::Waits(answer) => break (settled(answer, &first.cancel).await, session),
                Reply::NoSession => {}
            }
            if let Some(session) = session {
                self.sessions.forget(&session);
            }
        };
        let granted = |given: Given| match &session {
            Some(session) => session.granted(given),
            None => given.into(),
        };
        match settled {
            Some(Ok(given)) => Ok(given.into_iter().map(granted).collect()),
            Some(Err(refusal)) => Err(look::not_acquired(first, refusal)),
            None => Err(first.not_granted()),
        }
    }

    pub(super) async fn change(self: Arc<Self>, conversion: Conversion) -> Result<Granted, ConvertError> {
        let attempt = self.conversions.fetch_add(1, Ordering::Relaxed);
        let asked = self.ask(Some(&conversion.cancel), |state| state.convert(&conversion, attempt)).await;
        let settled = match asked {
            Ok(Reply::Settled(settled)) => Some(settled),
            Ok(Reply::Waits(answer)) => settled(answer, &conversion.cancel).await,
            Ok(Reply::NoSession) => unreachable!("only an acquire names a session"),
            Err(NoAnswer::Unanswered) => {
                return self.change_back(
                    &conversion,
                    attempt,
                    EngineError::from(NoAnswer::Unanswered).into(),
                );
            }
            Err(no_answer) => return Err(EngineError::from(no_answer).into()),
        };
        match settled {
            Some(Ok(given)) => Ok(given.into_iter().next().expect("one was converted").into()),
            Some(Err(refusal)) => Err(look::not_converted(&conversion, refusal)),
            None => self.change_back(&conversion, attempt, conversion.not_converted()),
        }
    }

    /// Restores the old mode, and returns the error. Returns the grant if the new mode remains after all, and `Lost` if the mode cannot be
    /// known.
    fn change_back(
        self: &Arc<Self>,
        conversion: &Conversion,
        attempt: u64,
        error: ConvertError,
    ) -> Result<Granted, ConvertError> {
        let (grant, from) = (conversion.grant.id, conversion.grant.mode);
        match self.ask_now(|state| state.undo_conversion(grant, attempt, from)) {
            Ok(UndoOutcome::Old) => Err(error),
            Ok(UndoOutcome::New(given)) => Ok(given.into()),
            Ok(UndoOutcome::Lost) => Err(lost(&conversion.grant).into()),
            Err(NoAnswer::Closed) => Err(EngineError::Closed.into()),
            // Either mode keeps out all that the old mode keeps out.
            Err(NoAnswer::NotSent | NoAnswer::Unanswered) if conversion.to.covers(from) => {
                let engine = self.clone();
                let undoing = async move {
                    let undo = |state: &mut State| drop(state.undo_conversion(grant, attempt, from));
                    while let Err(NoAnswer::NotSent | NoAnswer::Unanswered) = engine.ask(None, undo).await {}
                };
                self.undoing.spawn_on(undoing, &self.context.runtime);
                Err(error)
            }
            // Other requests may have been granted the lock already.
            Err(NoAnswer::NotSent | NoAnswer::Unanswered) => {
                let name = conversion.grant.name.clone();
                Err(Lost { name, reason: LostReason::Disconnected }.into())
            }
        }
    }
}

/// Waits for the final response. Returns `None` if the request is cancelled first.
async fn settled(answer: oneshot::Receiver<Settled>, cancel: &Cancellation) -> Option<Settled> {
    tokio::select! {
        biased;
        // A request that ends with its session gets no response.
        settled = answer => Some(settled.unwrap_or(Err(Refusal::NoSession))),
        () = cancel.cancelled() => None,
    }
}
