//! The application's runtime may be busy or end: no lock is lost, and none leaks.

use std::time::Duration;

use super::{Subject, Trial};
use crate::{AcquireError, Release, Wait};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime can be built")
}

/// A guard outlives the runtime on which it was acquired: its lock is renewed, and released when the guard is dropped.
pub async fn a_dead_application_runtime_loses_no_lock<S: Subject>(trial: Trial<S>) {
    let name = trial.name("dead-runtime");
    let application = runtime();
    let request = trial.another_client().await.lock(&name).ttl(Trial::<S>::KEPT);
    let guard = application.spawn(request.acquire()).await.unwrap().unwrap();
    application.shutdown_background();
    let wait = Wait::For(Trial::<S>::BEYOND_KEPT);
    let answer = trial.client().lock(&name).wait(wait).acquire().await;
    assert!(matches!(answer, Err(AcquireError::TimedOut { .. })), "lost with its runtime: {answer:?}");
    assert!(guard.check().is_ok());
    drop(guard);
    trial.assert_nothing_left(&name).await;
}

/// A runtime that ends while one of its tasks waits for a lock leaves no waiter.
pub async fn an_acquire_on_a_dying_runtime_leaves_nothing<S: Subject>(trial: Trial<S>) {
    let name = trial.name("dying-runtime");
    let guard = trial.holder(&name).await;
    let application = runtime();
    application.spawn(trial.another_client().await.lock(&name).ttl(Trial::<S>::LONG).acquire());
    trial.waiters(&name, 1).await;
    application.shutdown_background();
    trial.waiters(&name, 0).await;
    let _ = guard.release().await.unwrap();
    trial.assert_nothing_left(&name).await;
}

/// A runtime whose only thread is blocked for longer than the TTL loses no lock.
pub async fn a_busy_runtime_loses_no_lock<S: Subject>(trial: Trial<S>) {
    let name = trial.name("busy-runtime");
    let request = trial.another_client().await.lock(&name).ttl(Trial::<S>::KEPT);
    let (stop, stopped) = std::sync::mpsc::channel::<()>();
    let (send, receive) = tokio::sync::oneshot::channel();
    let application = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let guard = request.acquire().await.unwrap();
            send.send(()).unwrap();
            stopped.recv().unwrap();
            guard.check().unwrap();
            guard.release().await.unwrap()
        })
    });
    receive.await.unwrap();
    let wait = Wait::For(Trial::<S>::BEYOND_KEPT);
    let answer = trial.client().lock(&name).wait(wait).acquire().await;
    assert!(matches!(answer, Err(AcquireError::TimedOut { .. })), "lost by a busy runtime: {answer:?}");
    stop.send(()).unwrap();
    let released = tokio::task::spawn_blocking(|| application.join().unwrap()).await.unwrap();
    assert_eq!(released, Release::Released);
}

/// The blocking API acquires, excludes, times out, re-enters, acquires several locks and releases.
pub async fn the_blocking_api_does_the_same<S: Subject>(trial: Trial<S>) {
    let client = crate::blocking::Client::from_async(trial.another_client().await);
    let (name, second) = (trial.name("blocking"), trial.name("second"));
    let work = tokio::task::spawn_blocking({
        let (name, second) = (name.clone(), second.clone());
        move || {
            let guard = client.lock(&name).ttl(Trial::<S>::LONG).acquire().unwrap();
            guard.check().unwrap();
            assert!(client.lock(&name).try_acquire().unwrap().is_none());
            assert!(client.lock(&name).wait(Wait::For(Duration::from_millis(20))).acquire().is_err());
            assert!(
                client.inspect(&name).unwrap().holders.iter().any(|holder| holder.grant == guard.grant())
            );
            assert_eq!(guard.release().unwrap(), Release::Released);
            let owner = client.owner();
            let outer = owner.lock(&name).acquire().unwrap();
            let inner = owner.lock(&name).acquire().unwrap();
            assert_eq!(outer.token(), inner.token());
            drop((outer, inner));
            let both = client.lock_all([&second, &name]).acquire().unwrap();
            assert_eq!(both.len(), 2);
            drop(both);
            client.close().unwrap();
        }
    });
    trial.soon("the blocking calls end", work).await.unwrap();
    trial
        .eventually("everything is free", async || {
            !trial.is_busy(&name).await && !trial.is_busy(&second).await
        })
        .await;
}
