//! How a lock is got, and waited for.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use tenure_table::{FencingToken, GrantId, Mode, Value};
use tokio_util::task::AbortOnDropHandle;

use super::EtcdEngine;
use super::api::{Compare, Delete, Found, Get, Put, Step, Txn, TxnAnswer};
use super::fault::{Fault, What};
use super::keys::{self, Keys, StoredValue};
use super::lease::Lease;
use super::link::Answer;
use super::watches::{Interest, Woken};
use crate::engine::{AcquireRequest, Granted};
use crate::engines::kept_value::KeptValue;
use crate::engines::queue::{self, Entry, Queue};
use crate::engines::session::{HasSession, InUse};
use crate::error::AcquireError;
use crate::random;

/// So many of the queue are looked at first: those who came last before. If there is no conflict among them, all are.
const NEAREST: i64 = 9;

/// Nobody relies on a watch alone: around this often, who waits looks whether both are still there, itself and the one that it waits for.
pub(super) const LOOK_AGAIN: Duration = Duration::from_mins(1);

/// The pause before somebody looks who was not told what it wanted to know.
pub(super) const REFUSED_PAUSE: Duration = Duration::from_millis(100);

/// How long somebody who has gone away still waits for an answer, to know what there is to undo.
const LAST_WORD: Duration = Duration::from_secs(1);

/// Where a request queues.
struct Attempt {
    keys: Keys,
    /// Its own key.
    key: String,
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
        let attempt = Attempt { keys, key };
        loop {
            // If it lost its place, or its lease ended: from the beginning.
            if let Some(granted) = self.queue_once(&request, &attempt).await? {
                return Ok(granted);
            }
        }
    }

    /// From the end of the queue to its front; nothing, if its place was lost on the way.
    async fn queue_once(
        self: &Arc<Self>,
        request: &AcquireRequest,
        attempt: &Attempt,
    ) -> Result<Option<Granted>, AcquireError> {
        let lease = self.lease(request).await?;
        let Some((token, mut seen)) = self.enter(request, attempt, &lease).await? else { return Ok(None) };
        if !seen.queue.has(request.grant) {
            // It came before, and many after it.
            seen = self.look(attempt, token, Some(NEAREST)).await?;
        }
        loop {
            // The lease may have ended while it waited, and its key with it: then its turn is over, whoever is gone before it.
            let own = queue::called(request.grant, request.mode);
            let still_there = |place: &usize| seen.queue.entries()[*place].order == token;
            let Some(place) = seen.queue.place(&own).filter(still_there) else { return Ok(None) };
            let Some(before) = seen.queue.waits_for(place) else {
                if !seen.all {
                    seen = self.look(attempt, token, None).await?;
                    continue;
                }
                return self.grant(request, attempt, &lease, token, seen).await;
            };
            if !request.waits() {
                self.keeper.leave(&lease, request.grant, &attempt.key, None).await?;
                return Err(request.not_granted());
            }
            if !self.wait_behind(request, attempt, &lease, token, before, seen.revision).await? {
                return Ok(None);
            }
            let looking = self.asked(request, looking(&attempt.keys, token, Some(NEAREST))).await?;
            seen = Seen::read(&attempt.keys, looking)?;
        }
    }

    /// The answer to a request that changes nothing.
    async fn asked(&self, request: &AcquireRequest, txn: Txn) -> Result<TxnAnswer, AcquireError> {
        let asked = request.cancel.run_until_cancelled(self.link.txn(txn)).await;
        Ok(asked.ok_or_else(|| request.not_granted())??.answer)
    }

    /// A lease for this request, and the session that it is.
    async fn lease(self: &Arc<Self>, request: &AcquireRequest) -> Result<InUse<Lease>, AcquireError> {
        if let Some(present) = self.keeper.sessions.of(request.ttl) {
            return Ok(present);
        }
        let (keeper, ttl) = (self.keeper.clone(), request.ttl);
        // By a task of its own, as long as somebody wants it: those who wait for the same lease must not wait for one who does not go on.
        let opening = AbortOnDropHandle::new(
            self.context
                .runtime
                .spawn(async move { keeper.sessions.open(ttl, async |ttl| keeper.open(ttl).await).await }),
        );
        let opened =
            async { opening.await.unwrap_or_else(|_| Err(Fault::no_answer("the client was closed".into()))) };
        let ends = self.now() + self.link.limit();
        let opened = self.link.until(ends, opened);
        let opened = request.cancel.run_until_cancelled(opened).await;
        Ok(opened.ok_or_else(|| request.not_granted())??)
    }

    /// Puts a key at the end of the queue; with the token that it is, and what is seen from there.
    async fn enter(
        &self,
        request: &AcquireRequest,
        attempt: &Attempt,
        lease: &Arc<Lease>,
    ) -> Result<Option<(i64, Seen)>, AcquireError> {
        // Who does not wait does not stand in anybody's way either: only if nobody is there, it puts its key.
        let mut compared = if request.waits() { Condition::NotYet } else { Condition::Nobody };
        loop {
            let asking = self.link.txn(self.entering(request, attempt, lease, compared));
            let heard = self.last_word(request, asking).await;
            let may_arrive = match &heard {
                None => true,
                Some(Err(fault)) => fault.what == What::NoAnswer,
                Some(Ok(Answer { repeated, .. })) => *repeated,
            };
            if may_arrive {
                request.events.unanswered();
                lease.may_arrive(request.grant);
            }
            let answer = match heard {
                None => return Err(request.not_granted()),
                Some(Err(fault)) if fault.what == What::LeaseGone => {
                    // Nothing stands under it.
                    lease.lost();
                    return Ok(None);
                }
                Some(answer) => answer?.answer,
            };
            let revision = answer.revision();
            let entered = Entered::read(answer, lease)?;
            let seen = Seen::of(&attempt.keys, revision, &entered.looked)?;
            if entered.is_new {
                lease.is_not_marked(request.grant);
            }
            return match entered.mine {
                Some((token, under)) if under == lease.id => Ok(Some((token, seen))),
                // It is left from a lease that has ended for us. The key is put again after that, so only this one is deleted.
                Some((token, _)) => {
                    let stands = Compare::created_at(attempt.key.as_str(), token);
                    let delete = Delete::key(attempt.key.as_str());
                    self.link.txn(Txn::new().when([stands]).and_then([delete.into()])).await?;
                    Ok(None)
                }
                None if entered.undone => Err(request.not_granted()),
                None => {
                    // Those who are there may all go together with this one, or be other locks.
                    let (seen, all) = (seen.queue.entries(), seen.all);
                    let compatible = |entry: &Entry| entry.mode.compatible_with(request.mode);
                    let goes = seen.iter().all(compatible)
                        && (all || self.look(attempt, 0, None).await?.queue.entries().iter().all(compatible));
                    if !goes {
                        return Err(request.not_granted());
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
        let details = self.process.details(request, self.context.clock.wall(), None);
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
        let mut watched = self.keeper.watches.watch(its_key.clone(), seen_at + 1, Interest::Deletion);
        loop {
            let look_at = self.now() + random::jittered(LOOK_AGAIN);
            let message = async {
                tokio::select! {
                    biased;
                    () = lease.session().ended().cancelled() => None,
                    woken = watched.woken() => Some(woken),
                }
            };
            match request.woken_before(&**clock, look_at, message).await? {
                Some(None) => return Ok(false),
                Some(Some(woken)) => {
                    if woken == Woken::Look {
                        clock.sleep_until(self.now() + random::jittered(REFUSED_PAUSE)).await;
                    }
                    return Ok(true);
                }
                None => {}
            }
            let both = [(&attempt.key, token), (&its_key, before.order)];
            let looking = both.map(|(key, _)| Get::key(key.as_str()).keys_only().into());
            let looking = Txn::new().and_then(looking);
            let answer = self.asked(request, looking).await?;
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
        attempt: &Attempt,
        lease: &Lease,
        token: i64,
        seen: Seen,
    ) -> Result<Option<Granted>, AcquireError> {
        // A lease that was not proved for long may have ended since.
        if lease.usable(self.now()).is_zero() {
            let ends = self.now() + self.link.limit();
            let proving = async { Ok(lease.prove(self.now()).await) };
            let proved = request.cancel.run_until_cancelled(self.link.until(ends, proving)).await;
            if proved.ok_or_else(|| request.not_granted())??.is_none() {
                return Ok(None);
            }
        }
        let (seen, value) = self.read_value(attempt, seen).await?;
        let mut last_written = seen.value.revision;
        let mut marked = None;
        if request.mode.may_write() && seen.value.kept.is_some() {
            let kept = KeptValue::marked(value.clone(), request.grant);
            // Before it is sent: whoever withdraws the request leaves the value without the mark.
            lease.may_be_marked(request.grant, kept.clone(), token);
            let stands = Compare::created_at(attempt.key.as_str(), token);
            // An earlier copy of this request that arrives late changes nothing that was written since.
            let is_unchanged = Compare::written_at(attempt.keys.value.as_str(), seen.value.revision);
            let mark = Put::new(attempt.keys.value.as_str(), kept.text());
            let asking = self.link.txn(Txn::new().when([stands, is_unchanged]).and_then([mark.into()]));
            let Some(answer) = self.last_word(request, asking).await else {
                return Err(request.not_granted());
            };
            let answer = match answer {
                // It is read and not written: what is written later says that there is no room.
                Err(fault) if fault.what == What::Full => None,
                answer => Some(answer?.answer),
            };
            match answer {
                Some(answer) if !answer.succeeded => return Ok(None),
                Some(answer) => {
                    last_written = answer.revision();
                    marked = Some(kept);
                }
                None => {}
            }
        }
        let fencing = FencingToken::new(token.unsigned_abs());
        let node = attempt.key.clone();
        let Some(term) = lease.session().keep(request, node, fencing, marked) else {
            return Ok(None);
        };
        lease.is_not_marked(request.grant);
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
    /// Whether the place was taken just now.
    is_new: bool,
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
            return Ok(Self { mine, is_new: true, undone: false, looked });
        }
        if looked.len() < 2 {
            return Err(Fault::too_little());
        }
        let (gone, own) = (looked.remove(1), looked.remove(0));
        let mine = own.kvs.first().map(|kv| (kv.create_revision, kv.lease));
        Ok(Self { mine, is_new: false, undone: !gone.kvs.is_empty(), looked })
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
