//! Values and starts, rules 21 to 23: what stays with a resource.

use bytes::Bytes;
use tenure_table::{Answer, GrantId, LockName, Outcome, SessionId, Value};

use super::{Held, Model, Start};

impl Model {
    pub(super) fn set_value(&mut self, session: SessionId, grant: GrantId, bytes: &Bytes) -> Outcome {
        let Held { name, holder, .. } = self.held_by(session, grant)?;
        self.check_write(holder.mode, bytes)?;
        self.write(&name, bytes);
        Ok(Answer::Written)
    }

    pub(super) fn value(&self, name: &LockName) -> Value {
        self.values.get(name).cloned().unwrap_or_default()
    }

    pub(super) fn write(&mut self, name: &LockName, bytes: &Bytes) {
        if bytes.is_empty() {
            self.values.remove(name);
        } else {
            self.values.insert(name.clone(), Value { bytes: bytes.clone(), in_doubt: false });
        }
    }

    pub(super) fn remember(
        &mut self,
        session: SessionId,
        grant: GrantId,
        ago_ms: u64,
        window_ms: u64,
    ) -> Outcome {
        let Held { name, .. } = self.held_by(session, grant)?;
        if let Some(last) = self.started_ago(&name)
            && last < window_ms.max(ago_ms)
        {
            return Ok(Answer::AlreadyStarted { ago_ms: last });
        }
        let at_ms = i128::from(self.now_ms) - i128::from(ago_ms);
        let until_ms = at_ms + i128::from(window_ms);
        let last_until_ms = self.starts.get(&name).map_or(until_ms, |last| last.until_ms);
        self.starts.insert(name, Start { at_ms, until_ms: until_ms.max(last_until_ms) });
        self.forget_starts();
        Ok(Answer::Remembered)
    }

    pub(super) fn started_ago(&self, name: &LockName) -> Option<u64> {
        self.starts.get(name).map(|start| u64::try_from(i128::from(self.now_ms) - start.at_ms).unwrap())
    }

    pub(super) fn forget_starts(&mut self) {
        let now = i128::from(self.now_ms);
        self.starts.retain(|_, start| now < start.until_ms);
    }
}
