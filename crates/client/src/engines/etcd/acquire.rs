//! How a lock is got, and waited for.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use tenure_table::{FencingToken, GrantId, Mode, Value};
use tokio_util::task::AbortOnDropHandle;

use super::EtcdEngine;
use super::api::{Compare, Found, Get, Put, Step, Txn, TxnAnswer};
use super::fault::{Fault, What};
use super::keys::{self, Keys, StoredValue};
use super::lease::Lease;
use super::link::Answer;
use super::undo::{Left, Undo, leave};
use super::watches::Woken;
use crate::engine::{AcquireRequest, Granted, WaitUntil};
use crate::engines::kept_value::KeptValue;
use crate::engines::queue::{self, Entry, Queue};
use crate::engines::session::{HasSession, InUse};
use crate::error::{AcquireError, EngineError};
use crate::random;

/// So many of the queue are looked at first: those who came last before. If there is no conflict among them, all are.
const NEAREST: i64 = 9;

/// Nobody relies on a watch alone: around this often, who waits looks whether both are still there, itself and the one that it waits for.
const LOOK_AGAIN: Duration = Duration::from_mins(1);

/// The pause before somebody looks who was not told what it wanted to know.
const REFUSED_PAUSE: Duration = Duration::from_millis(100);

/// How long somebody who has gone away still waits for an answer, to know what there is to undo.
const LAST_WORD: Duration = Duration::from_secs(1);

/// What has been done for a request so far.
struct Attempt {
    keys: Keys,
    /// Its own key.
    key: String,
    lease: Option<InUse<Lease>>,
    place: Place,
    /// Whether a request for its key was sent more than once, so that one may still be under way.
    may_arrive: bool,
    /// Whether it was in line once.
    waited: bool,
    /// The value as it was found, if it may be marked as this request's own.
    value: Option<Left>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// Its key was not asked for, or is gone.
    None,
    /// Whether its key is there is not known.
    Unknown,
    /// Its key was there.
    Taken,
}

impl Attempt {
    /// It is not in the queue any more: the next try begins with nothing.
    fn without_place(&mut self) -> Option<Granted> {
        self.place = Place::None;
        self.value = None;
        None
    }
}

/// What is seen of a lock at one moment.
struct Seen {
    queue: Queue,
    /// Whether all are in it who came before.
    all: bool,
    value: StoredValue,
    /// The moment.
    revision: i64,
}

impl EtcdEngine {
    pub(super) async fn wait_for(self: Arc<Self>, request: AcquireRequest) -> Result<Granted, AcquireError> {
        let keys = self.keys(&request.name)?;
        let key = keys.entry(request.grant, request.mode);
        let mut attempt = Attempt {
            keys,
            key,
            lease: None,
            place: Place::None,
            may_arrive: false,
            waited: false,
            value: None,
        };
        loop {
            match self.queue_once(&request, &mut attempt).await {
                Ok(Some(granted)) => return Ok(granted),
                // It lost its place, or its lease ended: from the beginning.
                Ok(None) => {}
                // A waiter outlasts its lease, but a wait does not begin without one.
                Err(AcquireError::Engine(EngineError::Unreachable { .. } | EngineError::NotFound { .. }))
                    if attempt.waited
                        && !request.wait.is_over(self.now())
                        && self.pause(&request).await.is_ok() => {}
                Err(error) => {
                    Box::pin(self.undo(attempt, &request)).await;
                    return Err(error);
                }
            }
        }
    }

    /// From the end of the queue to its front; nothing, if its place was lost on the way.
    async fn queue_once(
        self: &Arc<Self>,
        request: &AcquireRequest,
        attempt: &mut Attempt,
    ) -> Result<Option<Granted>, AcquireError> {
        let lease = self.lease(request).await?;
        if attempt.lease.as_ref().is_some_and(|before| before.id != lease.id) {
            // What was to stand under a lease that has ended cannot come any more.
            attempt.may_arrive = false;
        }
        let of = attempt.lease.insert(lease).clone();
        let Some((token, mut seen)) = self.enter(request, attempt, &of).await? else { return Ok(None) };
        if !seen.queue.has(request.grant) {
            // It came before, and many after it.
            seen = self.look(attempt, token, Some(NEAREST)).await?;
        }
        loop {
            // The lease may have ended while it waited, and its key with it: then its turn is over, whoever is gone before it.
            let own = queue::called(request.grant, request.mode);
            let still_there = |place: &usize| seen.queue.entries()[*place].order == token;
            let Some(place) = seen.queue.place(&own).filter(still_there) else {
                return Ok(attempt.without_place());
            };
            let Some(before) = seen.queue.waits_for(place) else {
                if !seen.all {
                    seen = self.look(attempt, token, None).await?;
                    continue;
                }
                return self.grant(request, attempt, &of, token, seen).await;
            };
            if request.wait.is_over(self.now()) {
                return Err(request.not_got());
            }
            attempt.waited = true;
            if !self.wait_behind(request, attempt, &of, token, before, seen.revision).await? {
                return Ok(attempt.without_place());
            }
            let looking = looking(&attempt.keys, token, Some(NEAREST));
            let Some(answer) = self.outlasting(request, &of, looking).await? else {
                return Ok(attempt.without_place());
            };
            seen = Seen::read(&attempt.keys, answer)?;
        }
    }

    /// The answer to one who waits, and outlasts a silence for as long as its lease does: nothing, if that has ended.
    async fn outlasting(
        &self,
        request: &AcquireRequest,
        lease: &Lease,
        txn: Txn,
    ) -> Result<Option<TxnAnswer>, AcquireError> {
        loop {
            let asked = request.cancel.run_until_cancelled(self.link.txn(txn.clone())).await;
            match asked.ok_or_else(|| request.not_got())? {
                Ok(Answer { answer, .. }) => return Ok(Some(answer)),
                Err(_) if lease.session().ended().is_cancelled() => return Ok(None),
                Err(fault) if fault.what.is_silence() && !request.wait.is_over(self.now()) => {
                    self.pause(request).await?;
                }
                Err(fault) => return Err(fault.into()),
            }
        }
    }

    async fn pause(&self, request: &AcquireRequest) -> Result<(), AcquireError> {
        let until = request.wait.or_at(self.now() + random::jittered(REFUSED_PAUSE));
        let paused = request.cancel.run_until_cancelled(self.context.clock.sleep_until(until)).await;
        paused.ok_or_else(|| request.not_got())
    }

    /// A lease for this request, and the session that it is.
    async fn lease(self: &Arc<Self>, request: &AcquireRequest) -> Result<InUse<Lease>, AcquireError> {
        if let Some(present) = self.keeper.sessions.of(request.ttl, self.now()) {
            return Ok(present);
        }
        let (keeper, ttl) = (self.keeper.clone(), request.ttl);
        // By a task of its own, as long as somebody wants it: those who wait for the same lease must not wait for one who does not go on.
        let opening = AbortOnDropHandle::new(self.context.runtime.spawn(async move {
            let now = keeper.now();
            keeper.sessions.open(ttl, now, async |ttl| keeper.open(ttl).await).await
        }));
        let opened =
            async { opening.await.unwrap_or_else(|_| Err(Fault::no_answer("the client was closed".into()))) };
        let ends = self.now() + self.link.limit();
        let opened = self.link.until(ends, opened);
        let opened = request.cancel.run_until_cancelled(opened).await;
        Ok(opened.ok_or_else(|| request.not_got())??)
    }

    /// Puts a key at the end of the queue; with the token that it is, and what is seen from there.
    async fn enter(
        &self,
        request: &AcquireRequest,
        attempt: &mut Attempt,
        lease: &Arc<Lease>,
    ) -> Result<Option<(i64, Seen)>, AcquireError> {
        let mut compared = if matches!(request.wait, WaitUntil::Try) {
            // Who does not wait does not stand in anybody's way either: only if nobody is there, it puts its key.
            Condition::Nobody
        } else {
            Condition::NotYet
        };
        loop {
            attempt.place = Place::Unknown;
            let asking = self.link.txn(self.entering(request, attempt, lease, compared));
            let answer = match self.last_word(request, asking).await {
                None => return Err(request.not_got()),
                Some(Err(fault)) if fault.what == What::LeaseGone => {
                    // Nothing stands under it.
                    attempt.place = Place::None;
                    lease.lost();
                    return Ok(None);
                }
                Some(Err(fault)) => {
                    if fault.what != What::NoAnswer {
                        attempt.place = Place::None;
                    }
                    return Err(fault.into());
                }
                Some(Ok(Answer { answer, repeated })) => {
                    attempt.may_arrive |= repeated;
                    answer
                }
            };
            let revision = answer.revision();
            let entered = Entered::read(answer, lease)?;
            attempt.place = if entered.mine.is_some() { Place::Taken } else { Place::None };
            let seen = Seen::of(&attempt.keys, revision, &entered.looked)?;
            return match entered.mine {
                Some((token, under)) if under == lease.id => Ok(Some((token, seen))),
                // It is left from a lease that has ended for us.
                Some(_) => {
                    leave(&self.link, &attempt.key, None, None).await?;
                    attempt.place = Place::None;
                    Ok(None)
                }
                None if entered.undone => Err(request.not_got()),
                None => {
                    // Those who are there may all go together with this one, or be other locks.
                    let (seen, all) = (seen.queue.entries(), seen.all);
                    let compatible = |entry: &Entry| entry.mode.compatible_with(request.mode);
                    let goes = seen.iter().all(compatible)
                        && (all || self.look(attempt, 0, None).await?.queue.entries().iter().all(compatible));
                    if !goes {
                        return Err(request.not_got());
                    }
                    compared = Condition::NotYet;
                    continue;
                }
            };
        }
    }

    fn entering(
        &self,
        request: &AcquireRequest,
        attempt: &Attempt,
        lease: &Lease,
        condition: Condition,
    ) -> Txn {
        let Attempt { keys, key, .. } = attempt;
        let gone = keys::gone(&self.address.prefix, request.grant);
        let details = self.ourselves.details(request, self.context.clock.wall(), None);
        let text = format!("{} {details}", request.owner);
        let not_yet = match condition {
            Condition::NotYet => Compare::is_missing(key.as_str()),
            Condition::Nobody => Compare::prefix_is_missing(&keys.below),
        };
        let look = look_at(keys, 0, Some(NEAREST));
        let put = Put::new(key.as_str(), text).under(lease.id);
        let already = [key, &gone].map(|key| Get::key(key.as_str()).keys_only().into());
        Txn::new()
            .when([not_yet, Compare::is_missing(gone)])
            .and_then([&[put.into()], &look[..]].concat())
            .or_else([already, look].concat())
    }

    /// Who is in the queue now, up to this place (all, if that is 0), and the value.
    async fn look(&self, attempt: &Attempt, up_to: i64, most: Option<i64>) -> Result<Seen, Fault> {
        let answer = self.link.txn(looking(&attempt.keys, up_to, most)).await?.answer;
        Seen::read(&attempt.keys, answer)
    }

    /// Waits until the one is gone that it waits for, or it is worth a look. False, if its own place is lost.
    async fn wait_behind(
        &self,
        request: &AcquireRequest,
        attempt: &Attempt,
        lease: &Lease,
        token: i64,
        before: &Entry,
        seen_at: i64,
    ) -> Result<bool, AcquireError> {
        let clock = &self.context.clock;
        let its_key = attempt.keys.seen(before);
        let mut watched = self.watches.watch(its_key.clone(), seen_at + 1);
        loop {
            let look_at = request.wait.or_at(self.now() + random::jittered(LOOK_AGAIN));
            tokio::select! {
                biased;
                () = request.cancel.cancelled() => return Err(request.not_got()),
                () = lease.session().ended().cancelled() => return Ok(false),
                woken = watched.woken() => {
                    if woken == Woken::Look {
                        clock.sleep_until(self.now() + random::jittered(REFUSED_PAUSE)).await;
                    }
                    return Ok(true);
                }
                () = clock.sleep_until(look_at) => {}
            }
            if request.wait.is_over(self.now()) {
                return Err(request.not_got());
            }
            let both = [(&attempt.key, token), (&its_key, before.order)];
            let looking = both.map(|(key, _)| Get::key(key.as_str()).keys_only().into());
            let looking = Txn::new().and_then(looking);
            let Some(answer) = self.outlasting(request, lease, looking).await? else { return Ok(false) };
            let stands = |(found, (_, order)): (Found, &(&String, i64))| {
                found.kvs.first().is_some_and(|kv| kv.create_revision == *order)
            };
            if !answer.found().into_iter().zip(&both).all(stands) {
                return Ok(true);
            }
        }
    }

    /// Its turn has come: what was seen has its own key under its lease, and nobody before it.
    async fn grant(
        &self,
        request: &AcquireRequest,
        attempt: &mut Attempt,
        lease: &Lease,
        token: i64,
        seen: Seen,
    ) -> Result<Option<Granted>, AcquireError> {
        // A lease that was not proved for long may have ended since.
        if lease.usable(self.now()).is_zero() {
            let ends = self.now() + self.link.limit();
            let proving = async { Ok(lease.prove(self.now()).await) };
            let proved = request.cancel.run_until_cancelled(self.link.until(ends, proving)).await;
            if proved.ok_or_else(|| request.not_got())??.is_none() {
                return Ok(attempt.without_place());
            }
        }
        let (seen, value) = self.read_value(attempt, seen).await?;
        let mut last_written = seen.value.revision;
        let mut marked = None;
        if request.mode.may_write() && seen.value.kept.is_some() {
            let kept = KeptValue::marked(value.clone(), request.grant);
            attempt.value = Some((attempt.keys.value.clone(), kept.clone()));
            let stands = Compare::created_at(attempt.key.as_str(), token);
            let mark = Put::new(attempt.keys.value.as_str(), kept.text());
            let asking = self.link.txn(Txn::new().when([stands]).and_then([mark.into()]));
            let Some(answer) = self.last_word(request, asking).await else { return Err(request.not_got()) };
            let answer = match answer {
                // It is read and not written: what is written later says that there is no room.
                Err(fault) if fault.what == What::Full => None,
                answer => Some(answer?.answer),
            };
            match answer {
                Some(answer) if !answer.succeeded => return Ok(attempt.without_place()),
                Some(answer) => {
                    last_written = answer.revision();
                    marked = Some(kept);
                }
                None => attempt.value = None,
            }
        }
        if attempt.may_arrive {
            lease.may_arrive(request.grant);
        }
        let fencing = FencingToken::new(token.unsigned_abs());
        let node = attempt.key.clone();
        let Some(term) = lease.session().keep(request.grant, node, fencing, marked, request.events.clone())
        else {
            return Ok(attempt.without_place());
        };
        if request.mode.may_write() {
            lease.may_write(request.grant, last_written);
        }
        Ok(Some(Granted::new(Some(fencing), term).with_value(value)))
    }

    /// What is in the value, and whether the one is still there who could write it.
    async fn read_value(&self, attempt: &Attempt, mut seen: Seen) -> Result<(Seen, Value), Fault> {
        let mut there = Vec::new();
        loop {
            let (value, missing) = seen.value(&there);
            let Some(writer) = missing else { return Ok((seen, value)) };
            // It may have come later than we did. What it wrote is read again together with whether it is there.
            let Keys { value, .. } = &attempt.keys;
            let keys = Mode::ALL
                .into_iter()
                .filter(|mode| mode.may_write())
                .map(|mode| attempt.keys.entry(writer, mode));
            let mut reading: Vec<Step> = keys.map(|key| Get::key(key).keys_only().into()).collect();
            reading.push(Get::key(value.as_str()).into());
            let mut found = self.link.txn(Txn::new().and_then(reading)).await?.answer.found();
            let value = found.pop().ok_or_else(Fault::too_little)?;
            there.push((writer, found.iter().any(|found| !found.kvs.is_empty())));
            seen.value = StoredValue::read(&value)?;
        }
    }

    /// Waits for the answer to something that would have to be undone. Nothing, if nobody waits for it any more and it does not come soon.
    async fn last_word<T>(&self, request: &AcquireRequest, asking: impl Future<Output = T>) -> Option<T> {
        let clock = &self.context.clock;
        let gone = async {
            request.cancel.cancelled().await;
            clock.sleep_until(clock.now() + LAST_WORD).await;
        };
        tokio::select! {
            biased;
            answer = asking => Some(answer),
            () = gone => None,
        }
    }

    /// Leaves the queue, and gives back what may have been granted without our having heard of it.
    async fn undo(&self, attempt: Attempt, request: &AcquireRequest) {
        let known = attempt.place != Place::Unknown && !attempt.may_arrive;
        let nothing = attempt.place == Place::None && known;
        let Some(lease) = attempt.lease.as_deref().filter(|_| !nothing) else { return };
        let undo = Undo::leaving(&self.keeper, lease.clone(), attempt.key, request.grant);
        let mut undo = undo.with_value(attempt.value);
        if !known {
            undo = undo.that_may_arrive(&self.address.prefix, request.grant);
        }
        // If etcd answers, or if nobody waits any more: now, so that nothing is left when this has ended.
        let now = attempt.place != Place::Unknown || request.cancel.is_cancelled();
        if now && undo.once().await && known {
            return;
        }
        self.keeper.undoing.spawn_on(undo.go_on(), &self.context.runtime);
    }
}

/// On which condition a key is put.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Condition {
    /// It is not there yet.
    NotYet,
    /// Nobody holds or waits.
    Nobody,
}

/// The last of the queue, up to this place, and the value.
fn looking(keys: &Keys, up_to: i64, most: Option<i64>) -> Txn {
    Txn::new().and_then(look_at(keys, up_to, most))
}

fn look_at(keys: &Keys, up_to: i64, most: Option<i64>) -> [Step; 2] {
    let nearest = Get::prefix(keys.below.as_str()).keys_only().newest_first().created_up_to(up_to);
    [nearest.at_most(most.unwrap_or(0)).into(), Get::key(keys.value.as_str()).into()]
}

/// What came of a try to queue.
struct Entered {
    /// The place that it has, and under which lease.
    mine: Option<(i64, i64)>,
    /// Whether it was given up before.
    undone: bool,
    /// What is seen from there.
    looked: Vec<Found>,
}

impl Entered {
    fn read(answer: TxnAnswer, lease: &Lease) -> Result<Self, Fault> {
        let mine = answer.succeeded.then(|| (answer.revision(), lease.id));
        let mut looked = answer.found();
        if mine.is_some() {
            return Ok(Self { mine, undone: false, looked });
        }
        if looked.len() < 2 {
            return Err(Fault::too_little());
        }
        let (gone, own) = (looked.remove(1), looked.remove(0));
        let mine = own.kvs.first().map(|kv| (kv.create_revision, kv.lease));
        Ok(Self { mine, undone: !gone.kvs.is_empty(), looked })
    }
}

impl Seen {
    fn read(keys: &Keys, answer: TxnAnswer) -> Result<Self, Fault> {
        Self::of(keys, answer.revision(), &answer.found())
    }

    fn of(keys: &Keys, revision: i64, found: &[Found]) -> Result<Self, Fault> {
        let [queue, value] = found else { return Err(Fault::too_little()) };
        let all = !queue.more;
        Ok(Self { queue: keys.queue(&queue.kvs), all, value: StoredValue::read(value)?, revision })
    }

    /// The value, and who could write it, if it is not known whether that one is there.
    fn value(&self, there: &[(GrantId, bool)]) -> (Value, Option<GrantId>) {
        let missing = Cell::new(None);
        let stands = |writer| {
            let stands = self.queue.has(writer) || there.contains(&(writer, true));
            if !stands && !there.contains(&(writer, false)) {
                missing.set(Some(writer));
            }
            stands
        };
        let value = self.value.kept.as_ref().map(|kept| kept.value(stands)).unwrap_or_default();
        (value, missing.get())
    }
}
