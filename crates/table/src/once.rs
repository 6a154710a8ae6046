//! State that stays with a resource: its value and its recorded start. Also the table's time.

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

    /// Copies the bytes: they may be a slice of a larger message, which would otherwise stay in memory.
    pub(crate) fn write_value(&mut self, resource: Place<Resource>, bytes: &Bytes) {
        self.resources[resource].rest(&self.locks).value =
            Value { bytes: Bytes::copy_from_slice(bytes), in_doubt: false }.into();
        self.touch(resource);
    }

    /// Marks the value as in doubt, because the holder of this mode may have had another value to write. Does nothing if there is no value.
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
        // The new start replaces the last one, and is kept at least as long as the last one would have been.
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
        // A start whose time is over is not kept.
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

    /// Returns how long ago the recorded start was, if that is less than the window.
    pub fn recall(&self, name: &LockName, window_ms: u64) -> Option<u64> {
        let resource = self.names.find(&self.resources, name)?;
        self.started_ago(resource).filter(|ago_ms| *ago_ms < window_ms)
    }

    pub(crate) fn advance_time(&mut self, to_ms: u64) {
        // Starts use signed times, so a larger time is cut to their maximum.
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

/// Converts a time to a signed number. Starts use these, because a start may be earlier than the table's time 0.
pub(crate) fn signed(ms: u64) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX)
}
