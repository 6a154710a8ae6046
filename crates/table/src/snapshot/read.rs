//! Reads a table from records.
//!
//! The bytes may come from another machine, and a checksum only shows that they are unchanged. So invalid records are refused here, and the
//! whole table is checked at the end.

use crate::arena::Place;
use crate::brief::Brief;
use crate::lock::{Extras, Holder, Lock, Queued, Set};
use crate::once::signed;
use crate::owner::Party;
use crate::resource::{Resource, StartNote};
use crate::session::{Session, Waiting};
use crate::table::Table;
use crate::{Answer, GrantId, Limits, OwnerId, Refusal, SessionId, Value};

use super::record::{
    AnswerRecord, ConvertingRecord, HeldRecord, LineRecord, Record, ResourceRecord, SessionRecord, SetRecord,
    TableRecord, WaitingRecord,
};

/// A table that is being read.
pub(super) struct Restored {
    table: Table,
    begun: bool,
    session: Option<Place<Session>>,
    resource: Option<Place<Resource>>,
    /// The queued requests, in the order in which they were read.
    lines: Vec<Place<Queued>>,
}

/// The contradiction, if there is one.
type Fault = Result<(), String>;

impl Restored {
    pub(super) fn new(seed: u64) -> Self {
        let table = Table::new(Limits::default(), seed);
        Self { table, begun: false, session: None, resource: None, lines: Vec::new() }
    }

    pub(super) fn put(&mut self, record: Record) -> Fault {
        if self.begun == matches!(record, Record::Table(_)) {
            return Err("it does not begin as it should".to_owned());
        }
        match record {
            Record::Table(record) => self.table_record(&record)?,
            Record::Session(record) => self.session_record(record)?,
            Record::Answer(record) => self.answer_record(&record)?,
            Record::Resource(record) => self.resource_record(record)?,
            Record::Held(record) => self.held_record(record)?,
            Record::Converting(record) => self.converting_record(&record)?,
            Record::Waiting(record) => self.waiting_record(record)?,
            Record::Set(record) => self.set_record(&record)?,
        }
        Ok(())
    }

    fn table_record(&mut self, record: &TableRecord) -> Fault {
        if record.rules == 0 {
            return Err("there is no version 0 of the rules".to_owned());
        }
        self.begun = true;
        self.table.limits = record.limits;
        self.table.rules = record.rules;
        self.table.now_ms = record.now_ms;
        self.table.last_token = record.last_token;
        self.table.last_order = record.last_order;
        Ok(())
    }

    fn session_record(&mut self, record: SessionRecord) -> Fault {
        let SessionRecord { id, epoch, ttl_ms, label, floor } = record;
        if self.table.session(id).is_some() {
            return Err(format!("session {id} comes twice"));
        }
        let mut session = Session::new(id, epoch, ttl_ms, label);
        session.memory.floor = floor;
        self.session = Some(self.table.session_ids.put(&mut self.table.sessions, session));
        Ok(())
    }

    fn answer_record(&mut self, record: &AnswerRecord) -> Fault {
        let session = self.session.ok_or("an answer is nobody's")?;
        let never_kept = matches!(
            record.outcome,
            Ok(Answer::Queued { .. })
                | Err(Refusal::NoSession | Refusal::Forgotten | Refusal::TooManyAnswers { .. })
        );
        if never_kept {
            return Err("an answer is kept that never is".to_owned());
        }
        let memory = &mut self.table.sessions[session].memory;
        let last =
            if record.waited { memory.late.last().map(|(last, _)| *last) } else { memory.answers.last() };
        let in_order = last.is_none_or(|last| last < record.number);
        if !in_order || memory.repeat(record.number).is_some_and(|known| known != Err(Refusal::Forgotten)) {
            return Err("answers are out of order".to_owned());
        }
        let answer = Brief::of(&record.outcome);
        if record.waited {
            memory.keep_late(record.number, answer);
        } else {
            memory.keep(record.number, answer);
        }
        Ok(())
    }

    fn resource_record(&mut self, record: ResourceRecord) -> Fault {
        let ResourceRecord { name, value, in_doubt, start, observers } = record;
        let table = &mut self.table;
        if table.names.find(&table.resources, &name).is_some() {
            return Err(format!("`{name}` comes twice"));
        }
        let place = table.names.put(&mut table.resources, Resource::new(name));
        self.resource = Some(place);
        if !value.is_empty() || in_doubt {
            table.resources[place].rest(&table.locks).value = Value { bytes: value, in_doubt }.into();
        }
        if let Some((at_ms, until_ms)) = start {
            if until_ms <= signed(table.now_ms) {
                return Err("a start that is over is remembered".to_owned());
            }
            table.note_start(place, StartNote { at_ms, until_ms });
        }
        if !observers.is_sorted_by(|a, b| a < b) {
            return Err("observers are out of order".to_owned());
        }
        for id in observers {
            let session = table.session(id).ok_or_else(|| format!("session {id} is not open"))?;
            let name = table.resources[place].name().clone();
            table.sessions[session].observed.insert(name);
            table.resources[place].rest(&table.locks).observers.insert(id);
        }
        Ok(())
    }

    fn held_record(&mut self, record: HeldRecord) -> Fault {
        let HeldRecord { grant, mode, token, since_ms, holder, label, lock_delay_ms, notify, let_go } =
            record;
        let resource = self.resource.ok_or("a lock is at no resource")?;
        let holder = match holder {
            Some((session, owner)) => Some(self.holder(session, owner, grant)?),
            None => None,
        };
        self.new_grant(grant)?;
        let mut lock = Lock::new(grant, resource, holder, mode, Extras::of(label, lock_delay_ms), notify);
        (lock.held, lock.token, lock.since_ms, lock.let_go) = (true, token, since_ms, let_go);
        let table = &mut self.table;
        let lock = table.put_lock(lock);
        table.resources[resource].add(&mut table.locks, lock);
        Ok(())
    }

    fn converting_record(&mut self, record: &ConvertingRecord) -> Fault {
        let table = &self.table;
        let lock = table.grants.find(&table.locks, &record.grant).ok_or("nothing is converted")?;
        let Lock { resource, held, queued, holder, .. } = table.locks[lock];
        if !held || queued.is_some() || holder.is_none() || Some(resource) != self.resource {
            return Err(format!("{} cannot be converted", record.grant));
        }
        self.in_line(lock, &record.line)
    }

    fn waiting_record(&mut self, record: WaitingRecord) -> Fault {
        let WaitingRecord { grant, session, owner, label, lock_delay_ms, notify, line } = record;
        let resource = self.resource.ok_or("a lock is at no resource")?;
        self.new_grant(grant)?;
        let holder = Some(self.holder(session, owner, grant)?);
        let extras = Extras::of(label, lock_delay_ms);
        let lock = self.table.put_lock(Lock::new(grant, resource, holder, line.mode, extras, notify));
        self.in_line(lock, &line)
    }

    /// An owner's requests are listed in the order in which they queued, so places in queues are assigned at the end, in [`Self::finish`].
    fn in_line(&mut self, lock: Place<Lock>, line: &LineRecord) -> Fault {
        let table = &mut self.table;
        let LineRecord { mode, number, order, since_ms, place } = *line;
        let queued = table.queued.put(Queued::new(lock, mode, number, order, since_ms));
        table.locks[lock].queued = Some(queued);
        self.lines.push(queued);
        let session = table.locks[lock].holder.ok_or("a delay waits")?.session;
        let memory = &mut table.sessions[session].memory;
        match memory.repeat(number) {
            None | Some(Err(Refusal::Forgotten)) => memory.wait(Waiting { number, place, queued }),
            Some(Ok(Answer::Queued { .. })) => {}
            Some(_) => return Err(format!("request {number} waits, and was answered")),
        }
        Ok(())
    }

    fn set_record(&mut self, record: &SetRecord) -> Fault {
        let table = &mut self.table;
        let mut places: Vec<Place<Queued>> = Vec::with_capacity(record.grants.len());
        for grant in &record.grants {
            let lock = table.grants.find(&table.locks, grant).ok_or("a set waits for nothing")?;
            let queued = table.locks[lock].queued.ok_or("a set does not wait")?;
            if table.queued[queued].set.is_some() || places.contains(&queued) || table.locks[lock].held {
                return Err(format!("{grant} is not one of several"));
            }
            places.push(queued);
        }
        let first = *places.first().ok_or("a set is empty")?;
        let Queued { lock, number, .. } = table.queued[first];
        let session = table.locks[lock].holder.ok_or("a set is nobody's")?.session;
        let owner = table.party(lock);
        let together = places.iter().map(|place| table.queued[*place].lock).all(|lock| {
            let other = table.locks[lock].holder;
            other.is_some_and(|other| other.session == session) && table.party(lock) == owner
        });
        if !together {
            return Err("a set is of several".to_owned());
        }
        let memory = &mut table.sessions[session].memory;
        if let Some(waiting) = memory.waits_mut(number) {
            waiting.queued = first;
        }
        let set = table.sets.put(Set { places: places.clone() });
        for place in places {
            table.queued[place].set = Some(set);
        }
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<Table, String> {
        if !self.begun {
            return Err("it is empty".to_owned());
        }
        // No real counter comes near its end.
        let most = u64::MAX / 2;
        let counters = [self.table.last_token, self.table.last_order, self.table.now_ms];
        let epochs = self.table.sessions.places().map(|place| self.table.sessions[place].epoch);
        if counters.into_iter().chain(epochs).any(|counter| counter > most) {
            return Err("a counter has run over".to_owned());
        }
        let table = &mut self.table;
        // The sort is stable: the places of one request keep their order until its set defines it.
        self.lines.sort_by_key(|place| table.queued[*place].order);
        let mut next = 0;
        while let Some(first) = self.lines.get(next).copied() {
            // One request after the other, each in the order of its items.
            let order = table.queued[first].order;
            let request = match table.queued[first].set {
                Some(set) => table.sets[set].places.clone(),
                None => vec![first],
            };
            let same = self.lines[next..].iter().take_while(|place| table.queued[**place].order == order);
            if same.count() != request.len()
                || request.iter().any(|place| table.queued[*place].order != order)
            {
                return Err("two requests have queued at one instant".to_owned());
            }
            next += request.len();
            for place in request {
                table.stand_in_line(place);
            }
        }
        self.table.check()?;
        self.table.check_requests()?;
        Ok(self.table)
    }

    fn holder(&mut self, session: SessionId, owner: OwnerId, grant: GrantId) -> Result<Holder, String> {
        let session = self.table.session(session).ok_or_else(|| format!("session {session} is not open"))?;
        let known = self.table.find_owner(owner);
        // A queued request joins its owner's requests at the end.
        let queued = match known {
            Some(Party::Alone(lock)) => self.table.locks[lock].queued.take().map(|queued| (lock, queued)),
            _ => None,
        };
        let owner = self.table.owner_of_new(known, owner, grant);
        if let Some((lock, queued)) = queued {
            self.table.locks[lock].queued = Some(queued);
        }
        Ok(Holder { session, owner })
    }

    fn new_grant(&self, grant: GrantId) -> Fault {
        match self.table.grants.find(&self.table.locks, &grant) {
            Some(_) => Err(format!("{grant} comes twice")),
            None => Ok(()),
        }
    }
}
