//! A holder reports its lock as lost before the engine grants it to another.

use std::time::Duration;

use super::{Subject, Trial};
use crate::capabilities::Expiry;
use crate::clock::BootTime;
use crate::{AcquireError, GuardState, LostReason, Release, Wait};

/// With a fixed lease, `check` succeeds before the deadline and never after it. The next grant follows the deadline.
pub async fn check_fails_from_the_deadline_on<S: Subject>(trial: Trial<S>) {
    let name = trial.name("deadline");
    let other = trial.another_client().await;
    let guard = trial.client().lock(&name).ttl(Trial::<S>::SHORT).renew(false).acquire().await.unwrap();
    let deadline = guard.deadline().expect("a fixed lease has a deadline");
    let next = tokio::spawn(async move {
        let guard = other.lock(name).ttl(Trial::<S>::LONG).acquire().await.unwrap();
        (BootTime::now(), guard)
    });
    trial
        .eventually("the lease runs out", async || {
            let before = BootTime::now();
            let believes = guard.check().is_ok();
            let after = BootTime::now();
            assert!(!believes || before < deadline, "believed at {before:?}, after {deadline:?}");
            assert!(believes || after >= deadline, "lost at {after:?}, before {deadline:?}");
            !believes
        })
        .await;
    assert_eq!(guard.state(), GuardState::Lost(LostReason::Expired));
    assert_eq!(guard.lost().await, LostReason::Expired);
    let (granted, next) = trial.soon("the next one gets it", next).await.unwrap();
    assert!(granted >= deadline, "granted at {granted:?}, while the first believed until {deadline:?}");
    assert_eq!(guard.release().await.unwrap(), Release::AlreadyLost(LostReason::Expired));
    assert!(next.check().is_ok());
}

/// Renewal keeps a lock beyond its TTL.
pub async fn a_renewed_lock_outlives_its_ttl<S: Subject>(trial: Trial<S>) {
    let name = trial.name("renewed");
    let other = trial.another_client().await;
    let guard = trial.client().lock(&name).ttl(Trial::<S>::KEPT).acquire().await.unwrap();
    let wait = Wait::For(Trial::<S>::BEYOND_KEPT);
    let answer = other.lock(&name).wait(wait).acquire().await;
    assert!(matches!(answer, Err(AcquireError::TimedOut { .. })), "in spite of renewal: {answer:?}");
    assert_eq!(guard.state(), GuardState::Held);
    assert_eq!(guard.release().await.unwrap(), Release::Released);
}

/// A lock is lost after `max_hold`, and then free.
pub async fn max_hold_ends_it<S: Subject>(trial: Trial<S>) {
    let name = trial.name("max-hold");
    let guard = trial.client().lock(&name).ttl(Trial::<S>::LONG).max_hold(Duration::from_millis(300));
    let guard = guard.acquire().await.unwrap();
    assert_eq!(trial.soon("max_hold ends", guard.lost()).await, LostReason::MaxHold);
    assert_eq!(guard.check().unwrap_err().reason, LostReason::MaxHold);
    trial.assert_nothing_left(&name).await;
    assert_eq!(guard.release().await.unwrap(), Release::AlreadyLost(LostReason::MaxHold));
}

/// `run` returns the result of work that ends in time, and drops other work.
pub async fn work_is_dropped_at_loss<S: Subject>(trial: Trial<S>) {
    struct Dropped(tokio::sync::mpsc::UnboundedSender<()>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            let _ = self.0.send(());
        }
    }

    let name = trial.name("run");
    let guard = trial.holder(&name).await;
    assert_eq!(guard.run(async { 42 }).await, Ok(42));
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    let guard = trial.client().lock(&name).max_hold(Duration::from_millis(300)).acquire().await.unwrap();
    let (send, mut dropped) = tokio::sync::mpsc::unbounded_channel();
    let marker = Dropped(send);
    let endless = async move {
        let _marker = marker;
        std::future::pending::<()>().await;
    };
    let lost = trial.soon("the work is dropped", guard.run(endless)).await.unwrap_err();
    assert_eq!(lost.reason, LostReason::MaxHold);
    assert_eq!(dropped.recv().await, Some(()));
    let mut polled = false;
    assert!(guard.run(async { polled = true }).await.is_err());
    assert!(!polled, "work was begun without the lock");
}

/// A process that is stopped for longer than its TTL reports the loss of its lock when it resumes, if the lock was lost.
pub async fn a_stopped_process_does_not_believe_beyond_its_lease<S: Subject>(trial: Trial<S>) {
    if !trial.reaches_processes() {
        return;
    }
    let name = trial.name("stopped");
    let mut helper = trial.helper().await;
    let ttl = Trial::<S>::SHORT;
    let got = helper.ask(&format!("acquire {name} EX {}", ttl.as_millis())).await;
    assert!(got.starts_with("got"), "{got}");
    helper.stop();
    let wait = match trial.capabilities().expiry {
        Expiry::Lease => Wait::Forever,
        // Such an engine may free the lock of a silent client, but need not.
        Expiry::Connection | Expiry::Kernel => Wait::For(ttl * 2),
    };
    let next = trial
        .soon("the next one gets it", trial.client().lock(&name).ttl(Trial::<S>::LONG).wait(wait).acquire())
        .await;
    helper.resume();
    if let Ok(next) = next {
        assert_ne!(
            trial.capabilities().expiry,
            Expiry::Kernel,
            "the kernel does not free what a stopped process holds"
        );
        if trial.capabilities().expiry == Expiry::Lease {
            // The first check must already fail, because the deadline passed while the process was stopped.
            let first = helper.ask(&format!("check {name}")).await;
            assert!(first.starts_with("lost"), "{first}");
        }
        let knows = async || helper.ask(&format!("check {name}")).await.starts_with("lost");
        trial.eventually("the stopped one knows", knows).await;
        let released = helper.ask(&format!("release {name}")).await;
        assert!(released.starts_with("AlreadyLost"), "{released}");
        assert!(next.check().is_ok());
        assert!(trial.is_busy(&name).await, "the late release freed the next holder's lock");
    } else {
        assert_eq!(helper.ask(&format!("check {name}")).await, "held");
        assert_eq!(helper.ask(&format!("release {name}")).await, "Released");
    }
}

/// When the release of a lost lock returns, the engine has freed the lock: the next acquire succeeds.
pub async fn a_lost_lock_is_free_when_its_release_returns<S: Subject>(trial: Trial<S>) {
    let name = trial.name("freed");
    for round in 0..10 {
        let lock = trial.client().lock(&name).ttl(Trial::<S>::LONG).max_hold(Duration::from_millis(20));
        let guard = lock.acquire().await.unwrap();
        trial.soon("max_hold ends it", guard.lost()).await;
        let released = trial.soon("it is released", guard.release()).await.unwrap();
        assert_eq!(released, Release::AlreadyLost(LostReason::MaxHold));
        assert!(!trial.is_busy(&name).await, "round {round}: released, and still held");
    }
}
