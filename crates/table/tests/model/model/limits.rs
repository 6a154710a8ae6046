//! What is refused because there is too much of it.

use bytes::Bytes;
use tenure_table::Label;
use tenure_table::{LockName, Mode, Refusal, SessionId};

use super::{Model, count, refuse_if};

impl Model {
    pub(super) fn check_label(&self, label: Option<&Label>) -> Result<(), Refusal> {
        let limit = self.limits.label_bytes;
        refuse_if(label.is_some_and(|label| count(label.len()) > limit), Refusal::LabelTooLong { limit })
    }

    pub(super) fn check_name(&self, name: &LockName) -> Result<(), Refusal> {
        let limit = self.limits.name_bytes;
        refuse_if(count(name.as_str().len()) > limit, Refusal::NameTooLong { limit })
    }

    pub(super) fn check_locks(&self, session: SessionId, more: usize) -> Result<(), Refusal> {
        let limit = self.limits.locks_per_session;
        refuse_if(count(self.locks(session) + more) > limit, Refusal::TooManyLocks { limit })
    }

    /// Names that are known cost nothing more, also if there are too many of them since the limit was lowered.
    pub(super) fn check_names(&self, asked: &[&LockName]) -> Result<(), Refusal> {
        let limit = self.limits.names;
        let known = self.names();
        let new = asked.iter().filter(|name| !known.contains(*name)).count();
        refuse_if(new > 0 && count(known.len() + new) > limit, Refusal::TooManyNames { limit })
    }

    pub(super) fn check_observers(&self, session: SessionId, name: &LockName) -> Result<(), Refusal> {
        let limit = self.limits.observed_per_session;
        let observed = self.observers.iter().filter(|(_, observer)| *observer == session);
        refuse_if(count(observed.count()) >= limit, Refusal::TooManyObserved { limit })?;
        self.check_names(&[name])?;
        let limit = self.limits.observers_per_resource;
        let observers = self.observers.iter().filter(|(observed, _)| observed == name);
        let why = Refusal::TooManyObservers { name: name.clone(), limit };
        refuse_if(count(observers.count()) >= limit, why)
    }

    pub(super) fn check_waiters(&self, name: &LockName) -> Result<(), Refusal> {
        let limit = self.limits.waiters_per_resource;
        let why = Refusal::TooManyWaiters { name: name.clone(), limit };
        refuse_if(count(self.line(name).len()) >= limit, why)
    }

    pub(super) fn check_write(&self, mode: Mode, bytes: &Bytes) -> Result<(), Refusal> {
        refuse_if(!mode.may_write(), Refusal::MayNotWrite { mode })?;
        let limit = self.limits.value_bytes;
        refuse_if(count(bytes.len()) > limit, Refusal::ValueTooLong { limit })
    }
}
