//! Ends of locks and waits: by a release, a cancellation, the end of a session, or an operator.

use std::mem;

use bytes::Bytes;

use crate::arena::Place;
use crate::lock::{Lock, Queued};
use crate::resource::Resource;
use crate::session::Session;
use crate::table::Table;
use crate::{Answer, Break, Effect, GrantId, LockName, LossReason, Outcome, Refusal, SessionEnd, SessionId};

impl Table {
    /// Releases a lock or cancels its request, and answers.
    #[inline(never)]
    pub(crate) fn release(
        &mut self,
        session: Place<Session>,
        number: u64,
        grant: GrantId,
        value: Option<Bytes>,
        effects: &mut Vec<Effect>,
    ) -> Result<(), Refusal> {
        let found = self.grants.look_up(&self.locks, &grant);
        let Some(found) = found.filter(|found| self.locks[found.place].is_of(session)) else {
            return Err(Refusal::NotHeld);
        };
        let Lock { resource, mode, held, queued, .. } = self.locks[found.place];
        if held && let Some(bytes) = value {
            self.check_value(mode, &bytes)?;
            self.write_value(resource, &bytes);
        }
        if let Some(queued) = queued {
            self.refuse(queued, Refusal::Cancelled, effects);
        }
        if held {
            self.take_found(&found);
            self.touch(resource);
        }
        self.answer_released(session, number, effects);
        Ok(())
    }

    pub(crate) fn cancel(
        &mut self,
        session: Place<Session>,
        number: u64,
        effects: &mut Vec<Effect>,
    ) -> Outcome {
        let waiting = self.sessions[session].memory.waits(number).ok_or(Refusal::NotQueued)?;
        self.refuse(waiting.queued, Refusal::Cancelled, effects);
        Ok(Answer::Cancelled)
    }

    /// Ends a waiting request with this refusal.
    pub(crate) fn refuse(&mut self, queued: Place<Queued>, refusal: Refusal, effects: &mut Vec<Effect>) {
        let Queued { lock, number, .. } = self.queued[queued];
        let session = self.locks[lock].holder.expect("only what is somebody's waits").session;
        for lock in self.leave_line(queued) {
            let Lock { resource, held, .. } = self.locks[lock];
            if !held {
                self.take_lock(lock);
            }
            self.touch(resource);
        }
        self.answer(session, number, Err(refusal), effects);
    }

    /// Removes a request from the queues of all its resources, which must then be touched. Returns its locks.
    pub(crate) fn leave_line(&mut self, queued: Place<Queued>) -> Vec<Place<Lock>> {
        let places = match self.queued[queued].set {
            Some(set) => self.sets.take(set).places,
            None => vec![queued],
        };
        places.into_iter().map(|place| self.dequeue(place).lock).collect()
    }

    /// Removes a held lock, which must not be queued.
    #[inline]
    pub(crate) fn fall(&mut self, lock: Place<Lock>) {
        let resource = self.take_lock(lock);
        self.touch(resource);
    }

    pub(crate) fn end_session(&mut self, id: SessionId, end: SessionEnd, effects: &mut Vec<Effect>) {
        let Some(session) = self.session(id) else {
            effects.push(Effect::SessionUnknown { session: id });
            return;
        };
        // The session is not notified of changes that its own end causes.
        let observed = self.stop_observing(session);
        let locks: Vec<_> = self.sessions[session].locks.iter(&self.locks).collect();
        let mut resources = Vec::with_capacity(locks.len());
        for lock in &locks {
            let Lock { resource, queued, .. } = self.locks[*lock];
            if let Some(queued) = queued {
                self.leave_line(queued);
            }
            resources.push(resource);
        }
        let mut delayed = Vec::new();
        for lock in locks {
            let Lock { resource, mode, held, .. } = self.locks[lock];
            if held && end == SessionEnd::Expired {
                self.doubt(resource, mode);
                if self.locks[lock].lock_delay_ms() > 0 {
                    self.delay(lock);
                    delayed.push(lock);
                    continue;
                }
            }
            self.take_lock(lock);
        }
        self.session_ids.take(&mut self.sessions, session);
        self.last_session = None;

        let name = |lock: &Lock| self.resources[lock.resource].name();
        let delayed_locks = || delayed.iter().map(|lock| &self.locks[*lock]);
        let mut delays: Vec<_> = delayed_locks().collect();
        delays.sort_by(|a, b| (name(a), a.grant).cmp(&(name(b), b.grant)));
        for lock in delays {
            effects.push(Effect::Delay { grant: lock.grant, for_ms: lock.lock_delay_ms() });
        }
        effects.push(Effect::SessionEnded { session: id, end });

        // Without waiters, the order of the resources has no visible effect, so they are not sorted. Two locks of one resource do not touch
        // it twice, because its `rest` remains until it is served.
        let mut lines = Vec::new();
        for resource in resources {
            if self.resources[resource].in_line() > 0 {
                lines.push(resource);
            } else {
                self.touch(resource);
            }
        }
        lines.sort_by(|a, b| self.resources[*a].name().cmp(self.resources[*b].name()));
        // A resource that was only observed and has a queue is not served now.
        let idle = |resource: &Place<Resource>| self.resources[*resource].in_line() == 0;
        lines.extend(observed.into_iter().filter(idle));
        for resource in lines {
            self.touch(resource);
        }
    }

    /// Turns a held lock into a lock-delay without a holder.
    fn delay(&mut self, lock: Place<Lock>) {
        self.note_changed(self.locks[lock].resource);
        let lock = &mut self.locks[lock];
        self.resources[lock.resource].ignore(lock);
        (lock.since_ms, lock.notify, lock.let_go) = (self.now_ms, false, false);
        let (of_session, of_owner) = (mem::take(&mut lock.of_session), mem::take(&mut lock.of_owner));
        if let Some(holder) = lock.holder.take() {
            self.leave_holder(holder, &of_session, &of_owner);
        }
    }

    pub(crate) fn end_delay(&mut self, grant: GrantId) {
        if let Some(lock) = self.grants.find(&self.locks, &grant)
            && self.locks[lock].holder.is_none()
        {
            self.fall(lock);
        }
    }

    pub(crate) fn break_lock(&mut self, name: &LockName, how: Break, effects: &mut Vec<Effect>) -> Outcome {
        let resource = self.names.find(&self.resources, name).ok_or(Refusal::NotHeld)?;
        let standing: Vec<_> = self.resources[resource].held.iter(&self.locks).collect();
        let (held, delays): (Vec<_>, Vec<_>) =
            standing.into_iter().partition(|lock| self.locks[*lock].holder.is_some());
        if held.is_empty() && (delays.is_empty() || how == Break::Ask) {
            return Err(Refusal::NotHeld);
        }
        let broken = held.iter().map(|lock| self.locks[*lock].grant).collect();
        for lock in held {
            let holder = self.locks[lock].holder.expect("the others were set apart");
            let (session, grant) = (self.sessions[holder.session].id(), self.locks[lock].grant);
            match how {
                Break::Ask => {
                    self.locks[lock].let_go = true;
                    effects.push(Effect::LetGo { session, grant });
                }
                Break::Force => {
                    if let Some(queued) = self.locks[lock].queued {
                        self.refuse(queued, Refusal::NotHeld, effects);
                    }
                    self.doubt(resource, self.locks[lock].mode);
                    effects.push(Effect::Lost { session, grant, reason: LossReason::Broken });
                    self.fall(lock);
                }
            }
        }
        if how == Break::Force {
            for lock in delays {
                self.fall(lock);
            }
        }
        Ok(Answer::Broken(broken))
    }
}
