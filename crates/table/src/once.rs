//! What stays with a resource: its value, and when what it protects was last started; and the table's own time.

use bytes::Bytes;

use crate::arena::Place;
use crate::resource::{Resource, StartNote};
use crate::session::Session;
use crate::table::Table;
use crate::{Answer, GrantId, LockName, Mode, Outcome, Refusal, Value};

impl Table {
    pub(crate) fn set_value(&mut self, session: Place<Session>, grant: GrantId, bytes: &Bytes) -> Outcome {
        let lock = self.held(session, grant)?;
        self.check_value(self.locks[lock].mode, bytes)?;
        self.write_value(self.locks[lock].resource, bytes);
        Ok(Answer::Written)
    }

    pub(crate) fn check_value(&self, mode: Mode, bytes: &Bytes) -> Result<(), Refusal> {
        let limit = self.limits.value_bytes;
        if !mode.may_write() {
            return Err(Refusal::MayNotWrite { mode });
        }
        if bytes.len() <= limit as usize { Ok(()) } else { Err(Refusal::ValueTooLong { limit }) }
    }

    /// The bytes are copied: they may be a part of a message, which would be kept with them.
    pub(crate) fn write_value(&mut self, resource: Place<Resource>, bytes: &Bytes) {
        self.resources[resource].rest(&self.locks).value =
            Value { bytes: Bytes::copy_from_slice(bytes), in_doubt: false }.into();
        self.touch(resource);
    }

    /// A holder in this mode has died: it may have been about to write. Where there is no value, there is nothing to doubt.
    pub(crate) fn doubt(&mut self, resource: Place<Resource>, mode: Mode) {
        if mode.may_write()
            && let Some(rest) = &mut self.resources[resource].rest
        {
            rest.value.doubt();
        }
    }

    pub(crate) fn remember(
        &mut self,
        session: Place<Session>,
        grant: GrantId,
        ago_ms: u64,
        window_ms: u64,
    ) -> Outcome {
        let lock = self.held(session, grant)?;
        let resource = self.locks[lock].resource;
        if let Some(last_ms) = self.started_ago(resource)
            && last_ms < window_ms.max(ago_ms)
        {
            return Ok(Answer::AlreadyStarted { ago_ms: last_ms });
        }
        let at_ms = signed(self.now_ms).saturating_sub(signed(ago_ms));
        // It takes the place of the last one, and is remembered for as long as that one would have been.
        let last_until = self.resources[resource].rest.as_ref().and_then(|rest| rest.start);
        let last_until = last_until.map_or(i64::MIN, |start| start.until_ms);
        let until_ms = at_ms.saturating_add(signed(window_ms)).max(last_until);
        self.note_start(resource, StartNote { at_ms, until_ms });
        self.touch(resource);
        Ok(Answer::Remembered)
    }

    pub(crate) fn note_start(&mut self, resource: Place<Resource>, note: StartNote) {
        let here = &mut self.resources[resource];
        let name = here.name().clone();
        // One that is over already is not kept.
        let new = (note.until_ms > signed(self.now_ms)).then_some(note);
        let old = std::mem::replace(&mut here.rest(&self.locks).start, new);
        if let Some(old) = old {
            self.starts.remove(&(old.until_ms, name.clone()));
        }
        if new.is_some() {
            self.starts.insert((note.until_ms, name));
        }
    }

    pub(crate) fn started_ago(&self, resource: Place<Resource>) -> Option<u64> {
        let start = self.resources[resource].rest.as_ref()?.start?;
        Some(signed(self.now_ms).saturating_sub(start.at_ms).unsigned_abs())
    }

    /// How long ago the last start was that is remembered, if that is less than the window.
    pub fn recall(&self, name: &LockName, window_ms: u64) -> Option<u64> {
        let resource = self.names.find(&self.resources, name)?;
        self.started_ago(resource).filter(|ago_ms| *ago_ms < window_ms)
    }

    pub(crate) fn advance_time(&mut self, to_ms: u64) {
        // More than that cannot be counted with, and is no time.
        self.now_ms = self.now_ms.max(to_ms.min(i64::MAX.unsigned_abs()));
        while let Some((until_ms, _)) = self.starts.first()
            && *until_ms <= signed(self.now_ms)
        {
            let (_, name) = self.starts.pop_first().expect("it was just seen");
            let resource = self.names.find(&self.resources, &name).expect("a start keeps its resource");
            self.resources[resource].rest(&self.locks).start = None;
            self.touch(resource);
        }
    }
}

/// Times are compared as signed numbers, since a start may lie before the table's beginning.
pub(crate) fn signed(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX)
}
