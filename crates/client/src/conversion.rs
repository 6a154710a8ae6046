//! Conversion: a held grant changes its mode.
//!
//! - **One conversion of a grant at a time**: the gate is taken before the conversion begins, and kept until it is settled.
//! - **While a conversion is under way, the holder may rely only on what both modes cover.**
//! - **A conversion whose caller is gone is undone**, unless the new mode is weaker: another request may then be granted already.

use std::sync::Arc;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tenure_table::Mode;
use tokio::sync::OwnedMutexGuard;

use crate::capabilities::Capability;
use crate::engine::{Cancellation, Conversion, Grant, Granted, Waits};
use crate::error::{ConvertError, EngineError, LostReason};
use crate::guard::Guard;
use crate::hold::{Ended, Hold, Phase, ReleaseTask};
use crate::inner::ClientInner;
use crate::operation::Operation;
use crate::wait::{Wait, WaitUntil, Waiting};

/// A conversion that was requested from the engine.
#[derive(Debug)]
pub(crate) struct UnderWay {
    pub(crate) to: Mode,
    pub(crate) cancel: Cancellation,
}

/// Why a conversion is not begun.
pub(crate) enum NotConverted {
    Lost(LostReason),
    /// Other guards rely on the mode that is held.
    Reentered {
        held: Mode,
    },
}

impl Guard {
    /// Changes the mode: up, down or sideways. Every conversion but a pure one down yields a larger token. While a conversion down is
    /// under way, the guard reports only the weaker mode.
    ///
    /// # Cancellation safety
    /// May be dropped at any point. A conversion up or sideways is then undone on the client's own thread. A conversion down is not,
    /// since another request may be granted already.
    pub async fn convert(&self, to: Mode, wait: Wait) -> Result<(), ConvertError> {
        let capabilities = self.engine().capabilities();
        capabilities.require(Capability::Conversion)?;
        capabilities.require(Capability::Mode(to))?;
        self.check()?;
        let wait = wait.from(self.shared.clock.now());
        let turn = self.turn_to_convert(to, wait).await?;
        let cancel = self.shared.closing.child();
        let from = self.hold.begin_conversion(to, cancel.clone()).map_err(|refused| match refused {
            NotConverted::Lost(reason) => ConvertError::Lost(self.lost_because(reason)),
            NotConverted::Reentered { held } => {
                ConvertError::Reentered { name: self.name().clone(), held, to }
            }
        })?;
        let converting = ask_for_conversion(self.shared.clone(), from.clone(), to, wait, cancel.clone());
        let converting = Box::pin(converting.map(|result| (result, turn)));
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
                // The engine converted a grant that had been lost, and perhaps released, before.
                self.shared.release_in_background(ReleaseTask::new(self.hold.grant(), None));
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

    /// Waits until no other conversion of the grant is under way.
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
}

impl Hold {
    pub(crate) fn conversion_gate(&self) -> Arc<tokio::sync::Mutex<()>> {
        self.conversion_gate.get_or_init(Arc::default).clone()
    }

    /// Records that a conversion is about to be requested, and returns the grant as it is before. If the new mode is weaker, only that
    /// mode is reported from now on.
    pub(crate) fn begin_conversion(&self, to: Mode, cancel: Cancellation) -> Result<Grant, NotConverted> {
        let mut belief = self.belief();
        if let Phase::Ended(Ended::Lost(reason)) = belief.phase {
            return Err(NotConverted::Lost(reason));
        }
        if belief.guards > 1 && !to.covers(belief.mode) {
            return Err(NotConverted::Reentered { held: belief.mode });
        }
        belief.conversion = Some(UnderWay { to, cancel });
        Ok(self.grant_of(&belief))
    }

    /// Applies the result of a conversion. Fails if the lock was lost meanwhile.
    pub(crate) fn end_conversion(&self, granted: Option<Granted>) -> Result<(), LostReason> {
        let mut belief = self.belief();
        let conversion = belief.conversion.take();
        if let Phase::Ended(Ended::Lost(reason)) = belief.phase {
            return Err(reason);
        }
        if let (Some(UnderWay { to, .. }), Some(granted)) = (conversion, granted) {
            // A conversion down does not read the value.
            if to.covers(belief.mode) || !belief.mode.covers(to) {
                belief.value = granted.value;
            }
            belief.mode = to;
            belief.token = granted.token;
            if self.renews && belief.session.is_none() {
                belief.lease_ends = belief.lease_ends.max(granted.term.deadline());
            }
            belief.show();
        }
        Ok(())
    }
}

/// Requests a conversion from the engine.
async fn ask_for_conversion(
    shared: Arc<ClientInner>,
    grant: Grant,
    to: Mode,
    wait: WaitUntil,
    cancel: Cancellation,
) -> Result<Granted, ConvertError> {
    let waiting = Waiting { clock: &*shared.clock, name: &grant.name, wait, cancel: &cancel };
    let ask = |wait, cancel| {
        let waits = wait == Waits::Yes;
        shared.engine.clone().convert(Conversion::new(grant.clone(), to, waits, cancel))
    };
    match (waiting.ask(ask).await.answer, wait) {
        (Err(ConvertError::Busy { name, to }), WaitUntil::At { waited, .. }) => {
            Err(ConvertError::TimedOut { name, to, waited })
        }
        (answer, _) => answer,
    }
}

/// Settles a conversion whose caller is gone: a conversion up or sideways is undone.
async fn settle_conversion(
    shared: &Arc<ClientInner>,
    hold: &Arc<Hold>,
    from: Grant,
    to: Mode,
    result: Result<Granted, ConvertError>,
) {
    let converted = result.is_ok();
    if hold.end_conversion(result.ok()).is_err() {
        shared.release_in_background(ReleaseTask::new(from, None));
        return;
    }
    if !converted || from.mode.covers(to) {
        return;
    }
    let cancel = Cancellation::new();
    let Ok(grant) = hold.begin_conversion(from.mode, cancel.clone()) else { return };
    let back = Conversion::new(grant, from.mode, false, cancel);
    let result = shared.engine.clone().convert(back).await;
    let _ = hold.end_conversion(result.ok());
}
