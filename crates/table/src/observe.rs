//! Observers: sessions that are notified when the holders of a resource change.
//!
//! Observations are a part of the state, so they survive a failover. An observer does not queue, and is not notified of waiters.

use crate::arena::Place;
use crate::resource::Resource;
use crate::session::Session;
use crate::table::Table;
use crate::{Answer, Effect, LockName, Outcome, Refusal};

impl Table {
    pub(crate) fn observe(&mut self, session: Place<Session>, name: &LockName) -> Outcome {
        self.check_name(name)?;
        let id = self.sessions[session].id();
        if self.sessions[session].observed.contains(name) {
            return Ok(Answer::Observed);
        }
        let limit = self.limits.observed_per_session;
        if self.sessions[session].observed.len() >= limit as usize {
            return Err(Refusal::TooManyObserved { limit });
        }
        let known = self.names.find(&self.resources, name);
        self.check_names(usize::from(known.is_none()))?;
        let limit = self.limits.observers_per_resource;
        let observers = known.and_then(|known| self.resources[known].rest.as_ref());
        if observers.map_or(0, |rest| rest.observers.len()) >= limit as usize {
            return Err(Refusal::TooManyObservers { name: name.clone(), limit });
        }
        let resource = self.resource(name);
        self.resources[resource].rest(&self.locks).observers.insert(id);
        self.sessions[session].observed.insert(name.clone());
        Ok(Answer::Observed)
    }

    pub(crate) fn unobserve(&mut self, session: Place<Session>, name: &LockName) -> Answer {
        if self.sessions[session].observed.remove(name) {
            let resource = self.remove_observer(session, name);
            self.touch(resource);
        }
        Answer::Unobserved
    }

    /// Ends all observations of a session and returns the resources. The caller [touches](Self::touch) those without a queue.
    pub(crate) fn stop_observing(&mut self, session: Place<Session>) -> Vec<Place<Resource>> {
        let observed = std::mem::take(&mut self.sessions[session].observed);
        observed.iter().map(|name| self.remove_observer(session, name)).collect()
    }

    fn remove_observer(&mut self, session: Place<Session>, name: &LockName) -> Place<Resource> {
        let id = self.sessions[session].id();
        let resource = self.names.find(&self.resources, name).expect("an observer keeps its resource");
        self.resources[resource].rest(&self.locks).observers.remove(&id);
        resource
    }

    /// Records that a grant of this resource was made, ended or converted.
    #[inline]
    pub(crate) fn note_changed(&mut self, resource: Place<Resource>) {
        if let Some(rest) = &self.resources[resource].rest
            && !rest.observers.is_empty()
        {
            self.work.changed.push(resource);
        }
    }

    /// Notifies observers, in the order of the names. The last step of a command.
    pub(crate) fn tell_observers(&mut self, effects: &mut Vec<Effect>) {
        let name = |place: &Place<Resource>| self.resources[*place].name();
        self.work.changed.sort_by(|a, b| name(a).cmp(name(b)));
        self.work.changed.dedup();
        for resource in self.work.changed.drain(..) {
            let resource = &self.resources[resource];
            let observers = resource.rest.as_ref().map(|rest| &rest.observers);
            for session in observers.into_iter().flatten() {
                effects.push(Effect::Changed { session: *session, name: resource.name().clone() });
            }
        }
    }
}
