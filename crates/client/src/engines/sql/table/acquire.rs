//! Acquiring a lock: with one statement if it is free, and otherwise from a place in the queue.

use std::sync::Arc;
use std::time::Duration;

use tenure_table::Value;

use super::book::{Answer, Ask, Book, PLACE_KEPT};
use super::change::Change;
use super::{MARGIN, TableEngine, milliseconds, term, token};
use crate::clock::BootTime;
use crate::engine::{AcquireRequest, Grant, Granted, Withdrawn};
use crate::engines::sql::connection::Arg;
use crate::engines::sql::fault::{Fault, What};
use crate::error::AcquireError;
use crate::random;
use crate::sql::Dialect;

/// The intervals at which a waiter asks again without a message: the first in the queue, and all others, which must keep their places.
const FIRST_LOOKS: Duration = Duration::from_secs(1);
const OTHERS_LOOK: Duration = Duration::from_secs(3);

/// The interval at which the first in the queue asks while the client receives no messages. For the others, it is multiplied by their
/// position.
const UNHEARD_LOOKS: Duration = Duration::from_millis(200);

/// The pause of a waiter whose request was kept from the database by other requests of the same client.
const FULL_PAUSE: Duration = Duration::from_millis(100);

impl TableEngine {
    /// Takes the lock with one statement if it is free, without waiters and without a value.
    async fn take(&self, request: &AcquireRequest, details: &str) -> Result<Option<i64>, Fault> {
        let grant = request.grant.as_u128().to_be_bytes();
        let owner = request.owner.as_u128().to_be_bytes();
        let args = [
            Arg::Bytes(&grant),
            Arg::Bytes(&owner),
            Arg::Text(request.mode.as_str()),
            Arg::Int(milliseconds(request.ttl)),
            Arg::Text(details),
            Arg::Bytes(request.name.as_str().as_bytes()),
        ];
        match self.address.dialect {
            Dialect::Postgres => self.link.once(&self.texts.take, &args, |row| row.int(0)).await,
            Dialect::MySql => {
                let done = self.link.run_once(&self.texts.take, &args).await?;
                Ok((done.rows == 1).then(|| i64::try_from(done.number).unwrap_or(i64::MAX)))
            }
        }
    }

    pub(super) async fn wait_for(self: Arc<Self>, request: AcquireRequest) -> Result<Granted, AcquireError> {
        let details = self.process.details(&request, self.context.clock.wall(), None).to_string();
        if !request.reenter && !self.listener.has_waiter(&request.name) {
            let sent_at = self.now();
            match self.take(&request, &details).await {
                Ok(Some(token)) => return Ok(granted(&request, sent_at, token, Value::default())),
                // The next request finds the result of this one.
                Err(fault) if fault.what == What::NoAnswer => request.events.unanswered(),
                Ok(None) | Err(_) => {}
            }
        }
        Box::pin(self.wait_from(request, details)).await
    }

    async fn wait_from(
        self: &Arc<Self>,
        request: AcquireRequest,
        details: String,
    ) -> Result<Granted, AcquireError> {
        // The number of waiters ahead at the last request.
        let mut place = 0;
        let waiter = request.waits().then(|| self.listener.register(request.grant, &request.name));
        while !request.cancel.is_cancelled() {
            let (sent_at, client) = (self.now(), self.listener.client());
            let ask = Ask {
                grant: request.grant,
                owner: request.owner,
                mode: request.mode,
                reenter: request.reenter,
                ttl: milliseconds(request.ttl),
                details: &details,
                client: request.waits().then_some(&*client),
            };
            let pause = match self.ask(&request, &ask, place).await {
                Ok((Answer::Granted { token }, value)) => {
                    return Ok(granted(&request, sent_at, token, value));
                }
                Ok((Answer::Held(held), _)) => {
                    let (name, asked) = (request.name.clone(), request.mode);
                    return Err(AcquireError::NotCovered { name, held, asked });
                }
                Ok((Answer::Busy { expires_in, before }, _)) => {
                    place = before;
                    let mut look = if before > 0 { OTHERS_LOOK } else { FIRST_LOOKS };
                    if client.is_empty() {
                        let behind = u32::try_from(before).unwrap_or(u32::MAX).saturating_add(1);
                        look = look.min(UNHEARD_LOOKS.saturating_mul(behind));
                    }
                    let look = random::jittered(look);
                    // No message announces the expiry of a lease.
                    expires_in.filter(|_| before == 0).map_or(look, |left| look.min(left + MARGIN))
                }
                // Other requests are ahead, while the database itself works.
                Err(fault) if request.waits() && matches!(fault.what, What::Full | What::LockTimeout) => {
                    FULL_PAUSE
                }
                Err(fault) => {
                    if fault.what == What::NoAnswer {
                        request.events.unanswered();
                    }
                    return Err(fault.into());
                }
            };
            let Some(waiter) = &waiter else { break };
            let look_again = self.now() + pause;
            if request.woken_before(&*self.context.clock, look_again, waiter.woken()).await?.is_some() {
                // It may be this waiter's turn, or its client may have another name now.
                place = 0;
            }
        }
        Err(request.not_granted())
    }

    /// Leaves the queue, and releases a grant whose answer was lost.
    pub(super) async fn withdraw_request(&self, grant: &Grant) -> Result<Withdrawn, Fault> {
        self.let_go(&grant.name, grant.id).await?;
        Ok(if grant.may_arrive { Withdrawn::ForNow } else { Withdrawn::ForGood })
    }

    /// Asks for the lock. Only reads where that suffices, since a change blocks all others.
    async fn ask(
        &self,
        request: &AcquireRequest,
        ask: &Ask<'_>,
        place: usize,
    ) -> Result<(Answer, Value), Fault> {
        let name = request.name.as_str().as_bytes();
        if place > 0 {
            let id = request.grant.as_u128().to_be_bytes();
            let (args, keep) = ([Arg::Bytes(name), Arg::Bytes(name), Arg::Bytes(&id)], Arg::Int(PLACE_KEPT));
            // With another waiter ahead, it suffices to keep the place: the first in the queue ensures progress for all.
            if !self.link.rows(&self.texts.before, &args, |row| row.int(0)).await?.is_empty()
                && self.link.run(&self.texts.keep_place, &[keep, args[1], args[2]]).await?.0.rows == 1
            {
                return Ok((Answer::Busy { expires_in: None, before: place }, Value::default()));
            }
        }
        if ask.client.is_none()
            && let Some(mut book) = self.look(name).await?
            && let busy @ Answer::Busy { .. } = book.acquire(ask)
        {
            return Ok((busy, Value::default()));
        }
        let mut repeated = false;
        let change = |book: &mut Book, again| {
            repeated |= again;
            (book.acquire(ask), book.shown_value())
        };
        let answer =
            self.link.with(Change { engine: self, name, asks: Some(request.grant), how: change }).await;
        if repeated {
            request.events.unanswered();
        }
        answer
    }
}

fn granted(request: &AcquireRequest, sent_at: BootTime, number: i64, value: Value) -> Granted {
    Granted::new(Some(token(number)), term(sent_at, request.ttl)).with_value(value)
}
