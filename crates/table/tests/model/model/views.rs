//! What can be seen of the model, in the table's words.

use tenure_table::{
    DelayView, FencingToken, HeldView, Limits, LockName, Mode, ResourceView, SessionId, SessionState,
    SessionView, WaiterView, WaitingView,
};

use super::{Held, Kind, Model, Pending, Session, count};

impl Model {
    pub(crate) fn inspect(&self, name: &LockName) -> Option<ResourceView> {
        if !self.names().contains(name) {
            return None;
        }
        let (mut converters, mut waiters) = (Vec::new(), Vec::new());
        for pending in self.line(name).into_iter().map(|i| &self.pending[i]) {
            let line = if pending.kind == Kind::Convert { &mut converters } else { &mut waiters };
            line.push(waiter(pending, name));
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

    pub(crate) fn session_state(&self, session: SessionId) -> Option<SessionState> {
        let state = self.sessions.get(&session)?;
        let held = self.grants.iter().filter(|held| held.is_of(session)).map(|held| {
            let wants = |mode: &Mode| {
                held.holder.notify
                    && !held.holder.mode.compatible_with(*mode)
                    && self.wanted(&held.name).iter().any(|(_, wanted)| wanted == mode)
            };
            let wanted = Mode::ALL.into_iter().filter(wants).collect();
            HeldView { name: held.name.clone(), holder: held.holder.clone(), wanted }
        });
        let mut held: Vec<_> = held.collect();
        held.sort_by_key(|view| view.holder.grant);
        let mut waiting = Vec::new();
        for pending in self.pending.iter().filter(|pending| pending.asker.session == session) {
            for item in &pending.items {
                waiting.push(WaitingView { name: item.name.clone(), waiter: waiter(pending, &item.name) });
            }
        }
        waiting.sort_by_key(|view| (view.waiter.number, view.waiter.grant));
        let settled = state.answers.iter().filter(|(_, kept)| kept.waited && kept.is_settled());
        let observed = self.observers.iter().filter(|(_, observer)| *observer == session);
        Some(SessionState {
            epoch: state.epoch,
            held,
            waiting,
            settled: settled.map(|(number, kept)| (*number, kept.outcome.clone())).collect(),
            observed: observed.map(|(name, _)| name.clone()).collect(),
        })
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

fn waiter(pending: &Pending, name: &LockName) -> WaiterView {
    WaiterView {
        grant: pending.item(name).grant,
        owner: pending.owner,
        session: pending.asker.session,
        number: pending.asker.number,
        mode: pending.item(name).mode,
        label: pending.label.clone(),
        since_ms: pending.since_ms,
        together: count(pending.items.len()),
    }
}
