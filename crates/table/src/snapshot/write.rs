//! Writes a table as records.

use std::io;

use super::record::{
    AnswerRecord, ConvertingRecord, HeldRecord, LineRecord, Record, ResourceRecord, SessionRecord, SetRecord,
    TableRecord, WaitingRecord,
};
use crate::Value;
use crate::arena::Place;
use crate::lock::Queued;
use crate::resource::Resource;
use crate::table::Table;

impl Table {
    /// Writes the whole state as records, in an order that depends only on the state.
    pub(super) fn write_records(&self, mut put: impl FnMut(&Record) -> io::Result<()>) -> io::Result<()> {
        put(&Record::Table(TableRecord {
            limits: self.limits,
            rules: self.rules,
            now_ms: self.now_ms,
            last_token: self.last_token,
            last_order: self.last_order,
        }))?;
        let mut sessions: Vec<_> = self.sessions.places().collect();
        sessions.sort_unstable_by_key(|place| self.sessions[*place].id());
        for place in sessions {
            let session = &self.sessions[place];
            put(&Record::Session(SessionRecord {
                id: session.id(),
                epoch: session.epoch,
                ttl_ms: session.ttl_ms,
                label: session.label.clone(),
                floor: session.memory.floor,
            }))?;
            let late = session.memory.late.iter().map(|answer| (true, answer));
            let at_once = session.memory.answers.iter().map(|answer| (false, answer));
            for (waited, (number, answer)) in late.chain(at_once) {
                put(&Record::Answer(AnswerRecord { number: *number, waited, outcome: answer.outcome() }))?;
            }
        }
        let mut resources: Vec<_> = self.resources.places().collect();
        resources.sort_unstable_by(|a, b| self.resources[*a].name().cmp(self.resources[*b].name()));
        for place in resources {
            self.write_resource(&self.resources[place], &mut put)?;
        }
        let mut sets: Vec<_> = self.sets.places().map(|place| &self.sets[place].places).collect();
        sets.sort_unstable_by_key(|places| self.queued[places[0]].order);
        for places in sets {
            let grants = places.iter().map(|place| self.locks[self.queued[*place].lock].grant).collect();
            put(&Record::Set(SetRecord { grants }))?;
        }
        Ok(())
    }

    fn write_resource(
        &self,
        resource: &Resource,
        put: &mut impl FnMut(&Record) -> io::Result<()>,
    ) -> io::Result<()> {
        let value = Value::from(resource.value());
        let rest = resource.rest.as_ref();
        let start = rest.and_then(|rest| rest.start);
        let observers = rest.into_iter().flat_map(|rest| &rest.observers);
        put(&Record::Resource(ResourceRecord {
            name: resource.name().clone(),
            value: value.bytes,
            in_doubt: value.in_doubt,
            start: start.map(|start| (start.at_ms, start.until_ms)),
            observers: observers.copied().collect(),
        }))?;
        for lock in resource.held.iter(&self.locks).map(|place| &self.locks[place]) {
            let ids = |holder: crate::lock::Holder| {
                (self.sessions[holder.session].id(), self.owner_id(lock, holder))
            };
            put(&Record::Held(HeldRecord {
                grant: lock.grant,
                mode: lock.mode,
                token: lock.token,
                since_ms: lock.since_ms,
                holder: lock.holder.map(ids),
                label: lock.label().cloned(),
                lock_delay_ms: lock.lock_delay_ms(),
                notify: lock.notify,
                let_go: lock.let_go,
            }))?;
        }
        let Some(rest) = rest else { return Ok(()) };
        for queued in rest.converting.iter(&self.queued) {
            let grant = self.locks[self.queued[queued].lock].grant;
            put(&Record::Converting(ConvertingRecord { grant, line: self.line_record(queued) }))?;
        }
        for queued in rest.waiting.iter(&self.queued) {
            let lock = &self.locks[self.queued[queued].lock];
            let holder = lock.holder.expect("a waiter is somebody");
            put(&Record::Waiting(WaitingRecord {
                grant: lock.grant,
                session: self.sessions[holder.session].id(),
                owner: self.owner_id(lock, holder),
                label: lock.label().cloned(),
                lock_delay_ms: lock.lock_delay_ms(),
                notify: lock.notify,
                line: self.line_record(queued),
            }))?;
        }
        Ok(())
    }

    fn line_record(&self, queued: Place<Queued>) -> LineRecord {
        let Queued { lock, mode, number, order, since_ms, .. } = self.queued[queued];
        let session = self.locks[lock].holder.expect("a waiter is somebody").session;
        let noted = self.sessions[session].memory.waits(number);
        let place = noted.expect("a session knows what it waits for").place;
        LineRecord { mode, number, order, since_ms, place }
    }
}
