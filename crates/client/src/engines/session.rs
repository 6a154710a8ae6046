//! Sessions, on engines that have them: what keeps all grants of one ttl alive together, and takes them along when it ends.
//!
//! A grant is believed in from the last request that proves that the server still keeps the session. The session goes on for as long as the
//! process does, so a grant that is not to be renewed is freed by us, when its time is over.

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

/// What a server keeps for us, and what hangs on it.
#[derive(Debug)]
pub(super) struct Session {
    /// After that long without a word from us, the server ends it.
    timeout: Duration,
    /// How long before that belief must have ended.
    margin: Duration,
    ended: CancellationToken,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// When the last request was sent that proves that the server keeps it.
    confirmed: BootTime,
    lease: SessionLease,
    held: HashMap<GrantId, Held>,
    /// How many operations are under way in it.
    users: usize,
    /// When it was first seen to be used by nobody.
    unused_since: Option<BootTime>,
}

/// A grant.
#[derive(Clone, Debug)]
pub(super) struct Held {
    /// What stands for it on the server.
    pub(super) node: String,
    pub(super) token: FencingToken,
    /// The lock's value, if it is marked as this grant's to write.
    pub(super) marked: Option<KeptValue>,
    /// Locked while the grant writes: what stands for it is freed after that.
    #[cfg(feature = "zookeeper")]
    pub(super) writing: Arc<tokio::sync::Mutex<()>>,
    events: GrantEvents,
    /// When it ends if it does not live as long as the session.
    ends: Option<BootTime>,
    /// Whether what stands for it is watched: of a grant that lasts.
    watched: bool,
}

impl Held {
    /// Its holder is told that it is lost.
    pub(super) fn is_lost(&self, reason: LostReason) {
        self.events.lost(reason);
    }
}

/// Until when a session is believed in.
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

    /// Raised when it has ended.
    pub(super) const fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    /// The server keeps it: it has taken in a request that was sent at this instant.
    pub(super) fn confirm(&self, sent_at: BootTime) {
        let mut state = self.state();
        state.confirmed = state.confirmed.max(sent_at);
        let (lease, confirmed) = (state.lease.clone(), state.confirmed);
        drop(state);
        lease.confirm(deadline(confirmed, self.timeout, self.margin));
    }

    /// It could not be confirmed, and that is tried again.
    pub(super) fn doubt(&self) {
        let lease = self.state().lease.clone();
        lease.doubt();
    }

    /// Until when its grants may be believed in.
    pub(super) fn deadline(&self) -> BootTime {
        deadline(self.state().confirmed, self.timeout, self.margin)
    }

    /// What may be believed of a grant.
    fn term(&self, state: &State, ends: Option<BootTime>) -> Term {
        match ends {
            Some(_) => Term::Lease { sent_at: state.confirmed, ttl: self.timeout, margin: self.margin },
            None => Term::Session(state.lease.clone()),
        }
    }

    /// From now on, this is the request's grant; or it has ended, and nothing is.
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

    /// Its grant of this id.
    pub(super) fn held(&self, grant: GrantId) -> Option<Held> {
        self.state().held.get(&grant).cloned()
    }

    /// A grant was found to stand: it goes on for as long as what is confirmed.
    pub(super) fn renewed(&self, grant: GrantId) -> Option<Term> {
        let mut state = self.state();
        let until = state.confirmed + self.timeout;
        let held = state.held.get_mut(&grant)?;
        held.ends = held.ends.map(|_| until);
        let ends = held.ends;
        Some(self.term(&state, ends))
    }

    /// The lock's value is marked as this grant's, or no longer.
    pub(super) fn mark(&self, grant: GrantId, value: Option<KeptValue>) {
        if let Some(held) = self.state().held.get_mut(&grant) {
            held.marked = value;
        }
    }

    /// It is no grant any more.
    pub(super) fn forget(&self, grant: GrantId) -> Option<Held> {
        self.state().held.remove(&grant)
    }

    /// The grants that live as long as the session, and are not watched yet: from now on they are.
    pub(super) fn begin_to_watch(&self) -> Vec<(GrantId, Held)> {
        let mut state = self.state();
        let new = state.held.iter_mut().filter(|(_, held)| held.ends.is_none() && !held.watched);
        new.map(|(grant, held)| {
            held.watched = true;
            (*grant, held.clone())
        })
        .collect()
    }

    /// How long the names of the nodes are together that are watched, or are to be.
    #[cfg(feature = "zookeeper")]
    pub(super) fn watched_bytes(&self) -> usize {
        self.state().held.values().filter(|held| held.ends.is_none()).map(|held| held.node.len()).sum()
    }

    /// Takes out those whose time is over.
    pub(super) fn overdue(&self, now: BootTime) -> Vec<(GrantId, Held)> {
        self.state().held.extract_if(|_, held| held.ends.is_some_and(|ends| ends <= now)).collect()
    }

    /// It has ended, and all that it held is lost.
    pub(super) fn end(&self) {
        let mut state = self.state();
        self.ended.cancel();
        let lost: Vec<_> = state.held.drain().map(|(_, held)| held).collect();
        drop(state);
        for held in lost {
            held.events.lost(LostReason::Disconnected);
        }
    }

    /// Whether somebody holds by it, or something is under way in it.
    #[cfg(feature = "zookeeper")]
    pub(super) fn in_use(&self) -> bool {
        self.state().in_use()
    }

    /// Whether nobody has used it for long.
    fn is_idle(&self, now: BootTime) -> bool {
        let mut state = self.state();
        if state.in_use() {
            state.unused_since = None;
            return false;
        }
        *state.unused_since.get_or_insert(now) + IDLE <= now
    }
}

/// What has a session.
pub(super) trait HasSession {
    fn session(&self) -> &Session;

    /// Whether it has room for one more who waits.
    fn has_room(&self) -> bool {
        true
    }
}

/// The sessions of a client: one for each ttl that is asked for, and more where one is full.
#[derive(Debug)]
pub(super) struct Sessions<S> {
    present: Mutex<HashMap<Duration, Vec<Arc<S>>>>,
    /// One is opened at a time.
    opening: tokio::sync::Mutex<()>,
}

/// One that is not used for so long is given up.
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

    /// One of this ttl that stands, and of which this is true.
    pub(super) fn find(&self, ttl: Ttl, fits: impl Fn(&S) -> bool) -> Option<InUse<S>> {
        let present = self.present();
        let stands = |found: &&Arc<S>| !found.session().ended.is_cancelled() && fits(found);
        present.get(&whole_seconds(ttl))?.iter().find(stands).map(InUse::of)
    }

    /// All of this ttl that stand.
    #[cfg(feature = "zookeeper")]
    pub(super) fn every(&self, ttl: Ttl) -> Vec<InUse<S>> {
        let present = self.present();
        let standing = present.get(&whole_seconds(ttl)).into_iter().flatten();
        standing.filter(|found| !found.session().ended.is_cancelled()).map(InUse::of).collect()
    }

    /// One of this ttl with room in it, if it is there.
    pub(super) fn of(&self, ttl: Ttl) -> Option<InUse<S>> {
        self.find(ttl, S::has_room)
    }

    /// One of this ttl with room in it, which is opened if there is none.
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

    /// The one that has this grant.
    pub(super) fn with(&self, grant: GrantId, ttl: Ttl) -> Option<(InUse<S>, Held)> {
        let session = self.find(ttl, |found| found.session().held(grant).is_some())?;
        let held = session.session().held(grant)?;
        Some((session, held))
    }

    /// Takes out those that nobody uses any more.
    pub(super) fn idle(&self, now: BootTime) -> Vec<Arc<S>> {
        let is_idle = |session: &S| session.session().is_idle(now);
        let mut present = self.present();
        let idle =
            present.values_mut().flat_map(|some| some.extract_if(.., |session| is_idle(session))).collect();
        present.retain(|_, some| !some.is_empty());
        idle
    }

    /// Takes out all.
    pub(super) fn all(&self) -> Vec<Arc<S>> {
        self.present().drain().flat_map(|(_, some)| some).collect()
    }
}

/// So that a client with many ttls does not have as many sessions.
fn whole_seconds(ttl: Ttl) -> Duration {
    Duration::from_secs(
        ttl.get().as_nanos().div_ceil(1_000_000_000).try_into().expect("a ttl is at most a day"),
    )
}

/// A session in which something is under way.
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
    /// It is still in use, and may be closed meanwhile.
    #[cfg(feature = "zookeeper")]
    pub(super) fn downgrade(self) -> WeakInUse<S> {
        self.0.session().state().users += 1;
        WeakInUse(Arc::downgrade(&self.0))
    }
}

/// A session in which something is under way that ends with it.
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
