//! How a lock is got, and waited for.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use redis::Value as Answer;

use super::entry::Details;
use super::fault::{Fault, What};
use super::link::{Repeat, Way};
use super::wakeups::Waiter;
use super::{RedisEngine, milliseconds, scripts, term};
use crate::clock::BootTime;
use crate::engine::{AcquireRequest, Granted, WaitUntil};
use crate::error::AcquireError;
use crate::ids::GrantId;
use crate::mode::Mode;
use crate::random;
use crate::token::FencingToken;
use crate::value::Value;

/// How long a place in the queue is kept for one who does not ask again.
const PLACE_KEPT: Duration = Duration::from_secs(10);

/// How often who waits looks by itself: the first in the queue, and all others, who must not lose their places.
const FIRST_LOOKS: Duration = Duration::from_secs(1);
const OTHERS_LOOK: Duration = Duration::from_secs(3);

/// How often the first looks if the lock is another program's, which does not wake us when it lets go: ever more rarely.
const SHORTEST_POLL: Duration = Duration::from_millis(5);
const LONGEST_POLL: Duration = Duration::from_millis(100);

/// After that long, and then again, what may have been under way on a connection that broke has arrived.
const ARRIVED_AFTER: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(15)];

/// What Redis says to one who asks for a lock.
enum Said {
    Granted(FencingToken, Value),
    Busy(Busy),
    /// The owner holds it in a mode that does not cover this one.
    Held(Mode),
}

/// A request's place in the queue.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// It has none.
    None,
    /// It is to have one, or to keep it.
    Kept,
    /// It is not to have one any more, since it would not hear whose turn it is.
    GivenUp,
}

#[derive(Clone, Copy)]
struct Busy {
    /// When the lock expires if nothing is heard of its holder.
    expires_in: Option<Duration>,
    /// How many stand before this one in the queue.
    before: u64,
    /// Whether its holder wakes the first in the queue.
    wakes: bool,
}

impl RedisEngine {
    pub(super) async fn wait_for(self: Arc<Self>, request: AcquireRequest) -> Result<Granted, AcquireError> {
        let key = self.key(&request.name)?;
        let details = Details::text(&request, &self.host, self.context.clock.wall(), None);
        let mut waiter: Option<Waiter> = None;
        let mut poll = SHORTEST_POLL;
        let mut silent_since: Option<BootTime> = None;
        loop {
            let sent_at = self.now();
            let way = self.link.present_way();
            let place = match &waiter {
                None => Place::None,
                Some(_) if self.wakeups.is_open() => Place::Kept,
                Some(_) => Place::GivenUp,
            };
            let pause = match self.ask(&request, &key, &details, place).await {
                Ok(Said::Granted(token, value)) => {
                    return Ok(Granted::new(Some(token), term(sent_at, request.ttl)).with_value(value));
                }
                Ok(Said::Held(held)) => {
                    let (name, asked) = (request.name, request.mode);
                    return Err(AcquireError::NotCovered { name, held, asked });
                }
                Ok(Said::Busy(busy)) => {
                    silent_since = None;
                    poll = (poll * 2).min(LONGEST_POLL);
                    busy.pause(place, poll)
                }
                Err(fault) => {
                    // A wait outlasts a restart of Redis, but not a longer silence.
                    let since = *silent_since.get_or_insert(sent_at);
                    let goes_on = fault.what == What::NoAnswer
                        && request.wait != WaitUntil::Try
                        && self.now().since(since) < self.limit
                        && !request.cancel.is_cancelled();
                    if !goes_on {
                        self.undo_in_background(way, key, &request, fault.what);
                        return Err(fault.into());
                    }
                    LONGEST_POLL
                }
            };
            if request.wait.is_over(self.now()) || request.cancel.is_cancelled() {
                if waiter.is_some() {
                    self.leave(way, key, &request).await;
                }
                return Err(request.not_got());
            }
            let Some(waiter) = &waiter else {
                // From now on in the queue; but it may have been freed before that.
                waiter = Some(self.wakeups.register(request.grant).await);
                continue;
            };
            let look_again = request.wait.or_at(self.now() + pause);
            tokio::select! {
                () = request.cancel.cancelled() => {}
                () = waiter.woken() => {}
                () = self.context.clock.sleep_until(look_again) => {}
            }
        }
    }

    async fn ask(
        &self,
        request: &AcquireRequest,
        key: &str,
        details: &str,
        place: Place,
    ) -> Result<Said, Fault> {
        let (reenters, fair) = (u8::from(request.reenter), u8::from(self.address.fair));
        let client = match place {
            Place::None => "-",
            Place::GivenUp => "?",
            Place::Kept => self.wakeups.client(),
        };
        let how = match (request.mode, request.reenter, self.address.fair, place) {
            (Mode::Ex, false, false, Place::None) => "EX".to_owned(),
            (mode, ..) => format!("{mode} {reenters} {fair} {client} {}", PLACE_KEPT.as_millis()),
        };
        let who = format!("{} {}", request.grant, request.owner);
        let mut script = scripts::ACQUIRE.prepare_invoke();
        script.key(key).arg(who).arg(milliseconds(request.ttl)).arg(details).arg(how);
        let answer: Answer = self.link.granting(self.limit, &script).await?;
        Said::read(&answer).ok_or_else(|| {
            let message = format!("{} gave an answer that is none: {answer:?}", self.link.at());
            Fault::refused(self.capabilities.engine, message, None)
        })
    }

    /// Frees what a grant holds, and takes it out of the queue; whether it held.
    pub(super) async fn let_go(&self, key: &str, grant: GrantId) -> Result<bool, Fault> {
        let mut script = scripts::RELEASE.prepare_invoke();
        script.key(key).arg(grant.to_string());
        match self.link.script::<u8>(self.limit, Repeat::Harmless, &script).await {
            // What stands there now is no lock, so this grant does not hold.
            Err(fault) if fault.what == What::WrongType => Ok(false),
            freed => Ok(freed? == 1),
        }
    }

    /// Leaves the queue.
    async fn leave(&self, way: Way, key: String, request: &AcquireRequest) {
        if let Err(fault) = self.let_go(&key, request.grant).await {
            self.undo_in_background(way, key, request, fault.what);
        }
    }

    /// Gives back what may have been granted without our having heard of it, as soon as Redis can be reached: behind the request, on the
    /// way that it went. After the ttl there is nothing left to give back.
    fn undo_in_background(&self, way: Way, key: String, request: &AcquireRequest, what: What) {
        const FIRST_PAUSE: Duration = Duration::from_millis(50);
        const LONGEST_PAUSE: Duration = Duration::from_secs(2);
        let (link, limit, clock, grant) =
            (self.link.clone(), self.limit, self.context.clock.clone(), request.grant);
        let (began, longest) = (clock.now(), limit * 2 + request.ttl.get());
        let undo = async move {
            let mut script = scripts::RELEASE.prepare_invoke();
            script.key(&key).arg(grant.to_string());
            let mut pause = FIRST_PAUSE;
            while let Err(fault) = link.script_behind::<u8>(&way, limit, &script).await {
                if fault.what == What::WrongType || clock.now().since(began) > longest {
                    return;
                }
                clock.sleep_until(clock.now() + random::jittered(pause)).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
            if what != What::NoAnswer {
                return;
            }
            for after in ARRIVED_AFTER {
                clock.sleep_until(clock.now() + after).await;
                let _ = link.script::<u8>(limit, Repeat::Harmless, &script).await;
            }
        };
        self.undoing.spawn_on(undo, &self.context.runtime);
    }
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
                [
                    Answer::BulkString(busy),
                    Answer::Int(expires_ms),
                    Answer::Int(before),
                    Answer::Int(wakes),
                ] if busy == b"busy" => {
                    let expires_in = u64::try_from(*expires_ms).ok().map(Duration::from_millis);
                    Some(Self::Busy(Busy {
                        expires_in,
                        before: u64::try_from(*before).ok()?,
                        wakes: *wakes == 1,
                    }))
                }
                [Answer::BulkString(held), Answer::BulkString(mode)] if held == b"held" => {
                    Some(Self::Held(str::from_utf8(mode).ok()?.parse().ok()?))
                }
                _ => None,
            },
            _ => None,
        }
    }
}

impl Busy {
    /// How long to wait for a message before looking again.
    fn pause(self, place: Place, poll: Duration) -> Duration {
        if self.before > 0 {
            return random::jittered(OTHERS_LOOK);
        }
        let look = random::jittered(if self.wakes && place == Place::Kept { FIRST_LOOKS } else { poll });
        // Nobody says that a lease has run out.
        self.expires_in.map_or(look, |left| look.min(left + super::MARGIN))
    }
}
