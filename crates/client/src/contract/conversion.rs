//! Conversions of a held lock, if the engine supports them.

use std::time::Duration;

use super::{Subject, Trial, poll_times};
use crate::capabilities::Capability;
use crate::{ConvertError, Mode, Wait};

fn converts<S: Subject>(trial: &Trial<S>) -> bool {
    let has = |capability| trial.capabilities().has(capability);
    has(Capability::Conversion) && has(Capability::Mode(Mode::Pr)) && has(Capability::Mode(Mode::Ex))
}

/// A conversion up takes a larger token. A conversion down keeps the token and admits others.
pub async fn a_mode_goes_up_and_down<S: Subject>(trial: Trial<S>) {
    if !converts(&trial) {
        return;
    }
    let name = trial.name("up-down");
    let guard = trial.client().lock(&name).shared().ttl(Trial::<S>::LONG).acquire().await.unwrap();
    let shared = guard.token();
    guard.convert(Mode::Ex, Wait::Try).await.unwrap();
    assert_eq!(guard.mode(), Mode::Ex);
    assert!(guard.token() > shared || !trial.capabilities().fencing);
    let exclusive = guard.token();
    assert!(trial.client().lock(&name).shared().try_acquire().await.unwrap().is_none());
    guard.convert(Mode::Pr, Wait::Try).await.unwrap();
    assert_eq!(guard.token(), exclusive, "a conversion down keeps the token");
    assert!(trial.client().lock(&name).shared().try_acquire().await.unwrap().is_some());
    let _ = guard.release().await.unwrap();
    trial.assert_nothing_left(&name).await;
}

/// A conflicting conversion is refused, times out, or waits. A waiting conversion is served before waiters.
pub async fn a_conversion_waits_for_others<S: Subject>(trial: Trial<S>) {
    if !converts(&trial) {
        return;
    }
    let name = trial.name("waits");
    let shared = || trial.client().lock(&name).shared().ttl(Trial::<S>::LONG).acquire();
    let (guard, other) = (shared().await.unwrap(), shared().await.unwrap());
    let refused = guard.convert(Mode::Ex, Wait::Try).await;
    assert!(matches!(refused, Err(ConvertError::Busy { .. })), "{refused:?}");
    let late = guard.convert(Mode::Ex, Wait::For(Duration::from_millis(50))).await;
    assert!(matches!(late, Err(ConvertError::TimedOut { .. })), "{late:?}");
    assert_eq!(guard.mode(), Mode::Pr);
    // Conversions are served before this waiting writer.
    let waiter = tokio::spawn(trial.client().lock(&name).ttl(Trial::<S>::LONG).acquire());
    trial.waiters(&name, 1).await;
    let (converted, released) = tokio::join!(guard.convert(Mode::Ex, Wait::Forever), async {
        trial.waiters(&name, 2).await;
        other.release().await
    });
    converted.unwrap();
    let _ = released.unwrap();
    assert_eq!(guard.mode(), Mode::Ex);
    assert!(!waiter.is_finished(), "the writer is in, beside the one who converted");
    let _ = guard.release().await.unwrap();
    drop(trial.soon("the writer is next", waiter).await.unwrap().unwrap());
}

/// A dropped conversion keeps the old mode, wherever it is dropped.
pub async fn a_dropped_conversion_restores_the_mode<S: Subject>(trial: Trial<S>) {
    if !converts(&trial) {
        return;
    }
    for polls in 0..8 {
        let name = trial.name(format_args!("dropped-{polls}"));
        let shared = || trial.client().lock(&name).shared().ttl(Trial::<S>::LONG).acquire();
        let (guard, other) = (shared().await.unwrap(), shared().await.unwrap());
        let converted = poll_times(guard.convert(Mode::Ex, Wait::Forever), polls).await;
        assert!(converted.is_none(), "converted in spite of another holder");
        drop(trial.soon("a reader gets in again", shared()).await.unwrap());
        assert_eq!(guard.mode(), Mode::Pr);
        let _ = other.release().await.unwrap();
        let _ = guard.release().await.unwrap();
        trial.assert_nothing_left(&name).await;
    }
}
