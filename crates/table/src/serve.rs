//! Serving queues, and notifying holders of waiting requests.

use crate::acquire::Own;
use crate::arena::Place;
use crate::lock::{Lock, Queued, Set};
use crate::owner::Party;
use crate::resource::Resource;
use crate::table::Table;
use crate::{Answer, Effect, FencingToken, Granted, Mode, Refusal};

impl Table {
    /// Grants the queued requests that can be granted now: conversions first, then waiters.
    pub(crate) fn serve(&mut self, resource: Place<Resource>, effects: &mut Vec<Effect>) {
        // The resource stays marked as touched until the loop ends. A request that leaves the queue meanwhile needs no second pass: the
        // loop looks at the first request again.
        while let Some(first) = self.first_in_line(resource).filter(|first| self.fits_now(*first)) {
            if self.locks[self.queued[first].lock].held {
                self.grant_conversion(first, effects);
            } else if let Some(set) = self.queued[first].set {
                if !self.is_first_everywhere(set) {
                    break;
                }
                self.grant_all(set, effects);
            } else {
                let owner = self.owner_of(first);
                let token = self.next_token();
                self.grant_waiter(first, token, effects);
                self.settle(owner, resource, effects);
            }
        }
        if let Some(rest) = &mut self.resources[resource].rest {
            rest.touched = false;
        }
        self.resources[resource].tidy();
        if self.resources[resource].is_idle() {
            self.forget(resource);
        }
    }

    pub(crate) fn first_in_line(&self, resource: Place<Resource>) -> Option<Place<Queued>> {
        let rest = self.resources[resource].rest.as_ref()?;
        rest.converting.first().or(rest.waiting.first())
    }

    pub(crate) fn fits_now(&self, queued: Place<Queued>) -> bool {
        let Queued { lock, mode, .. } = self.queued[queued];
        let lock = &self.locks[lock];
        let here = &self.resources[lock.resource];
        // An owner that waits for a resource holds no grant of it: otherwise `settle` would have ended the wait.
        if !lock.held {
            return here.fits_stranger(&self.locks, mode);
        }
        here.fits(lock.resource, &self.locks, &self.owners, self.owner_of(queued), mode)
    }

    pub(crate) fn is_first_everywhere(&self, set: Place<Set>) -> bool {
        self.sets[set].places.iter().all(|place| {
            let resource = self.locks[self.queued[*place].lock].resource;
            self.first_in_line(resource) == Some(*place) && self.fits_now(*place)
        })
    }

    fn grant_conversion(&mut self, first: Place<Queued>, effects: &mut Vec<Effect>) {
        let Queued { lock, mode, number, .. } = self.dequeue(first);
        let granted = self.change_mode(lock, mode);
        let session = self.locks[lock].holder.expect("a conversion is somebody's").session;
        self.answer(session, number, Ok(Answer::Granted(granted)), effects);
    }

    /// Grants one waiting request.
    fn grant_waiter(&mut self, queued: Place<Queued>, token: FencingToken, effects: &mut Vec<Effect>) {
        let Queued { lock, number, .. } = self.dequeue(queued);
        self.stand(lock, token);
        let Lock { resource, holder, .. } = self.locks[lock];
        let session = holder.expect("a waiter is somebody").session;
        self.answer_granted(session, number, resource, token, effects);
    }

    fn grant_all(&mut self, set: Place<Set>, effects: &mut Vec<Effect>) {
        let places = self.sets.take(set).places;
        let Queued { lock, number, .. } = self.queued[places[0]];
        let session = self.locks[lock].holder.expect("a waiter is somebody").session;
        let owner = self.owner_of(places[0]);
        let locks: Vec<_> = places.into_iter().map(|place| self.dequeue(place).lock).collect();
        let mut granted: Vec<Granted> = Vec::with_capacity(locks.len());
        for lock in &locks {
            let token = self.next_token();
            self.stand(*lock, token);
            granted.push(self.granted(*lock));
        }
        self.answer(session, number, Ok(Answer::GrantedAll(granted.into())), effects);
        for lock in &locks {
            self.touch(self.locks[*lock].resource);
        }
        for lock in &locks {
            self.settle(owner, self.locks[*lock].resource, effects);
        }
    }

    /// Settles an owner's other requests for a resource that it has just acquired: each re-enters now or is refused. Left in the queue,
    /// they would wait behind requests that wait for this owner.
    fn settle(&mut self, owner: Party, resource: Place<Resource>, effects: &mut Vec<Effect>) {
        let waits_here = |queued: &Place<Queued>| {
            let lock = &self.locks[self.queued[*queued].lock];
            lock.resource == resource && !lock.held
        };
        let waiting: Vec<_> = self.queued_of(owner).filter(waits_here).collect();
        for queued in waiting {
            let name = self.resources[resource].name().clone();
            let Queued { mode, set, .. } = self.queued[queued];
            match self.own(resource, owner, mode) {
                _ if set.is_some() => self.refuse(queued, Refusal::AlreadyHeld { name }, effects),
                Own::Covers(token) => self.grant_waiter(queued, token, effects),
                Own::Other(held) => {
                    self.refuse(queued, Refusal::NotCovered { name, held, asked: mode }, effects);
                }
                Own::Nothing => unreachable!("it has just got it"),
            }
        }
    }

    /// Records that a request has queued, if a holder asked for notices.
    pub(crate) fn note_wanting(&mut self, resource: Place<Resource>, lock: Place<Lock>, mode: Mode) {
        let rest = self.resources[resource].rest.as_ref();
        // A converting holder was not notified of its own conversion, so it still needs the notice for the second request of that mode.
        if rest.is_some_and(|rest| rest.notified > 0 && rest.wanted.of(mode) <= 2) {
            self.work.wanting.push((resource, lock, mode));
        }
    }

    /// Notifies holders of requests that wait behind them. One of the last steps of a command.
    pub(crate) fn tell_holders(&mut self, effects: &mut Vec<Effect>) {
        if self.work.wanting.is_empty() && self.work.granted.is_empty() {
            return;
        }
        let (mut wanting, mut granted) =
            (std::mem::take(&mut self.work.wanting), std::mem::take(&mut self.work.granted));
        for (resource, waiter, mode) in wanting.drain(..) {
            let Some(rest) = &self.resources[resource].rest else { continue };
            let first = rest.wanted.of(mode) == 1;
            for holder in self.resources[resource].held.iter(&self.locks).filter(|lock| *lock != waiter) {
                let converts = |queued: Place<Queued>| self.queued[queued].mode == mode;
                if first || self.locks[holder].queued.is_some_and(converts) {
                    self.tell(holder, mode, effects);
                }
            }
        }
        for grant in granted.drain(..) {
            let Some(holder) = self.grants.find(&self.locks, &grant) else { continue };
            let rest = self.resources[self.locks[holder].resource].rest.as_ref();
            for mode in rest.into_iter().flat_map(|rest| rest.wanted.modes()) {
                self.tell(holder, mode, effects);
            }
        }
        // Puts the empty lists back, to keep their allocations.
        (self.work.wanting, self.work.granted) = (wanting, granted);
    }

    fn tell(&self, lock: Place<Lock>, mode: Mode, effects: &mut Vec<Effect>) {
        let lock = &self.locks[lock];
        if let Some(holder) = lock.holder
            && lock.held
            && lock.notify
            && !lock.mode.compatible_with(mode)
        {
            let session = self.sessions[holder.session].id();
            effects.push(Effect::Wanted { session, grant: lock.grant, mode });
        }
    }
}
