//! Two owners never hold incompatible modes of one resource at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::{Helper, Inside, Subject, Trial};
use crate::capabilities::Expiry;
use crate::{AcquireError, EngineError, Guard, Mode};

/// Tasks of several clients increment a counter that only the lock protects.
pub async fn tasks_lose_no_increment<S: Subject>(trial: Trial<S>) {
    const TASKS: usize = 16;
    const TIMES: usize = 25;
    let name = trial.name("tasks");
    let inside = Arc::new(Inside::new(trial.files()));
    let clients = [trial.client().clone(), trial.another_client().await, trial.another_client().await];
    let mut tasks = Vec::new();
    for task in 0..TASKS {
        let (client, inside, name) = (clients[task % clients.len()].clone(), inside.clone(), name.clone());
        tasks.push(tokio::spawn(async move {
            for _ in 0..TIMES {
                let guard = client.lock(&name).acquire().await.unwrap();
                inside.increment(Duration::ZERO).unwrap();
                let _ = guard.release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(inside.count(), (TASKS * TIMES) as u64);
}

/// Several processes do the same.
pub async fn processes_lose_no_increment<S: Subject>(trial: Trial<S>) {
    if !trial.reaches_processes() {
        return;
    }
    let name = trial.name("processes");
    let mut helpers = Vec::new();
    for _ in 0..S::PROCESSES {
        helpers.push(trial.helper().await);
    }
    let folder = trial.files().display();
    for helper in &mut helpers {
        helper.tell(&format!(
            "increment {name} {folder} {} 0 {}",
            S::INCREMENTS,
            Trial::<S>::LONG.as_millis()
        ));
    }
    for helper in &mut helpers {
        for done in 1..=S::INCREMENTS {
            assert_eq!(helper.answer().await, format!("done {done}"));
        }
        assert_eq!(helper.answer().await, "finished");
    }
    assert_eq!(Inside::new(trial.files()).count(), (S::PROCESSES * S::INCREMENTS) as u64);
}

/// Several processes do the same, and every 100 ms the holder is killed. No increment of the others is lost, and there are never two
/// holders.
pub async fn killed_processes_lose_only_their_own_work<S: Subject>(trial: Trial<S>) {
    /// Long compared with an inspection, so that a process that was seen inside is usually still there when it is stopped.
    const STAY_MS: u64 = 50;
    if !trial.reaches_processes() {
        return;
    }
    let name = trial.name("killed");
    let folder = trial.files().display().to_string();
    let mut survivors = Vec::new();
    for _ in 0..S::PROCESSES {
        survivors.push(trial.helper().await);
    }
    // Each killed holder costs a wait until its lease ends.
    let ttl = match trial.capabilities().expiry {
        Expiry::Lease => Trial::<S>::KEPT,
        Expiry::Connection | Expiry::Kernel => Trial::<S>::LONG,
    };
    for helper in &mut survivors {
        // The helpers stop only on request, so that there is always a holder to kill, whatever the speed of the machine.
        helper.tell(&format!("increment {name} {folder} until-enough {STAY_MS} {}", ttl.as_millis()));
    }
    let (mut told, mut killed) = (0, 0);
    while survivors.len() > S::PROCESSES / 2 {
        let mut victim = trial.soon("somebody holds it", kill_a_holder(&trial, &name, &mut survivors)).await;
        killed += 1;
        told += increments_until("gone", &mut victim).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let inside = Inside::new(trial.files());
    inside.is_enough();
    for helper in &mut survivors {
        told += increments_until("finished", helper).await;
    }
    let count = inside.count();
    // Each killed process may have one unreported increment.
    assert!((told..=told + killed).contains(&count), "{count} increments, {told} told of, {killed} killed");
}

/// Counts the increments that a helper reports before this end.
async fn increments_until(end: &str, helper: &mut Helper) -> u64 {
    let mut told = 0;
    loop {
        match helper.answer().await {
            answer if answer == end => return told,
            answer => assert!(answer.starts_with("done"), "{answer}"),
        }
        told += 1;
    }
}

/// Kills a process that holds the lock. It is stopped first, so that it cannot release between the inspection and the kill.
async fn kill_a_holder<S: Subject>(trial: &Trial<S>, name: &str, survivors: &mut Vec<Helper>) -> Helper {
    let holder = async || {
        let info = trial.client().inspect(name).await.unwrap();
        info.present_holders().find_map(|holder| holder.pid)
    };
    loop {
        let seen = holder().await;
        let Some(at) = survivors.iter().position(|helper| Some(helper.pid()) == seen) else { continue };
        survivors[at].stop();
        if holder().await == seen {
            let mut victim = survivors.swap_remove(at);
            victim.kill();
            return victim;
        }
        survivors[at].resume();
    }
}

/// Similar names are different locks.
pub async fn two_names_are_two_locks<S: Subject>(trial: Trial<S>) {
    let long = "n".repeat(400);
    let tags =
        ["a", "A", "a/b", "a_b", "a b", "../a", "ä", "a\u{308}", "*", "%61", "{a}", "a:b", &long, &long[1..]];
    let mut guards: Vec<Guard> = Vec::new();
    for tag in tags {
        let guard = trial.client().lock(trial.name(tag)).ttl(Trial::<S>::LONG).try_acquire().await.unwrap();
        guards.push(guard.unwrap_or_else(|| panic!("`{tag}` meets another name")));
    }
    for tag in tags {
        assert!(trial.is_busy(&trial.name(tag)).await, "`{tag}` is not held");
    }
}

/// Every pair of declared modes is compatible exactly as the table of modes says.
pub async fn modes_stand_together_as_the_table_says<S: Subject>(trial: Trial<S>) {
    let other = trial.another_client().await;
    let modes = trial.capabilities().modes;
    for held in modes.iter() {
        for asked in modes.iter() {
            let name = trial.name(format_args!("{held}-{asked}"));
            let first = trial.client().lock(&name).mode(held).ttl(Trial::<S>::LONG).acquire().await.unwrap();
            let second = other.lock(&name).mode(asked).ttl(Trial::<S>::LONG).try_acquire().await.unwrap();
            assert_eq!(second.is_some(), held.compatible_with(asked), "{asked} beside {held}");
            if let Some(second) = second {
                let _ = second.release().await.unwrap();
            }
            let _ = first.release().await.unwrap();
            trial.assert_nothing_left(&name).await;
        }
    }
}

/// An exclusive request gets the lock after the last reader has released, not before.
pub async fn a_writer_waits_for_all_readers<S: Subject>(trial: Trial<S>) {
    if !trial.capabilities().modes.contains(Mode::SHARED) {
        return;
    }
    let name = trial.name("readers");
    let mut readers = Vec::new();
    for _ in 0..3 {
        readers.push(trial.client().lock(&name).shared().ttl(Trial::<S>::LONG).acquire().await.unwrap());
    }
    let last_token = readers.iter().filter_map(Guard::token).max();
    let other = trial.another_client().await;
    let mut writer = tokio::spawn({
        let name = name.clone();
        async move { other.lock(name).ttl(Trial::<S>::LONG).acquire().await.unwrap() }
    });
    trial.waiters(&name, 1).await;
    while let Some(reader) = readers.pop() {
        // A wrong grant would take some time to arrive.
        let early = tokio::time::timeout(Duration::from_millis(200), &mut writer).await;
        assert!(early.is_err(), "the writer is in, and {} readers too", readers.len() + 1);
        let _ = reader.release().await.unwrap();
    }
    let writer = trial.soon("the writer gets in", writer).await.unwrap();
    assert!(writer.token() > last_token || !trial.capabilities().fencing);
    assert!(trial.client().lock(&name).shared().try_acquire().await.unwrap().is_none());
    drop(writer);
    trial
        .eventually("readers get in again", async || {
            trial.client().lock(&name).shared().try_acquire().await.unwrap().is_some()
        })
        .await;
}

/// While one owner acquires and releases through two clients, re-entering what the other client holds, other owners stay out.
pub async fn a_shared_owner_keeps_strangers_out<S: Subject>(trial: Trial<S>) {
    const TIMES: usize = 60;
    if !trial.capabilities().shared_owners {
        return;
    }
    let name = trial.name("shared-owner");
    let (ours, theirs) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let id = trial.client().owner().id();
    let mut tasks = Vec::new();
    for task in 0..8 {
        let (client, name, ours, theirs) =
            (trial.another_client().await, name.clone(), ours.clone(), theirs.clone());
        tasks.push(tokio::spawn(async move {
            let (own, other) = if task % 2 == 0 { (&ours, &theirs) } else { (&theirs, &ours) };
            for _ in 0..TIMES {
                let guard = if task % 2 == 0 {
                    client.owner_with_id(id).lock(&name).acquire().await.unwrap()
                } else {
                    client.lock(&name).acquire().await.unwrap()
                };
                let before = own.fetch_add(1, Ordering::SeqCst);
                assert!(task % 2 == 0 || before == 0, "two strangers are in");
                // Long enough for another client of the owner to re-enter meanwhile, and to remain when this one releases.
                tokio::time::sleep(Duration::from_micros(500)).await;
                assert_eq!(other.load(Ordering::SeqCst), 0, "an owner and a stranger are in");
                own.fetch_sub(1, Ordering::SeqCst);
                let _ = guard.release().await.unwrap();
            }
        }));
    }
    for task in tasks {
        trial.soon("all get their turns", task).await.unwrap();
    }
    trial.assert_nothing_left(&name).await;
}

/// Recipes of one engine on one name exclude each other, or are refused.
pub async fn recipes_of_one_engine_exclude_each_other<S: Subject>(trial: Trial<S>) {
    for (number, other) in trial.other_recipes().await.into_iter().enumerate() {
        for (turn, (first, second)) in
            [(trial.client(), &other), (&other, trial.client())].into_iter().enumerate()
        {
            let name = trial.name(format_args!("recipes-{number}-{turn}"));
            let held = first.lock(&name).ttl(Trial::<S>::LONG).acquire().await.unwrap();
            match second.lock(&name).try_acquire().await {
                Ok(None) | Err(AcquireError::Engine(EngineError::Refused { .. })) => {}
                answer => panic!("two recipes of one engine, and both hold: {answer:?}"),
            }
            let _ = held.release().await.unwrap();
        }
    }
}
