//! Deadlock detection.
//!
//! A queued request waits for every other owner that holds its resource in a conflicting mode, and for every other owner ahead of it in the
//! queue. A request whose owner waits further ahead in the same queue is *tied* to that request, and waits for no owner by itself.
//!
//! To find a cycle through an owner, it is enough to follow neighbours in the queue. Requests further ahead are reached through the nearest
//! one, unless that one is tied.
//!
//! Two searches alternate with equal numbers of steps. One follows what the owner's requests wait for, the other follows what waits for the
//! owner. If either search is exhausted, there is no cycle. So a request that joins either end of a long chain is cheap to check, and an
//! owner that holds nothing is never searched for.

use std::collections::VecDeque;
use std::sync::Arc;

use foldhash::fast::FixedState;
use hashbrown::{HashMap, HashSet};

use crate::arena::Place;
use crate::list;
use crate::lock::{InLine, Lock, Queued};
use crate::owner::Party;
use crate::resource::Resource;
use crate::table::Table;
use crate::{Behind, CycleMember, Effect, Mode, Refusal};

/// The number of steps of each search in the first round.
const FIRST_STEPS: usize = 32;

/// A search has used up its steps.
struct OutOfSteps;

/// The remaining steps of a search.
struct Steps(usize);

impl Steps {
    fn take(&mut self) -> Result<(), OutOfSteps> {
        self.0 = self.0.checked_sub(1).ok_or(OutOfSteps)?;
        Ok(())
    }
}

type Seen<T> = HashSet<T, FixedState>;

impl Table {
    /// Refuses this owner's requests that are part of a deadlock, the youngest first, until no deadlock remains.
    pub(crate) fn refuse_deadlocked(&mut self, owner: Party, effects: &mut Vec<Effect>) {
        let mut requests: Vec<Vec<Place<Queued>>> = Vec::new();
        for queued in self.queued_of(owner) {
            match requests.last_mut() {
                Some(last) if self.queued[last[0]].order == self.queued[queued].order => last.push(queued),
                _ => requests.push(vec![queued]),
            }
        }
        for request in requests.into_iter().rev() {
            if let Some(cycle) = self.cycle_through(owner, &request) {
                self.refuse(request[0], Refusal::Deadlock { cycle }, effects);
            }
        }
    }

    /// Returns a cycle that begins with one of these requests of this owner, if one exists.
    pub(crate) fn cycle_through(
        &self,
        owner: Party,
        requests: &[Place<Queued>],
    ) -> Option<Arc<[CycleMember]>> {
        let mut steps = FIRST_STEPS;
        let closed = loop {
            // Most owners hold nothing that others wait for, so this search is the first.
            let of_waiters = self.is_reached(owner, requests, &mut Steps(steps));
            if let Ok(closed) = of_waiters.or_else(|_| self.reaches(owner, requests, &mut Steps(steps))) {
                break closed;
            }
            steps *= 2;
        };
        closed.then(|| self.shortest_cycle(owner, requests))
    }

    /// Whether the owners that these requests wait for, directly or indirectly, wait for this owner.
    fn reaches(
        &self,
        goal: Party,
        requests: &[Place<Queued>],
        steps: &mut Steps,
    ) -> Result<bool, OutOfSteps> {
        let mut seen = Seen::default();
        let mut open: Vec<Place<Queued>> = requests.to_vec();
        while let Some(queued) = open.pop() {
            for blocker in self.nearest_blockers(queued, steps)? {
                if blocker == goal {
                    return Ok(true);
                }
                if seen.insert(blocker) {
                    for next in self.queued_of(blocker) {
                        steps.take()?;
                        open.push(next);
                    }
                }
            }
        }
        Ok(false)
    }

    /// Whether these requests wait for an owner that waits, directly or indirectly, for this owner.
    fn is_reached(
        &self,
        start: Party,
        requests: &[Place<Queued>],
        steps: &mut Steps,
    ) -> Result<bool, OutOfSteps> {
        let mut waiters = Vec::new();
        self.add_nearest_waiters(start, &mut waiters, steps)?;
        let mut seen = Seen::default();
        while let Some(queued) = waiters.pop() {
            let owner = self.owner_of(queued);
            if owner != start && seen.insert(owner) {
                self.add_nearest_waiters(owner, &mut waiters, steps)?;
            }
        }
        if seen.is_empty() {
            return Ok(false);
        }
        for queued in requests {
            for blocker in self.nearest_blockers(*queued, steps)? {
                if seen.contains(&blocker) {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    /// Adds the requests that wait for an owner: the first of each queue, because the others are reached through it.
    fn add_nearest_waiters(
        &self,
        owner: Party,
        waiters: &mut Vec<Place<Queued>>,
        steps: &mut Steps,
    ) -> Result<(), OutOfSteps> {
        for lock in owner.locks(&self.locks, &self.owners) {
            steps.take()?;
            waiters.extend(self.first_behind(owner, lock, steps)?);
        }
        for queued in self.queued_of(owner) {
            steps.take()?;
            waiters.extend(self.next_in_line(owner, queued, steps)?);
        }
        Ok(())
    }

    /// Returns the owners that a request waits for: holders of conflicting locks, and the nearest owner ahead, because the others are
    /// reached through it.
    fn nearest_blockers(&self, queued: Place<Queued>, steps: &mut Steps) -> Result<Vec<Party>, OutOfSteps> {
        let (mut blockers, owner) = (Vec::new(), self.owner_of(queued));
        if self.queued[queued].tied {
            return Ok(blockers);
        }
        for ahead in self.ahead(queued) {
            steps.take()?;
            if self.owner_of(ahead) != owner {
                blockers.push(self.owner_of(ahead));
                if !self.queued[ahead].tied {
                    break;
                }
            }
        }
        for lock in self.resource_of(queued).held.iter(&self.locks) {
            steps.take()?;
            blockers.extend(self.blocks(lock, queued));
        }
        Ok(blockers)
    }

    fn resource_of(&self, queued: Place<Queued>) -> &Resource {
        &self.resources[self.locks[self.queued[queued].lock].resource]
    }

    /// Returns the owner of a lock if the lock blocks a request.
    fn blocks(&self, lock: Place<Lock>, queued: Place<Queued>) -> Option<Party> {
        let owner = self.party(lock)?;
        let conflicts = !self.locks[lock].mode.compatible_with(self.queued[queued].mode);
        (conflicts && owner != self.owner_of(queued)).then_some(owner)
    }

    /// Iterates over the requests ahead in the queue, the nearest first.
    fn ahead(&self, queued: Place<Queued>) -> impl Iterator<Item = Place<Queued>> {
        let before = |queued| list::before::<_, InLine>(&self.queued, queued);
        // All conversions are ahead of every waiter.
        let converts = self.locks[self.queued[queued].lock].held;
        let rest = self.resource_of(queued).rest.as_ref().filter(|_| !converts);
        let last = rest.and_then(|rest| rest.converting.last());
        before(queued).chain(last.into_iter().flat_map(move |last| std::iter::once(last).chain(before(last))))
    }

    /// Returns the first request in the queue that waits for this owner's lock. All requests behind that one wait for it anyway.
    fn first_behind(
        &self,
        owner: Party,
        lock: Place<Lock>,
        steps: &mut Steps,
    ) -> Result<Option<Place<Queued>>, OutOfSteps> {
        let lock = &self.locks[lock];
        let (Some(rest), true) = (&self.resources[lock.resource].rest, lock.held) else { return Ok(None) };
        for queued in rest.line(&self.queued) {
            steps.take()?;
            let Queued { lock: behind, mode, tied, .. } = self.queued[queued];
            if !lock.mode.compatible_with(mode) && !tied && !owner.has(&self.locks, behind) {
                return Ok(Some(queued));
            }
        }
        Ok(None)
    }

    /// Returns the next request in the queue that waits for the owner of this one.
    fn next_in_line(
        &self,
        owner: Party,
        queued: Place<Queued>,
        steps: &mut Steps,
    ) -> Result<Option<Place<Queued>>, OutOfSteps> {
        let rest = self.resource_of(queued).rest.as_ref().expect("where somebody waits, there is a line");
        let next = |at: Place<Queued>| {
            let converts = self.locks[self.queued[at].lock].held;
            let waiting = if converts { rest.waiting.first() } else { None };
            list::after::<_, InLine>(&self.queued, at).or(waiting)
        };
        let mut at = next(queued);
        while let Some(place) = at {
            steps.take()?;
            if !owner.has(&self.locks, self.queued[place].lock) && !self.queued[place].tied {
                return Ok(Some(place));
            }
            at = next(place);
        }
        Ok(None)
    }

    /// Returns the first thing that a request waits for, and the request by which that owner itself waits.
    pub(crate) fn behind(&self, queued: Place<Queued>) -> (Behind, Option<Place<Queued>>) {
        let standing = || self.resource_of(queued).held.iter(&self.locks);
        let conflicts = |lock: &Place<Lock>| {
            let (lock, queued) = (&self.locks[*lock], &self.queued[queued]);
            !lock.mode.compatible_with(queued.mode)
        };
        if self.queued[queued].tied {
            let resource = self.locks[self.queued[queued].lock].resource;
            return (Behind::Itself, self.first_of(self.owner_of(queued), resource));
        }
        if let Some((lock, owner)) = standing().find_map(|lock| Some((lock, self.blocks(lock, queued)?))) {
            let holder = self.locks[lock].holder.expect("what blocks has an owner");
            return (Behind::Holder(self.holder_view(lock, holder)), self.queued_of(owner).next());
        }
        let delay = standing().find(|lock| self.locks[*lock].holder.is_none() && conflicts(lock));
        if let Some(delay) = delay {
            return (Behind::Delay(self.delay_view(delay)), None);
        }
        let others = self.ahead(queued).filter(|ahead| self.owner_of(*ahead) != self.owner_of(queued));
        match others.last() {
            Some(first) => (Behind::Ahead(self.cycle_member(first)), Some(first)),
            // Another conversion of its owner is ahead, or a request for several locks cannot be granted at another of them.
            None => (Behind::Itself, self.ahead(queued).last().or_else(|| self.set_closed_at(queued))),
        }
    }

    /// Returns the place at which a request for several locks cannot be granted.
    fn set_closed_at(&self, queued: Place<Queued>) -> Option<Place<Queued>> {
        let places = &self.sets[self.queued[queued].set?].places;
        places.iter().copied().find(|place| {
            let resource = self.locks[self.queued[*place].lock].resource;
            self.first_in_line(resource) != Some(*place) || !self.fits_now(*place)
        })
    }

    /// Whether any owners wait for each other. Reads every waiting request once.
    pub(crate) fn has_deadlock(&self) -> bool {
        let blockers = |owner: Party| {
            let mut all = Vec::new();
            for queued in self.queued_of(owner) {
                all.extend(self.nearest_blockers(queued, &mut Steps(usize::MAX)).unwrap_or_default());
            }
            all
        };
        let (mut done, mut on_path) = (Seen::default(), Seen::default());
        for start in self.queued.places().map(|queued| self.owner_of(queued)) {
            let mut path = vec![(start, vec![start])];
            while let Some((owner, next)) = path.last_mut() {
                match next.pop() {
                    Some(next) if on_path.contains(&next) => return true,
                    Some(next) if done.contains(&next) => {}
                    Some(next) => {
                        on_path.insert(next);
                        path.push((next, blockers(next)));
                    }
                    None => {
                        on_path.remove(owner);
                        done.insert(*owner);
                        path.pop();
                    }
                }
            }
        }
        false
    }

    /// Returns the shortest cycle that begins with one of these requests. A cycle must exist.
    fn shortest_cycle(&self, owner: Party, requests: &[Place<Queued>]) -> Arc<[CycleMember]> {
        // For each owner that was reached: the request that waits for it.
        let mut from: HashMap<Party, Place<Queued>, FixedState> = HashMap::default();
        // Visited already: requests ahead in the queue, and holders that conflict with a mode.
        let mut looked: Seen<Place<Queued>> = Seen::default();
        let mut held: Seen<(Place<Resource>, Mode)> = Seen::default();
        let mut open: VecDeque<Place<Queued>> = requests.iter().copied().collect();
        while let Some(queued) = open.pop_front() {
            if self.queued[queued].tied {
                continue;
            }
            let resource = self.locks[self.queued[queued].lock].resource;
            let mut blockers = Vec::new();
            // The owner's own requests skip its own locks, so these visits do not count for other owners.
            let at_goal = self.owner_of(queued) == owner;
            if at_goal || held.insert((resource, self.queued[queued].mode)) {
                let standing = self.resources[resource].held.iter(&self.locks);
                blockers.extend(standing.filter_map(|lock| self.blocks(lock, queued)));
            }
            let ahead = self.ahead(queued).take_while(|ahead| at_goal || looked.insert(*ahead));
            let mut ahead: Vec<_> = ahead.map(|ahead| self.owner_of(ahead)).collect();
            ahead.reverse();
            blockers.extend(ahead);
            for blocker in blockers.into_iter().filter(|blocker| *blocker != self.owner_of(queued)) {
                if blocker == owner {
                    return self.path(queued, owner, &from);
                }
                if !from.contains_key(&blocker) {
                    from.insert(blocker, queued);
                    open.extend(self.queued_of(blocker));
                }
            }
        }
        unreachable!("a cycle was found before");
    }

    /// Returns the requests that lead from the owner to this one.
    fn path(
        &self,
        last: Place<Queued>,
        owner: Party,
        from: &HashMap<Party, Place<Queued>, FixedState>,
    ) -> Arc<[CycleMember]> {
        let mut path = vec![self.cycle_member(last)];
        let mut at = self.owner_of(last);
        while at != owner {
            let queued = from[&at];
            path.push(self.cycle_member(queued));
            at = self.owner_of(queued);
        }
        path.reverse();
        path.into()
    }

    /// Returns how many requests are ahead of this one.
    pub(crate) fn place(&self, queued: Place<Queued>) -> u32 {
        u32::try_from(self.ahead(queued).count()).expect("a line is shorter than its limit")
    }

    pub(crate) fn cycle_member(&self, queued: Place<Queued>) -> CycleMember {
        let lock = &self.locks[self.queued[queued].lock];
        CycleMember {
            name: self.resources[lock.resource].name().clone(),
            grant: lock.grant,
            owner: self.owner_id(lock, lock.holder.expect("only what is somebody's waits")),
            mode: self.queued[queued].mode,
            label: lock.label().cloned(),
            place: self.place(queued),
        }
    }
}
