//! What can be seen of a table: for tools, and for a leader that has just come. Nothing is decided by it.

use crate::label::Label;

use crate::arena::Place;
use crate::lock::{Holder, Lock, Queued};
use crate::resource::Resource;
use crate::table::Table;
use crate::{CycleMember, FencingToken, GrantId, LockName, Mode, OwnerId, SessionId, Value};

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

    /// The resources whose names start with `prefix` and that somebody holds, delays or waits for, in the order of their names.
    /// Looks at every resource.
    pub fn list(&self, prefix: &str) -> Vec<ResourceView> {
        let mut found: Vec<_> = self
            .resources
            .places()
            .filter(|place| {
                let resource = &self.resources[*place];
                let busy = !resource.held.is_empty() || resource.in_line() > 0;
                busy && resource.name().as_str().starts_with(prefix)
            })
            .collect();
        found.sort_by(|a, b| self.resources[*a].name().cmp(self.resources[*b].name()));
        found.into_iter().map(|place| self.resource_view(place)).collect()
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
