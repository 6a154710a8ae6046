//! What an operator can do about a lock that somebody holds.

use super::{Subject, Trial};
use crate::capabilities::Breaking;
use crate::{Break, BreakError, EngineError, LostReason};

/// Asked to let go, a holder is told, and its client releases.
pub async fn a_holder_that_is_asked_lets_go<S: Subject>(trial: Trial<S>) {
    let name = trial.name("ask");
    // Some engines hear of it when they renew.
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

/// Forced, the lock is free at once, or the engine says who keeps it.
pub async fn a_forced_break_frees_at_once<S: Subject>(trial: Trial<S>) {
    let name = trial.name("force");
    let guard = trial.holder(&name).await;
    let operator = trial.another_client().await;
    let answer = operator.break_lock(&name, Break::Force).await;
    match trial.capabilities().breaking {
        Breaking::Force => {
            answer.unwrap();
            // How soon the holder knows is the engine's; that it cannot free the next holder's lock is not.
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

/// There is nothing to break where nobody holds.
pub async fn a_free_lock_cannot_be_broken<S: Subject>(trial: Trial<S>) {
    let answer = trial.client().break_lock(trial.name("free"), Break::Ask).await;
    match trial.capabilities().breaking {
        Breaking::None => {
            assert!(matches!(answer, Err(BreakError::Engine(EngineError::Unsupported(_)))), "{answer:?}");
        }
        _ => assert!(matches!(answer, Err(BreakError::NotHeld { .. })), "{answer:?}"),
    }
}
