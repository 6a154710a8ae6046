//! Acquiring a lock, and waiting for it.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use redis::Value as Answer;
use tenure_table::{FencingToken, Mode, Value};

use super::channel::Channel;
use super::connection::Connection;
use super::fault::{Fault, What};
use super::handed::{self, WakeMessage};
use super::link::{Answered, Request};
use super::scripts::Call;
use super::take::TakeReply;
use super::{RedisEngine, milliseconds, scripts, term};
use crate::clock::BootTime;
use crate::engine::{AcquireRequest, Grant, Granted};
use crate::engines::notifications::Waiter;
use crate::error::AcquireError;
use crate::random;

/// The intervals at which a waiter asks again without a message: the first in the queue, and all others, which must keep their places (see
/// `queue.lua`).
const FIRST_LOOKS: Duration = Duration::from_secs(1);
const OTHERS_LOOK: Duration = Duration::from_secs(3);

/// The first and the longest interval at which the first waiter asks if another program holds the lock: such a holder sends no message at
/// its release.
const SHORTEST_POLL: Duration = Duration::from_millis(5);
const LONGEST_POLL: Duration = Duration::from_millis(100);

/// The answer of Redis to a request for a lock.
pub(super) enum AcquireReply {
    Granted(FencingToken, Value),
    Busy(Busy),
    /// The owner holds the lock in a mode that does not cover the requested mode.
    Held(Mode),
}

/// A request's place in the queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// The request has no place.
    None,
    /// The request is to get a place, or to keep it.
    Kept,
    /// The request keeps the place that it may have, and asks for none: no message would reach it.
    Deaf,
}

#[derive(Clone, Copy)]
pub(super) struct Busy {
    /// The time until the lock expires, unless its holder renews it.
    expires_in: Option<Duration>,
    /// Whether this request is the first in the queue.
    is_first: bool,
    /// Whether a release by the holder wakes the first in the queue.
    wakes: bool,
}

impl RedisEngine {
    /// Waits for the lock. An `async` block instead of an `async fn`, which would store the request twice: the future is allocated for
    /// every lock, and a small allocation is faster.
    pub(super) fn wait_for(
        self: Arc<Self>,
        request: AcquireRequest,
    ) -> BoxFuture<'static, Result<Granted, AcquireError>> {
        Box::pin(async move {
            let key = self.key(&request.name)?;
            let place = if request.waits() && self.listener.has_waiter(&request.name) {
                Place::Kept
            } else if self.is_plain(&request) {
                match self.take(&request, &key).await? {
                    TakeReply::Granted(granted) => return Ok(granted),
                    TakeReply::Busy => Place::Kept,
                    TakeReply::GoOn => Place::None,
                }
            } else {
                Place::None
            };
            // All other cases are rarer, and in a separate box.
            let details = self.process.details(&request, self.context.clock.wall(), None).to_string();
            Box::pin(self.wait_from(place, request, key, details)).await
        })
    }

    async fn wait_from(
        &self,
        mut place: Place,
        request: AcquireRequest,
        key: String,
        details: String,
    ) -> Result<Granted, AcquireError> {
        let mut poll = SHORTEST_POLL;
        let mut waiter: Option<Waiter<Channel>> = None;
        loop {
            if place == Place::Kept {
                let (grant, name) = (request.grant, &request.name);
                waiter.get_or_insert_with(|| self.listener.register(grant, name));
            }
            let client = self.listener.client();
            if place == Place::Kept && client.is_empty() {
                place = Place::Deaf;
            }
            let sent_at = self.now();
            let script = self.call(&request, &key, &details, (place, &client), sent_at);
            let busy = match self.ask(&request, &script).await? {
                AcquireReply::Granted(token, value) => {
                    return Ok(granted(&request, sent_at, token, value));
                }
                AcquireReply::Held(held) => {
                    let (name, asked) = (request.name.clone(), request.mode);
                    return Err(AcquireError::NotCovered { name, held, asked });
                }
                AcquireReply::Busy(_) if !request.waits() => return Err(request.not_granted()),
                AcquireReply::Busy(busy) => busy,
            };
            poll = (poll * 2).min(LONGEST_POLL);
            let mut look_again = self.now() + busy.pause(place, poll);
            // A request without a place has no waiter yet, and asks for a place at once.
            while let Some(waiter) = &waiter {
                let message = request.woken_before(&*self.context.clock, look_again, waiter.woken()).await?;
                match message {
                    Some(WakeMessage::AskAfter(pause)) => look_again = look_again.min(self.now() + pause),
                    Some(WakeMessage::Handed(handed)) => {
                        if let Some(granted) = handed.accept(sent_at, self.now()) {
                            return Ok(granted);
                        }
                        break;
                    }
                    Some(WakeMessage::Ask) | None => break,
                }
            }
            place = Place::Kept;
        }
    }

    async fn ask(&self, request: &AcquireRequest, script: &Call) -> Result<AcquireReply, AcquireError> {
        let connection = self.link.current_connection();
        let asking = pin!(self.link.ask(&connection, Request::Script(script)));
        let answer = self.until_cancelled(request, pin!(self.link.within(self.limit, asking))).await;
        let answer: Answer = self.heard(request, &connection, answer)?.map_err(|fault| fault.error)?.answer;
        Ok(AcquireReply::read(&answer).ok_or_else(|| self.link.is_confused(&answer))?)
    }

    /// Waits for the answer, or until the request is cancelled: the operation may depend on a runtime that no longer makes progress. The
    /// client's thread polls a request again whose caller dropped it.
    pub(super) async fn until_cancelled<T>(
        &self,
        request: &AcquireRequest,
        mut asking: Pin<&mut impl Future<Output = T>>,
    ) -> Option<T> {
        poll_fn(|context| match asking.as_mut().poll(context) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending if request.cancel.is_cancelled() => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        })
        .await
    }

    /// Records whether a request was answered. `None` means that it was cancelled before an answer arrived.
    pub(super) fn heard<T>(
        &self,
        request: &AcquireRequest,
        connection: &Connection,
        answer: Option<Result<Answered<T>, Fault>>,
    ) -> Result<Result<Answered<T>, Fault>, AcquireError> {
        match &answer {
            Some(Ok(Answered { repeated: true, .. })) => self.note_unanswered(request, None),
            Some(Err(fault)) if fault.what == What::NoAnswer => {
                self.note_unanswered(request, Some(connection));
            }
            Some(_) => {}
            None => self.note_unanswered(request, Some(connection)),
        }
        answer.ok_or_else(|| request.not_granted())
    }

    fn call(
        &self,
        request: &AcquireRequest,
        key: &str,
        details: &str,
        (place, client): (Place, &str),
        sent_at: BootTime,
    ) -> Call {
        let AcquireRequest { grant, owner, mode, reenter, .. } = request;
        let (reenters, fair) = (u8::from(*reenter), u8::from(self.address.fair));
        let waits = request.waits();
        let who = format_args!("{grant} {owner} {mode} {reenters} {fair}");
        let is_usual = (*mode, reenters, fair) == (Mode::Ex, 0, 0);
        let who = match place {
            Place::None if is_usual && waits => format!("{grant} {owner} ?"),
            Place::None if is_usual => format!("{grant} {owner}"),
            Place::None if !waits => format!("{who} -"),
            Place::None | Place::Deaf => format!("{who} ?"),
            Place::Kept => format!("{who} {client} {}", handed::offer(request, sent_at)),
        };
        let mut script = Call::new(&scripts::ACQUIRE, key);
        script.arg(who).arg(milliseconds(request.ttl)).arg(details);
        script
    }

    /// Releases what a grant holds, and removes it from the queue. Returns whether it held the lock. A waiter of this client that gets the
    /// lock is notified at once.
    pub(super) async fn let_go(&self, key: &str, grant: &Grant) -> Result<bool, Fault> {
        let connection = self.link.current_connection();
        let mut script = scripts::release(key, grant.id);
        let client = self.listener.client();
        if !client.is_empty() && self.listener.has_waiter(&grant.name) {
            script.arg(&*client);
        }
        let asking = pin!(self.link.ask(&connection, Request::Script(&script)));
        match self.link.within(self.limit, asking).await {
            Ok(Answered { answer: Answer::BulkString(message), .. }) => {
                self.listener.wake_by(&message);
                Ok(true)
            }
            // A repeated request that finds nothing was carried out the first time.
            Ok(Answered { answer, repeated }) => Ok(repeated || answer == Answer::Int(1)),
            // The key now has another type, so this grant does not hold the lock.
            Err(fault) if fault.what == What::WrongType => Ok(false),
            Err(fault) => Err(fault),
        }
    }
}

pub(super) fn granted(
    request: &AcquireRequest,
    sent_at: BootTime,
    token: FencingToken,
    value: Value,
) -> Granted {
    Granted::new(Some(token), term(sent_at, request.ttl)).with_value(value)
}

impl AcquireReply {
    fn read(answer: &Answer) -> Option<Self> {
        match answer {
            Answer::Int(token) => {
                Some(Self::Granted(FencingToken::new(u64::try_from(*token).ok()?), Value::default()))
            }
            Answer::Array(parts) => match parts.as_slice() {
                [Answer::Int(token), Answer::Int(in_doubt), Answer::BulkString(bytes)] => {
                    let value = Value { bytes: Bytes::copy_from_slice(bytes), in_doubt: *in_doubt == 1 };
                    Some(Self::Granted(FencingToken::new(u64::try_from(*token).ok()?), value))
                }
                [Answer::BulkString(held), Answer::BulkString(mode)] if held == b"held" => {
                    Some(Self::Held(str::from_utf8(mode).ok()?.parse().ok()?))
                }
                _ => None,
            },
            Answer::BulkString(text) => Busy::parse(str::from_utf8(text).ok()?).map(Self::Busy),
            _ => None,
        }
    }
}

impl Busy {
    /// Parses `busy WAKES`. For the first in the queue, the milliseconds until the lock expires follow, or -1 if it never expires.
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.strip_prefix("busy ")?.split(' ');
        let wakes = words.next()? == "1";
        let left_ms = words.next();
        let expires_in = left_ms.and_then(|ms| ms.parse().ok()).map(Duration::from_millis);
        Some(Self { expires_in, is_first: left_ms.is_some(), wakes })
    }

    /// Returns how long to wait for a message before asking again.
    fn pause(self, place: Place, poll: Duration) -> Duration {
        if !self.is_first {
            return random::jittered(OTHERS_LOOK);
        }
        let look = random::jittered(if self.wakes && place == Place::Kept { FIRST_LOOKS } else { poll });
        // No message announces the expiry of a lease.
        self.expires_in.map_or(look, |left| look.min(left + super::MARGIN))
    }
}
