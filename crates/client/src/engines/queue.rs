//! The queue of a lock on engines that keep one entry for each holder or waiter. Only the order of the entries decides.
//!
//! An entry holds the lock if no earlier entry conflicts with it. Otherwise it waits for the nearest earlier entry that conflicts. One rule
//! therefore covers all six modes, and a late request also waits behind an earlier waiter that conflicts with it. When an entry is removed,
//! only the waiters for that entry look at the queue again.

use tenure_table::{GrantId, Mode};

/// A holder or waiter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// The position in the queue: smaller is earlier.
    pub(super) order: i64,
    pub(super) mode: Mode,
    /// The grant of the entry; `None` for an entry that another program wrote.
    pub(super) grant: Option<GrantId>,
    /// The name of the entry on the server.
    pub(super) node: String,
}

/// All entries of a lock, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Queue(Vec<Entry>);

impl Queue {
    pub(super) fn new(mut entries: Vec<Entry>) -> Self {
        entries.sort_by_key(|entry| entry.order);
        Self(entries)
    }

    pub(super) fn entries(&self) -> &[Entry] {
        &self.0
    }

    /// Returns the place of the entry with this name on the server.
    pub(super) fn place(&self, node: &str) -> Option<usize> {
        self.0.iter().position(|entry| entry.node == node)
    }

    /// Sets the grant of an entry whose name does not contain it.
    #[cfg(feature = "zookeeper")]
    pub(super) fn is_of(&mut self, place: usize, grant: Option<GrantId>) {
        self.0[place].grant = grant;
    }

    /// Whether a grant has an entry.
    pub(super) fn has(&self, grant: GrantId) -> bool {
        self.0.iter().any(|entry| entry.grant == Some(grant))
    }

    /// Returns the nearest earlier entry that conflicts with this place. If there is none, the entry holds the lock.
    pub(super) fn waits_for(&self, place: usize) -> Option<&Entry> {
        let mode = self.0[place].mode;
        self.0[..place].iter().rev().find(|before| !before.mode.compatible_with(mode))
    }

    /// Returns the entries that hold the lock.
    pub(super) fn holders(&self) -> impl Iterator<Item = &Entry> {
        (0..self.0.len()).filter(|place| self.waits_for(*place).is_none()).map(|place| &self.0[place])
    }
}

/// Returns the name of an entry. The name contains the grant, so that the entry is found again if the response to its creation was lost.
/// The name contains the mode, so that the content of an entry need not be read.
pub(super) fn called(grant: GrantId, mode: Mode) -> String {
    format!("{grant}-{mode}")
}

/// Returns the grant and the mode in the name of an entry; `None` if another program made the entry.
pub(super) fn whose(called: &str) -> Option<(GrantId, Mode)> {
    let (grant, mode) = called.split_once('-')?;
    Some((grant.parse().ok()?, Mode::ALL.into_iter().find(|known| known.as_str() == mode)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random;

    fn queue(modes: &[Mode]) -> Queue {
        let entry = |(order, mode): (usize, &Mode)| Entry {
            order: order.try_into().unwrap(),
            mode: *mode,
            grant: Some(GrantId::from_u128(order as u128)),
            node: order.to_string(),
        };
        Queue::new(modes.iter().enumerate().map(entry).rev().collect())
    }

    fn waits_for(queue: &Queue) -> Vec<Option<i64>> {
        (0..queue.entries().len()).map(|place| queue.waits_for(place).map(|entry| entry.order)).collect()
    }

    #[test]
    fn who_conflicts_with_nobody_before_it_holds() {
        use Mode::{Cr, Ex, Nl, Pr};
        let queue = queue(&[Pr, Pr, Ex, Pr, Cr, Ex, Nl]);
        // A later entry waits for a conflicting waiter, and for no other entry.
        assert_eq!(waits_for(&queue), [None, None, Some(1), Some(2), Some(2), Some(4), None]);
        assert_eq!(queue.holders().map(|entry| entry.order).collect::<Vec<_>>(), [0, 1, 6]);
        assert_eq!((queue.place("5"), queue.place("9")), (Some(5), None));
        assert!(queue.has(GrantId::from_u128(5)) && !queue.has(GrantId::from_u128(9)));
    }

    #[test]
    fn those_who_hold_go_together() {
        for one in Mode::ALL {
            for other in Mode::ALL {
                let holders = queue(&[one, other]).holders().count();
                assert_eq!(holders == 2, one.compatible_with(other), "{one} {other}");
            }
        }
    }

    #[test]
    fn an_entry_is_called_by_its_grant_and_mode() {
        let grant = random::grant_id();
        for mode in Mode::ALL {
            assert_eq!(whose(&called(grant, mode)), Some((grant, mode)));
        }
        for other in ["", "-EX", "694d71ddf2dd5a8f", "0123456789abcdef0123456789abcdef-XX", "nonsense-EX"] {
            assert_eq!(whose(other), None, "{other}");
        }
    }
}
