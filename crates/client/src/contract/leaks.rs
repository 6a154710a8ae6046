//! An operation that is dropped, cancelled or timed out leaves neither a lock nor a waiter behind.

use std::time::Duration;

use super::{Subject, Trial, poll_times};
use crate::{AcquireError, Wait};

/// More await points than any acquire has before it waits for another holder.
const MANY: usize = 12;

/// An acquire of a free lock is dropped after 0, 1, 2, … polls, until one is ready first.
pub async fn a_dropped_acquire_leaves_nothing<S: Subject>(trial: Trial<S>) {
    drop_after_polls(&trial, Wait::Forever).await;
}

/// The same for an acquire that does not wait.
pub async fn a_dropped_try_leaves_nothing<S: Subject>(trial: Trial<S>) {
    drop_after_polls(&trial, Wait::Try).await;
}

async fn drop_after_polls<S: Subject>(trial: &Trial<S>, wait: Wait) {
    // Keeps the session open: a session without grants would end, and remove what an acquire has left behind.
    let _kept = trial.holder(&trial.name("kept")).await;
    for polls in 0.. {
        let name = trial.name(format_args!("free-{polls}"));
        let acquire = trial.client().lock(&name).ttl(Trial::<S>::LONG).wait(wait).acquire();
        let ready = poll_times(acquire, polls).await.is_some();
        trial.assert_nothing_left(&name).await;
        if ready {
            assert!(polls > 0);
            return;
        }
        assert!(polls < 1000, "an acquire of a free lock does not become ready");
    }
}

/// A wait for a held lock is dropped after 0, 1, 2, … polls.
pub async fn a_dropped_wait_leaves_nothing<S: Subject>(trial: Trial<S>) {
    for polls in 0..MANY {
        let name = trial.name(format_args!("held-{polls}"));
        let guard = trial.holder(&name).await;
        let wait = trial.client().lock(&name).ttl(Trial::<S>::LONG).acquire();
        assert!(poll_times(wait, polls).await.is_none(), "got in spite of its holder");
        trial.waiters(&name, 0).await;
        let _ = guard.release().await.unwrap();
        trial.assert_nothing_left(&name).await;
    }
}

/// The same while the holder releases: the grant and the drop race.
pub async fn a_wait_dropped_at_the_grant_leaves_nothing<S: Subject>(trial: Trial<S>) {
    for polls in 1..MANY {
        let name = trial.name(format_args!("race-{polls}"));
        let guard = trial.holder(&name).await;
        let waiting = tokio::spawn({
            let wait = trial.client().lock(&name).ttl(Trial::<S>::LONG).acquire();
            async move { poll_times(wait, polls).await.map(drop) }
        });
        let _ = guard.release().await.unwrap();
        waiting.await.unwrap();
        trial.assert_nothing_left(&name).await;
    }
}

/// A wait that times out returns the error, and leaves nothing behind.
pub async fn a_timed_out_wait_leaves_nothing<S: Subject>(trial: Trial<S>) {
    let name = trial.name("timeout");
    let guard = trial.holder(&name).await;
    for wait_ms in [1, 20, 200] {
        let wait = Wait::For(Duration::from_millis(wait_ms));
        let answer = trial
            .soon("the wait ends", trial.client().lock(&name).ttl(Trial::<S>::LONG).wait(wait).acquire())
            .await;
        assert!(matches!(answer, Err(AcquireError::TimedOut { .. })), "{answer:?}");
        trial.waiters(&name, 0).await;
    }
    assert!(guard.check().is_ok());
    let _ = guard.release().await.unwrap();
    trial.assert_nothing_left(&name).await;
}

/// A release that is dropped after 0, 1, 2, … polls is still carried out.
pub async fn a_dropped_release_releases<S: Subject>(trial: Trial<S>) {
    for polls in 0..MANY {
        let name = trial.name(format_args!("release-{polls}"));
        let guard = trial.holder(&name).await;
        let _ = poll_times(guard.release(), polls).await;
        trial.assert_nothing_left(&name).await;
    }
}

/// Dropping a guard frees the lock, also for waiters.
pub async fn a_dropped_guard_releases<S: Subject>(trial: Trial<S>) {
    let name = trial.name("guard");
    let guard = trial.holder(&name).await;
    let other = trial.another_client().await;
    let waiting = tokio::spawn({
        let name = name.clone();
        async move { other.lock(name).ttl(Trial::<S>::LONG).acquire().await.unwrap() }
    });
    trial.waiters(&name, 1).await;
    drop(guard);
    drop(trial.soon("the waiter gets it", waiting).await.unwrap());
    trial.assert_nothing_left(&name).await;
}
