//! The guard: what a holder has in its hands.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use crate::capabilities::Capability;
use crate::clock::BootTime;
use crate::engine::{Conversion, Engine, Granted, WaitUntil};
use crate::error::{ConvertError, Lost, LostReason, ReleaseError, ValueError};
use crate::hold::{GuardState, Hold, LetGo};
use crate::ids::{GrantId, OwnerId};
use crate::mode::Mode;
use crate::name::LockName;
use crate::operation::Operation;
use crate::request::Wait;
use crate::shared::Shared;
use crate::telemetry;
use crate::token::FencingToken;
use crate::value::Value;

/// A lock that is held. Dropping it releases the lock, on the client's own thread and without blocking;
/// [`release`](Guard::release) does it at once and says how it went.
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

    /// Resolves when the lock is lost, with the reason.
    ///
    /// # Cancellation safety
    /// May be dropped at any point.
    pub async fn lost(&self) -> LostReason {
        let mut states = self.hold.watch();
        loop {
            if let GuardState::Lost(reason) = *states.borrow_and_update() {
                return reason;
            }
            if states.changed().await.is_err() {
                unreachable!("the guard keeps the sender alive");
            }
        }
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
        let grant = self.hold.grant();
        if !grant.mode.may_write() {
            return Err(ValueError::Mode { name: grant.name, held: grant.mode });
        }
        self.check()?;
        let writing = self.engine().clone().set_value(grant, bytes.clone());
        let hold = self.hold.clone();
        let write = async move {
            writing.await?;
            hold.wrote(Value { bytes, in_doubt: false });
            Ok(())
        };
        let result = self.finish(CancellationToken::new(), Box::pin(write), |_| Box::pin(async {})).await;
        if let Err(ValueError::Lost(lost)) = &result {
            self.shared.lose(&self.hold, lost.reason);
        }
        result
    }

    /// Changes the mode: up, down or sideways.
    ///
    /// # Cancellation safety
    /// May be dropped at any point. The old mode is then restored, on the client's own thread.
    pub async fn convert(&self, to: Mode, wait: Wait) -> Result<(), ConvertError> {
        let capabilities = self.engine().capabilities();
        capabilities.require(Capability::Conversion)?;
        capabilities.require(Capability::Mode(to))?;
        self.check()?;
        let cancel = self.shared.closing.child_token();
        let from = self.hold.grant();
        let wait = wait.from(self.shared.clock.now());
        let converting =
            self.engine().clone().convert(Conversion::new(from.clone(), to, wait, cancel.clone()));
        let (engine, hold) = (self.engine().clone(), self.hold.clone());
        let restore = move |result: Result<Granted, ConvertError>| {
            Box::pin(async move {
                let Ok(granted) = result else { return };
                let old = from.mode;
                hold.converted(to, granted);
                let back = Conversion::new(hold.grant(), old, WaitUntil::Try, CancellationToken::new());
                if let Ok(granted) = engine.convert(back).await {
                    hold.converted(old, granted);
                }
            }) as BoxFuture<'static, ()>
        };
        match self.finish(cancel, converting, restore).await {
            Ok(granted) => {
                self.hold.converted(to, granted);
                Ok(())
            }
            Err(error) => {
                if let ConvertError::Lost(lost) = &error {
                    self.shared.lose(&self.hold, lost.reason);
                }
                Err(error)
            }
        }
    }

    /// Releases the lock and says how that went. With an error the release goes on in the background.
    ///
    /// # Cancellation safety
    /// May be dropped at any point: the release goes on, on the client's own thread.
    pub async fn release(mut self) -> Result<Release, ReleaseError> {
        if let Err(lost) = self.check() {
            return Ok(Release::AlreadyLost(lost.reason));
        }
        let grant = match self.let_go() {
            LetGo::Last(grant) => grant,
            LetGo::StillHeld => return Ok(Release::StillHeld),
            LetGo::Lost(reason) => return Ok(Release::AlreadyLost(reason)),
        };
        let lease_ends = self.hold.lease_ends();
        let settle = self.shared.settle_release(grant.clone(), lease_ends);
        let releasing = self.engine().clone().release(grant.clone());
        let result = self.finish(CancellationToken::new(), releasing, settle).await;
        telemetry::released(&**self.engine(), &grant, &result);
        match result {
            Ok(()) => Ok(Release::Released),
            Err(ReleaseError::NotHeld(reason)) => Ok(Release::AlreadyLost(reason)),
            Err(error) => {
                self.shared.release_in_background(grant, lease_ends);
                Err(error)
            }
        }
    }

    fn engine(&self) -> &Arc<dyn Engine> {
        &self.shared.engine
    }

    fn finish<T, S>(
        &self,
        cancel: CancellationToken,
        future: BoxFuture<'static, T>,
        settle: S,
    ) -> Operation<T, S>
    where
        T: Send + 'static,
        S: FnOnce(T) -> BoxFuture<'static, ()> + Send + 'static,
    {
        Operation::new(self.shared.thread.handle().clone(), cancel, future, settle)
    }

    /// Ends this guard's part in the hold, once.
    fn let_go(&mut self) -> LetGo {
        self.let_go = true;
        let result = self.hold.let_go();
        if let LetGo::Last(_) = result {
            self.shared.forget(&self.hold);
        }
        result
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.let_go
            && let LetGo::Last(grant) = self.let_go()
        {
            self.shared.release_in_background(grant, self.hold.lease_ends());
        }
    }
}
