//! The end of grants and of waits, rules 11, 15, 21 and 25: by whoever has them, or by an operator.

use bytes::Bytes;
use tenure_table::{Answer, Effect, GrantId, HolderView, LockName, LossReason, Outcome, Refusal};

use super::{Asker, Held, Model, Step, doubt};

impl Model {
    pub(super) fn release(
        &mut self,
        asker: Asker,
        grant: GrantId,
        value: Option<&Bytes>,
        step: &mut Step,
    ) -> Outcome {
        let Ok(Held { name, holder, .. }) = self.held_by(asker.session, grant) else {
            let waits = self.pending.iter().position(|pending| {
                pending.asker.session == asker.session && pending.items.iter().any(|item| item.grant == grant)
            });
            self.give_up(waits.ok_or(Refusal::NotHeld)?, Refusal::Cancelled, step);
            return Ok(Answer::Released);
        };
        if let Some(bytes) = value {
            self.check_write(holder.mode, bytes)?;
            self.write(&name, bytes);
        }
        if let Some(conversion) = self.conversion_of(grant) {
            self.give_up(conversion, Refusal::Cancelled, step);
        }
        self.grants.retain(|held| held.holder.grant != grant);
        step.serve_later(&name);
        Ok(Answer::Released)
    }

    pub(super) fn cancel(&mut self, asker: Asker, step: &mut Step) -> Outcome {
        let waits = self.pending.iter().position(|pending| pending.asker == asker);
        self.give_up(waits.ok_or(Refusal::NotQueued)?, Refusal::Cancelled, step);
        Ok(Answer::Cancelled)
    }

    pub(super) fn ask(&mut self, name: &LockName, step: &mut Step) -> Outcome {
        let mut marked = Vec::new();
        for held in self.grants.iter_mut().filter(|held| held.name == *name && held.died_ms.is_none()) {
            let HolderView { session, grant, .. } = held.holder;
            held.holder.let_go = true;
            step.effects.push(Effect::LetGo { session, grant });
            marked.push(grant);
        }
        if marked.is_empty() {
            return Err(Refusal::NotHeld);
        }
        Ok(Answer::Broken(marked.into()))
    }

    pub(super) fn force(&mut self, name: &LockName, step: &mut Step) -> Outcome {
        let (mut broken, mut found) = (Vec::new(), false);
        while let Some(at) = self.grants.iter().position(|held| held.name == *name) {
            found = true;
            let held = self.grants.remove(at);
            if held.died_ms.is_some() {
                continue;
            }
            let HolderView { session, grant, mode, .. } = held.holder;
            if let Some(conversion) = self.conversion_of(grant) {
                self.give_up(conversion, Refusal::NotHeld, step);
            }
            doubt(&mut self.values, name, mode);
            step.effects.push(Effect::Lost { session, grant, reason: LossReason::Broken });
            broken.push(grant);
        }
        if !found {
            return Err(Refusal::NotHeld);
        }
        step.serve_later(name);
        Ok(Answer::Broken(broken.into()))
    }
}
