//! What can be seen of a table: for tools, for a leader that has just come, and for a client that reconnects. Nothing is decided by it.

use std::collections::BinaryHeap;

use crate::label::Label;

use crate::arena::Place;
use crate::lock::{Holder, Lock, Queued};
use crate::resource::Resource;
use crate::table::Table;
use crate::{CycleMember, FencingToken, GrantId, LockName, Mode, Outcome, OwnerId, SessionId, Value};

/// A resource, with who holds it and who waits for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceView {
    /// Its name.
    pub name: LockName,
    /// Who holds it, in the order of the grants. Those who convert are here too, in their old mode.
    pub holders: Vec<HolderView>,
    /// Who waits for another mode, in line.
    pub converters: Vec<WaiterView>,
    /// Who waits for it, in line behind those.
    pub waiters: Vec<WaiterView>,
    /// What dead holders left standing, in the order of their grants.
    pub delays: Vec<DelayView>,
    /// Its value.
    pub value: Value,
    /// How long ago the last start was that it remembers.
    pub started_ago_ms: Option<u64>,
}

/// Somebody who holds a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderView {
    /// Which grant.
    pub grant: GrantId,
    /// Whose.
    pub owner: OwnerId,
    /// On whose life it hangs.
    pub session: SessionId,
    /// The mode that is held.
    pub mode: Mode,
    /// The fencing token.
    pub token: FencingToken,
    /// What the holder called itself.
    pub label: Option<Label>,
    /// Since when it is held, by the table's time.
    pub since_ms: u64,
    /// Its lock-delay.
    pub lock_delay_ms: u64,
    /// Whether its holder is told when somebody waits behind it.
    pub notify: bool,
    /// Whether an operator has asked it to let go.
    pub let_go: bool,
}

/// Somebody who waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaiterView {
    /// Which grant is to come of it, or to be converted.
    pub grant: GrantId,
    /// For whom.
    pub owner: OwnerId,
    /// On whose life it hangs.
    pub session: SessionId,
    /// The number of the request.
    pub number: u64,
    /// The mode that is wanted.
    pub mode: Mode,
    /// What it called itself.
    pub label: Option<Label>,
    /// Since when it waits, by the table's time.
    pub since_ms: u64,
    /// For how many locks the request waits, if it is for several at once.
    pub together: u32,
}

/// What a dead grant left standing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DelayView {
    /// The dead grant.
    pub grant: GrantId,
    /// The resource.
    pub name: LockName,
    /// The mode that still stands.
    pub mode: Mode,
    /// For how long in all.
    pub for_ms: u64,
    /// Since when, by the table's time.
    pub since_ms: u64,
}

/// A session, as a leader needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionView {
    /// Which.
    pub session: SessionId,
    /// Its epoch: the one to expire it by.
    pub epoch: u64,
    /// How long it lives unheard of.
    pub ttl_ms: u64,
    /// What its client calls itself.
    pub label: Option<Label>,
    /// How many locks it holds or waits for.
    pub locks: u32,
}

/// A session with all that its client may have missed while it was not connected. A grant that the client knows and that is not
/// here is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionState {
    /// Its epoch: the one to expire it by.
    pub epoch: u64,
    /// What it holds, by grant.
    pub held: Vec<HeldView>,
    /// What it waits for, by the number of the request, and by grant.
    pub waiting: Vec<WaitingView>,
    /// The last answers to requests that have waited, as far as they are not acknowledged, by number.
    pub settled: Vec<(u64, Outcome)>,
    /// What it observes, by name.
    pub observed: Vec<LockName>,
}

/// A lock of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeldView {
    /// The resource.
    pub name: LockName,
    /// The grant.
    pub holder: HolderView,
    /// The modes that others wait for and that conflict with this one, if the holder asked to be told of them.
    pub wanted: Vec<Mode>,
}

/// A lock or another mode that a session waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingView {
    /// The resource.
    pub name: LockName,
    /// The place in line.
    pub waiter: WaiterView,
}

/// One step of the chain that a waiter waits in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Who waits, for what.
    pub waiter: CycleMember,
    /// For whom: the first of them.
    pub behind: Behind,
}

/// Why somebody waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Behind {
    /// Somebody holds the resource in a conflicting mode.
    Holder(HolderView),
    /// Somebody is ahead in line.
    Ahead(CycleMember),
    /// A dead holder's delay is not over.
    Delay(DelayView),
    /// Nobody but its own owner: it waits at another of several locks, or together with another request that is further ahead.
    Itself,
}

impl Table {
    /// What there is to a name; nothing, if the table does not know it.
    pub fn inspect(&self, name: &LockName) -> Option<ResourceView> {
        Some(self.resource_view(self.names.find(&self.resources, name)?))
    }

    /// A page of a list: the first `limit` resources behind `after` whose names start with `prefix` and that somebody holds, delays
    /// or waits for, in the order of their names. A page that is not full is the last. Looks at every resource.
    pub fn list(&self, prefix: &str, after: Option<&LockName>, limit: usize) -> Vec<ResourceView> {
        // The first ones so far, the last of them on top.
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

    /// A session, looked up with all that belongs to it.
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

    /// The chain that a waiter waits in: for whom, and for whom that one waits, until one who waits for nobody, or who was met
    /// before. Of several that a request waits for, the first is followed: a holder, or else who is first in line.
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

    /// All sessions, by id.
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

    /// All delays, by grant. Looks at every lock.
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
