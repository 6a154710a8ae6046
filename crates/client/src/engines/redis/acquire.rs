//! How a lock is got, and waited for.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use redis::Value as Answer;
use tenure_table::{FencingToken, Mode, Value};

use super::fault::{Fault, What};
use super::handed::{self, WakeMessage};
use super::link::{Answered, Request};
use super::scripts::Call;
use super::take::Taken;
use super::undo::Undone;
use super::way::Way;
use super::{RedisEngine, milliseconds, scripts, term};
use crate::clock::BootTime;
use crate::engine::{AcquireRequest, Grant, Granted, WaitUntil};
use crate::engines::waiting::Waiter;
use crate::error::AcquireError;
use crate::random;

/// How often who waits looks by itself: the first in the queue, and all others, who must not lose their places (see `queue.lua`).
const FIRST_LOOKS: Duration = Duration::from_secs(1);
const OTHERS_LOOK: Duration = Duration::from_secs(3);

/// How often the first looks if the lock is another program's, which does not wake us when it lets go: ever more rarely.
const SHORTEST_POLL: Duration = Duration::from_millis(5);
const LONGEST_POLL: Duration = Duration::from_millis(100);

/// What Redis says to one who asks for a lock.
pub(super) enum Said {
    Granted(FencingToken, Value),
    Busy(Busy),
    /// The owner holds it in a mode that does not cover this one.
    Held(Mode),
}

/// A request's place in the queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// It has none.
    None,
    /// It is to have one, or to keep it.
    Kept,
    /// It keeps the one that it may have, and does not ask for one: it would not hear whose turn it is.
    Deaf,
}

#[derive(Clone, Copy)]
pub(super) struct Busy {
    /// When the lock expires if nothing is heard of its holder.
    expires_in: Option<Duration>,
    /// Whether nobody stands before this one in the queue.
    is_first: bool,
    /// Whether its holder wakes the first in the queue.
    wakes: bool,
}

impl RedisEngine {
    /// An `async` block and no `async fn`, which would keep the request twice: it is allocated for every lock, and what is small is
    /// quickly allocated.
    pub(super) fn wait_for(
        self: Arc<Self>,
        request: AcquireRequest,
    ) -> BoxFuture<'static, Result<Granted, AcquireError>> {
        Box::pin(async move {
            let key = self.key(&request.name)?;
            let waits = !matches!(request.wait, WaitUntil::Try);
            let begun = if waits && self.wakeups.anybody_waits_for(&request.name) {
                Begun::Busy
            } else if self.is_plain(&request) {
                match self.take(&request, &key).await {
                    Taken::Granted(granted) => return Ok(granted),
                    Taken::Busy => Begun::Busy,
                    Taken::GoOn => Begun::Taken,
                    Taken::Unheard(asked) => Begun::Asked(asked),
                }
            } else {
                Begun::Nothing
            };
            // All else is rarer, and in a box of its own.
            let details = self.ourselves.details(&request, self.context.clock.wall(), None).to_string();
            Box::pin(self.wait_from(begun, request, key, details)).await
        })
    }

    async fn wait_from(
        &self,
        begun: Begun,
        request: AcquireRequest,
        key: String,
        details: String,
    ) -> Result<Granted, AcquireError> {
        let taken = matches!(begun, Begun::Taken);
        let mut attempt = Attempt { key, taken, queued: false, sent_on: None, answered: true, waiter: None };
        let first = match begun {
            Begun::Asked(asked) => asked,
            Begun::Busy => self.ask_in_queue(&request, &details, &mut attempt).await,
            Begun::Nothing | Begun::Taken => {
                self.ask_once(&request, &attempt.key, &details, Place::None).await
            }
        };
        let answer = self.wait_with(first, &request, &details, &mut attempt).await;
        if answer.is_err() {
            self.undo(attempt, &request).await;
        }
        answer
    }

    async fn ask_once(&self, request: &AcquireRequest, key: &str, details: &str, place: Place) -> Asked {
        let (sent_at, way) = (self.now(), self.link.present_way());
        let script = self.call(request, key, details, place, sent_at);
        let answer = self.while_wanted(request, pin!(self.ask(&way, &script))).await;
        Asked { sent_at, way, place, answer }
    }

    /// The answer, until nobody waits for it any more: what is under way may hang on a runtime that does nothing any more. Whoever goes away
    /// is seen to have gone when this moves to the client's thread, and is polled there.
    pub(super) async fn while_wanted<T>(
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

    async fn wait_with(
        &self,
        first: Asked,
        request: &AcquireRequest,
        details: &str,
        attempt: &mut Attempt,
    ) -> Result<Granted, AcquireError> {
        let mut poll = SHORTEST_POLL;
        let mut silent_since: Option<BootTime> = None;
        let mut asked = first;
        loop {
            let Asked { sent_at, way, place, answer } = asked;
            let Some(answer) = answer else {
                attempt.sent_on = Some(way);
                return Err(request.not_got());
            };
            attempt.answered = !answer.as_ref().is_err_and(|fault| fault.what.is_silence());
            let pause = match answer {
                Ok(Said::Granted(token, value)) => {
                    return Ok(granted(request, sent_at, token, value));
                }
                Ok(Said::Held(held)) => {
                    let (name, asked) = (request.name.clone(), request.mode);
                    return Err(AcquireError::NotCovered { name, held, asked });
                }
                Ok(Said::Busy(busy)) => {
                    attempt.queued |= place != Place::None;
                    silent_since = None;
                    poll = (poll * 2).min(LONGEST_POLL);
                    busy.pause(place, poll)
                }
                Err(fault) => {
                    if fault.what == What::NoAnswer {
                        attempt.sent_on = Some(way);
                    }
                    // A wait outlasts a restart of Redis, but not a longer silence.
                    let since = *silent_since.get_or_insert(sent_at);
                    let goes_on = fault.what.is_silence() && self.now().since(since) < self.limit;
                    if !goes_on || request.wait.is_over(self.now()) {
                        return Err(fault.into());
                    }
                    LONGEST_POLL
                }
            };
            if request.wait.is_over(self.now()) {
                return Err(request.not_got());
            }
            if let Some(waiter) = &attempt.waiter {
                let mut look_again = request.wait.or_at(self.now() + pause);
                loop {
                    let message = tokio::select! {
                        biased;
                        () = request.cancel.cancelled() => return Err(request.not_got()),
                        message = waiter.woken() => message,
                        () = self.context.clock.sleep_until(look_again) => WakeMessage::Ask,
                    };
                    match message {
                        WakeMessage::AskAfter(pause) => look_again = look_again.min(self.now() + pause),
                        WakeMessage::Handed(handed) if attempt.answered => {
                            match handed.accept(sent_at, self.now()) {
                                Some(granted) => return Ok(granted),
                                None => break,
                            }
                        }
                        WakeMessage::Handed(_) | WakeMessage::Ask => break,
                    }
                }
            }
            asked = self.ask_in_queue(request, details, attempt).await;
        }
    }

    async fn ask_in_queue(&self, request: &AcquireRequest, details: &str, attempt: &mut Attempt) -> Asked {
        if request.cancel.is_cancelled()
            && let Some(way) = attempt.sent_on.clone()
        {
            // What takes it back follows on that way, and must not be led to another one.
            return Asked { sent_at: self.now(), way, place: Place::Kept, answer: None };
        }
        if attempt.waiter.is_none() {
            // From now on in the queue; but it may have been freed before that.
            attempt.waiter = Some(self.wakeups.register(request.grant, &request.name));
        }
        let place = if self.wakeups.is_open() { Place::Kept } else { Place::Deaf };
        self.ask_once(request, &attempt.key, details, place).await
    }

    fn call(
        &self,
        request: &AcquireRequest,
        key: &str,
        details: &str,
        place: Place,
        sent_at: BootTime,
    ) -> Call {
        let AcquireRequest { grant, owner, mode, reenter, .. } = request;
        let (reenters, fair) = (u8::from(*reenter), u8::from(self.address.fair));
        let waits = !matches!(request.wait, WaitUntil::Try);
        let who = format_args!("{grant} {owner} {mode} {reenters} {fair}");
        let is_usual = (*mode, reenters, fair) == (Mode::Ex, 0, 0);
        let who = match place {
            Place::None if is_usual && waits => format!("{grant} {owner} ?"),
            Place::None if is_usual => format!("{grant} {owner}"),
            Place::None if !waits => format!("{who} -"),
            Place::None | Place::Deaf => format!("{who} ?"),
            Place::Kept => format!("{who} {} {}", self.wakeups.client(), handed::offer(request, sent_at)),
        };
        let mut script = Call::new(&scripts::ACQUIRE, key);
        script.arg(who).arg(milliseconds(request.ttl)).arg(details);
        script
    }

    async fn ask(&self, way: &Way, script: &Call) -> Result<Said, Fault> {
        let asking = pin!(self.link.ask(way, Request::Script(script)));
        let answer: Answer = self.link.within(self.limit, asking).await?.answer;
        Said::read(&answer).ok_or_else(|| self.link.is_confused(&answer))
    }

    /// Releases what a grant holds, and takes it out of the queue; whether it held. A waiter of this client that gets the lock is told at once.
    pub(super) async fn let_go(&self, key: &str, grant: &Grant) -> Result<bool, Fault> {
        let way = self.link.present_way();
        let mut script = scripts::release(key, grant.id);
        if self.wakeups.anybody_waits_for(&grant.name) {
            script.arg(self.wakeups.client());
        }
        let asking = pin!(self.link.ask(&way, Request::Script(&script)));
        match self.link.within(self.limit, asking).await {
            Ok(Answered { answer: Answer::BulkString(message), .. }) => {
                self.wakeups.wake(&message);
                Ok(true)
            }
            // One that was sent a second time and finds nothing has done it the first time.
            Ok(Answered { answer, repeated }) => Ok(repeated || answer == Answer::Int(1)),
            // What stands there now is no lock, so this grant does not hold.
            Err(fault) if fault.what == What::WrongType => Ok(false),
            Err(fault) => Err(fault),
        }
    }

    /// Leaves the queue, and gives back what may have been granted without our having heard of it.
    async fn undo(&self, attempt: Attempt, request: &AcquireRequest) {
        drop(attempt.waiter);
        if !attempt.taken && !attempt.queued && attempt.sent_on.is_none() {
            return;
        }
        let undo = self.undoing.of(attempt.key, request.grant, request.ttl.get());
        // If Redis answers, or if nobody waits any more: now, so that nothing is left when this has ended.
        let undone = match &attempt.sent_on {
            Some(way) if request.cancel.is_cancelled() => match undo.behind_or_once(way).await {
                Undone::Behind => return,
                Undone::Once => true,
                Undone::Not => false,
            },
            _ if attempt.answered || request.cancel.is_cancelled() => undo.once().await,
            _ => false,
        };
        if undone && attempt.sent_on.is_none() {
            return;
        }
        self.undoing.spawn(undo.go_on(attempt.sent_on, undone));
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

/// What was heard of a request: nothing, if nobody waits for the answer any more.
pub(super) struct Asked {
    pub(super) sent_at: BootTime,
    /// On which way it was sent.
    pub(super) way: Way,
    /// With which place in the queue.
    pub(super) place: Place,
    pub(super) answer: Option<Result<Said, Fault>>,
}

/// What was done for a request before it is asked for by the script.
enum Begun {
    Nothing,
    /// It is known to be busy: who wants it queues at once.
    Busy,
    /// It may be held by this request already.
    Taken,
    /// It was asked for.
    Asked(Asked),
}

/// What has been done for a request so far.
struct Attempt {
    key: String,
    /// Whether it may have been taken before it was asked for by the script.
    taken: bool,
    /// Whether it may have a place in the queue.
    queued: bool,
    /// On which way a request was sent whose answer did not come.
    sent_on: Option<Way>,
    /// Whether Redis answered when it was last asked.
    answered: bool,
    waiter: Option<Waiter<WakeMessage>>,
}

impl Said {
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
    /// `busy WAKES`; and if it is first, also the milliseconds until the lock expires, which are -1 for one that never does.
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.strip_prefix("busy ")?.split(' ');
        let wakes = words.next()? == "1";
        let left_ms = words.next();
        let expires_in = left_ms.and_then(|ms| ms.parse().ok()).map(Duration::from_millis);
        Some(Self { expires_in, is_first: left_ms.is_some(), wakes })
    }

    /// How long to wait for a message before looking again.
    fn pause(self, place: Place, poll: Duration) -> Duration {
        if !self.is_first {
            return random::jittered(OTHERS_LOOK);
        }
        let look = random::jittered(if self.wakes && place == Place::Kept { FIRST_LOOKS } else { poll });
        // Nobody says that a lease has run out.
        self.expires_in.map_or(look, |left| look.min(left + super::MARGIN))
    }
}
