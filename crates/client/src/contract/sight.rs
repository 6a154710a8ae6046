//! Holders and waiters are visible.

use super::{Subject, Trial};
use crate::Presence;

/// Holders and waiters are shown with their labels, modes and tokens.
pub async fn holders_and_waiters_are_seen<S: Subject>(trial: Trial<S>) {
    let name = trial.name("seen");
    let free = trial.client().inspect(&name).await.unwrap();
    assert!(free.holders.is_empty() && free.waiters.is_empty());
    let guard = trial.client().lock(&name).ttl(Trial::<S>::LONG).label("the holder").acquire().await.unwrap();
    let other = trial.another_client().await;
    let info = other.inspect(&name).await.unwrap();
    let [holder] = info.holders.as_slice() else { panic!("{info:?}") };
    assert_eq!((holder.grant, holder.owner, holder.mode), (guard.grant(), guard.owner(), guard.mode()));
    assert_eq!(holder.label.as_deref(), Some("the holder"));
    assert_eq!((holder.token, holder.presence), (guard.token(), Presence::Present));
    assert!(holder.since.is_some());
    assert!(holder.pid == Some(std::process::id()) || !trial.reaches_processes(), "the process to look at");
    if trial.capabilities().visible_waiters {
        let waiting = tokio::spawn(other.lock(&name).label("the waiter").acquire());
        trial.waiters(&name, 1).await;
        let info = trial.client().inspect(&name).await.unwrap();
        assert_eq!(info.waiters[0].label.as_deref(), Some("the waiter"));
        assert_eq!(info.holders.len(), 1);
        waiting.abort();
        trial.waiters(&name, 0).await;
    }
    let _ = guard.release().await.unwrap();
    trial.assert_nothing_left(&name).await;
}

/// A list contains the held locks below a prefix, in order, and no others.
pub async fn a_list_is_by_prefix<S: Subject>(trial: Trial<S>) {
    let names = ["list/b", "list/a", "list", "lisa"].map(|tag| trial.name(tag));
    let mut guards = Vec::new();
    for name in &names {
        guards.push(trial.holder(name).await);
    }
    let _ = trial.client().lock(trial.name("list/free")).acquire().await.unwrap().release().await.unwrap();
    let list = async |prefix: &str| -> Vec<String> {
        let infos = trial.client().list(&trial.name(prefix)).await.unwrap();
        infos.into_iter().map(|info| info.name.to_string()).collect()
    };
    assert_eq!(list("list/").await, [names[1].clone(), names[0].clone()]);
    assert_eq!(list("lis").await, [names[3].clone(), names[2].clone(), names[1].clone(), names[0].clone()]);
    assert!(list("none").await.is_empty());
}
