//! What can be seen of the model, in the table's words.

use tenure_table::{
    DelayView, FencingToken, Limits, LockName, ResourceView, SessionId, SessionView, WaiterView,
};

use super::{Held, Kind, Model, Session, count};

impl Model {
    pub(crate) fn inspect(&self, name: &LockName) -> Option<ResourceView> {
        if !self.names().contains(name) {
            return None;
        }
        let (mut converters, mut waiters) = (Vec::new(), Vec::new());
        for pending in self.line(name).into_iter().map(|i| &self.pending[i]) {
            let line = if pending.kind == Kind::Convert { &mut converters } else { &mut waiters };
            line.push(WaiterView {
                grant: pending.item(name).grant,
                owner: pending.owner,
                session: pending.asker.session,
                number: pending.asker.number,
                mode: pending.item(name).mode,
                label: pending.label.clone(),
                since_ms: pending.since_ms,
                together: count(pending.items.len()),
            });
        }
        Some(ResourceView {
            name: name.clone(),
            holders: self.holders(name).cloned().collect(),
            converters,
            waiters,
            delays: self.standing(name).filter_map(Held::delay).collect(),
            value: self.value(name),
            started_ago_ms: self.started_ago(name),
        })
    }

    pub(crate) fn list(&self, prefix: &str) -> Vec<ResourceView> {
        let names = self.busy_names().into_iter().filter(|name| name.as_str().starts_with(prefix));
        names.map(|name| self.inspect(name).unwrap()).collect()
    }

    pub(crate) fn sessions(&self) -> Vec<SessionView> {
        let view = |(session, state): (&SessionId, &Session)| SessionView {
            session: *session,
            epoch: state.epoch,
            ttl_ms: state.ttl_ms,
            label: state.label.clone(),
            locks: count(self.locks(*session)),
        };
        self.sessions.iter().map(view).collect()
    }

    pub(crate) fn delays(&self) -> Vec<DelayView> {
        let mut delays: Vec<_> = self.grants.iter().filter_map(Held::delay).collect();
        delays.sort_by_key(|delay| delay.grant);
        delays
    }

    pub(crate) fn recall(&self, name: &LockName, window_ms: u64) -> Option<u64> {
        self.started_ago(name).filter(|ago| *ago < window_ms)
    }

    pub(crate) fn last_token(&self) -> FencingToken {
        FencingToken::new(self.last_token)
    }

    pub(crate) fn now_ms(&self) -> u64 {
        self.now_ms
    }

    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }
}
