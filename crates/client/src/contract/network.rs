//! Failures of the network between a client and the engine, if the subject can simulate them.

use std::time::Duration;

use super::{Network, Subject, Trial};
use crate::clock::BootTime;
use crate::{AcquireError, Client, EngineError, GuardState, LostReason, Release, Wait};

/// Connects a client to the engine through a network with controlled failures.
async fn behind<S: Subject>(trial: &Trial<S>) -> Option<(Box<dyn Network>, Client)> {
    let network = trial.network()?;
    let client = S::connect(&network.address()).await;
    Some((network, client))
}

/// A holder that is cut off reports its lock as lost before the next grant, and its late release frees nothing.
pub async fn belief_ends_before_one_who_is_cut_off_is_replaced<S: Subject>(trial: Trial<S>) {
    let Some((network, client)) = behind(&trial).await else { return };
    let name = trial.name("cut-off");
    let guard = client.lock(&name).ttl(Trial::<S>::SHORT).acquire().await.unwrap();
    network.cut();
    let next = {
        let lock = trial.client().lock(&name).ttl(Trial::<S>::LONG);
        tokio::spawn(async move { (lock.acquire().await.unwrap(), BootTime::now()) })
    };
    let mut deadline = guard.deadline().expect("a lease has a deadline");
    // The answer to a renewal that had already been sent may still arrive.
    trial
        .eventually("the cut off one knows", async || {
            deadline = guard.deadline().unwrap_or(deadline);
            guard.check().is_err()
        })
        .await;
    assert_eq!(trial.soon("and is told", guard.lost()).await, LostReason::Expired);
    let (next, granted) = trial.soon("the next one gets it", next).await.unwrap();
    assert!(granted >= deadline, "granted at {granted:?}, while the first believed until {deadline:?}");
    network.heal();
    assert_eq!(guard.release().await.unwrap(), Release::AlreadyLost(LostReason::Expired));
    client.close().await.unwrap();
    assert!(next.check().is_ok());
    assert!(trial.is_busy(&name).await, "the late release freed the next one's lock");
}

/// A cut that is healed before the lease ends does not lose the lock. Meanwhile the guard reports the danger.
pub async fn a_cut_that_is_mended_in_time_costs_nothing<S: Subject>(trial: Trial<S>) {
    let Some((network, client)) = behind(&trial).await else { return };
    let name = trial.name("mended");
    let guard = client.lock(&name).ttl(Trial::<S>::KEPT * 2).acquire().await.unwrap();
    let token = guard.token();
    network.cut();
    trial
        .eventually("the holder is told", async || matches!(guard.state(), GuardState::Jeopardy { .. }))
        .await;
    assert!(guard.check().is_ok(), "in danger, and not yet lost");
    network.heal();
    trial.eventually("the danger is over", async || guard.state() == GuardState::Held).await;
    assert_eq!(guard.token(), token);
    assert!(trial.is_busy(&name).await);
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    trial.assert_nothing_left(&name).await;
}

/// An acquire without an answer fails with an error, and leaves nothing behind when the network heals.
pub async fn an_acquire_that_is_cut_off_leaves_nothing<S: Subject>(trial: Trial<S>) {
    let Some((network, client)) = behind(&trial).await else { return };
    // Opens the connection.
    let _ = client.lock(trial.name("before")).acquire().await.unwrap().release().await.unwrap();
    for wait in [Wait::Try, Wait::For(Duration::from_millis(100)), Wait::For(Duration::from_secs(5))] {
        let name = trial.name(format_args!("unanswered-{wait:?}"));
        network.cut();
        let answer = trial
            .soon("it ends", client.lock(&name).ttl(Trial::<S>::LONG).wait(wait).acquire())
            .await
            .unwrap_err();
        match answer {
            AcquireError::Engine(EngineError::Unreachable { .. }) => {}
            AcquireError::TimedOut { .. } if wait != Wait::Try => {}
            other => panic!("{other:?}"),
        }
        network.heal();
        trial.assert_nothing_left(&name).await;
    }
}

/// An acquire whose answer is lost, although its request arrives, leaves nothing behind.
pub async fn an_acquire_whose_answer_is_lost_leaves_nothing<S: Subject>(trial: Trial<S>) {
    let Some((network, client)) = behind(&trial).await else { return };
    let _ = client.lock(trial.name("before")).acquire().await.unwrap().release().await.unwrap();
    let name = trial.name("lost-answer");
    network.lose_answers(true);
    let answer =
        trial.soon("it ends", client.lock(&name).ttl(Trial::<S>::LONG).wait(Wait::Try).acquire()).await;
    assert!(matches!(answer, Err(AcquireError::Engine(EngineError::Unreachable { .. }))), "{answer:?}");
    network.lose_answers(false);
    trial.assert_nothing_left(&name).await;
    // The client remains usable.
    drop(trial.soon("it works again", client.lock(&name).acquire()).await.unwrap());
    trial.assert_nothing_left(&name).await;
}

/// A release that does not reach the engine is done when the network heals, even if no caller waits for it.
pub async fn a_release_that_is_cut_off_is_done_later<S: Subject>(trial: Trial<S>) {
    let Some((network, client)) = behind(&trial).await else { return };
    let (dropped, released) = (trial.name("dropped"), trial.name("released"));
    let guards = [&dropped, &released].map(|name| client.lock(name).ttl(Trial::<S>::LONG).acquire());
    let [first, second] = guards;
    let (first, second) = (first.await.unwrap(), second.await.unwrap());
    network.cut();
    drop(first);
    let answer = trial.soon("it ends", second.release()).await;
    assert!(answer.is_err(), "nobody can have confirmed it: {answer:?}");
    assert!(trial.is_busy(&released).await);
    network.heal();
    trial.assert_nothing_left(&dropped).await;
    trial.assert_nothing_left(&released).await;
}

/// A waiter survives the loss of its connection.
pub async fn a_waiter_outlasts_its_connection<S: Subject>(trial: Trial<S>) {
    let Some((network, client)) = behind(&trial).await else { return };
    let name = trial.name("severed");
    let held = trial.holder(&name).await;
    let waiting = tokio::spawn(client.lock(&name).ttl(Trial::<S>::LONG).acquire());
    trial.waiters(&name, 1).await;
    for _ in 0..3 {
        network.sever();
        // A failure of the wait could only be noticed later, so the case gives it time.
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert!(!waiting.is_finished(), "the waiter went with its connection");
    }
    let _ = held.release().await.unwrap();
    drop(trial.soon("the waiter gets it", waiting).await.unwrap().unwrap());
    trial.assert_nothing_left(&name).await;
}

/// A wait survives an outage of the engine: the waiter gets the lock afterwards.
pub async fn a_wait_lasts_through_an_outage<S: Subject>(trial: Trial<S>) {
    let Some((network, client)) = behind(&trial).await else { return };
    let name = trial.name("outage");
    let held = trial.holder(&name).await;
    let waiting = tokio::spawn(client.lock(&name).ttl(Trial::<S>::LONG).acquire());
    trial.waiters(&name, 1).await;
    network.cut();
    // Two unanswered requests, one after the other, take longer than the engine's own retries.
    for _ in 0..2 {
        let look = trial.soon("a look ends", client.inspect(&name)).await;
        assert!(look.is_err(), "{look:?}");
    }
    assert!(!waiting.is_finished(), "the outage ended the wait: {:?}", waiting.await);
    network.heal();
    let _ = held.release().await.unwrap();
    drop(trial.soon("the waiter gets it", waiting).await.unwrap().unwrap());
    trial.assert_nothing_left(&name).await;
}

/// A runtime that ends while its request is unanswered leaves nothing behind, and does not disturb the client.
pub async fn a_runtime_that_ends_unanswered_leaves_nothing<S: Subject>(trial: Trial<S>) {
    let Some((network, client)) = behind(&trial).await else { return };
    let name = trial.name("ended-runtime");
    let application =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let before = client.lock(trial.name("before"));
    application.spawn(async { drop(before.acquire().await.unwrap()) }).await.unwrap();
    network.cut();
    application.spawn(client.lock(&name).ttl(Trial::<S>::LONG).acquire());
    // Enough time to send the request.
    tokio::time::sleep(Duration::from_millis(200)).await;
    application.shutdown_background();
    network.heal();
    trial.assert_nothing_left(&name).await;
    trial.soon("nothing is unconfirmed", client.close()).await.unwrap();
}

/// A runtime that is no longer driven, after an unanswered request was dropped, leaves no lock behind. Its owner can acquire again.
pub async fn a_runtime_that_stands_still_unanswered_leaves_nothing<S: Subject>(trial: Trial<S>) {
    let Some((network, client)) = behind(&trial).await else { return };
    let (name, owner) = (trial.name("still-runtime"), client.owner());
    let (ask, cut) = (owner.lock(&name).ttl(Trial::<S>::LONG), client.lock(trial.name("before")));
    let (send, connected) = tokio::sync::oneshot::channel();
    let (go, gone) = std::sync::mpsc::channel::<()>();
    let application = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _ = runtime.block_on(async { cut.acquire().await.unwrap().release().await.unwrap() });
        send.send(()).unwrap();
        gone.recv().unwrap();
        let given_up = async { tokio::time::timeout(Duration::from_millis(200), ask.acquire()).await };
        assert!(runtime.block_on(given_up).is_err());
        runtime
    });
    connected.await.unwrap();
    network.cut();
    go.send(()).unwrap();
    let runtime = tokio::task::spawn_blocking(|| application.join().unwrap()).await.unwrap();
    network.heal();
    trial.assert_nothing_left(&name).await;
    let again =
        trial.soon("the owner gets it", owner.lock(&name).ttl(Trial::<S>::LONG).acquire()).await.unwrap();
    let _ = again.release().await.unwrap();
    trial.soon("nothing is unconfirmed", client.close()).await.unwrap();
    runtime.shutdown_background();
}
