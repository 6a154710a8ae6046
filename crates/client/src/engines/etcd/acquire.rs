//! Acquiring a lock, and waiting for it.

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

/// The number of queue entries that are read first: the latest before the request. If none of them conflicts, all are read.
const NEAREST: i64 = 9;

/// The approximate interval at which a waiter checks both its own key and the one that it waits for. No waiter relies on a watch alone.
pub(super) const LOOK_AGAIN: Duration = Duration::from_mins(1);

/// The pause before a waiter checks after its watch was refused.
pub(super) const REFUSED_PAUSE: Duration = Duration::from_millis(100);

/// The time for which a cancelled request still waits for a response, to know what there is to undo.
const LAST_WORD: Duration = Duration::from_secs(1);

/// The keys of a request.
struct Attempt {
    keys: Keys,
    /// The request's own key.
    key: String,
}

/// The state of a lock at one revision.
struct Seen {
    queue: Queue,
    /// Whether the queue contains all earlier entries.
    all: bool,
    value: StoredValue,
    /// The revision.
    revision: i64,
}

impl EtcdEngine {
    pub(super) async fn wait_for(self: Arc<Self>, request: AcquireRequest) -> Result<Granted, AcquireError> {
        let keys = self.keys(&request.name)?;
        let key = keys.entry(request.grant, request.mode);
        let attempt = Attempt { keys, key };
        loop {
            // After losing its place or its lease, the request starts again.
            if let Some(granted) = self.queue_once(&request, &attempt).await? {
                return Ok(granted);
            }
        }
    }

    /// Enters the queue and waits until the lock is granted. Returns `None` if the place was lost on the way.
    async fn queue_once(
        self: &Arc<Self>,
        request: &AcquireRequest,
        attempt: &Attempt,
    ) -> Result<Option<Granted>, AcquireError> {
        let lease = self.lease(request).await?;
        let Some((token, mut seen)) = self.enter(request, attempt, &lease).await? else { return Ok(None) };
        if !seen.queue.has(request.grant) {
            // An earlier request put the key, and many followed.
            seen = self.look(attempt, token, Some(NEAREST)).await?;
        }
        loop {
            // The lease may have ended during the wait, and the key with it. The place is then lost, even if no conflicting key is ahead of
            // it.
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

    /// Waits for the response to a request that changes nothing.
    async fn asked(&self, request: &AcquireRequest, txn: Txn) -> Result<TxnAnswer, AcquireError> {
        let asked = request.cancel.run_until_cancelled(self.link.txn(txn)).await;
        Ok(asked.ok_or_else(|| request.not_granted())??.answer)
    }

    /// Returns a lease for this request, which is its session.
    async fn lease(self: &Arc<Self>, request: &AcquireRequest) -> Result<InUse<Lease>, AcquireError> {
        if let Some(present) = self.keeper.sessions.of(request.ttl) {
            return Ok(present);
        }
        let (keeper, ttl) = (self.keeper.clone(), request.ttl);
        // In a separate task, for as long as a caller wants it: others that wait for the same lease must not depend on a caller that is not
        // polled.
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

    /// Puts a key at the end of the queue. Returns its token, and the state of the lock.
    async fn enter(
        &self,
        request: &AcquireRequest,
        attempt: &Attempt,
        lease: &Arc<Lease>,
    ) -> Result<Option<(i64, Seen)>, AcquireError> {
        // A request that does not wait must not delay others: it puts its key only if the queue is empty.
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
                    // No key of the lease remains.
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
                // The key belongs to an earlier lease, which has ended for this client. The request puts its key again after this, so only
                // this revision is deleted.
                Some((token, _)) => {
                    let stands = Compare::created_at(attempt.key.as_str(), token);
                    let delete = Delete::key(attempt.key.as_str());
                    self.link.txn(Txn::new().when([stands]).and_then([delete.into()])).await?;
                    Ok(None)
                }
                None if entered.undone => Err(request.not_granted()),
                None => {
                    // The present entries may all be compatible with this request, or belong to other locks.
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

    /// Reads the queue as it is now, up to this revision (all, if that is 0), and the value.
    async fn look(&self, attempt: &Attempt, up_to: i64, most: Option<i64>) -> Result<Seen, Fault> {
        let answer = self.link.txn(looking(&attempt.keys, up_to, most)).await?.answer;
        Seen::read(&attempt.keys, answer)
    }

    /// Waits until the conflicting key is gone, or until a check is due. Returns false if the request has lost its place.
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

    /// Grants the lock: `seen` has the request's own key under its lease, and no conflicting key ahead of it.
    async fn grant(
        &self,
        request: &AcquireRequest,
        attempt: &Attempt,
        lease: &Lease,
        token: i64,
        seen: Seen,
    ) -> Result<Option<Granted>, AcquireError> {
        // A lease without a recent proof may have ended since.
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
            // Recorded before the write is sent: a withdrawal of the request then leaves the value without the mark.
            lease.may_be_marked(request.grant, kept.clone(), token);
            let stands = Compare::created_at(attempt.key.as_str(), token);
            // An earlier copy of this request that arrives late does not overwrite a later write.
            let is_unchanged = Compare::written_at(attempt.keys.value.as_str(), seen.value.revision);
            let mark = Put::new(attempt.keys.value.as_str(), kept.text());
            let asking = self.link.txn(Txn::new().when([stands, is_unchanged]).and_then([mark.into()]));
            let Some(answer) = self.last_word(request, asking).await else {
                return Err(request.not_granted());
            };
            let answer = match answer {
                // The value is read without a mark: a later write reports that the database is full.
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

    /// Returns the value, and checks whether its possible writer still has a key.
    async fn read_value(&self, attempt: &Attempt, mut seen: Seen) -> Result<(Seen, Value), Fault> {
        let mut there = Vec::new();
        loop {
            let (value, missing) = seen.value(&there);
            let Some(writer) = missing else { return Ok((seen, value)) };
            // The writer may have entered the queue after the look. Its value is read again together with its key.
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

    /// Waits for the response to a request that would have to be undone. Returns `None` if the request is cancelled and no response arrives
    /// soon.
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

/// The condition for putting a key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Condition {
    /// The key does not exist yet.
    NotYet,
    /// The queue is empty.
    Nobody,
}

/// Builds a transaction that reads the end of the queue, up to this revision, and the value.
fn looking(keys: &Keys, up_to: i64, most: Option<i64>) -> Txn {
    Txn::new().and_then(look_at(keys, up_to, most))
}

fn look_at(keys: &Keys, up_to: i64, most: Option<i64>) -> [Step; 2] {
    let nearest = Get::prefix(keys.below.as_str()).keys_only().newest_first().created_up_to(up_to);
    [nearest.at_most(most.unwrap_or(0)).into(), Get::key(keys.value.as_str()).into()]
}

/// The outcome of an attempt to enter the queue.
struct Entered {
    /// The token of the request's key, and the key's lease.
    mine: Option<(i64, i64)>,
    /// Whether the key was put just now.
    is_new: bool,
    /// Whether the request was withdrawn before.
    undone: bool,
    /// The queue and the value, as read in the same step.
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

    /// Returns the value; and its possible writer, if it is not known whether that writer's key exists.
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
