//! Lines, rules 10 to 13, 15 and 16: how requests queue, are served, settled and given up.

use tenure_table::{Answer, LockName, Outcome, OwnerId, Refusal};

use super::{Kind, Model, Pending, Step, count, serve_others};

impl Model {
    /// Puts a request in its lines, unless it would wait for ever there.
    pub(super) fn queue(&mut self, pending: Pending, step: &mut Step) -> Outcome {
        let (asker, first) = (pending.asker, pending.items[0].name.clone());
        self.pending.push(pending);
        let last = self.pending.len() - 1;
        // A conversion stands before all waiters: the cycle may go through somebody who is behind it now, and another request of
        // its owner.
        if let Some(cycle) = self.cycle_from(&self.requests_of(self.pending[last].owner)) {
            self.pending.pop();
            return Err(Refusal::Deadlock { cycle });
        }
        self.last_order += 1;
        self.pending[last].order = self.last_order;
        step.queued = Some(asker);
        Ok(Answer::Queued { place: count(self.ahead(last, &first).len()) })
    }

    /// Who waits for a resource, in line: conversions first. Places in `pending`.
    pub(super) fn line(&self, name: &LockName) -> Vec<usize> {
        let (mut conversions, mut others) = (Vec::new(), Vec::new());
        for (i, pending) in self.pending.iter().enumerate() {
            if pending.items.iter().any(|item| item.name == *name) {
                if pending.kind == Kind::Convert { conversions.push(i) } else { others.push(i) }
            }
        }
        conversions.append(&mut others);
        conversions
    }

    /// Who is ahead of a request in a line that it stands in.
    pub(super) fn ahead(&self, pending: usize, name: &LockName) -> Vec<usize> {
        self.line(name).into_iter().take_while(|other| *other != pending).collect()
    }

    /// Gives the first in line what it waits for, if it can have it.
    pub(super) fn serve_first(&mut self, name: &LockName, step: &mut Step) -> bool {
        let Some(&first) = self.line(name).first() else { return false };
        let pending = &self.pending[first];
        let ready = pending.items.iter().all(|item| {
            self.line(&item.name)[0] == first && self.compatible(pending.owner, &item.name, item.mode)
        });
        if !ready {
            return false;
        }
        let pending = self.pending.remove(first);
        if pending.kind == Kind::Convert {
            let answer = self.change_mode(pending.items[0].grant, pending.items[0].mode, step);
            self.answer(pending.asker, Ok(answer), step);
            return true;
        }
        let answer = self.grant(&pending, step);
        self.answer(pending.asker, Ok(answer), step);
        serve_others(&pending, name, step);
        for item in &pending.items {
            self.settle(pending.owner, &item.name, name, step);
        }
        true
    }

    /// The owner has got a resource: it waits for it no more.
    pub(super) fn settle(&mut self, owner: OwnerId, name: &LockName, served: &LockName, step: &mut Step) {
        while let Some(at) = self.pending.iter().position(|pending| {
            pending.owner == owner
                && pending.kind != Kind::Convert
                && pending.items.iter().any(|item| item.name == *name)
        }) {
            let pending = self.pending.remove(at);
            let outcome = match pending.kind {
                Kind::All => Err(Refusal::AlreadyHeld { name: name.clone() }),
                Kind::One | Kind::Convert => self.reenter(&pending, step),
            };
            let granted = outcome.is_ok();
            self.answer(pending.asker, outcome, step);
            serve_others(&pending, served, step);
            if !granted {
                self.untie(&pending, step);
            }
        }
    }

    /// Ends a request that waits, and answers it.
    pub(super) fn give_up(&mut self, at: usize, why: Refusal, step: &mut Step) {
        let pending = self.pending.remove(at);
        self.answer(pending.asker, Err(why), step);
        for item in &pending.items {
            step.serve_later(&item.name);
        }
        self.untie(&pending, step);
    }

    /// A request is gone ungranted: another of its owner that was tied to it in a line waits by itself from now on.
    pub(super) fn untie(&self, gone: &Pending, step: &mut Step) {
        for item in &gone.items {
            let own = self.line(&item.name).into_iter().map(|i| &self.pending[i]);
            let own = own.filter(|other| other.owner == gone.owner && other.kind != Kind::Convert);
            if gone.kind != Kind::Convert
                && let Some(untied) = own.map(|other| other.order).min()
                && untied > gone.order
            {
                step.recheck.insert((gone.owner, Some(untied)));
            }
        }
    }
}
