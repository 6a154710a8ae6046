//! The guard of a held lock.

use std::future::{Future, poll_fn};
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tenure_table::{FencingToken, GrantId, LockName, Mode, OwnerId, Value};
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::capabilities::{Capability, Unsupported};
use crate::clock::BootTime;
use crate::engine::{Engine, Remembered, Start};
use crate::error::{Lost, LostReason, ReleaseError, RememberError, ValueError};
use crate::hold::{Ended, GuardState, Hold, LetGo, Progress, ReleaseTask};
use crate::inner::ClientInner;
use crate::operation::Operation;
use crate::watch::GuardWatch;

/// A held lock. Dropping the guard releases the lock, on the client's own thread and without blocking. [`release`](Guard::release) waits
/// for the release and returns its result.
///
/// An early return from `main` releases its guards too: dropping the last [`Client`](crate::Client) waits up to two seconds for releases
/// that are under way. A process that ends without dropping its client and guards (`std::process::exit`, an abort, a kill) leaves the lock
/// held until its lease or connection ends. The same is true of an engine that does not answer within those two seconds.
#[derive(Debug)]
#[must_use = "dropping a guard releases the lock"]
pub struct Guard {
    pub(crate) hold: Arc<Hold>,
    pub(crate) shared: Arc<ClientInner>,
    on_drop: OnDrop,
}

/// The effect of dropping a guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum OnDrop {
    /// The guard was released before.
    Nothing,
    Release,
    /// For guards of the blocking API.
    ReleaseAndWait,
}

/// The result of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the lock may have been lost before it was released"]
#[non_exhaustive]
pub enum Release {
    /// The lock was held until now, and is free.
    Released,
    /// The lock stays held: its owner re-entered it and has other guards.
    StillHeld,
    /// The lock was lost before the release, for this reason. Work done since then may have overlapped with another holder's.
    AlreadyLost(LostReason),
}

impl Guard {
    pub(crate) const fn new(hold: Arc<Hold>, shared: Arc<ClientInner>) -> Self {
        Self { hold, shared, on_drop: OnDrop::Release }
    }

    /// Returns the same guard with a drop that blocks, for a limited time, until the engine has answered.
    pub(crate) const fn blocking(mut self) -> Self {
        self.on_drop = OnDrop::ReleaseAndWait;
        self
    }

    pub(crate) const fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    pub(crate) const fn shared(&self) -> &Arc<ClientInner> {
        &self.shared
    }

    /// Returns the name of the lock.
    pub fn name(&self) -> &LockName {
        &self.hold.name
    }

    /// Returns the mode in which the lock is held.
    pub fn mode(&self) -> Mode {
        self.hold.mode()
    }

    /// Returns the owner that holds the lock.
    pub fn owner(&self) -> OwnerId {
        self.hold.owner
    }

    /// Returns the id of the grant, as [`Client::inspect`](crate::Client::inspect) shows it.
    pub fn grant(&self) -> GrantId {
        self.hold.id
    }

    /// Returns the fencing token, where the engine has them. Send it along with every write.
    pub fn token(&self) -> Option<FencingToken> {
        self.hold.token()
    }

    /// Returns the fencing token, or an error if this engine has none. It never fails for a request with
    /// [`require(Capability::Fencing)`](crate::LockRequest::require).
    pub fn fencing_token(&self) -> Result<FencingToken, Unsupported> {
        self.token().ok_or_else(|| self.engine().capabilities().unsupported(Capability::Fencing.to_string()))
    }

    /// Returns the value that stays with the resource, as it was at the grant or as this guard last wrote it.
    pub fn value(&self) -> Value {
        self.hold.value()
    }

    /// Returns the instant from which [`check`](Self::check) fails unless the lease is renewed before. `None` where only the end of the
    /// connection or of the process ends the grant.
    pub fn deadline(&self) -> Option<BootTime> {
        self.hold.deadline()
    }

    /// Returns the state of the lock at this instant. No I/O.
    pub fn state(&self) -> GuardState {
        match self.check() {
            Ok(()) => self.hold.state(),
            Err(lost) => GuardState::Lost(lost.reason),
        }
    }

    /// Returns an error from the deadline on, or as soon as the lock is known to be lost. No I/O: call it before every step that must not
    /// be done without the lock.
    pub fn check(&self) -> Result<(), Lost> {
        self.hold.check(self.shared.clock.now()).map_err(|reason| {
            // The first check after the deadline ends the hold for all guards: a late renewal does not restore it.
            self.shared.lose(&self.hold, reason);
            Lost { name: self.hold.name.clone(), reason }
        })
    }

    /// Resolves with the reason when the lock is lost; never, if it is released. The future does not borrow the guard: a task beside the
    /// work can await it.
    ///
    /// # Cancellation safety
    /// May be dropped at any point.
    pub fn lost(&self) -> impl Future<Output = LostReason> + Send + use<> {
        let watch = self.watch();
        async move {
            match watch.ended().await {
                Ended::Lost(reason) => reason,
                Ended::Released => std::future::pending().await,
            }
        }
    }

    /// Resolves when renewal fails, with the deadline at which the lock is lost unless a renewal succeeds before. Never resolves if the
    /// lock is released or lost first. Until the deadline the lock is held and safe.
    ///
    /// # Cancellation safety
    /// May be dropped at any point.
    pub fn jeopardy(&self) -> impl Future<Output = Option<BootTime>> + Send + use<> {
        let mut watch = self.watch();
        async move { watch.jeopardy().await }
    }

    /// Resolves with the mode when another request waits for the lock in a mode that conflicts with this one. Never resolves if the lock is
    /// released or lost first, or was requested without [`notify`](crate::LockRequest::notify). For a holder that can stop early: a holder
    /// that continues keeps the lock.
    ///
    /// The mode is a hint: the other request may have left the queue since. A notice stays in effect until the guard's mode is converted to
    /// one that does not conflict.
    ///
    /// ```
    /// # tokio::runtime::Runtime::new()?.block_on(async {
    /// # let client = tenure::Client::connect("memory:").await?;
    /// let guard = client.lock("cache").notify(true).acquire().await?;
    /// let other = tokio::spawn(client.lock("cache").acquire());
    /// println!("somebody wants it in {}", guard.wanted().await);
    /// println!("{:?}", guard.release().await?);
    /// drop(other.await??);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Cancellation safety
    /// May be dropped at any point.
    pub fn wanted(&self) -> impl Future<Output = Mode> + Send + use<> {
        let mut watch = self.watch();
        async move { watch.wanted().await }
    }

    /// Returns descriptors that keep the grant if this process dies. While any process has one of them open, the engine does not free the
    /// lock because of that death. For a program that must exclude other holders until its children have ended. Empty where the grant does
    /// not depend on an open descriptor, as with a lease, which lasts until it expires.
    ///
    /// The descriptors are closed on exec. A release frees the lock, even if other processes still have them open.
    pub fn anchors(&self) -> std::io::Result<Vec<OwnedFd>> {
        self.engine().anchors(&self.hold.grant())
    }

    /// Returns a watch, which reports the end of this guard's hold and moves of its deadline. The watch does not keep the lock.
    pub fn watch(&self) -> GuardWatch {
        self.hold.watch()
    }

    /// Runs a future while the lock is held, and drops it when the lock is lost. The future is never polled after the deadline, even if
    /// this process was stopped in between.
    ///
    /// # Cancellation safety
    /// May be dropped at any point, if `work` may.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, Lost> {
        let lost = self.lost().map(|reason| self.lost_because(reason));
        run_while(|| self.check(), lost, work).await
    }

    /// Writes the value that stays with the resource, of at most [`Value::MAX_BYTES`]. The mode must be EX or PW, and the lock must still
    /// be held. The value is durable when this returns.
    ///
    /// # Cancellation safety
    /// May be dropped at any point; whether the value was written is then not known.
    pub async fn set_value(&self, bytes: impl Into<Bytes>) -> Result<(), ValueError> {
        let bytes = bytes.into();
        self.engine().capabilities().require(Capability::Value)?;
        if bytes.len() > Value::MAX_BYTES {
            return Err(ValueError::TooLong { bytes: bytes.len() });
        }
        let (grant, held) = (self.hold.grant(), self.hold.mode());
        if !held.may_write() {
            return Err(ValueError::Mode { name: grant.name, held });
        }
        self.check()?;
        let written = self.hold.clone();
        let write = |engine: Arc<dyn Engine>| -> BoxFuture<'static, _> {
            Box::pin(async move {
                engine.set_value(grant, bytes.clone()).await?;
                written.wrote(Value { bytes, in_doubt: false });
                Ok(())
            })
        };
        let result = self.shared.ask(write).await;
        if let Err(ValueError::Lost(lost)) = &result {
            self.shared.lose(&self.hold, lost.reason);
        }
        result
    }

    /// Makes the engine record a start of the job that this lock protects.
    ///
    /// # Cancellation safety
    /// May be dropped at any point; whether the start was recorded is then not known.
    pub(crate) async fn remember(&self, start: Start) -> Result<Remembered, RememberError> {
        self.check()?;
        let result = self.shared.ask(|engine| engine.remember(self.hold.grant(), start)).await;
        if let Err(RememberError::Lost(lost)) = &result {
            self.shared.lose(&self.hold, lost.reason);
        }
        result
    }

    pub(crate) fn lost_because(&self, reason: LostReason) -> Lost {
        Lost { name: self.hold.name.clone(), reason }
    }

    /// Releases the lock and returns the result. Returns when the engine has freed the lock, even if the lock was lost before. After an
    /// error, the release continues in the background.
    ///
    /// # Cancellation safety
    /// May be dropped at any point: the release continues on the client's own thread.
    pub async fn release(mut self) -> Result<Release, ReleaseError> {
        // The deadline may have passed without a call of `check`.
        let _ = self.check();
        self.on_drop = OnDrop::Nothing;
        let (grant, releasing, lost) = match self.shared.let_go(&self.hold) {
            (LetGo::Last(grant), releasing) => (grant, releasing, None),
            (LetGo::Kept(grant, reason, releasing), _) => (grant, releasing, Some(reason)),
            (LetGo::StillHeld, _) => return Ok(Release::StillHeld),
            (LetGo::Lost(reason, progress), _) => return self.after_loss(reason, progress).await,
        };
        let asking = self.engine().clone().release(grant.clone());
        // `releasing` is for this future, and `going_on` for the release that continues if this future is dropped.
        let going_on = self.shared.reentry.releasing(&self.hold);
        let (background, again) = (self.shared.background.clone(), grant.clone());
        let settle = move |result| -> BoxFuture<'static, ()> {
            background.released(&again, &result);
            match result {
                Err(ReleaseError::Engine(_)) => {
                    Box::pin(background.release(ReleaseTask::new(again, going_on)))
                }
                Ok(()) | Err(ReleaseError::NotHeld(_)) => Box::pin(async {}),
            }
        };
        let result = Operation::new(self.shared.thread.handle().clone(), None, asking, settle).await;
        self.shared.background.released(&grant, &result);
        match result {
            Ok(()) => Ok(lost.map_or(Release::Released, Release::AlreadyLost)),
            Err(ReleaseError::NotHeld(reason)) => Ok(Release::AlreadyLost(lost.unwrap_or(reason))),
            Err(error) => {
                self.shared.release_in_background(ReleaseTask::new(grant, releasing));
                Err(error)
            }
        }
    }

    /// Begins the release in the background. Returns `None` if it began before, or if the grant has other guards.
    pub(crate) fn begin_release(&mut self) -> Option<JoinHandle<()>> {
        if std::mem::replace(&mut self.on_drop, OnDrop::Nothing) == OnDrop::Nothing {
            return None;
        }
        match self.shared.let_go(&self.hold) {
            (LetGo::Last(grant), releasing) | (LetGo::Kept(grant, _, releasing), _) => {
                Some(self.shared.release_in_background(ReleaseTask::new(grant, releasing)))
            }
            (LetGo::StillHeld | LetGo::Lost(..), _) => None,
        }
    }

    /// Waits until the background release of a lost grant is done. If that release has failed so far, asks the engine once more, to return
    /// its error.
    async fn after_loss(
        &self,
        reason: LostReason,
        progress: Option<watch::Receiver<Progress>>,
    ) -> Result<Release, ReleaseError> {
        let Some(mut progress) = progress else { return Ok(Release::AlreadyLost(reason)) };
        let answered = progress.wait_for(|progress| *progress != Progress::Asked).await;
        let is_done = answered.is_ok_and(|progress| *progress == Progress::Done);
        if !is_done {
            let again = self.engine().clone().release(self.hold.grant());
            if let Err(error @ ReleaseError::Engine(_)) = self.shared.finish(again).await {
                return Err(error);
            }
        }
        Ok(Release::AlreadyLost(reason))
    }

    pub(crate) fn engine(&self) -> &Arc<dyn Engine> {
        &self.shared.engine
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let waits = self.on_drop == OnDrop::ReleaseAndWait;
        if let Some(release) = self.begin_release().filter(|_| waits) {
            self.shared.thread.handle().wait_for([release]);
        }
    }
}

/// Runs `work` until it is done or `lost` resolves. Calls `check` before each poll of the work: a process that was stopped may resume after
/// the deadline.
pub(crate) async fn run_while<F: Future>(
    check: impl Fn() -> Result<(), Lost>,
    lost: impl Future<Output = Lost>,
    work: F,
) -> Result<F::Output, Lost> {
    let (mut work, mut lost) = (pin!(work), pin!(lost));
    poll_fn(|context| {
        check()?;
        if let Poll::Ready(lost) = lost.as_mut().poll(context) {
            return Poll::Ready(Err(lost));
        }
        work.as_mut().poll(context).map(Ok)
    })
    .await
}
