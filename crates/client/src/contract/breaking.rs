//! Breaking a held lock, by an operator.

use super::{Subject, Trial};
use crate::capabilities::Breaking;
use crate::{Break, BreakError, EngineError, LostReason};

/// A holder that is asked to release is notified, and its client releases.
pub async fn a_holder_that_is_asked_lets_go<S: Subject>(trial: Trial<S>) {
    let name = trial.name("ask");
    // Some engines report it with the next renewal.
    let guard = trial.client().lock(&name).ttl(Trial::<S>::KEPT).acquire().await.unwrap();
    let operator = trial.another_client().await;
    let answer = operator.break_lock(&name, Break::Ask).await;
    if trial.capabilities().breaking == Breaking::None {
        assert!(matches!(answer, Err(BreakError::Engine(EngineError::Unsupported(_)))), "{answer:?}");
        assert!(guard.check().is_ok());
        return;
    }
    assert_eq!(answer.unwrap().iter().map(|holder| holder.grant).collect::<Vec<_>>(), [guard.grant()]);
    assert_eq!(trial.soon("the holder is told", guard.lost()).await, LostReason::Broken);
    assert!(guard.check().is_err());
    trial.assert_nothing_left(&name).await;
}

/// A forced break frees the lock at once, or the engine reports which holder keeps it.
pub async fn a_forced_break_frees_at_once<S: Subject>(trial: Trial<S>) {
    let name = trial.name("force");
    let guard = trial.holder(&name).await;
    let operator = trial.another_client().await;
    let answer = operator.break_lock(&name, Break::Force).await;
    match trial.capabilities().breaking {
        Breaking::Force => {
            answer.unwrap();
            // The engine decides when the holder notices. In no case may the holder free the next holder's lock.
            let next = operator
                .lock(&name)
                .ttl(Trial::<S>::LONG)
                .try_acquire()
                .await
                .unwrap()
                .expect("free at once");
            drop(guard);
            trial.client().clone().close().await.unwrap();
            assert!(next.check().is_ok());
            assert!(
                operator.lock(&name).try_acquire().await.unwrap().is_none(),
                "the late release freed the next one's lock"
            );
        }
        Breaking::Ask => {
            let Err(BreakError::HolderKeepsIt { holders, .. }) = answer else { panic!("{answer:?}") };
            assert_eq!(holders[0].grant, guard.grant());
            assert!(guard.check().is_ok());
        }
        Breaking::None => {
            assert!(matches!(answer, Err(BreakError::Engine(EngineError::Unsupported(_)))), "{answer:?}");
        }
    }
}

/// A lock without a holder cannot be broken.
pub async fn a_free_lock_cannot_be_broken<S: Subject>(trial: Trial<S>) {
    let answer = trial.client().break_lock(trial.name("free"), Break::Ask).await;
    match trial.capabilities().breaking {
        Breaking::None => {
            assert!(matches!(answer, Err(BreakError::Engine(EngineError::Unsupported(_)))), "{answer:?}");
        }
        _ => assert!(matches!(answer, Err(BreakError::NotHeld { .. })), "{answer:?}"),
    }
}
