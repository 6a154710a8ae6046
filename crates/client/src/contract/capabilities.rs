//! An engine does what it declares, refuses everything else, and returns distinct errors.

use std::collections::BTreeSet;
use std::future::{Future, poll_fn};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{Subject, Trial};
use crate::capabilities::{Breaking, Capability, Waking};
use crate::{AcquireError, Break, BreakError, ConvertError, EngineError, Mode, ValueError, Wait};

/// Modes, conversions, values and breaking that are not declared answer `Unsupported`, at once and without side effects.
pub async fn what_is_not_declared_is_unsupported<S: Subject>(trial: Trial<S>) {
    let capabilities = trial.capabilities().clone();
    let name = trial.name("unsupported");
    for mode in Mode::ALL {
        let guard = trial.client().lock(&name).mode(mode).acquire().await;
        match guard {
            Ok(guard) => {
                assert!(capabilities.modes.contains(mode), "{mode} is not declared, and was granted");
                assert_eq!(guard.mode(), mode);
                let _ = guard.release().await.unwrap();
            }
            Err(AcquireError::Engine(EngineError::Unsupported(_))) => {
                assert!(!capabilities.modes.contains(mode), "{mode} is declared, and was refused");
            }
            Err(error) => panic!("{mode}: {error}"),
        }
    }
    let refused = |answer: Result<crate::Guard, AcquireError>| {
        matches!(answer, Err(AcquireError::Engine(EngineError::Unsupported(_))))
    };
    if !capabilities.notices {
        assert!(refused(trial.client().lock(&name).notify(true).acquire().await));
    }
    if !capabilities.lock_delay {
        assert!(refused(trial.client().lock(&name).lock_delay(Trial::<S>::SHORT).acquire().await));
    }
    let guard = trial.holder(&name).await;
    assert_eq!(guard.token().is_some(), capabilities.fencing);
    if !capabilities.conversion {
        let answer = guard.convert(Mode::Ex, Wait::Try).await;
        assert!(matches!(answer, Err(ConvertError::Engine(EngineError::Unsupported(_)))), "{answer:?}");
    }
    if !capabilities.value {
        let answer = guard.set_value("x").await;
        assert!(matches!(answer, Err(ValueError::Engine(EngineError::Unsupported(_)))), "{answer:?}");
    }
    if capabilities.breaking == Breaking::None {
        let answer = trial.client().break_lock(&name, Break::Ask).await;
        assert!(matches!(answer, Err(BreakError::Engine(EngineError::Unsupported(_)))), "{answer:?}");
    }
    assert!(guard.check().is_ok(), "being refused cost the lock");
}

/// `require` refuses what is not declared, and nothing else.
pub async fn a_weaker_engine_is_refused<S: Subject>(trial: Trial<S>) {
    let all = [
        Capability::Mode(Mode::Pr),
        Capability::Mode(Mode::Cw),
        Capability::Conversion,
        Capability::Value,
        Capability::Remember,
        Capability::Fencing,
        Capability::Fair,
        Capability::DeadlockDetection,
        Capability::Notices,
        Capability::LockDelay,
        Capability::Observe,
        Capability::SharedOwners,
        Capability::Lease,
        Capability::NoPolling,
        Capability::Network,
    ];
    for capability in all {
        let answer = trial.client().lock(trial.name("require")).require(capability).try_acquire().await;
        match answer {
            Ok(Some(guard)) => {
                assert!(
                    trial.capabilities().has(capability),
                    "{capability} is not there, and was not refused"
                );
                let _ = guard.release().await.unwrap();
            }
            Err(AcquireError::Engine(EngineError::Unsupported(_))) => {
                assert!(!trial.capabilities().has(capability), "{capability} is there, and was refused");
            }
            other => panic!("{capability}: {other:?}"),
        }
    }
}

/// An engine that declares fairness serves waiters in the order of their requests.
pub async fn fair_is_first_come_first_served<S: Subject>(trial: Trial<S>) {
    const WAITERS: usize = 12;
    if !trial.capabilities().fair {
        return;
    }
    let name = trial.name("fair");
    let first = trial.holder(&name).await;
    let (send, mut order) = tokio::sync::mpsc::unbounded_channel();
    for place in 0..WAITERS {
        let client = if place % 2 == 0 { trial.client().clone() } else { trial.another_client().await };
        let (send, lock) = (send.clone(), name.clone());
        tokio::spawn(async move {
            let guard = client.lock(lock).ttl(Trial::<S>::LONG).acquire().await.unwrap();
            send.send(place).unwrap();
            let _ = guard.release().await.unwrap();
        });
        assert!(trial.capabilities().visible_waiters, "an engine that is fair shows its queue");
        trial.waiters(&name, place + 1).await;
    }
    let _ = first.release().await.unwrap();
    for place in 0..WAITERS {
        assert_eq!(trial.soon("the next one is served", order.recv()).await, Some(place));
    }
}

/// If an engine declares that a release wakes one waiter, it does not wake all of them.
pub async fn a_release_wakes_one<S: Subject>(trial: Trial<S>) {
    const WAITERS: usize = 30;
    const RELEASES: usize = 5;
    if trial.capabilities().waking != Waking::One {
        return;
    }
    let name = trial.name("herd");
    let mut held = trial.holder(&name).await;
    let woken = Arc::new(Mutex::new(BTreeSet::new()));
    let (send, mut granted) = tokio::sync::mpsc::unbounded_channel();
    for waiter in 0..WAITERS {
        let mut wait = Box::pin(trial.client().lock(&name).ttl(Trial::<S>::LONG).acquire());
        let (woken, send) = (woken.clone(), send.clone());
        tokio::spawn(async move {
            let counted = poll_fn(|context| {
                woken.lock().unwrap().insert(waiter);
                wait.as_mut().poll(context)
            });
            // The receiver is gone for the last waiters.
            let _ = send.send(counted.await.unwrap());
        });
    }
    trial.waiters(&name, WAITERS).await;
    // The minimum over several releases, because other waiters may poll at the same moment, as a backstop.
    let mut fewest = WAITERS;
    for _ in 0..RELEASES {
        woken.lock().unwrap().clear();
        let _ = held.release().await.unwrap();
        held = trial.soon("the next one gets it", granted.recv()).await.expect("there are more who wait");
        // A wrong wake would take some time to arrive.
        tokio::time::sleep(Duration::from_millis(50)).await;
        fewest = fewest.min(woken.lock().unwrap().len());
    }
    assert!(fewest <= WAITERS / 2, "at least {fewest} of {WAITERS} were woken at every release");
}

/// A busy lock, a wait that timed out and bad input are different errors.
pub async fn bad_input_is_told_from_a_busy_lock<S: Subject>(trial: Trial<S>) {
    let name = trial.name("errors");
    let _held = trial.holder(&name).await;
    let client = trial.client();
    let tried = client.lock(&name).wait(Wait::Try).acquire().await;
    assert!(matches!(tried, Err(AcquireError::Busy { .. })), "{tried:?}");
    let waited = client.lock(&name).wait(Wait::For(Duration::from_millis(50))).acquire().await;
    assert!(matches!(waited, Err(AcquireError::TimedOut { .. })), "{waited:?}");
    let unnamed = client.lock("").acquire().await;
    assert!(matches!(unnamed, Err(AcquireError::Name(_))), "{unnamed:?}");
    let short = client.lock(&name).ttl(Duration::from_nanos(1)).acquire().await;
    assert!(matches!(short, Err(AcquireError::Ttl(_))), "{short:?}");
}
