//! The guard: what a holder has in its hands.

use std::future::{Future, poll_fn};
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tenure_table::{FencingToken, GrantId, LockName, Mode, OwnerId, Value};
use tokio::sync::OwnedMutexGuard;
use tokio_util::sync::CancellationToken;

use crate::capabilities::Capability;
use crate::clock::BootTime;
use crate::engine::{Conversion, Engine, Grant, Granted, Remembered, Start, WaitUntil};
use crate::error::{ConvertError, EngineError, Lost, LostReason, ReleaseError, RememberError, ValueError};
use crate::hold::{Ended, GuardState, GuardWatch, Hold, LetGo, NotConverted};
use crate::operation::Operation;
use crate::request::Wait;
use crate::shared::Shared;

/// A lock that is held. Dropping it releases the lock, on the client's own thread and without blocking;
/// [`release`](Guard::release) does it at once and says how it went.
///
/// At the end of a program, release it or [close the client](crate::Client::close): a guard that is dropped as `main` returns is
/// released by a thread that ends with the process, perhaps before it got to it, and the next holder waits for the lease to end.
#[derive(Debug)]
#[must_use = "dropping a guard releases the lock"]
pub struct Guard {
    hold: Arc<Hold>,
    shared: Arc<Shared>,
    let_go: bool,
}

/// How a release went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Release {
    /// The lock was held until now, and is free.
    Released,
    /// The lock stays held: its owner re-entered it, and has other guards.
    StillHeld,
    /// The lock had been lost before, and for this reason: what was done since then may have met somebody else's work.
    AlreadyLost(LostReason),
}

impl Guard {
    pub(crate) const fn new(hold: Arc<Hold>, shared: Arc<Shared>) -> Self {
        Self { hold, shared, let_go: false }
    }

    pub(crate) const fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    pub(crate) const fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// What is locked.
    pub fn name(&self) -> &LockName {
        &self.hold.name
    }

    /// How it is locked.
    pub fn mode(&self) -> Mode {
        self.hold.mode()
    }

    /// Who holds it.
    pub fn owner(&self) -> OwnerId {
        self.hold.owner
    }

    /// Which grant it is, as [`Client::inspect`](crate::Client::inspect) shows it.
    pub fn grant(&self) -> GrantId {
        self.hold.id
    }

    /// The fencing token, where the engine has them: send it along with every write.
    pub fn token(&self) -> Option<FencingToken> {
        self.hold.token()
    }

    /// The value that stays with the resource: as it was at the grant, or as this guard last wrote it.
    pub fn value(&self) -> Value {
        self.hold.value()
    }

    /// The instant from which on [`check`](Self::check) fails unless the lease is renewed before; `None` where
    /// only the end of the connection or of the process ends the grant.
    pub fn deadline(&self) -> Option<BootTime> {
        self.hold.deadline()
    }

    /// What may be believed now. No I/O.
    pub fn state(&self) -> GuardState {
        match self.check() {
            Ok(()) => self.hold.state(),
            Err(lost) => GuardState::Lost(lost.reason),
        }
    }

    /// An error from the deadline on, or as soon as the lock is known to be lost. No I/O: call it before every step
    /// that must not be done without the lock.
    pub fn check(&self) -> Result<(), Lost> {
        self.hold.check(self.shared.clock.now()).map_err(|reason| {
            // Whoever looks first ends belief for all: it does not come back with a late renewal.
            self.shared.lose(&self.hold, reason);
            Lost { name: self.hold.name.clone(), reason }
        })
    }

    /// Resolves when the lock is lost, with the reason; never, if it is released. It does not borrow the guard, so that it
    /// can be awaited in a task beside the work.
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

    /// Descriptors that keep the grant standing, should this process die: for as long as any process has one of them open, the
    /// engine does not free the lock on that account. For a program that must not let anybody in before its children are
    /// gone. Empty where the lock does not hang on an open descriptor, as with a lease, which stands until it ends.
    ///
    /// They are closed on exec; a release frees the lock, whoever still has them.
    pub fn anchors(&self) -> std::io::Result<Vec<OwnedFd>> {
        self.engine().anchors(&self.hold.grant())
    }

    /// Tells how this guard's hold on the lock ended, and when its deadline moves, without keeping it.
    pub fn watch(&self) -> GuardWatch {
        self.hold.watch()
    }

    /// Runs a future for as long as the lock is held, and drops it at loss. It is never polled after the deadline, also
    /// if this process was stopped in between.
    ///
    /// # Cancellation safety
    /// May be dropped at any point, if `work` may.
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, Lost> {
        let mut work = pin!(work);
        let mut lost = pin!(self.lost());
        poll_fn(|context| {
            if let Err(lost) = self.check() {
                return Poll::Ready(Err(lost));
            }
            if let Poll::Ready(reason) = lost.as_mut().poll(context) {
                return Poll::Ready(Err(Lost { name: self.hold.name.clone(), reason }));
            }
            work.as_mut().poll(context).map(Ok)
        })
        .await
    }

    /// Writes the value that stays with the resource: at most [`Value::MAX_BYTES`], only by a holder of EX or PW and
    /// only while the grant stands. It is durable when this returns.
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
        let writing = self.engine().clone().set_value(grant, bytes.clone());
        let written = self.hold.clone();
        let write = async move {
            writing.await?;
            written.wrote(Value { bytes, in_doubt: false });
            Ok(())
        };
        let result = self.shared.finish(Box::pin(write)).await;
        if let Err(ValueError::Lost(lost)) = &result {
            self.shared.lose(&self.hold, lost.reason);
        }
        result
    }

    /// Has the engine note down a start of what this protects.
    ///
    /// # Cancellation safety
    /// May be dropped at any point; whether it was noted down is then not known.
    pub(crate) async fn remember(&self, start: Start) -> Result<Remembered, RememberError> {
        self.check()?;
        let result = self.shared.finish(self.engine().clone().remember(self.hold.grant(), start)).await;
        if let Err(RememberError::Lost(lost)) = &result {
            self.shared.lose(&self.hold, lost.reason);
        }
        result
    }

    /// Changes the mode: up, down or sideways. A larger token comes with every conversion but a pure one down. While a
    /// conversion down is under way, only the weaker mode is believed in.
    ///
    /// # Cancellation safety
    /// May be dropped at any point. A conversion up or sideways is then undone on the client's own thread; one down is not, since
    /// somebody else may be in already.
    pub async fn convert(&self, to: Mode, wait: Wait) -> Result<(), ConvertError> {
        let capabilities = self.engine().capabilities();
        capabilities.require(Capability::Conversion)?;
        capabilities.require(Capability::Mode(to))?;
        self.check()?;
        let wait = wait.from(self.shared.clock.now());
        let turn = self.turn_to_convert(to, wait).await?;
        let cancel = self.shared.closing.child_token();
        let from = self.hold.begin_conversion(to, cancel.clone()).map_err(|refused| match refused {
            NotConverted::Lost(reason) => ConvertError::Lost(self.lost_because(reason)),
            NotConverted::Reentered { held } => {
                ConvertError::Reentered { name: self.name().clone(), held, to }
            }
        })?;
        let converting =
            self.engine().clone().convert(Conversion::new(from.clone(), to, wait, cancel.clone()));
        let converting = Box::pin(async move { (converting.await, turn) });
        let (shared, hold) = (self.shared.clone(), self.hold.clone());
        let settle = move |(result, turn)| -> BoxFuture<'static, ()> {
            Box::pin(async move {
                settle_conversion(&shared, &hold, from, to, result).await;
                drop(turn);
            })
        };
        let operation = Operation::new(self.shared.thread.handle().clone(), Some(cancel), converting, settle);
        let (result, _turn) = operation.await;
        match result {
            Ok(granted) => self.hold.end_conversion(Some(granted)).map_err(|reason| {
                // The engine converted what had been lost, and perhaps released, before.
                self.shared.release_in_background(self.hold.grant(), None);
                self.lost_because(reason).into()
            }),
            Err(error) => {
                if let ConvertError::Lost(lost) = &error {
                    self.shared.lose(&self.hold, lost.reason);
                }
                match self.hold.end_conversion(None) {
                    Err(reason) => Err(self.lost_because(reason).into()),
                    Ok(()) if self.shared.closing.is_cancelled() => Err(EngineError::Closed.into()),
                    Ok(()) => Err(error),
                }
            }
        }
    }

    /// Conversions of one grant go one after the other.
    async fn turn_to_convert(&self, to: Mode, wait: WaitUntil) -> Result<OwnedMutexGuard<()>, ConvertError> {
        let (gate, name) = (self.hold.conversion_gate(), self.name().clone());
        match wait {
            WaitUntil::Try => gate.try_lock_owned().map_err(|_| ConvertError::Busy { name, to }),
            WaitUntil::Forever => Ok(gate.lock_owned().await),
            WaitUntil::At { at, waited } => tokio::select! {
                biased;
                turn = gate.lock_owned() => Ok(turn),
                () = self.shared.clock.sleep_until(at) => Err(ConvertError::TimedOut { name, to, waited }),
            },
        }
    }

    fn lost_because(&self, reason: LostReason) -> Lost {
        Lost { name: self.hold.name.clone(), reason }
    }

    /// Releases the lock and says how that went. With an error the release goes on in the background.
    ///
    /// # Cancellation safety
    /// May be dropped at any point: the release goes on, on the client's own thread.
    pub async fn release(mut self) -> Result<Release, ReleaseError> {
        // Belief may have ended without anybody having looked.
        let _ = self.check();
        self.let_go = true;
        let (grant, releasing, lost) = match self.shared.let_go(&self.hold) {
            (LetGo::Last(grant), releasing) => (grant, releasing, None),
            (LetGo::Kept(grant, reason, releasing), _) => (grant, releasing, Some(reason)),
            (LetGo::StillHeld, _) => return Ok(Release::StillHeld),
            (LetGo::Lost(reason), _) => return Ok(Release::AlreadyLost(reason)),
        };
        let asking = self.engine().clone().release(grant.clone());
        // One for this future, and one for what goes on if it is dropped.
        let going_on = self.shared.reentry.releasing(&self.hold);
        let (background, again) = (self.shared.background.clone(), grant.clone());
        let settle = move |result| -> BoxFuture<'static, ()> {
            match result {
                Err(ReleaseError::Engine(_)) => Box::pin(background.release(again, going_on)),
                Ok(()) | Err(ReleaseError::NotHeld(_)) => Box::pin(async {}),
            }
        };
        let result = Operation::new(self.shared.thread.handle().clone(), None, asking, settle).await;
        self.shared.telemetry.released(&grant, &result);
        match result {
            Ok(()) => Ok(lost.map_or(Release::Released, Release::AlreadyLost)),
            Err(ReleaseError::NotHeld(reason)) => Ok(Release::AlreadyLost(lost.unwrap_or(reason))),
            Err(error) => {
                self.shared.release_in_background(grant, releasing);
                Err(error)
            }
        }
    }

    fn engine(&self) -> &Arc<dyn Engine> {
        &self.shared.engine
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if self.let_go {
            return;
        }
        match self.shared.let_go(&self.hold) {
            (LetGo::Last(grant), releasing) | (LetGo::Kept(grant, _, releasing), _) => {
                self.shared.release_in_background(grant, releasing);
            }
            (LetGo::StillHeld | LetGo::Lost(_), _) => {}
        }
    }
}

/// Takes in a conversion whose caller has gone: what went up or sideways goes back.
async fn settle_conversion(
    shared: &Arc<Shared>,
    hold: &Arc<Hold>,
    from: Grant,
    to: Mode,
    result: Result<Granted, ConvertError>,
) {
    let converted = result.is_ok();
    if hold.end_conversion(result.ok()).is_err() {
        shared.release_in_background(from, None);
        return;
    }
    if !converted || from.mode.covers(to) {
        return;
    }
    let cancel = CancellationToken::new();
    let Ok(grant) = hold.begin_conversion(from.mode, cancel.clone()) else { return };
    let back = Conversion::new(grant, from.mode, WaitUntil::Try, cancel);
    let result = shared.engine.clone().convert(back).await;
    let _ = hold.end_conversion(result.ok());
}
