//! An engine that keeps everything in this process, written to be read and not to be fast: all six modes, first come first
//! served, leases, conversion, values, starts, deadlock detection. The suite is held to it, and it can be told to be wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use tenure::capabilities::{Breaking, Expiry, Reach, Waking};
use tenure::clock::{BootTime, Clock};
use tenure::engine::{
    AcquireRequest, Conversion, EngineContext, Grant, GrantEvents, Granted, Remembered, Start, Withdrawn,
};
use tenure::error::{CycleMember, RememberError, RenewError};
use tenure::{
    AcquireError, Break, BreakError, Capabilities, ConvertError, Engine, EngineError, FencingToken, GrantId,
    InspectError, LockDelay, LockInfo, LockName, Lost, LostReason, Member, ModeSet, OwnerId, ReleaseError,
    Term, Value, ValueError,
};
use tokio::sync::watch;

use crate::fault::Fault;

/// What the clients of one address share.
#[derive(Debug)]
pub(crate) struct Store {
    table: Mutex<Table>,
    changed: watch::Sender<()>,
    fault: Fault,
}

#[derive(Debug, Default)]
struct Table {
    resources: BTreeMap<LockName, Resource>,
    token: u64,
    /// Requests are answered as if the engine could not be reached.
    unreachable: bool,
    /// So many grants are made, and the answer is that the engine cannot be reached.
    loses_grants: usize,
    /// How many requests were withdrawn.
    withdrawals: usize,
    /// So many withdrawals are refused as if the engine could not be reached.
    loses_withdrawals: usize,
    /// Starts are recorded, and the answer is that the engine cannot be reached.
    loses_starts_answers: bool,
    /// How long a release takes, in the time of the machine.
    release_delay: Duration,
}

#[derive(Debug, Default)]
struct Resource {
    granted: Vec<Held>,
    /// Grants that expired, each until its lock-delay ends.
    delayed: Vec<(Member, BootTime)>,
    /// Converters first, each kind in its order.
    queue: Vec<Queued>,
    value: Value,
    started: Option<BootTime>,
}

#[derive(Clone, Debug)]
struct Held {
    member: Member,
    expires: BootTime,
    lock_delay: Duration,
    notify: bool,
    events: GrantEvents,
}

#[derive(Clone, Debug)]
struct Queued {
    member: Member,
    converts: bool,
    ttl: Duration,
    lock_delay: Duration,
    notify: bool,
    events: GrantEvents,
}

impl Store {
    pub(crate) fn new(fault: Fault) -> Arc<Self> {
        Arc::new(Self { table: Mutex::default(), changed: watch::Sender::new(()), fault })
    }

    /// The store of an address, for clients that meet at one.
    pub(crate) fn at(address: &str, fault: Fault) -> Arc<Self> {
        static STORES: OnceLock<Mutex<BTreeMap<String, Arc<Store>>>> = OnceLock::new();
        let mut stores = STORES.get_or_init(Mutex::default).lock().unwrap();
        stores.entry(address.to_owned()).or_insert_with(|| Self::new(fault)).clone()
    }

    /// Wakes all that wait.
    pub(crate) fn notify(&self) {
        self.changed.send_replace(());
    }

    /// From now on nothing is answered but that the engine cannot be reached.
    pub(crate) fn set_unreachable(&self, unreachable: bool) {
        self.table.lock().unwrap().unreachable = unreachable;
    }

    /// The answers to the next grants are lost.
    pub(crate) fn lose_answers_to_grants(&self, grants: usize) {
        self.table.lock().unwrap().loses_grants = grants;
    }

    pub(crate) fn withdrawals(&self) -> usize {
        self.table.lock().unwrap().withdrawals
    }

    /// The next withdrawals are not carried out.
    pub(crate) fn lose_withdrawals(&self, withdrawals: usize) {
        self.table.lock().unwrap().loses_withdrawals = withdrawals;
    }

    /// From now on starts are recorded, and nobody hears of it.
    pub(crate) fn lose_answers_to_starts(&self) {
        self.table.lock().unwrap().loses_starts_answers = true;
    }

    /// From now on a release takes this long.
    pub(crate) fn delay_releases(&self, delay: Duration) {
        self.table.lock().unwrap().release_delay = delay;
    }

    fn table(&self) -> Result<MutexGuard<'_, Table>, EngineError> {
        let table = self.table.lock().unwrap();
        if table.unreachable { Err(unreachable()) } else { Ok(table) }
    }
}

fn unreachable() -> EngineError {
    EngineError::Unreachable { engine: "reference", message: "told so".into(), cause: None }
}

impl Table {
    /// Ends what has expired and grants what can be granted, at one resource.
    fn serve(&mut self, name: &LockName, now: BootTime, fault: Fault) {
        let resource = self.resources.entry(name.clone()).or_default();
        let died = resource.granted.iter().any(|held| held.expires <= now && held.member.mode.may_write());
        for held in resource.granted.extract_if(.., |held| held.expires <= now) {
            if fault != Fault::ForgetsLockDelays {
                resource.delayed.push((held.member, held.expires + held.lock_delay));
            }
        }
        resource.delayed.retain(|(_, until)| *until > now);
        resource.value.in_doubt |= died;
        let mut place = 0;
        while place < resource.queue.len() {
            let next = &resource.queue
                [if fault == Fault::LastComeFirst { resource.queue.len() - 1 - place } else { place }];
            let (id, fits) = (
                next.member.grant,
                fault == Fault::LetsEverybodyIn || resource.fits(&next.member, next.converts, fault),
            );
            if !fits && fault != Fault::LastComeFirst {
                // Conversions go in order and before any waiter; so does everybody else.
                break;
            }
            if !fits {
                place += 1;
                continue;
            }
            let at = resource.queue.iter().position(|queued| queued.member.grant == id).unwrap();
            let mut next = resource.queue.remove(at);
            // A conversion's own old grant, or what the same owner holds through another client.
            let kept = resource
                .granted
                .iter()
                .find(|held| {
                    held.member.grant == id || (!next.converts && held.member.owner == next.member.owner)
                })
                .map(|held| held.member.clone());
            let covers = |old: &Member| old.mode.covers(next.member.mode) && fault != Fault::CountsTwice;
            let keeps_token = kept.as_ref().is_some_and(covers);
            if !keeps_token && fault != Fault::SameToken {
                self.token += 1;
            }
            next.member.token =
                if keeps_token { kept.unwrap().token } else { Some(FencingToken::new(self.token)) };
            resource.granted.retain(|held| held.member.grant != id);
            let Queued { member, ttl, lock_delay, notify, events, .. } = next;
            let held = Held { member, expires: now + ttl, lock_delay, notify, events };
            for waiter in &resource.queue {
                held.tell(&waiter.member, fault);
            }
            resource.granted.push(held);
            place = 0;
        }
    }

    /// The cycle that this request would close, if it would: who waits for whom, along the owners.
    fn cycle(&self, start: &Queued, name: &LockName) -> Option<Vec<CycleMember>> {
        let mut path = Vec::new();
        self.search(name, start, start.member.owner, &mut BTreeSet::new(), &mut path).then_some(path)
    }

    fn search(
        &self,
        name: &LockName,
        queued: &Queued,
        goal: OwnerId,
        seen: &mut BTreeSet<GrantId>,
        path: &mut Vec<CycleMember>,
    ) -> bool {
        let resource = &self.resources[name];
        let place = resource
            .queue
            .iter()
            .position(|other| other.member.grant == queued.member.grant)
            .unwrap_or(resource.queue.len());
        // What led nowhere once leads nowhere again: without this, a queue of thirty takes for ever.
        if !seen.insert(queued.member.grant) {
            return false;
        }
        // Its owner waits further ahead in the same line: it comes to its turn with that one, and waits for nobody between.
        let own_ahead =
            |other: &Queued| !other.converts && other.member.owner == queued.member.owner && !queued.converts;
        if resource.queue[..place].iter().any(own_ahead) {
            return false;
        }
        path.push(CycleMember { name: name.clone(), member: queued.member.clone(), place });
        let holders = resource.granted.iter().filter(|held| {
            held.member.owner != queued.member.owner && !held.member.mode.compatible_with(queued.member.mode)
        });
        let ahead = resource.queue[..place].iter().map(|other| other.member.owner);
        // No conversion waits for another one of its own owner.
        let ahead = ahead.filter(|owner| *owner != queued.member.owner);
        for owner in holders.map(|held| held.member.owner).chain(ahead) {
            if owner == goal {
                return true;
            }
            for (name, resource) in &self.resources {
                for next in resource.queue.iter().filter(|next| next.member.owner == owner) {
                    if self.search(name, next, goal, seen, path) {
                        return true;
                    }
                }
            }
        }
        path.pop();
        false
    }
}

impl Held {
    /// Tells the holder of a waiter, if it asked for that and is in the waiter's way.
    fn tell(&self, waiter: &Member, fault: Fault) {
        let conflicts = !self.member.mode.compatible_with(waiter.mode) && self.member.grant != waiter.grant;
        if self.notify && conflicts && fault != Fault::LosesNotices {
            self.events.wanted(waiter.mode);
        }
    }
}

impl Resource {
    fn fits(&self, member: &Member, converts: bool, fault: Fault) -> bool {
        let others = self.granted.iter().filter(|held| held.member.owner != member.owner);
        let others = others.map(|held| &held.member).chain(self.delayed.iter().map(|(member, _)| member));
        (converts && fault == Fault::ConvertsOverOthers)
            || others.map(|held| held.mode).all(|held| held.compatible_with(member.mode))
    }

    fn held(&self, id: GrantId) -> Option<&Held> {
        self.granted.iter().find(|held| held.member.grant == id)
    }
}

/// One client's engine.
#[derive(Debug)]
pub(crate) struct ReferenceEngine {
    store: Arc<Store>,
    clock: Arc<dyn Clock>,
    capabilities: Capabilities,
}

impl ReferenceEngine {
    pub(crate) fn open(store: Arc<Store>, context: &EngineContext) -> Arc<Self> {
        let mut capabilities = Capabilities::minimal("reference", "table");
        capabilities.modes = ModeSet::ALL;
        capabilities.conversion = true;
        capabilities.value = true;
        capabilities.remembers = true;
        capabilities.fencing = true;
        capabilities.fair = true;
        capabilities.deadlock_detection = true;
        capabilities.notices = true;
        capabilities.lock_delay = true;
        capabilities.observes = true;
        capabilities.shared_owners = true;
        capabilities.visible_waiters = true;
        capabilities.breaking = Breaking::Force;
        capabilities.expiry = Expiry::Lease;
        capabilities.waking = if store.fault == Fault::HidesItsHerd { Waking::One } else { Waking::All };
        capabilities.reach = Reach::Process;
        Arc::new(Self { store, clock: context.clock.clone(), capabilities })
    }

    /// What the engine keeps a lease for, of what the holder is told.
    fn kept(&self, ttl: Duration) -> Duration {
        if self.store.fault == Fault::EndsEarly { ttl / 2 } else { ttl }
    }

    fn serve(&self, name: &LockName) -> Result<MutexGuard<'_, Table>, EngineError> {
        let mut table = self.store.table()?;
        table.serve(name, self.clock.now(), self.store.fault);
        Ok(table)
    }

    /// Waits in the queue until the request is granted, or is over.
    async fn queue(
        &self,
        name: &LockName,
        queued: Queued,
        waits: bool,
        cancel: &tenure::engine::Cancellation,
    ) -> Result<Option<Granted>, Stop> {
        let (id, ttl, converts) = (queued.member.grant, queued.ttl, queued.converts);
        let mut changed = self.store.changed.subscribe();
        let is_new = {
            let mut table = self.serve(name)?;
            let resource = table.resources.get_mut(name).unwrap();
            let end = resource.queue.len();
            let at = if converts {
                resource.queue.iter().position(|other| !other.converts).unwrap_or(end)
            } else {
                end
            };
            // A request that is repeated keeps its place.
            let is_new = !resource.queue.iter().any(|other| other.member.grant == id);
            if is_new {
                resource.queue.insert(at, queued.clone());
            }
            is_new
        };
        let mut searched = false;
        loop {
            let sent_at = self.clock.now();
            let next = {
                let mut table = match self.serve(name) {
                    Ok(table) => table,
                    Err(error) => {
                        if converts {
                            let mut table = self.store.table.lock().unwrap();
                            let resource = table.resources.get_mut(name).unwrap();
                            resource.queue.retain(|other| other.member.grant != id);
                        }
                        return Err(error.into());
                    }
                };
                let resource = table.resources.get_mut(name).unwrap();
                let still_queued = resource.queue.iter().any(|other| other.member.grant == id);
                if !still_queued {
                    // Granted, perhaps a while ago: the lease is counted from when its holder hears of it.
                    let Some(held) = resource.granted.iter_mut().find(|held| held.member.grant == id) else {
                        return Ok(None);
                    };
                    held.expires = sent_at + self.kept(ttl);
                    let token = held.member.token;
                    let value = resource.value.clone();
                    drop(table);
                    self.store.changed.send_replace(());
                    return Ok(Some(Granted::new(token, lease(sent_at, ttl)).with_value(value)));
                }
                let is_cancelled = cancel.is_cancelled() && self.store.fault != Fault::IgnoresCancel;
                let over = !waits || is_cancelled;
                let cycle = if searched || over { None } else { table.cycle(&queued, name) };
                if !searched && !over {
                    for held in &table.resources[name].granted {
                        held.tell(&queued.member, self.store.fault);
                    }
                }
                searched = true;
                let cries = self.store.fault == Fault::CriesDeadlock && !over;
                let resource = table.resources.get_mut(name).unwrap();
                // A lock that is waited for no more is withdrawn by the client.
                if (over && is_new && (!waits || converts)) || cycle.is_some() || cries {
                    resource.queue.retain(|other| other.member.grant != id);
                    self.store.changed.send_replace(());
                }
                if cries || cycle.is_some() {
                    return Err(Stop::Deadlock(cycle.unwrap_or_default()));
                }
                if over {
                    return Ok(None);
                }
                let expiries = resource.granted.iter().map(|held| held.expires);
                expiries
                    .chain(resource.delayed.iter().map(|(_, until)| *until))
                    .min()
                    .unwrap_or(sent_at + Duration::from_hours(1))
            };
            tokio::select! {
                _ = changed.changed() => {}
                () = self.clock.sleep_until(next) => {}
                () = cancel.cancelled(), if self.store.fault != Fault::IgnoresCancel => {}
            }
        }
    }

    async fn get(self: Arc<Self>, request: AcquireRequest) -> Result<Granted, AcquireError> {
        let sent_at = self.clock.now();
        let term = lease(sent_at, request.ttl.get());
        let mut member = Member::new(request.grant, request.owner, request.mode);
        member.label = request.label.as_deref().map(str::to_owned);
        member.since = Some(self.clock.wall());
        {
            let mut table = self.serve(&request.name)?;
            let resource = table.resources.get_mut(&request.name).unwrap();
            if let Some(held) = resource.held(request.grant)
                && self.store.fault != Fault::CountsTwice
            {
                return Ok(Granted::new(held.member.token, term).with_value(resource.value.clone()));
            }
            let anybody = self.store.fault == Fault::AnybodyReenters;
            let ours: Vec<_> = resource
                .granted
                .iter()
                .filter(|held| anybody || (request.reenter && held.member.owner == request.owner))
                .collect();
            if let Some(first) = ours.first() {
                let Some(covering) = ours.iter().find(|held| held.member.mode.covers(request.mode)) else {
                    return Err(AcquireError::NotCovered {
                        name: request.name,
                        held: first.member.mode,
                        asked: request.mode,
                    });
                };
                member.token = covering.member.token;
                let joined = Held {
                    member: member.clone(),
                    expires: sent_at + self.kept(request.ttl.get()),
                    lock_delay: request.lock_delay,
                    notify: request.notify,
                    events: request.events,
                };
                resource.granted.push(joined);
                return Ok(Granted::new(member.token, term).with_value(resource.value.clone()));
            }
        }
        let queued = Queued {
            member,
            converts: false,
            ttl: request.ttl.get(),
            lock_delay: request.lock_delay,
            notify: request.notify,
            events: request.events.clone(),
        };
        match self.queue(&request.name, queued, request.waits(), &request.cancel).await {
            Ok(Some(granted)) => Ok(granted),
            Ok(None) => Err(request.not_granted()),
            Err(Stop::Deadlock(cycle)) => Err(AcquireError::Deadlock { name: request.name, cycle }),
            Err(Stop::Engine(error)) => Err(error.into()),
        }
    }
}

enum Stop {
    Deadlock(Vec<CycleMember>),
    Engine(EngineError),
}

impl From<EngineError> for Stop {
    fn from(error: EngineError) -> Self {
        Self::Engine(error)
    }
}

fn lease(sent_at: BootTime, ttl: Duration) -> Term {
    Term::Lease { sent_at, ttl, margin: Duration::ZERO }
}

impl Engine for ReferenceEngine {
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn place(&self) -> String {
        format!("reference:{:p}", Arc::as_ptr(&self.store))
    }

    fn acquire(
        self: Arc<Self>,
        request: AcquireRequest,
    ) -> BoxFuture<'static, Result<Granted, AcquireError>> {
        Box::pin(async move {
            let store = self.store.clone();
            let granted = self.get(request).await?;
            let mut table = store.table.lock().unwrap();
            if table.loses_grants > 0 {
                table.loses_grants -= 1;
                return Err(unreachable().into());
            }
            Ok(granted)
        })
    }

    fn renew(self: Arc<Self>, grant: Grant) -> BoxFuture<'static, Result<Term, RenewError>> {
        Box::pin(async move {
            let sent_at = self.clock.now();
            let mut table = self.serve(&grant.name)?;
            let resource = table.resources.get_mut(&grant.name).unwrap();
            match resource.granted.iter_mut().find(|held| held.member.grant == grant.id) {
                Some(held) => held.expires = sent_at + self.kept(grant.ttl.get()),
                None if self.store.fault == Fault::RenewsTheDead => {}
                None => return Err(RenewError::Lost(LostReason::Forgotten)),
            }
            Ok(lease(sent_at, grant.ttl.get()))
        })
    }

    fn release(self: Arc<Self>, grant: Grant) -> BoxFuture<'static, Result<(), ReleaseError>> {
        Box::pin(async move {
            let delay = self.store.table()?.release_delay;
            if !delay.is_zero() {
                tokio::time::sleep(delay).await;
            }
            let mut table = self.serve(&grant.name)?;
            let resource = table.resources.get_mut(&grant.name).unwrap();
            if self.store.fault == Fault::ReleasesByToken && grant.token.is_none() {
                return Err(ReleaseError::NotHeld(LostReason::Forgotten));
            }
            let before = resource.granted.len();
            resource
                .granted
                .retain(|held| held.member.grant != grant.id && self.store.fault != Fault::ReleasesByName);
            if self.store.fault != Fault::KeepsWaiters {
                resource.queue.retain(|queued| queued.member.grant != grant.id);
            }
            if resource.granted.len() == before {
                return Err(ReleaseError::NotHeld(LostReason::Forgotten));
            }
            drop(table);
            self.store.changed.send_replace(());
            Ok(())
        })
    }

    fn withdraw(self: Arc<Self>, grant: Grant) -> BoxFuture<'static, Result<Withdrawn, EngineError>> {
        Box::pin(async move {
            {
                let mut table = self.store.table()?;
                if table.loses_withdrawals > 0 {
                    table.loses_withdrawals -= 1;
                    return Err(unreachable());
                }
                table.withdrawals += 1;
            }
            if self.store.fault != Fault::ForgetsWithdrawals {
                let _ = self.release(grant).await;
            }
            Ok(Withdrawn::ForGood)
        })
    }

    fn convert(self: Arc<Self>, conversion: Conversion) -> BoxFuture<'static, Result<Granted, ConvertError>> {
        Box::pin(async move {
            let (grant, to) = (&conversion.grant, conversion.to);
            let lost = Lost::new(grant.name.clone(), LostReason::Forgotten);
            let queued = {
                let table = self.serve(&grant.name)?;
                let held = table.resources[&grant.name].held(grant.id).ok_or_else(|| lost.clone())?;
                let mut member = held.member.clone();
                member.mode = to;
                Queued {
                    member,
                    converts: true,
                    ttl: grant.ttl.get(),
                    lock_delay: held.lock_delay,
                    notify: held.notify,
                    events: held.events.clone(),
                }
            };
            match self.queue(&grant.name, queued, conversion.waits, &conversion.cancel).await {
                Ok(Some(granted)) => Ok(granted),
                Ok(None) if self.serve(&grant.name)?.resources[&grant.name].held(grant.id).is_none() => {
                    Err(lost.into())
                }
                Ok(None) => Err(conversion.not_converted()),
                Err(Stop::Deadlock(cycle)) => Err(ConvertError::Deadlock { name: grant.name.clone(), cycle }),
                Err(Stop::Engine(error)) => Err(error.into()),
            }
        })
    }

    fn set_value(
        self: Arc<Self>,
        grant: Grant,
        bytes: bytes::Bytes,
    ) -> BoxFuture<'static, Result<(), ValueError>> {
        Box::pin(async move {
            let mut table = self.serve(&grant.name)?;
            let resource = table.resources.get_mut(&grant.name).unwrap();
            if resource.held(grant.id).is_none() && self.store.fault != Fault::AnybodyWrites {
                return Err(Lost::new(grant.name, LostReason::Forgotten).into());
            }
            resource.value = Value { bytes, in_doubt: false };
            Ok(())
        })
    }

    fn remember(
        self: Arc<Self>,
        grant: Grant,
        start: Start,
    ) -> BoxFuture<'static, Result<Remembered, RememberError>> {
        Box::pin(async move {
            let (fault, now) = (self.store.fault, self.clock.now());
            let mut table = self.serve(&grant.name)?;
            let loses_answer = table.loses_starts_answers;
            let resource = table.resources.get_mut(&grant.name).unwrap();
            if resource.held(grant.id).is_none() && fault != Fault::AnybodyStarts {
                return Err(Lost::new(grant.name, LostReason::Forgotten).into());
            }
            let stands = start.window.max(start.ago);
            match resource.started.map(|started| now.since(started)) {
                Some(ago) if ago < stands && fault != Fault::StartsOverOthers => {
                    return Ok(Remembered::Already { ago });
                }
                _ if fault == Fault::ForgetsStarts => {}
                _ if fault == Fault::StartsAtTheEnd => resource.started = Some(now),
                _ => resource.started = Some(now - start.ago),
            }
            if fault == Fault::StartsOverTheValue {
                resource.value = Value::default();
            }
            if loses_answer { Err(unreachable().into()) } else { Ok(Remembered::Recorded) }
        })
    }

    fn recall(
        self: Arc<Self>,
        name: LockName,
        window: Duration,
    ) -> BoxFuture<'static, Result<Option<Duration>, InspectError>> {
        Box::pin(async move {
            let now = self.clock.now();
            let table = self.serve(&name)?;
            let last = match self.store.fault {
                Fault::StartsEverything => table.resources.values().find_map(|resource| resource.started),
                _ => table.resources[&name].started,
            };
            let stands = |ago: &Duration| *ago < window || self.store.fault == Fault::StartsForEver;
            Ok(last.map(|started| now.since(started)).filter(stands))
        })
    }

    fn inspect(self: Arc<Self>, name: LockName) -> BoxFuture<'static, Result<LockInfo, InspectError>> {
        Box::pin(async move {
            let table = self.serve(&name)?;
            let resource = &table.resources[&name];
            let mut info = LockInfo::free(name);
            info.holders = resource.granted.iter().map(|held| held.member.clone()).collect();
            info.waiters = resource.queue.iter().map(|queued| queued.member.clone()).collect();
            let delays = resource.delayed.iter().map(|(member, _)| LockDelay::new(member.grant, member.mode));
            info.lock_delays = delays.collect();
            info.value = resource.value.clone();
            Ok(info)
        })
    }

    fn list(self: Arc<Self>, prefix: String) -> BoxFuture<'static, Result<Vec<LockInfo>, InspectError>> {
        Box::pin(async move {
            let names: Vec<_> = self
                .store
                .table()?
                .resources
                .keys()
                .filter(|name| name.as_str().starts_with(&prefix))
                .cloned()
                .collect();
            let mut infos = Vec::new();
            for name in names {
                infos.push(self.clone().inspect(name).await?);
            }
            infos.retain(|info| {
                !(info.holders.is_empty() && info.waiters.is_empty() && info.lock_delays.is_empty())
            });
            Ok(infos)
        })
    }

    fn observe(self: Arc<Self>, name: LockName) -> BoxStream<'static, Result<LockInfo, InspectError>> {
        let mut changed = self.store.changed.subscribe();
        changed.mark_changed();
        Box::pin(stream::unfold(changed, move |mut changed| {
            let (engine, name) = (self.clone(), name.clone());
            async move {
                let next_end = {
                    let table = engine.store.table.lock().unwrap();
                    let held = table.resources.get(&name).into_iter().flat_map(|resource| &resource.granted);
                    held.map(|held| held.expires).min()
                };
                let ends = async {
                    match next_end {
                        Some(at) => engine.clock.sleep_until(at).await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    _ = changed.changed(), if engine.store.fault != Fault::LosesChanges => {}
                    () = ends => {}
                }
                Some((engine.inspect(name).await, changed))
            }
        }))
    }

    fn break_lock(
        self: Arc<Self>,
        name: LockName,
        how: Break,
    ) -> BoxFuture<'static, Result<Vec<Member>, BreakError>> {
        Box::pin(async move {
            let mut table = self.serve(&name)?;
            let resource = table.resources.get_mut(&name).unwrap();
            let broken = resource.granted.clone();
            if broken.is_empty() && (resource.delayed.is_empty() || how == Break::Ask) {
                return Err(BreakError::NotHeld { name });
            }
            if how == Break::Force {
                resource.granted.clear();
                resource.delayed.clear();
            }
            drop(table);
            for held in &broken {
                held.events.lost(LostReason::Broken);
            }
            self.store.changed.send_replace(());
            Ok(broken.into_iter().map(|held| held.member).collect())
        })
    }
}
