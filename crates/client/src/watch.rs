//! A view of a hold for a task or thread beside the work. It does not keep the lock.

use tenure_table::Mode;
use tokio::sync::watch;

use crate::clock::BootTime;
use crate::hold::Ended;

/// The state of a hold that a watch shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) ended: Option<Ended>,
    pub(crate) in_jeopardy: bool,
    /// The instant at which the lock is lost unless a renewal succeeds before.
    pub(crate) deadline: Option<BootTime>,
    /// The strongest mode that other requests wait for and that conflicts with the held mode.
    pub(crate) wanted: Option<Mode>,
}

/// A watch on a guard's hold of its lock, for a task or thread beside the work. It reports the end of the hold and does not keep the lock.
/// From [`Guard::watch`](crate::Guard::watch).
#[derive(Clone, Debug)]
pub struct GuardWatch {
    shown: watch::Receiver<Shown>,
    /// The last result of [`deadline`](Self::deadline).
    last_deadline: Option<BootTime>,
}

impl GuardWatch {
    pub(crate) fn new(sender: &watch::Sender<Shown>) -> Self {
        let shown = sender.subscribe();
        let last_deadline = shown.borrow().deadline;
        Self { shown, last_deadline }
    }

    /// Resolves when the lock is released or lost.
    ///
    /// # Cancellation safety
    /// May be dropped at any point.
    pub async fn ended(mut self) -> Ended {
        match self.shown.wait_for(|shown| shown.ended.is_some()).await {
            Ok(shown) => shown.ended.unwrap_or(Ended::Released),
            // The last guard no longer exists, so there is no lock left to lose.
            Err(_) => Ended::Released,
        }
    }

    /// Resolves when renewal fails, with the deadline at which the lock is lost unless a renewal succeeds before. Never resolves if the
    /// lock is released or lost first.
    ///
    /// # Cancellation safety
    /// May be dropped at any point.
    pub async fn jeopardy(&mut self) -> Option<BootTime> {
        if let Ok(shown) = self.shown.wait_for(|shown| shown.in_jeopardy).await {
            return shown.deadline;
        }
        std::future::pending().await
    }

    /// Resolves when another request is known to have waited for the lock in a mode that conflicts with the held mode. Returns that mode.
    /// Never resolves if the lock is released or lost first. See [`Guard::wanted`](crate::Guard::wanted).
    ///
    /// # Cancellation safety
    /// May be dropped at any point.
    pub async fn wanted(&mut self) -> Mode {
        let told = |shown: &Shown| shown.ended.is_some() || shown.wanted.is_some();
        if let Ok(shown) = self.shown.wait_for(told).await
            && let Shown { ended: None, wanted: Some(mode), .. } = *shown
        {
            return mode;
        }
        std::future::pending().await
    }

    /// Returns the current deadline: the instant at which the lock is lost unless the lease is renewed before.
    pub fn deadline(&mut self) -> Option<BootTime> {
        self.last_deadline = self.shown.borrow_and_update().deadline;
        self.last_deadline
    }

    /// Resolves when the deadline differs from the last result of [`deadline`](Self::deadline); never, once the lock is released.
    ///
    /// # Cancellation safety
    /// May be dropped at any point.
    pub async fn moved(&mut self) {
        let last = self.last_deadline;
        if self.shown.wait_for(|shown| shown.deadline != last).await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}
