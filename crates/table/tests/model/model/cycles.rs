//! Deadlocks: rules 27 to 29, by looking at every edge.

use std::collections::VecDeque;
use std::sync::Arc;

use tenure_table::{CycleMember, Item, OwnerId, Refusal};

use super::{Kind, Model, Pending, Step, count};

impl Model {
    /// For whom a request waits, and at which of its resources; the same owner may be there several times.
    pub(super) fn waits_for(&self, pending: usize) -> Vec<(&Item, OwnerId)> {
        let this = &self.pending[pending];
        let mut edges = Vec::new();
        for item in &this.items {
            let ahead = self.ahead(pending, &item.name);
            // Tied to another of its owner, together with which it is settled. Only a conversion is not.
            let tied = ahead.iter().any(|other| self.pending[*other].owner == this.owner);
            if tied && this.kind != Kind::Convert {
                continue;
            }
            let holders = self.holders(&item.name).filter(|holder| !holder.mode.compatible_with(item.mode));
            edges.extend(holders.map(|holder| (item, holder.owner)));
            edges.extend(ahead.into_iter().map(|other| (item, self.pending[other].owner)));
        }
        edges.retain(|(_, owner)| *owner != this.owner);
        edges
    }

    /// The shortest cycle that goes from one of these requests of one owner back to that owner. The first that is found when all
    /// is followed in its order.
    pub(super) fn cycle_from(&self, starts: &[usize]) -> Option<Arc<[CycleMember]>> {
        let target = self.pending[*starts.first()?].owner;
        let mut seen = vec![target];
        let mut paths = VecDeque::from([(starts.to_vec(), Vec::new())]);
        while let Some((requests, path)) = paths.pop_front() {
            for pending in requests {
                for (item, owner) in self.waits_for(pending) {
                    let mut path = path.clone();
                    path.push(self.member(pending, item));
                    if owner == target {
                        return Some(path.into());
                    }
                    if !seen.contains(&owner) {
                        seen.push(owner);
                        paths.push_back((self.requests_of(owner), path));
                    }
                }
            }
        }
        None
    }

    /// The owner has not just queued, and there is somebody new that waits for it, or for whom it waits.
    pub(super) fn refuse_cycles_of(&mut self, owner: OwnerId, step: &mut Step) {
        for pending in self.requests_of(owner).into_iter().rev() {
            if let Some(cycle) = self.cycle_from(&[pending]) {
                self.give_up(pending, Refusal::Deadlock { cycle }, step);
            }
        }
    }

    /// An owner's requests that wait, in the order in which they queued.
    pub(super) fn requests_of(&self, owner: OwnerId) -> Vec<usize> {
        (0..self.pending.len()).filter(|i| self.pending[*i].owner == owner).collect()
    }

    pub(super) fn member(&self, pending: usize, item: &Item) -> CycleMember {
        let place = count(self.ahead(pending, &item.name).len());
        let Pending { owner, label, .. } = &self.pending[pending];
        let (name, label) = (item.name.clone(), label.clone());
        CycleMember { name, grant: item.grant, owner: *owner, mode: item.mode, label, place }
    }
}
