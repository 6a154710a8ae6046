//! The queue of a lock on engines that keep one entry for each who holds or waits: the order of the entries decides, and nothing else.
//!
//! An entry holds if nobody before it conflicts with it; else it waits for the nearest one before it that does. So all six modes work by one
//! rule, whoever comes late waits behind a conflicting waiter too, and when an entry goes, only those look who waited for that one.

use tenure_table::{GrantId, Mode};

/// One who holds or waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// Its place: smaller is earlier.
    pub(super) order: i64,
    pub(super) mode: Mode,
    /// Whose it is; nothing of one that another program wrote.
    pub(super) grant: Option<GrantId>,
    /// What it is called on the server.
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

    /// The place of the entry that is called so on the server.
    pub(super) fn place(&self, node: &str) -> Option<usize> {
        self.0.iter().position(|entry| entry.node == node)
    }

    /// Says whose an entry is, where its name does not.
    #[cfg(feature = "zookeeper")]
    pub(super) fn is_of(&mut self, place: usize, grant: Option<GrantId>) {
        self.0[place].grant = grant;
    }

    /// Whether something stands for a grant.
    pub(super) fn has(&self, grant: GrantId) -> bool {
        self.0.iter().any(|entry| entry.grant == Some(grant))
    }

    /// The nearest before this place that conflicts with it: whom it waits for. If there is none, it holds.
    pub(super) fn waits_for(&self, place: usize) -> Option<&Entry> {
        let mode = self.0[place].mode;
        self.0[..place].iter().rev().find(|before| !before.mode.compatible_with(mode))
    }

    /// Those who hold.
    pub(super) fn holders(&self) -> impl Iterator<Item = &Entry> {
        (0..self.0.len()).filter(|place| self.waits_for(*place).is_none()).map(|place| &self.0[place])
    }
}

/// What an entry of ours is called: by its grant, so that it is found again if the answer to its making was lost, and by its mode, so that
/// nobody has to read what is in it.
pub(super) fn called(grant: GrantId, mode: Mode) -> String {
    format!("{grant}-{mode}")
}

/// Whose entry it is that is called so, if it is one of ours.
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
        // Whoever comes after a waiter waits for it, and for no more than it must.
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
