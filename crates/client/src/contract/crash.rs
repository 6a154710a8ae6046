//! The locks of a process that dies are freed without help.

use std::time::Duration;

use super::{Helper, Subject, Trial};

async fn acquire(helper: &mut Helper, name: &str, ttl: Duration) -> u64 {
    let got = helper.ask(&format!("acquire {name} EX {}", ttl.as_millis())).await;
    got.strip_prefix("got ").and_then(|token| token.parse().ok()).unwrap_or_else(|| panic!("{got}"))
}

/// After a holder is killed with SIGKILL, the lock becomes free.
pub async fn a_killed_holder_frees_the_lock<S: Subject>(trial: Trial<S>) {
    if !trial.reaches_processes() {
        return;
    }
    let name = trial.name("killed");
    let mut helper = trial.helper().await;
    acquire(&mut helper, &name, trial.ttl_of_the_killed()).await;
    assert!(trial.is_busy(&name).await);
    helper.kill();
    drop(trial.soon("the next one gets it", trial.client().lock(&name).acquire()).await.unwrap());
    trial.assert_nothing_left(&name).await;
}

/// A waiter that is killed with SIGKILL neither gets the lock nor blocks others.
pub async fn a_killed_waiter_is_in_nobodys_way<S: Subject>(trial: Trial<S>) {
    if !trial.reaches_processes() {
        return;
    }
    let name = trial.name("killed-waiter");
    let guard = trial.holder(&name).await;
    let mut helper = trial.helper().await;
    helper.tell(&format!("acquire {name} EX {}", trial.ttl_of_the_killed().as_millis()));
    trial.waiters(&name, 1).await;
    helper.kill();
    let _ = guard.release().await.unwrap();
    drop(trial.soon("the next one gets it", trial.client().lock(&name).acquire()).await.unwrap());
    trial.assert_nothing_left(&name).await;
}

/// Tokens increase from holder to holder, even if each of them dies.
pub async fn tokens_rise_across_crashes<S: Subject>(trial: Trial<S>) {
    if !trial.reaches_processes() || !trial.capabilities().fencing {
        return;
    }
    let name = trial.name("tokens");
    let mut last = 0;
    for _ in 0..5 {
        let mut helper = trial.helper().await;
        let token = acquire(&mut helper, &name, trial.ttl_of_the_killed()).await;
        assert!(token > last, "{token} after {last}");
        last = token;
        helper.kill();
    }
}
