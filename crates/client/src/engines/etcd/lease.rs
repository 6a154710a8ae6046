//! Sessions as etcd leases, each with the keys of its grants. A task keeps each lease alive.
//!
//! **A keep-alive by itself proves nothing**: only the leader counts leases, but a former leader that was stopped answers it too, from its
//! own memory. So each keep-alive is followed by a read that a majority confirms. If the read comes from the same member and in the same
//! term, the leader that extended the lease still led afterwards; and any later leader gives each lease its whole time again. Only then is
//! the lease confirmed, as of before the keep-alive was sent.

use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tenure_table::GrantId;
use tokio::sync::{Mutex as AsyncMutex, Notify, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::{AbortOnDropHandle, TaskTracker};

use super::api::{Get, Header, LeaseId, LeaseKept};
use super::fault::{Fault, What};
use super::keys::OWN_KEYS;
use super::link::{Connection, Link};
use super::rpc::Calls;
use super::watches::{Interest, Watches, Woken};
use crate::clock::BootTime;
use crate::engine::EngineContext;
use crate::engines::kept_value::KeptValue;
use crate::engines::session::{HasSession, Held, Session, Sessions};
use crate::error::LostReason;
use crate::random;

/// The time by which the deadline precedes the end of the lease. The proof above needs no margin. It covers the coarseness of etcd's
/// timers, and a leader that does not count from its election.
pub(super) const MARGIN: Duration = Duration::from_secs(1);

/// The shortest time that is requested in addition to the margin.
const SHORTEST: Duration = Duration::from_secs(2);

/// The interval between two checks for grants that were not renewed: a part of the TTL, up to a maximum.
const LOOKS: u32 = 8;
const RAREST_LOOK: Duration = Duration::from_secs(5);

/// The least time limit of a keep-alive before it is tried again.
const SHORTEST_TRY: Duration = Duration::from_millis(500);

/// The longest pause after a keep-alive that failed.
const LONGEST_RETRY: Duration = Duration::from_secs(1);

/// The pause before a second request for a missing lease: a leader elected just now may not have read the lease yet.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(200);

/// The interval between two checks of a grant's key that is also watched.
const LOOK_AGAIN: Duration = Duration::from_mins(10);

/// A lease, and the records of its grants.
#[derive(Debug)]
pub(super) struct Lease {
    pub(super) id: i64,
    session: Session,
    /// Notified when a caller needs a new proof.
    asked: Notify,
    /// The time at which the last proved keep-alive was sent.
    proved: watch::Sender<BootTime>,
    /// Cancelled when the lease is no longer needed.
    over: CancellationToken,
    /// The tasks that watch the keys of grants.
    watched: Mutex<HashMap<GrantId, AbortOnDropHandle<()>>>,
    /// The writes of each grant, one after the other, with the revision of the last write as far as it is known.
    writes: Mutex<HashMap<GrantId, Writes>>,
    /// Grants whose key was requested without a response, so that a request may still arrive after the grant is over.
    arriving: Mutex<HashSet<GrantId>>,
    /// The values that ungranted requests may have marked, each with the token of the request.
    marks: Mutex<HashMap<GrantId, (KeptValue, i64)>>,
}

pub(super) type Writes = Arc<AsyncMutex<Option<i64>>>;

impl HasSession for Lease {
    fn session(&self) -> &Session {
        &self.session
    }
}

impl Lease {
    fn writes(&self) -> MutexGuard<'_, HashMap<GrantId, Writes>> {
        self.writes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that this grant may write a value, which was last written at this revision.
    pub(super) fn may_write(&self, grant: GrantId, last_written: i64) {
        self.writes().insert(grant, Arc::new(AsyncMutex::new(Some(last_written))));
    }

    pub(super) fn writes_of(&self, grant: GrantId) -> Option<Writes> {
        self.writes().get(&grant).cloned()
    }

    fn arriving(&self) -> MutexGuard<'_, HashSet<GrantId>> {
        self.arriving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a request for the key of this grant may still be under way.
    pub(super) fn may_arrive(&self, grant: GrantId) {
        self.arriving().insert(grant);
    }

    pub(super) fn is_arriving(&self, grant: GrantId) -> bool {
        self.arriving().contains(&grant)
    }

    fn marks(&self) -> MutexGuard<'_, HashMap<GrantId, (KeptValue, i64)>> {
        self.marks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that a request without a grant may have marked the lock's value.
    pub(super) fn may_be_marked(&self, grant: GrantId, value: KeptValue, token: i64) {
        self.marks().insert(grant, (value, token));
    }

    /// Records that this request has marked no value, or that its grant has the record.
    pub(super) fn is_not_marked(&self, grant: GrantId) {
        self.marks().remove(&grant);
    }

    pub(super) fn mark_of(&self, grant: GrantId) -> Option<(KeptValue, i64)> {
        self.marks().get(&grant).cloned()
    }

    /// Removes all records of this grant and of requests for it.
    pub(super) fn settle(&self, grant: GrantId) {
        self.forget(grant);
        self.arriving().remove(&grant);
        self.marks().remove(&grant);
    }

    /// Removes a grant.
    pub(super) fn forget(&self, grant: GrantId) {
        self.session.forget(grant);
        self.writes().remove(&grant);
        self.watched().remove(&grant);
    }

    fn watched(&self) -> MutexGuard<'_, HashMap<GrantId, AbortOnDropHandle<()>>> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Watches the key of a grant that lasts for some time, and notifies its holder if it is broken or gone.
    fn watch(self: &Arc<Self>, keeper: &Arc<Keeper>, grant: GrantId, held: Held) {
        let watching = watch_grant(Arc::downgrade(self), keeper.clone(), grant, held);
        let watching = AbortOnDropHandle::new(keeper.context.runtime.spawn(watching));
        self.watched().insert(grant, watching);
    }

    /// Requests a proof that the lease exists, by a keep-alive that is sent from now on. Returns the time at which it was sent, or `None`
    /// if the lease has ended.
    pub(super) async fn prove(&self, now: BootTime) -> Option<BootTime> {
        let mut proved = self.proved.subscribe();
        self.asked.notify_one();
        tokio::select! {
            biased;
            proved = proved.wait_for(|sent_at| *sent_at >= now) => Some(*proved.ok()?),
            () = self.session.ended().cancelled() => None,
        }
    }

    /// Returns the time left until the deadline.
    pub(super) fn usable(&self, now: BootTime) -> Duration {
        self.session.deadline().since(now)
    }

    /// Ends the lease, as soon as its task runs.
    pub(super) fn give_up(&self) {
        self.over.cancel();
    }

    /// Records that etcd does not know the lease any more.
    pub(super) fn lost(&self) {
        self.session.end();
        self.over.cancel();
    }
}

/// Keeps leases alive.
#[derive(Debug)]
pub(super) struct Keeper {
    pub(super) link: Arc<Link>,
    pub(super) context: EngineContext,
    pub(super) prefix: String,
    pub(super) sessions: Sessions<Lease>,
    pub(super) watches: Arc<Watches>,
    /// Cleanup in the background.
    pub(super) undoing: TaskTracker,
    /// The tasks of the leases.
    keeping: TaskTracker,
    pub(super) closing: CancellationToken,
}

impl Keeper {
    pub(super) fn new(link: Arc<Link>, context: EngineContext, prefix: String) -> Arc<Self> {
        let closing = CancellationToken::new();
        Arc::new(Self {
            watches: Watches::new(link.clone(), context.clone(), closing.clone()),
            link,
            context,
            prefix,
            sessions: Sessions::default(),
            undoing: TaskTracker::new(),
            keeping: TaskTracker::new(),
            closing,
        })
    }

    pub(super) fn now(&self) -> BootTime {
        self.context.clock.now()
    }

    /// Opens a lease for this TTL, and starts to keep it alive.
    pub(super) async fn open(self: &Arc<Self>, ttl: Duration) -> Result<Arc<Lease>, Fault> {
        // `close` waits for this token.
        let _opening = self.keeping.token();
        let wanted = ttl.max(SHORTEST) + MARGIN;
        let sent_at = self.now();
        let granted =
            self.link.grant(i64::try_from(wanted.as_secs()).expect("a ttl is at most a day")).await?;
        // The TTL in etcd's response counts: etcd has a minimum.
        let timeout = Duration::from_secs(granted.ttl.unsigned_abs());
        let lease = Arc::new(Lease {
            id: granted.id,
            session: Session::new(timeout, MARGIN, sent_at),
            asked: Notify::new(),
            proved: watch::Sender::new(sent_at),
            over: CancellationToken::new(),
            watched: Mutex::default(),
            writes: Mutex::default(),
            arriving: Mutex::default(),
            marks: Mutex::default(),
        });
        if self.closing.is_cancelled() {
            lease.give_up();
        }
        self.keeping.spawn_on(self.clone().keep(lease.clone()), &self.context.runtime);
        Ok(lease)
    }

    /// Ends all leases, and with them all their keys.
    pub(super) async fn close(&self) {
        self.closing.cancel();
        self.undoing.close();
        self.undoing.wait().await;
        for lease in self.sessions.all() {
            lease.give_up();
        }
        self.keeping.close();
        self.keeping.wait().await;
    }

    /// Runs the task of a lease.
    async fn keep(self: Arc<Self>, lease: Arc<Lease>) {
        let over = lease.over.clone();
        let _ = over.run_until_cancelled(self.keep_until_gone(&lease)).await;
        lease.session.end();
        // The keys are deleted with the lease, also if it only seemed to be gone.
        if let Err(fault) = self.link.revoke(lease.id).await {
            tracing::debug!(error = %fault.error, "a lease is not revoked, and runs out by itself");
        }
    }

    async fn keep_until_gone(self: &Arc<Self>, lease: &Arc<Lease>) {
        let session = &lease.session;
        let interval = session.timeout() / 3;
        let look = (session.timeout() / LOOKS).min(RAREST_LOOK);
        let mut stream = None;
        let mut due = self.now() + random::slightly_below(interval);
        let mut missing = false;
        loop {
            let now = self.now();
            self.put_out(lease, now);
            tokio::select! {
                biased;
                () = lease.asked.notified() => due = self.now(),
                () = self.context.clock.sleep_until(due.min(now + look)) => {}
            }
            let now = self.now();
            if now < due {
                continue;
            }
            let kept = {
                let mut keeping = pin!(self.keep_alive(lease, &mut stream));
                tokio::select! {
                    biased;
                    kept = &mut keeping => kept,
                    () = self.context.clock.sleep_until(now + interval / 2) => {
                        session.doubt();
                        keeping.await
                    }
                }
            };
            match kept {
                Ok(sent_at) => {
                    missing = false;
                    session.confirm(sent_at);
                    lease.proved.send_replace(sent_at);
                    for (grant, held) in session.begin_to_watch() {
                        lease.watch(self, grant, held);
                    }
                    due = sent_at + random::slightly_below(interval);
                }
                Err(fault) if fault.what == What::LeaseGone && missing => return,
                Err(fault) => {
                    missing = fault.what == What::LeaseGone;
                    stream = None;
                    session.doubt();
                    tracing::debug!(error = %fault.error, "a lease was not kept alive, and is tried again");
                    let pause = if missing {
                        ASK_AGAIN_AFTER
                    } else {
                        random::jittered((interval / 4).min(LONGEST_RETRY))
                    };
                    due = self.now() + pause;
                }
            }
        }
    }

    /// Frees grants that were not renewed in time, and gives up unused leases.
    fn put_out(self: &Arc<Self>, lease: &Arc<Lease>, now: BootTime) {
        for (grant, held) in lease.session.overdue(now) {
            let freeing = self.clone().free(lease.clone(), grant, held.node);
            self.undoing.spawn_on(freeing, &self.context.runtime);
        }
        for idle in self.sessions.idle(now) {
            idle.give_up();
        }
    }

    /// Keeps a lease alive, and proves it. Returns the time at which the keep-alive was sent.
    async fn keep_alive(&self, lease: &Lease, stream: &mut Option<Stream>) -> Result<BootTime, Fault> {
        /// The most changes of the leader in between.
        const CHANGES: usize = 3;
        // A member with a stopped leader gives no answer for long, but reaches the next leader at once.
        let at_most = (lease.session.timeout() / 6).max(SHORTEST_TRY).min(self.link.limit());
        let mut last = None;
        for _ in 0..CHANGES {
            let connection = self.link.connection();
            let once = Box::pin(self.keep_alive_once(lease.id, &connection, stream));
            match self.link.attempt(&connection, self.now() + at_most, once).await {
                Ok(Some(sent_at)) => return Ok(sent_at),
                Ok(None) => {}
                Err(fault) if fault.what.is_silence() || fault.what == What::OldLogin => last = Some(fault),
                Err(fault) => return Err(fault),
            }
        }
        let changes = || {
            Fault::no_answer(
                "the members change their leader too often to prove that a lease stands".to_owned(),
            )
        };
        Err(last.unwrap_or_else(changes))
    }

    /// Returns the time at which the keep-alive was sent, if it is proved.
    async fn keep_alive_once(
        &self,
        id: i64,
        connection: &Connection,
        stream: &mut Option<Stream>,
    ) -> Result<Option<BootTime>, Fault> {
        let fault = |error| Fault::of(&connection.at, &error);
        let ended = || Fault::no_answer(format!("{} has ended a stream of keep-alives", connection.at));
        let sent_at = self.now();
        // Taken out, so that a stream is not used again after an error.
        let mut open = match stream.take().filter(|open| open.number == connection.number) {
            Some(open) => {
                open.calls.requests.send(LeaseId { id }).await.map_err(|_| ended())?;
                open
            }
            None => Stream {
                number: connection.number,
                calls: connection.client.keep_alive(id).await.map_err(fault)?,
            },
        };
        let kept = open.calls.answers.message().await.map_err(fault)?.ok_or_else(ended)?;
        if kept.ttl <= 0 {
            return Err(Fault::lease_gone(&connection.at));
        }
        *stream = Some(open);
        let probe = Get::key(format!("{}{OWN_KEYS}", self.prefix)).count_only();
        let read = connection.client.get(probe).await.map_err(fault)?;
        let (before, after) = (kept.header.as_ref().map(led_by), read.header.as_ref().map(led_by));
        Ok((before.is_some() && before == after).then_some(sent_at))
    }
}

/// Watches the key of a grant until its holder has been notified of a change.
async fn watch_grant(lease: Weak<Lease>, keeper: Arc<Keeper>, grant: GrantId, held: Held) {
    let (node, token) = (held.node.as_str(), held.token.get().cast_signed());
    loop {
        if let Ok(found) = keeper.link.get(Get::key(node).keys_only()).await {
            let Some(lease) = lease.upgrade() else { return };
            match found.kvs.first() {
                Some(kv) if kv.create_revision == token && kv.mod_revision != token => {
                    // The key remains until its holder releases the lock.
                    return held.is_lost(LostReason::Broken);
                }
                Some(kv) if kv.create_revision == token => {}
                _ => {
                    held.is_lost(LostReason::Forgotten);
                    return lease.forget(grant);
                }
            }
            drop(lease);
            let from = found.header.map_or(token, |header| header.revision) + 1;
            let mut change = keeper.watches.watch(node.to_owned(), from, Interest::AnyChange);
            // The task does not rely on the watch alone.
            let look_again = keeper.now() + random::jittered(LOOK_AGAIN);
            tokio::select! {
                woken = change.woken() => if woken == Woken::Changed { continue },
                () = keeper.context.clock.sleep_until(look_again) => continue,
            }
        }
        keeper.context.clock.sleep_until(keeper.now() + random::jittered(LONGEST_RETRY)).await;
    }
}

/// A stream of keep-alives, on one connection.
struct Stream {
    number: u64,
    calls: Calls<LeaseId, LeaseKept>,
}

/// Returns the answering member, and the term of its leader.
fn led_by(header: &Header) -> (u64, u64) {
    (header.member_id, header.raft_term)
}
