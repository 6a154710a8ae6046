//! Who is told that somebody waits, and who is told that holders have changed: rules 26 and 31.

use std::collections::BTreeMap;

use tenure_table::{Answer, Effect, GrantId, LockName, Mode, Outcome, SessionId};

use super::{Model, Step, tell};

/// What stands at a resource: grants, with their modes, and whether their holders live.
type Standing = Vec<(GrantId, Mode, bool)>;

impl Model {
    pub(super) fn tell_holders(&self, step: &mut Step) {
        let queued = self.pending.iter().find(|pending| Some(pending.asker) == step.queued);
        for item in queued.iter().flat_map(|pending| &pending.items) {
            for holder in self.holders(&item.name) {
                // Whoever converts is not told of itself.
                let mut wanted = self.wanted(&item.name);
                wanted.retain(|(grant, mode)| *grant != holder.grant && *mode == item.mode);
                if wanted == [(item.grant, item.mode)] {
                    tell(holder, item.mode, &mut step.effects);
                }
            }
        }
        for grant in &step.got {
            let Some(held) = self.grants.iter().find(|held| held.holder.grant == *grant) else { continue };
            for mode in Mode::ALL {
                if self.wanted(&held.name).iter().any(|(_, wanted)| *wanted == mode) {
                    tell(&held.holder, mode, &mut step.effects);
                }
            }
        }
    }

    pub(super) fn observe(&mut self, session: SessionId, name: &LockName) -> Outcome {
        self.check_name(name)?;
        if !self.observers.contains(&(name.clone(), session)) {
            self.check_observers(session, name)?;
            self.observers.insert((name.clone(), session));
        }
        Ok(Answer::Observed)
    }

    pub(super) fn observed_holders(&self) -> BTreeMap<LockName, Standing> {
        let standing = |name: &LockName| {
            let all = self.standing(name);
            all.map(|held| (held.holder.grant, held.holder.mode, held.died_ms.is_none())).collect()
        };
        self.observers.iter().map(|(name, _)| (name.clone(), standing(name))).collect()
    }

    pub(super) fn tell_observers(&self, before: &BTreeMap<LockName, Standing>, step: &mut Step) {
        let now = self.observed_holders();
        for (name, session) in &self.observers {
            // What was not observed before is no change.
            if before.get(name).is_some_and(|before| *before != now[name]) {
                step.effects.push(Effect::Changed { session: *session, name: name.clone() });
            }
        }
    }

    /// What is waited for at a resource: by which grants, and in which modes.
    pub(super) fn wanted(&self, name: &LockName) -> Vec<(GrantId, Mode)> {
        let items = self.line(name).into_iter().map(|i| self.pending[i].item(name));
        items.map(|item| (item.grant, item.mode)).collect()
    }
}
