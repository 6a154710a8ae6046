//! Sessions, on engines that have them: a session keeps all grants of one TTL alive together, and they end with it.
//!
//! The deadline of a grant counts from the last request that proves that the server keeps the session. The session lasts for as long as the
//! process does, so the engine frees a grant that is not to be renewed when its time is over.

use std::collections::HashMap;
use std::ops::Deref;
#[cfg(feature = "zookeeper")]
use std::sync::Weak;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tenure_table::{FencingToken, GrantId};
use tokio_util::sync::CancellationToken;

use super::kept_value::KeptValue;
use crate::clock::BootTime;
use crate::engine::{AcquireRequest, GrantEvents};
use crate::error::LostReason;
use crate::lease::{Term, Ttl};
use crate::session_lease::SessionLease;

/// A session on the server, and the grants that depend on it.
#[derive(Debug)]
pub(super) struct Session {
    /// The time without a request from this client after which the server ends the session.
    timeout: Duration,
    /// The time by which the deadline of a grant precedes the end of the session on the server.
    margin: Duration,
    ended: CancellationToken,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The time at which the last request was sent that proves that the server keeps the session.
    confirmed: BootTime,
    lease: SessionLease,
    held: HashMap<GrantId, Held>,
    /// The number of operations under way in the session.
    users: usize,
    /// The time at which the session was first seen to be unused.
    unused_since: Option<BootTime>,
}

/// A grant.
#[derive(Clone, Debug)]
pub(super) struct Held {
    /// The entry for the grant on the server.
    pub(super) node: String,
    pub(super) token: FencingToken,
    /// The lock's value, if it carries this grant's mark.
    pub(super) marked: Option<KeptValue>,
    /// Locked while the grant writes: the entry on the server is freed only after the write.
    #[cfg(feature = "zookeeper")]
    pub(super) writing: Arc<tokio::sync::Mutex<()>>,
    events: GrantEvents,
    /// The end of a grant that does not last as long as the session.
    ends: Option<BootTime>,
    /// Whether the entry on the server is watched; only for a grant that lasts as long as the session.
    watched: bool,
}

impl Held {
    /// Notifies the holder that the grant is lost.
    pub(super) fn is_lost(&self, reason: LostReason) {
        self.events.lost(reason);
    }
}

/// Returns the deadline of the grants in a session.
fn deadline(confirmed: BootTime, ttl: Duration, margin: Duration) -> BootTime {
    Term::Lease { sent_at: confirmed, ttl, margin }.deadline().unwrap_or(confirmed)
}

impl State {
    fn in_use(&self) -> bool {
        self.users > 0 || !self.held.is_empty()
    }
}

impl Session {
    pub(super) fn new(timeout: Duration, margin: Duration, confirmed: BootTime) -> Self {
        let lease = SessionLease::new(deadline(confirmed, timeout, margin));
        let state = State { confirmed, lease, held: HashMap::new(), users: 0, unused_since: None };
        Self { timeout, margin, ended: CancellationToken::new(), state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Cancelled when the session has ended.
    pub(super) const fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    /// Records that the server keeps the session: it has processed a request that was sent at this instant.
    pub(super) fn confirm(&self, sent_at: BootTime) {
        let mut state = self.state();
        state.confirmed = state.confirmed.max(sent_at);
        let (lease, confirmed) = (state.lease.clone(), state.confirmed);
        drop(state);
        lease.confirm(deadline(confirmed, self.timeout, self.margin));
    }

    /// Records that a renewal failed and is being retried.
    pub(super) fn doubt(&self) {
        let lease = self.state().lease.clone();
        lease.doubt();
    }

    /// Returns the deadline of the grants in this session.
    pub(super) fn deadline(&self) -> BootTime {
        deadline(self.state().confirmed, self.timeout, self.margin)
    }

    /// Returns the term of a grant: its own lease if it has an end, else the session's.
    fn term(&self, state: &State, ends: Option<BootTime>) -> Term {
        match ends {
            Some(_) => Term::Lease { sent_at: state.confirmed, ttl: self.timeout, margin: self.margin },
            None => Term::Session(state.lease.clone()),
        }
    }

    /// Records the grant of a request. Returns `None`, and records nothing, if the session has ended.
    pub(super) fn keep(
        &self,
        request: &AcquireRequest,
        node: String,
        token: FencingToken,
        marked: Option<KeptValue>,
    ) -> Option<Term> {
        let mut state = self.state();
        if self.ended.is_cancelled() {
            return None;
        }
        let ends = (!request.renews).then(|| state.confirmed + self.timeout);
        let held = Held {
            node,
            token,
            marked,
            #[cfg(feature = "zookeeper")]
            writing: Arc::default(),
            events: request.events.clone(),
            ends,
            watched: false,
        };
        state.held.insert(request.grant, held);
        Some(self.term(&state, ends))
    }

    /// Returns the grant with this id.
    pub(super) fn held(&self, grant: GrantId) -> Option<Held> {
        self.state().held.get(&grant).cloned()
    }

    /// Renews a grant that was found to exist: its end is one timeout after the last confirmation.
    pub(super) fn renewed(&self, grant: GrantId) -> Option<Term> {
        let mut state = self.state();
        let until = state.confirmed + self.timeout;
        let held = state.held.get_mut(&grant)?;
        held.ends = held.ends.map(|_| until);
        let ends = held.ends;
        Some(self.term(&state, ends))
    }

    /// Records that the lock's value carries this grant's mark, or no longer does.
    pub(super) fn mark(&self, grant: GrantId, value: Option<KeptValue>) {
        if let Some(held) = self.state().held.get_mut(&grant) {
            held.marked = value;
        }
    }

    /// Removes a grant.
    pub(super) fn forget(&self, grant: GrantId) -> Option<Held> {
        self.state().held.remove(&grant)
    }

    /// Returns the grants that last as long as the session and are not watched yet, and records them as watched.
    pub(super) fn begin_to_watch(&self) -> Vec<(GrantId, Held)> {
        let mut state = self.state();
        let new = state.held.iter_mut().filter(|(_, held)| held.ends.is_none() && !held.watched);
        new.map(|(grant, held)| {
            held.watched = true;
            (*grant, held.clone())
        })
        .collect()
    }

    /// Returns the total length of the names of the nodes that are watched, or are to be.
    #[cfg(feature = "zookeeper")]
    pub(super) fn watched_bytes(&self) -> usize {
        self.state().held.values().filter(|held| held.ends.is_none()).map(|held| held.node.len()).sum()
    }

    /// Removes and returns the grants whose time is over.
    pub(super) fn overdue(&self, now: BootTime) -> Vec<(GrantId, Held)> {
        self.state().held.extract_if(|_, held| held.ends.is_some_and(|ends| ends <= now)).collect()
    }

    /// Ends the session and notifies the holders of all its grants that they are lost.
    pub(super) fn end(&self) {
        let mut state = self.state();
        self.ended.cancel();
        let lost: Vec<_> = state.held.drain().map(|(_, held)| held).collect();
        drop(state);
        for held in lost {
            held.events.lost(LostReason::Disconnected);
        }
    }

    /// Whether the session has a grant or an operation under way.
    #[cfg(feature = "zookeeper")]
    pub(super) fn in_use(&self) -> bool {
        self.state().in_use()
    }

    /// Whether the session has been unused for the time after which it is closed.
    fn is_idle(&self, now: BootTime) -> bool {
        let mut state = self.state();
        if state.in_use() {
            state.unused_since = None;
            return false;
        }
        *state.unused_since.get_or_insert(now) + IDLE <= now
    }
}

/// A type with a session.
pub(super) trait HasSession {
    fn session(&self) -> &Session;

    /// Whether there is room for one more waiter.
    fn has_room(&self) -> bool {
        true
    }
}

/// The sessions of a client: one for each requested TTL, and more where one is full.
#[derive(Debug)]
pub(super) struct Sessions<S> {
    present: Mutex<HashMap<Duration, Vec<Arc<S>>>>,
    /// Held while a session is opened: one at a time.
    opening: tokio::sync::Mutex<()>,
}

/// The time after which an unused session is closed.
const IDLE: Duration = Duration::from_mins(1);

impl<S> Default for Sessions<S> {
    fn default() -> Self {
        Self { present: Mutex::default(), opening: tokio::sync::Mutex::default() }
    }
}

impl<S: HasSession> Sessions<S> {
    fn present(&self) -> MutexGuard<'_, HashMap<Duration, Vec<Arc<S>>>> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a session of this TTL that has not ended and that satisfies the predicate.
    pub(super) fn find(&self, ttl: Ttl, fits: impl Fn(&S) -> bool) -> Option<InUse<S>> {
        let present = self.present();
        let stands = |found: &&Arc<S>| !found.session().ended.is_cancelled() && fits(found);
        present.get(&whole_seconds(ttl))?.iter().find(stands).map(InUse::of)
    }

    /// Returns all sessions of this TTL that have not ended.
    #[cfg(feature = "zookeeper")]
    pub(super) fn every(&self, ttl: Ttl) -> Vec<InUse<S>> {
        let present = self.present();
        let standing = present.get(&whole_seconds(ttl)).into_iter().flatten();
        standing.filter(|found| !found.session().ended.is_cancelled()).map(InUse::of).collect()
    }

    /// Returns an existing session of this TTL that has room.
    pub(super) fn of(&self, ttl: Ttl) -> Option<InUse<S>> {
        self.find(ttl, S::has_room)
    }

    /// Returns a session of this TTL that has room, and opens one if there is none.
    pub(super) async fn open<E>(
        &self,
        ttl: Ttl,
        open: impl AsyncFnOnce(Duration) -> Result<Arc<S>, E>,
    ) -> Result<InUse<S>, E> {
        if let Some(found) = self.of(ttl) {
            return Ok(found);
        }
        let _one_at_a_time = self.opening.lock().await;
        if let Some(found) = self.of(ttl) {
            return Ok(found);
        }
        let opened = open(whole_seconds(ttl)).await?;
        opened.session().state().users += 1;
        let mut present = self.present();
        let of_ttl = present.entry(whole_seconds(ttl)).or_default();
        of_ttl.retain(|session| !session.session().ended.is_cancelled());
        of_ttl.push(opened.clone());
        drop(present);
        Ok(InUse(opened))
    }

    /// Returns the session that has this grant, and the grant.
    pub(super) fn with(&self, grant: GrantId, ttl: Ttl) -> Option<(InUse<S>, Held)> {
        let session = self.find(ttl, |found| found.session().held(grant).is_some())?;
        let held = session.session().held(grant)?;
        Some((session, held))
    }

    /// Removes and returns the sessions that are no longer used.
    pub(super) fn idle(&self, now: BootTime) -> Vec<Arc<S>> {
        let is_idle = |session: &S| session.session().is_idle(now);
        let mut present = self.present();
        let idle =
            present.values_mut().flat_map(|some| some.extract_if(.., |session| is_idle(session))).collect();
        present.retain(|_, some| !some.is_empty());
        idle
    }

    /// Removes and returns all sessions.
    pub(super) fn all(&self) -> Vec<Arc<S>> {
        self.present().drain().flat_map(|(_, some)| some).collect()
    }
}

/// Rounds a TTL up to whole seconds, so that a client with many TTLs has fewer sessions.
fn whole_seconds(ttl: Ttl) -> Duration {
    Duration::from_secs(
        ttl.get().as_nanos().div_ceil(1_000_000_000).try_into().expect("a ttl is at most a day"),
    )
}

/// A session with an operation under way.
#[derive(Debug)]
pub(super) struct InUse<S: HasSession>(Arc<S>);

impl<S: HasSession> InUse<S> {
    fn of(session: &Arc<S>) -> Self {
        let mut state = session.session().state();
        state.users += 1;
        state.unused_since = None;
        drop(state);
        Self(session.clone())
    }
}

impl<S: HasSession> InUse<S> {
    /// Returns a reference that still counts as a use of the session, but does not keep it from being closed.
    #[cfg(feature = "zookeeper")]
    pub(super) fn downgrade(self) -> WeakInUse<S> {
        self.0.session().state().users += 1;
        WeakInUse(Arc::downgrade(&self.0))
    }
}

/// A use of a session by an operation that ends with the session.
#[cfg(feature = "zookeeper")]
#[derive(Debug)]
pub(super) struct WeakInUse<S: HasSession>(Weak<S>);

#[cfg(feature = "zookeeper")]
impl<S: HasSession> Drop for WeakInUse<S> {
    fn drop(&mut self) {
        if let Some(session) = self.0.upgrade() {
            session.session().state().users -= 1;
        }
    }
}

impl<S: HasSession> Deref for InUse<S> {
    type Target = Arc<S>;

    fn deref(&self) -> &Arc<S> {
        &self.0
    }
}

impl<S: HasSession> Drop for InUse<S> {
    fn drop(&mut self) {
        self.0.session().state().users -= 1;
    }
}

#[cfg(test)]
mod tests {
    use tenure_table::LockName;

    use super::*;
    use crate::random;

    const SECOND: Duration = Duration::from_secs(1);

    impl HasSession for Session {
        fn session(&self) -> &Session {
            self
        }
    }

    fn session(now: BootTime) -> Session {
        Session::new(SECOND * 10, SECOND, now)
    }

    fn keep(session: &Session, grant: GrantId, renews: bool) -> Option<Term> {
        let mut request = AcquireRequest::new(LockName::parse("a").unwrap());
        (request.grant, request.renews) = (grant, renews);
        session.keep(&request, "node".into(), FencingToken::new(1), None)
    }

    #[test]
    fn belief_counts_from_what_proves_that_the_server_keeps_it() {
        let start = BootTime::now();
        let (session, grant) = (session(start), random::grant_id());
        let term = keep(&session, grant, true).unwrap();
        assert_eq!(term.deadline(), Some(session.deadline()));
        session.confirm(start + SECOND * 3);
        session.confirm(start + SECOND);
        let confirmed = Term::Lease { sent_at: start + SECOND * 3, ttl: SECOND * 10, margin: SECOND };
        assert_eq!(term.deadline(), confirmed.deadline(), "an old answer takes nothing away");
    }

    #[test]
    fn a_grant_that_is_not_renewed_is_overdue_also_if_the_session_goes_on() {
        let start = BootTime::now();
        let (session, idle, busy) = (session(start), random::grant_id(), random::grant_id());
        let lasting = random::grant_id();
        keep(&session, idle, false).unwrap();
        keep(&session, busy, false).unwrap();
        keep(&session, lasting, true).unwrap();
        session.confirm(start + SECOND * 6);
        session.renewed(busy).unwrap();
        assert!(session.overdue(start + SECOND * 9).is_empty());
        assert_eq!(session.overdue(start + SECOND * 10).len(), 1);
        assert!(session.held(idle).is_none() && session.held(busy).is_some());
        assert!(session.held(lasting).is_some(), "it lives as long as the session");
        assert!(session.renewed(idle).is_none(), "what is gone is not renewed");
    }

    #[test]
    fn nothing_is_kept_by_one_that_has_ended() {
        let session = session(BootTime::now());
        let grant = random::grant_id();
        keep(&session, grant, true).unwrap();
        session.end();
        assert!(session.held(grant).is_none() && keep(&session, grant, true).is_none());
    }

    #[tokio::test]
    async fn one_that_has_ended_is_replaced() {
        let (sessions, now) = (Sessions::<Session>::default(), BootTime::now());
        let open = async |_| Ok::<_, ()>(Arc::new(session(now)));
        let (first, grant) = (sessions.open(Ttl::DEFAULT, open).await.unwrap(), random::grant_id());
        first.end();
        let second = sessions.open(Ttl::DEFAULT, open).await.unwrap();
        assert!(!Arc::ptr_eq(&first, &second));
        keep(&second, grant, true).unwrap();
        let (found, _) = sessions.with(grant, Ttl::DEFAULT).unwrap();
        assert!(Arc::ptr_eq(&second, &found));
        assert_eq!(sessions.all().len(), 1);
    }

    #[tokio::test]
    async fn there_is_one_for_each_ttl_until_nobody_uses_it() {
        let (sessions, start) = (Sessions::<Session>::default(), BootTime::now());
        let ttl = |ms| Ttl::new(Duration::from_millis(ms)).unwrap();
        let open = async |_| Ok::<_, ()>(Arc::new(session(start)));
        let first = sessions.open(ttl(2500), open).await.unwrap();
        let same = sessions.open(ttl(3000), open).await.unwrap();
        let other = sessions.open(ttl(3001), open).await.unwrap();
        assert!(Arc::ptr_eq(&first, &same) && !Arc::ptr_eq(&first, &other));
        keep(other.session(), random::grant_id(), true).unwrap();
        let later = start + IDLE * 2;
        assert!(sessions.idle(later).is_empty(), "they are in use");
        drop((first, same, other));
        assert!(sessions.idle(start + IDLE / 2).is_empty(), "they were in use just now");
        assert_eq!(sessions.idle(later).len(), 1, "the other one has a grant");
        assert!(sessions.of(ttl(2500)).is_none());
    }
}
