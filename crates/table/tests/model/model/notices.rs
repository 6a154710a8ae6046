//! Who is told that somebody waits: rule 26.

use tenure_table::{GrantId, LockName, Mode};

use super::{Model, Step, tell};

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

    /// What is waited for at a resource: by which grants, and in which modes.
    pub(super) fn wanted(&self, name: &LockName) -> Vec<(GrantId, Mode)> {
        let items = self.line(name).into_iter().map(|i| self.pending[i].item(name));
        items.map(|item| (item.grant, item.mode)).collect()
    }
}
