//! Waiters for one lock in one session, by the recipe `simple`, take turns: one at a time watches the node, and asks for the lock when the
//! node is removed. A release therefore wakes one waiter in each session, and not all.
//!
//! Turns only save requests. The servers decide which request gets the lock, whatever the turns.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tenure_table::LockName;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard};

/// The queues of one session.
#[derive(Debug, Default)]
pub(super) struct Turns {
    lines: Mutex<HashMap<LockName, Line>>,
}

/// The waiters for one lock. Exists for as long as it has a waiter.
#[derive(Debug, Default)]
struct Line {
    length: usize,
    turn: Arc<AsyncMutex<()>>,
}

/// A waiter's turn, until this is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    _turn: OwnedMutexGuard<()>,
    _place: Place,
}

#[derive(Debug)]
struct Place {
    turns: Arc<Turns>,
    name: LockName,
}

impl Turns {
    fn lines(&self) -> MutexGuard<'_, HashMap<LockName, Line>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a request has a turn there, or waits for one.
    pub(super) fn anybody_waits_for(&self, name: &LockName) -> bool {
        self.lines().contains_key(name)
    }

    /// Waits for a turn, in order of arrival. A dropped call leaves the queue.
    pub(super) async fn turn(self: &Arc<Self>, name: &LockName) -> Turn {
        let (place, turn) = self.join(name);
        Turn { _turn: turn.lock_owned().await, _place: place }
    }

    fn join(self: &Arc<Self>, name: &LockName) -> (Place, Arc<AsyncMutex<()>>) {
        let mut lines = self.lines();
        let line = lines.entry(name.clone()).or_default();
        line.length += 1;
        (Place { turns: self.clone(), name: name.clone() }, line.turn.clone())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Entry::Occupied(mut line) = self.turns.lines().entry(self.name.clone()) {
            line.get_mut().length -= 1;
            if line.get().length == 0 {
                line.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use futures_util::poll;

    use super::*;

    #[tokio::test]
    async fn turns_come_in_order_and_who_goes_away_is_passed_over() {
        let turns = Arc::new(Turns::default());
        let (a, b) = (LockName::parse("a").unwrap(), LockName::parse("b").unwrap());
        let first = turns.turn(&a).now_or_never().expect("nobody is before it");
        let other = turns.turn(&b).now_or_never().expect("it is another lock");
        let (mut second, mut third) = (Box::pin(turns.turn(&a)), Box::pin(turns.turn(&a)));
        assert!(poll!(&mut second).is_pending() && poll!(&mut third).is_pending());
        drop(second);
        assert!(poll!(&mut third).is_pending(), "the first still has its turn");
        drop(first);
        let third = third.now_or_never().expect("it is next");
        assert!(turns.anybody_waits_for(&a) && turns.anybody_waits_for(&b));
        drop((third, other));
        assert!(turns.lines().is_empty(), "nobody stands in a line");
    }
}
