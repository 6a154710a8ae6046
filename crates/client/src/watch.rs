//! A hold as a task or thread beside the work sees it, without keeping the lock.

use tenure_table::Mode;
use tokio::sync::watch;

use crate::clock::BootTime;
use crate::hold::Ended;

/// What a watch sees of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) ended: Option<Ended>,
    pub(crate) in_jeopardy: bool,
    /// When belief ends if nothing more is heard.
    pub(crate) deadline: Option<BootTime>,
    /// The strongest mode that others wait for and that conflicts with the one that is held.
    pub(crate) wanted: Option<Mode>,
}

/// Tells how a guard's hold on its lock ended, without being the guard: for a task or thread beside the work. From
/// [`Guard::watch`](crate::Guard::watch).
#[derive(Clone, Debug)]
pub struct GuardWatch {
    shown: watch::Receiver<Shown>,
    /// As [`deadline`](Self::deadline) last said.
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
            // The last guard is gone, and with it what could have been lost.
            Err(_) => Ended::Released,
        }
    }

    /// Resolves when renewal is failing, with the deadline at which the lock is lost if that goes on; never, if the lock is
    /// released or lost first.
    ///
    /// # Cancellation safety
    /// May be dropped at any point.
    pub async fn jeopardy(&mut self) -> Option<BootTime> {
        if let Ok(shown) = self.shown.wait_for(|shown| shown.in_jeopardy).await {
            return shown.deadline;
        }
        std::future::pending().await
    }

    /// Resolves when another request is known to have waited for the lock in a mode that conflicts with the one that is held, with
    /// that mode; never, if the lock is released or lost first. See [`Guard::wanted`](crate::Guard::wanted).
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

    /// The deadline now: the instant at which belief ends unless the lease is renewed before.
    pub fn deadline(&mut self) -> Option<BootTime> {
        self.last_deadline = self.shown.borrow_and_update().deadline;
        self.last_deadline
    }

    /// Resolves when the deadline is another than [`deadline`](Self::deadline) last said; never, once the lock is released.
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
