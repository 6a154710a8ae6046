//! Read-only views of a table: for tools, for a new leader, and for a client that reconnects. The table decides nothing by them.

use std::collections::BinaryHeap;

use crate::label::Label;

use crate::arena::Place;
use crate::lock::{Holder, Lock, Queued};
use crate::resource::Resource;
use crate::table::Table;
use crate::{CycleMember, FencingToken, GrantId, LockName, Mode, Outcome, OwnerId, SessionId, Value};

/// A resource with its holders and waiters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceView {
    /// Its name.
    pub name: LockName,
    /// The holders, in the order of their grants. A holder that waits for a conversion is listed in its old mode.
    pub holders: Vec<HolderView>,
    /// The waiting conversions, in queue order.
    pub converters: Vec<WaiterView>,
    /// The waiting requests, in queue order, behind the conversions.
    pub waiters: Vec<WaiterView>,
    /// The lock-delays of expired holders, in the order of their grants.
    pub delays: Vec<DelayView>,
    /// Its value.
    pub value: Value,
    /// How long ago the recorded start was.
    pub started_ago_ms: Option<u64>,
}

/// A holder of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderView {
    /// The grant.
    pub grant: GrantId,
    /// The owner.
    pub owner: OwnerId,
    /// The session that keeps the grant alive.
    pub session: SessionId,
    /// The mode that is held.
    pub mode: Mode,
    /// The fencing token.
    pub token: FencingToken,
    /// The holder's label.
    pub label: Option<Label>,
    /// When it was granted, by the table's time.
    pub since_ms: u64,
    /// The lock-delay if the session expires.
    pub lock_delay_ms: u64,
    /// Whether the holder is notified when a conflicting request waits behind it.
    pub notify: bool,
    /// Whether an operator has asked for its release.
    pub let_go: bool,
}

/// A waiting request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaiterView {
    /// The grant that the request is for, or that it converts.
    pub grant: GrantId,
    /// The owner.
    pub owner: OwnerId,
    /// The session that keeps the request alive.
    pub session: SessionId,
    /// The number of the request.
    pub number: u64,
    /// The requested mode.
    pub mode: Mode,
    /// The waiter's label.
    pub label: Option<Label>,
    /// When it queued, by the table's time.
    pub since_ms: u64,
    /// How many locks the request is for.
    pub together: u32,
}

/// The lock-delay of an expired grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DelayView {
    /// The expired grant.
    pub grant: GrantId,
    /// The resource.
    pub name: LockName,
    /// The mode that is still unavailable to others.
    pub mode: Mode,
    /// The full length of the lock-delay.
    pub for_ms: u64,
    /// When it began, by the table's time.
    pub since_ms: u64,
}

/// A session, for a leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionView {
    /// The session's id.
    pub session: SessionId,
    /// Its epoch: an expiry must name it.
    pub epoch: u64,
    /// Its TTL.
    pub ttl_ms: u64,
    /// The client's label.
    pub label: Option<Label>,
    /// How many locks it holds or waits for.
    pub locks: u32,
}

/// A session with everything that its client may have missed while it was not connected. A grant that the client knows and that is missing
/// here is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionState {
    /// Its epoch: an expiry must name it.
    pub epoch: u64,
    /// The locks it holds, by grant.
    pub held: Vec<HeldView>,
    /// The requests that wait, by number and then by grant.
    pub waiting: Vec<WaitingView>,
    /// The final answers, not yet acknowledged, to requests that have waited. Sorted by number.
    pub settled: Vec<(u64, Outcome)>,
    /// The resources it observes, by name.
    pub observed: Vec<LockName>,
}

/// A lock that a session holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldView {
    /// The resource.
    pub name: LockName,
    /// The grant.
    pub holder: HolderView,
    /// The waiting modes that conflict with this one, if the holder asked for notices.
    pub wanted: Vec<Mode>,
}

/// A lock or a mode that a session waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingView {
    /// The resource.
    pub name: LockName,
    /// The place in line.
    pub waiter: WaiterView,
}

/// One step in the chain of requests that a waiter waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// The request that waits, and what it waits for.
    pub waiter: CycleMember,
    /// The first thing it waits for.
    pub behind: Behind,
}

/// Why a request waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Behind {
    /// The resource is held in a conflicting mode.
    Holder(HolderView),
    /// Another request is ahead in the queue.
    Ahead(CycleMember),
    /// A lock-delay is not over.
    Delay(DelayView),
    /// No other owner: the request waits at another of its locks, or another request of its owner is further ahead.
    Itself,
}

impl Table {
    /// Returns a resource, or `None` if the table does not know the name.
    pub fn inspect(&self, name: &LockName) -> Option<ResourceView> {
        Some(self.resource_view(self.names.find(&self.resources, name)?))
    }

    /// Returns a page of a list: the first `limit` resources after `after` whose names start with `prefix`, in the order of their names. A
    /// resource is listed if it has a holder, a lock-delay or a waiting request. A page that is not full is the last. Reads every resource.
    pub fn list(&self, prefix: &str, after: Option<&LockName>, limit: usize) -> Vec<ResourceView> {
        // The first names so far. The heap's top is the last of them.
        let mut page = BinaryHeap::new();
        for place in self.resources.places() {
            let resource = &self.resources[place];
            let name = resource.name();
            let listed = name.as_str().starts_with(prefix)
                && after.is_none_or(|after| name > after)
                && (!resource.held.is_empty() || resource.in_line() > 0);
            if listed && page.len() < limit {
                page.push(name);
            } else if listed
                && let Some(mut last) = page.peek_mut()
                && name < *last
            {
                *last = name;
            }
        }
        page.into_sorted_vec().into_iter().filter_map(|name| self.inspect(name)).collect()
    }

    /// Returns a session with its locks, requests and answers.
    pub fn session_state(&self, session: SessionId) -> Option<SessionState> {
        let session = &self.sessions[self.session(session)?];
        let (mut held, mut waiting) = (Vec::new(), Vec::new());
        for place in session.locks.iter(&self.locks) {
            let lock = &self.locks[place];
            let resource = &self.resources[lock.resource];
            if lock.held
                && let Some(holder) = lock.holder
            {
                let all = resource.rest.iter().flat_map(|rest| rest.wanted.modes());
                let wanted = all.filter(|mode| lock.notify && !lock.mode.compatible_with(*mode)).collect();
                held.push(HeldView {
                    name: resource.name().clone(),
                    holder: self.holder_view(place, holder),
                    wanted,
                });
            }
            if let Some(queued) = lock.queued {
                waiting.push(WaitingView { name: resource.name().clone(), waiter: self.waiter_view(queued) });
            }
        }
        held.sort_by_key(|view| view.holder.grant);
        waiting.sort_by_key(|view| (view.waiter.number, view.waiter.grant));
        Some(SessionState {
            epoch: session.epoch,
            held,
            waiting,
            settled: session.memory.late.iter().map(|(number, answer)| (*number, answer.outcome())).collect(),
            observed: session.observed.iter().cloned().collect(),
        })
    }

    /// Returns the chain of requests behind this one: what it waits for, what that request waits for, and so on. The chain ends at an owner
    /// that does not wait, or at a request that was already met. If a request waits for several, the chain follows a holder first, or else
    /// the request at the head of the queue.
    pub fn waits_for(&self, grant: GrantId) -> Vec<Link> {
        let (mut chain, mut met) = (Vec::new(), Vec::new());
        let lock = self.grants.find(&self.locks, &grant);
        let mut next = lock.and_then(|lock| self.locks[lock].queued);
        while let Some(queued) = next
            && !met.contains(&queued)
        {
            met.push(queued);
            let (behind, after) = self.behind(queued);
            chain.push(Link { waiter: self.cycle_member(queued), behind });
            next = after;
        }
        chain
    }

    /// Returns all sessions, by id.
    pub fn sessions(&self) -> Vec<SessionView> {
        let mut all: Vec<_> = self
            .sessions
            .places()
            .map(|place| {
                let session = &self.sessions[place];
                SessionView {
                    session: session.id(),
                    epoch: session.epoch,
                    ttl_ms: session.ttl_ms,
                    label: session.label.clone(),
                    locks: session.lock_count,
                }
            })
            .collect();
        all.sort_by_key(|view| view.session);
        all
    }

    /// Returns all lock-delays, by grant. Reads every lock.
    pub fn delays(&self) -> Vec<DelayView> {
        let places = self.locks.places().filter(|place| self.locks[*place].holder.is_none());
        let mut all: Vec<_> = places.map(|place| self.delay_view(place)).collect();
        all.sort_by_key(|view| view.grant);
        all
    }

    fn resource_view(&self, place: Place<Resource>) -> ResourceView {
        let resource = &self.resources[place];
        let (mut holders, mut delays) = (Vec::new(), Vec::new());
        for lock in resource.held.iter(&self.locks) {
            match self.locks[lock].holder {
                Some(holder) => holders.push(self.holder_view(lock, holder)),
                None => delays.push(self.delay_view(lock)),
            }
        }
        let (mut converters, mut waiters) = (Vec::new(), Vec::new());
        if let Some(rest) = &resource.rest {
            converters.extend(rest.converting.iter(&self.queued).map(|queued| self.waiter_view(queued)));
            waiters.extend(rest.waiting.iter(&self.queued).map(|queued| self.waiter_view(queued)));
        }
        ResourceView {
            name: resource.name().clone(),
            holders,
            converters,
            waiters,
            delays,
            value: resource.value().into(),
            started_ago_ms: self.started_ago(place),
        }
    }

    pub(crate) fn holder_view(&self, lock: Place<Lock>, holder: Holder) -> HolderView {
        let lock = &self.locks[lock];
        HolderView {
            grant: lock.grant,
            owner: self.owner_id(lock, holder),
            session: self.sessions[holder.session].id(),
            mode: lock.mode,
            token: lock.token,
            label: lock.label().cloned(),
            since_ms: lock.since_ms,
            lock_delay_ms: lock.lock_delay_ms(),
            notify: lock.notify,
            let_go: lock.let_go,
        }
    }

    pub(crate) fn delay_view(&self, lock: Place<Lock>) -> DelayView {
        let lock = &self.locks[lock];
        DelayView {
            grant: lock.grant,
            name: self.resources[lock.resource].name().clone(),
            mode: lock.mode,
            for_ms: lock.lock_delay_ms(),
            since_ms: lock.since_ms,
        }
    }

    fn waiter_view(&self, queued: Place<Queued>) -> WaiterView {
        let queued = &self.queued[queued];
        let lock = &self.locks[queued.lock];
        let holder = lock.holder.expect("a waiter is somebody");
        let together = queued.set.map_or(1, |set| self.sets[set].places.len());
        WaiterView {
            grant: lock.grant,
            owner: self.owner_id(lock, holder),
            session: self.sessions[holder.session].id(),
            number: queued.number,
            mode: queued.mode,
            label: lock.label().cloned(),
            since_ms: queued.since_ms,
            together: u32::try_from(together).expect("a request has fewer items than its limit"),
        }
    }
}
