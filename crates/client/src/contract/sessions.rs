//! Grants of a session: all of a client's grants are kept alive together, and end together.

use super::{Subject, Trial};
use crate::clock::BootTime;
use crate::{Guard, LostReason};

/// So many that separate renewals could not coincide by chance.
const MANY: usize = 50;

async fn hold_many<S: Subject>(trial: &Trial<S>, client: &crate::Client, what: &str) -> Vec<Guard> {
    let mut guards = Vec::with_capacity(MANY);
    for one in 0..MANY {
        let name = trial.name(format_args!("{what}-{one}"));
        guards.push(client.lock(name).ttl(Trial::<S>::KEPT).acquire().await.expect("the lock is got"));
    }
    guards
}

/// All grants with the same TTL have one deadline, and it moves.
pub async fn many_locks_are_kept_alive_together<S: Subject>(trial: Trial<S>) {
    if !trial.capabilities().sessions {
        return;
    }
    let guards = hold_many(&trial, trial.client(), "together").await;
    let deadline = |guard: &Guard| guard.deadline().expect("a session has a deadline");
    let first = deadline(&guards[0]);
    trial
        .eventually("they outlive the first deadline, together", async || {
            let deadlines: Vec<_> = guards.iter().map(deadline).collect();
            BootTime::now() > first && deadlines.iter().all(|other| *other == deadlines[0])
        })
        .await;
    assert!(guards.iter().all(|guard| guard.check().is_ok()));
    for guard in guards {
        let name = guard.name().to_string();
        let _ = guard.release().await.unwrap();
        trial.assert_nothing_left(&name).await;
    }
}

/// A client that is cut off loses all its locks, and can acquire again in another session.
pub async fn the_end_of_a_session_loses_all_its_locks<S: Subject>(trial: Trial<S>) {
    let Some(network) = trial.network().filter(|_| trial.capabilities().sessions) else { return };
    let client = S::connect(&network.address()).await;
    let guards = hold_many(&trial, &client, "cut-off").await;
    network.cut();
    for guard in &guards {
        let lost = trial.soon("its holder knows", guard.lost()).await;
        assert!(matches!(lost, LostReason::Expired | LostReason::Disconnected), "{lost}");
        let name = guard.name().to_string();
        let _ = trial.holder(&name).await.release().await.unwrap();
    }
    network.heal();
    let name = trial.name("after");
    let next = client.lock(&name).ttl(Trial::<S>::KEPT).acquire();
    let next = trial.soon("it locks again", next).await.unwrap();
    assert!(guards.iter().all(|guard| guard.check().is_err()), "a lost lock came back");
    let _ = next.release().await.unwrap();
}
