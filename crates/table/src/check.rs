//! A check of all invariants that must hold between commands: for tests, and for a snapshot from another machine.

use std::collections::BTreeSet;

use foldhash::fast::FixedState;
use hashbrown::{HashMap, HashSet};

use crate::arena::Place;
use crate::lock::{Lock, Queued};
use crate::owner::Party;
use crate::resource::{Counts, Resource};
use crate::table::Table;

/// The broken invariant, if there is one.
type Fault = Result<(), String>;

macro_rules! ensure {
    ($holds:expr, $($what:tt)+) => {
        if !$holds {
            return Err(format!($($what)+));
        }
    };
}

impl Table {
    /// Checks all invariants that must hold between commands, and returns the first one that does not. Reads the whole table.
    pub fn check(&self) -> Result<(), String> {
        ensure!(self.work.is_done(), "a command has left something to do");
        let (mut held, mut in_line) = (0, 0);
        for place in self.resources.places() {
            self.check_resource(place)?;
            held += self.resources[place].held.iter(&self.locks).count();
            in_line += self.resources[place].in_line() as usize;
        }
        let all_held = self.locks.places().filter(|lock| self.locks[*lock].held).count();
        ensure!(held == all_held && in_line == self.queued.places().count(), "some lock is at no resource");
        self.locks.places().try_for_each(|place| self.check_lock(place))?;
        self.check_sessions()?;
        self.check_owners()?;
        ensure!(!self.has_deadlock(), "some wait for each other");
        self.check_sets()
    }

    fn check_resource(&self, place: Place<Resource>) -> Fault {
        let resource = &self.resources[place];
        let name = resource.name();
        ensure!(self.names.find(&self.resources, name) == Some(place), "`{name}` is not found by its name");
        ensure!(!resource.is_idle(), "`{name}` is kept for nothing");
        let standing: Vec<Place<Lock>> = resource.held.iter(&self.locks).collect();
        let held: Vec<&Lock> = standing.iter().map(|lock| &self.locks[*lock]).collect();
        for lock in &held {
            ensure!(lock.held && lock.resource == place, "`{name}` lists what is not held there");
        }
        let Some(rest) = &resource.rest else {
            ensure!(held.len() <= 1, "`{name}` does not count its holders");
            return Ok(());
        };
        let mut counts = Counts::default();
        for lock in &held {
            counts.add(lock.mode);
        }
        ensure!(counts == rest.held, "`{name}` has miscounted its holders");
        // A lock-delay may conflict with other locks of the same owner, so only locks with holders are compared.
        let mut living = counts;
        held.iter().filter(|lock| lock.holder.is_none()).for_each(|lock| living.subtract(lock.mode));
        let mut own: HashMap<_, Counts, FixedState> = HashMap::default();
        for (lock, owner) in standing.iter().filter_map(|lock| Some((*lock, self.party(*lock)?))) {
            own.entry(owner).or_default().add(self.locks[lock].mode);
        }
        for own in own.values() {
            let others = living.without(own);
            let fits = own.modes().all(|mode| others.modes().all(|other| mode.compatible_with(other)));
            ensure!(fits, "`{name}` is held by two in modes that conflict");
        }
        let notified = held.iter().filter(|lock| lock.notify).count();
        ensure!(notified == rest.notified as usize, "`{name}` has miscounted who is to be told");
        let mut wanted = Counts::default();
        for (line, count, converts) in
            [(rest.converting, rest.converting_count, true), (rest.waiting, rest.waiting_count, false)]
        {
            let (mut last, mut seen) = (0, 0);
            let mut owners: HashSet<_, FixedState> = HashSet::default();
            for queued in line.iter(&self.queued) {
                let Queued { lock, mode, order, .. } = self.queued[queued];
                let lock = &self.locks[lock];
                ensure!(lock.resource == place && lock.held == converts, "`{name}` has a stranger in line");
                ensure!(lock.queued == Some(queued), "`{name}` has one in line who does not know it");
                ensure!(order > last, "the line of `{name}` is out of order");
                let owner = self.owner_of(queued);
                let tied = !converts && !owners.insert(owner);
                ensure!(
                    tied == self.queued[queued].tied,
                    "one in line for `{name}` does not know whom it waits with"
                );
                wanted.add(mode);
                (last, seen) = (order, seen + 1);
            }
            ensure!(seen == count, "`{name}` has miscounted its line");
        }
        ensure!(wanted == rest.wanted, "`{name}` has miscounted what is wanted");
        ensure!(!rest.touched, "`{name}` is still to be served");
        ensure!(!rest.value.in_doubt || !rest.value.bytes.is_empty(), "`{name}` doubts what it has not");
        if let Some(start) = rest.start {
            let listed = self.starts.contains(&(start.until_ms, name.clone()));
            ensure!(listed, "the start of `{name}` is never forgotten");
        }
        for id in &rest.observers {
            let observed = self.session(*id).map(|session| &self.sessions[session].observed);
            ensure!(
                observed.is_some_and(|observed| observed.contains(name)),
                "`{name}` is observed by nobody"
            );
        }
        let line_of_nobody = self.first_in_line(place).is_some_and(|first| self.could_be_granted(first));
        ensure!(!line_of_nobody, "the first in line for `{name}` could be granted");
        Ok(())
    }

    fn check_lock(&self, place: Place<Lock>) -> Fault {
        let lock = &self.locks[place];
        let grant = lock.grant;
        ensure!(self.grants.find(&self.locks, &grant) == Some(place), "{grant} is not found by its id");
        ensure!(lock.held || lock.queued.is_some(), "{grant} is neither held nor in line");
        ensure!(lock.token.get() <= self.last_token, "{grant} has a token that was not given out");
        ensure!(lock.held == (lock.token.get() > 0), "{grant} has a token exactly if it is held");
        ensure!(lock.holder.is_some() || lock.lock_delay_ms() > 0, "{grant} is nobody's");
        if let Some(holder) = lock.holder {
            let owner = self.owner_id(lock, holder);
            ensure!(
                self.find_owner(owner) == self.party(place),
                "the owner of {grant} is not found by its id"
            );
        }
        if let Some(queued) = lock.queued {
            ensure!(self.queued[queued].lock == place, "{grant} has another's place in line");
            ensure!(self.queued[queued].order <= self.last_order, "{grant} queued in the future");
        }
        Ok(())
    }

    fn check_sessions(&self) -> Fault {
        let mut locks = 0;
        for place in self.sessions.places() {
            let session = &self.sessions[place];
            let id = session.id();
            ensure!(self.session(id) == Some(place), "session {id} is not found by its id");
            let mut waiting = BTreeSet::new();
            let mut count = 0;
            for lock in session.locks.iter(&self.locks) {
                let lock = &self.locks[lock];
                ensure!(lock.holder.is_some_and(|holder| holder.session == place), "{id} has another's lock");
                waiting.extend(lock.queued.map(|queued| self.queued[queued].number));
                count += 1;
            }
            ensure!(count == session.lock_count, "session {id} has miscounted its locks");
            locks += count as usize;
            for name in &session.observed {
                let resource = self.names.find(&self.resources, name);
                let rest = resource.and_then(|resource| self.resources[resource].rest.as_ref());
                let listed = rest.is_some_and(|rest| rest.observers.contains(&id));
                ensure!(listed, "session {id} observes `{name}`, which does not know it");
            }
            let memory = &session.memory;
            let noted: Vec<u64> = memory.waiting.iter().map(|waiting| waiting.number).collect();
            ensure!(waiting.iter().eq(noted.iter()), "session {id} does not know what it waits for");
            let late = memory.late.iter().map(|(number, _)| number);
            let at_once = memory.answers.iter().map(|(number, _)| number);
            let sorted = late.is_sorted_by(|a, b| a < b) && at_once.clone().is_sorted_by(|a, b| a < b);
            ensure!(sorted, "the answers of session {id} are out of order");
            let above = at_once.into_iter().all(|number| *number > memory.floor);
            ensure!(above, "session {id} keeps an answer that was acknowledged");
        }
        let delays = self.locks.places().filter(|lock| self.locks[*lock].holder.is_none()).count();
        ensure!(locks + delays == self.locks.places().count(), "some lock is of no session");
        Ok(())
    }

    fn check_owners(&self) -> Fault {
        for place in self.owners.places() {
            let (owner, party) = (&self.owners[place], Party::Recorded(place));
            let id = owner.id();
            ensure!(self.find_owner(id) == Some(party), "owner {id} is not found by its id");
            let locks = owner.locks.iter(&self.locks).filter(|lock| party.has(&self.locks, *lock));
            ensure!(locks.count() == owner.lock_count as usize, "owner {id} has miscounted its locks");
            ensure!(owner.lock_count > 0, "owner {id} is kept for nothing");
            let orders: Vec<_> =
                owner.queued.iter(&self.queued).map(|queued| self.queued[queued].order).collect();
            ensure!(orders.is_sorted(), "the requests of owner {id} are out of order");
            for queued in owner.queued.iter(&self.queued) {
                let lock = &self.locks[self.queued[queued].lock];
                let holds = self.resources[lock.resource]
                    .held_by(lock.resource, &self.locks, &self.owners, party)
                    .next()
                    .is_some();
                ensure!(lock.held || !holds, "owner {id} waits for what it holds");
            }
        }
        Ok(())
    }

    fn check_sets(&self) -> Fault {
        let mut in_sets = 0;
        for place in self.sets.places() {
            let places = &self.sets[place].places;
            ensure!(!places.is_empty(), "a request for several locks is for none");
            in_sets += places.len();
            let one = &self.queued[places[0]];
            let same = places.iter().map(|queued| &self.queued[*queued]).all(|queued| {
                queued.set == Some(place) && queued.order == one.order && queued.number == one.number
            });
            ensure!(same, "a request for several locks is not one request");
        }
        let marked = self.queued.places().filter(|queued| self.queued[*queued].set.is_some()).count();
        ensure!(marked == in_sets, "somebody waits with others that do not wait");
        ensure!(
            self.locks.places().filter(|lock| self.locks[*lock].queued.is_some()).count()
                == self.queued.places().count(),
            "a place in line is nobody's"
        );
        Ok(())
    }

    /// Checks that each waiting request has one place in a queue, or one set. Commands ensure this. A snapshot could break it.
    pub(crate) fn check_requests(&self) -> Fault {
        for session in self.sessions.places() {
            let session = &self.sessions[session];
            for lock in session.locks.iter(&self.locks) {
                let Some(queued) = self.locks[lock].queued else { continue };
                let Queued { number, set, .. } = self.queued[queued];
                let noted = session.memory.waits(number).map(|waiting| waiting.queued);
                let first = set.map_or(queued, |set| self.sets[set].places[0]);
                ensure!(noted == Some(first), "request {number} of session {} is two", session.id());
            }
        }
        Ok(())
    }

    fn could_be_granted(&self, first: Place<Queued>) -> bool {
        match self.queued[first].set {
            Some(set) => self.is_first_everywhere(set),
            None => self.fits_now(first),
        }
    }
}
