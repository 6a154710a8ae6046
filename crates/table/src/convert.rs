//! Conversions of a grant to another mode.

use bytes::Bytes;

use crate::arena::Place;
use crate::lock::Lock;
use crate::session::Session;
use crate::table::Table;
use crate::{Answer, GrantId, Granted, Mode, Outcome, Refusal, Wait};

impl Table {
    pub(crate) fn convert(
        &mut self,
        session: Place<Session>,
        number: u64,
        grant: GrantId,
        to: Mode,
        wait: Wait,
        value: Option<Bytes>,
    ) -> Outcome {
        let lock = self.held(session, grant)?;
        if self.locks[lock].queued.is_some() {
            return Err(Refusal::Converting);
        }
        let (from, resource) = (self.locks[lock].mode, self.locks[lock].resource);
        let owner = self.party(lock).expect("a lock of a session has an owner");
        let down = from.covers(to);
        if let Some(bytes) = value {
            if !down {
                return Err(Refusal::ValueOnTheWayUp);
            }
            self.check_value(from, &bytes)?;
            self.write_value(resource, &bytes);
        }
        let here = &self.resources[resource];
        // A conversion down needs no check, even beside a lock-delay that the same owner left in another session.
        if down || here.fits(resource, &self.locks, &self.owners, owner, to) {
            let others_wait = here.in_line() > 0;
            let granted = self.change_mode(lock, to);
            if !down && others_wait && self.queued_of(owner).next().is_some() {
                let holder = self.locks[lock].holder.expect("it is of this session");
                let owner = self.owner_id(&self.locks[lock], holder);
                self.work.recheck.push((owner, None));
            }
            return Ok(Answer::Granted(granted));
        }
        if wait == Wait::Try {
            return Err(Refusal::Busy { name: here.name().clone() });
        }
        self.check_waiters(resource)?;
        let place = here.rest.as_ref().map_or(0, |rest| rest.converting_count);
        let order = self.next_order();
        let queued = self.enqueue(lock, to, number, order);
        // The conversion is ahead of all waiters, which now wait for its owner. So a cycle may also go through another request of that
        // owner.
        let requests: Vec<_> = self.queued_of(owner).collect();
        if let Some(cycle) = self.cycle_through(owner, &requests) {
            self.last_order -= 1;
            self.dequeue(queued);
            self.touch(resource);
            return Err(Refusal::Deadlock { cycle });
        }
        self.note_waiting(session, number, place, queued);
        self.note_wanting(resource, lock, to);
        Ok(Answer::Queued { place })
    }

    /// Changes the mode of a held lock. Gives it a new token unless the old mode covers the new one: then every grant in between was
    /// compatible with the new mode.
    pub(crate) fn change_mode(&mut self, lock: Place<Lock>, to: Mode) -> Granted {
        let (from, resource) = (self.locks[lock].mode, self.locks[lock].resource);
        if !from.covers(to) {
            self.locks[lock].token = self.next_token();
        }
        self.work.note_granted(&self.locks[lock]);
        let here = &mut self.resources[resource];
        here.change(&mut self.locks, lock, to);
        let value = to.covers(from).then(|| here.value());
        if from != to {
            self.note_changed(resource);
        }
        self.touch(resource);
        Granted { token: self.locks[lock].token, value }
    }
}
