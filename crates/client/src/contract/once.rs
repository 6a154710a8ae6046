//! A job that several callers start runs once in a period, by the engine's clock. An engine that records no starts refuses it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Barrier;

use super::{Subject, Trial, poll_times};
use crate::capabilities::Breaking;
use crate::engine::{AcquireRequest, Engine, Grant, Remembered, Start};
use crate::error::RememberError;
use crate::{
    Break, Client, EngineError, InspectError, LockName, OncePerError, Record, Release, Run, Turn, Wait,
    blocking,
};

/// A period that does not end while a case runs.
const LONG: Duration = Duration::from_hours(1);

/// The largest error of an engine's clock compared with the local clock during a case.
const COARSE: Duration = Duration::from_secs(1);

fn yours(turn: Turn) -> Run {
    match turn {
        Turn::Yours(run) => run,
        Turn::AlreadyRun { ago } => panic!("already run {ago:?} ago"),
    }
}

fn ago(turn: &Turn) -> Duration {
    match turn {
        Turn::Yours(_) => panic!("it runs a second time"),
        Turn::AlreadyRun { ago } => *ago,
    }
}

/// Asks for a job's turn, with a lock that cannot expire during a case.
async fn begin<S: Subject>(client: &Client, name: &str, record: Record) -> Turn {
    client
        .once_per(name, LONG)
        .ttl(Trial::<S>::LONG)
        .record(record)
        .begin()
        .await
        .expect("the engine answers")
}

/// Acquires a grant directly from the engine, so that no client renews it.
async fn grant(engine: &Arc<dyn Engine>, name: &LockName) -> Grant {
    let mut request = AcquireRequest::new(name.clone());
    request.ttl = crate::Ttl::MAX;
    let granted = engine.clone().acquire(request.clone()).await.expect("the lock is free");
    request.granted(granted.token)
}

/// An engine that does not declare this refuses it, at once and without side effects.
pub async fn what_is_not_remembered_is_unsupported<S: Subject>(trial: Trial<S>) {
    let name = trial.name("unsupported");
    let turn = trial.client().once_per(&name, LONG).begin().await;
    if trial.capabilities().remembers {
        let _ = yours(turn.unwrap()).succeeded().await.unwrap();
        return;
    }
    assert!(matches!(turn, Err(OncePerError::Engine(EngineError::Unsupported(_)))), "{turn:?}");
    let (engine, parsed) = (trial.client().engine().clone(), LockName::parse(&name).unwrap());
    let recalled = engine.clone().recall(parsed.clone(), LONG).await;
    assert!(matches!(recalled, Err(InspectError::Engine(EngineError::Unsupported(_)))), "{recalled:?}");
    let grant = grant(&engine, &parsed).await;
    let remembered = engine.clone().remember(grant.clone(), Start::new(Duration::ZERO, LONG)).await;
    assert!(matches!(remembered, Err(RememberError::Engine(EngineError::Unsupported(_)))), "{remembered:?}");
    engine.release(grant).await.unwrap();
}

/// A second caller within the window gets the age of the start, which grows with time. Other names are other jobs.
pub async fn a_second_start_within_the_window_is_told<S: Subject>(trial: Trial<S>) {
    if !trial.capabilities().remembers {
        return;
    }
    let (name, other) = (trial.name("second"), trial.another_client().await);
    let clock = trial.client().clock();
    let before = clock.now();
    let run = yours(begin::<S>(trial.client(), &name, Record::AtStart).await);
    let recorded = clock.now();
    assert_eq!(run.succeeded().await.unwrap(), Release::Released);
    trial
        .eventually("the age grows", async || {
            let asked = clock.now();
            let age = ago(&begin::<S>(&other, &name, Record::AtStart).await);
            let (least, most) = (asked.since(recorded), clock.now().since(before));
            assert!(
                (least..=most + COARSE * 2).contains(&(age + COARSE)),
                "{age:?} of {least:?} to {most:?}"
            );
            age > COARSE
        })
        .await;
    let another = trial.name("second/of-another");
    let _ = yours(begin::<S>(&other, &another, Record::AtStart).await).failed().await.unwrap();
    trial.assert_nothing_left(&name).await;
}

/// Of several clients that start a job together, one runs it. The others are answered while it runs, although their requests could wait for
/// the lock.
pub async fn one_of_many_runs_it<S: Subject>(trial: Trial<S>) {
    const CLIENTS: usize = 12;
    if !trial.capabilities().remembers {
        return;
    }
    let name = trial.name("many");
    let together = Arc::new(Barrier::new(CLIENTS));
    let mut tasks = Vec::new();
    for _ in 0..CLIENTS {
        let (client, name, together) = (trial.another_client().await, name.clone(), together.clone());
        tasks.push(tokio::spawn(async move {
            together.wait().await;
            begin::<S>(&client, &name, Record::AtStart).await
        }));
    }
    let mut runs = Vec::new();
    for task in tasks {
        match trial.soon("all are answered while the job runs", task).await.unwrap() {
            Turn::Yours(run) => runs.push(run),
            Turn::AlreadyRun { .. } => {}
        }
    }
    assert_eq!(runs.len(), 1, "so many run it");
    assert!(runs[0].guard().check().is_ok());
    let _ = runs.pop().unwrap().succeeded().await.unwrap();
    trial.assert_nothing_left(&name).await;
}

/// Of several clients that wait for the lock one after the other, one runs the job. This also holds if the start is recorded after a
/// success.
pub async fn those_who_waited_do_not_run_it_again<S: Subject>(trial: Trial<S>) {
    const CLIENTS: usize = 6;
    if !trial.capabilities().remembers {
        return;
    }
    for record in [Record::AtStart, Record::AtSuccess] {
        let name = trial.name(format_args!("waited-{record:?}"));
        let held = trial.holder(&name).await;
        let mut tasks = Vec::new();
        for _ in 0..CLIENTS {
            let (client, name) = (trial.another_client().await, name.clone());
            tasks.push(tokio::spawn(async move {
                match begin::<S>(&client, &name, record).await {
                    Turn::Yours(run) => {
                        let _ = run.succeeded().await.unwrap();
                        1
                    }
                    Turn::AlreadyRun { .. } => 0,
                }
            }));
        }
        trial.waiters(&name, CLIENTS).await;
        let _ = held.release().await.unwrap();
        let mut runs = 0;
        for task in tasks {
            runs += trial.soon("all get their turns", task).await.unwrap();
        }
        assert_eq!(runs, 1, "{record:?}");
        trial.assert_nothing_left(&name).await;
    }
}

/// Of several processes that start a job together, one runs it.
pub async fn one_of_many_processes_runs_it<S: Subject>(trial: Trial<S>) {
    const PROCESSES: usize = 6;
    if !trial.capabilities().remembers || !trial.reaches_processes() {
        return;
    }
    let name = trial.name("processes");
    let mut helpers = Vec::new();
    for _ in 0..PROCESSES {
        helpers.push(trial.helper().await);
    }
    for helper in &mut helpers {
        helper.tell(&format!("once {name} start {}", Trial::<S>::LONG.as_millis()));
    }
    let mut runs = 0;
    for helper in &mut helpers {
        match helper.answer().await.as_str() {
            "yours" => runs += 1,
            answer => assert_eq!(answer, "already"),
        }
    }
    assert_eq!(runs, 1);
}

/// A process that is killed during the job counts as a run, unless only successes are recorded.
pub async fn a_killed_run_counts_as_it_was_to_be_recorded<S: Subject>(trial: Trial<S>) {
    if !trial.capabilities().remembers || !trial.reaches_processes() {
        return;
    }
    let ttl = trial.ttl_of_the_killed();
    for (when, record) in [("start", Record::AtStart), ("success", Record::AtSuccess)] {
        let name = trial.name(format_args!("killed-{when}"));
        let mut helper = trial.helper().await;
        assert_eq!(helper.ask(&format!("once {name} {when} {}", ttl.as_millis())).await, "yours");
        helper.kill();
        let next = trial.soon("the next one is answered", begin::<S>(trial.client(), &name, record)).await;
        match record {
            Record::AtStart => drop(ago(&next)),
            Record::AtSuccess => drop(yours(next)),
        }
        trial.assert_nothing_left(&name).await;
    }
}

/// While the job runs, other callers are answered at once, whether they would wait for the lock or not.
pub async fn while_it_runs_others_are_told_at_once<S: Subject>(trial: Trial<S>) {
    if !trial.capabilities().remembers {
        return;
    }
    let (name, other) = (trial.name("runs"), trial.another_client().await);
    let run = yours(begin::<S>(trial.client(), &name, Record::AtStart).await);
    for wait in [Wait::Forever, Wait::For(Trial::<S>::LONG), Wait::Try] {
        let turn = trial.soon("it is told", other.once_per(&name, LONG).wait(wait).begin()).await.unwrap();
        ago(&turn);
    }
    assert!(run.guard().check().is_ok());
    // If the success is to be recorded, others only see that the lock is busy.
    let _ = run.succeeded().await.unwrap();
    let name = trial.name("runs-at-success");
    let run = yours(begin::<S>(trial.client(), &name, Record::AtSuccess).await);
    let tried = other.once_per(&name, LONG).wait(Wait::Try).begin().await;
    assert!(
        matches!(tried, Err(OncePerError::Acquire(crate::AcquireError::Busy { .. }))),
        "two run it: {tried:?}"
    );
    let _ = run.failed().await.unwrap();
}

/// If successes are recorded, a run that was dropped or failed is tried again, and a successful one is not. Its age counts from its start.
pub async fn a_run_that_failed_is_tried_again<S: Subject>(trial: Trial<S>) {
    /// Longer than the error of a clock.
    const TAKES: Duration = Duration::from_secs(2);
    if !trial.capabilities().remembers {
        return;
    }
    let (name, other) = (trial.name("failed"), trial.another_client().await);
    drop(yours(begin::<S>(trial.client(), &name, Record::AtSuccess).await));
    let _ = yours(begin::<S>(&other, &name, Record::AtSuccess).await).failed().await.unwrap();
    let run = yours(begin::<S>(trial.client(), &name, Record::AtSuccess).await);
    let clock = trial.client().clock();
    let began = clock.now();
    clock.sleep_until(began + TAKES).await;
    assert_eq!(run.succeeded().await.unwrap(), Release::Released);
    let asked = clock.now();
    let age = ago(&begin::<S>(&other, &name, Record::AtSuccess).await);
    assert!(age + COARSE >= asked.since(began), "{age:?} is counted from the end");
    trial.assert_nothing_left(&name).await;
}

/// The job runs again after the window, and not before.
pub async fn after_the_window_it_runs_again<S: Subject>(trial: Trial<S>) {
    const WINDOW: Duration = Duration::from_secs(2);
    if !trial.capabilities().remembers {
        return;
    }
    let (name, other) = (trial.name("window"), trial.another_client().await);
    let clock = trial.client().clock();
    let begin = async |client: &Client| {
        client.once_per(&name, WINDOW * 2).spread(WINDOW).begin().await.expect("the engine answers")
    };
    let mut before = clock.now();
    let _ = yours(begin(trial.client()).await).succeeded().await.unwrap();
    // Each of the two starts has its own window.
    for _ in 0..2 {
        let mut asked = before;
        trial
            .eventually("it runs again", async || {
                asked = clock.now();
                match begin(&other).await {
                    Turn::Yours(run) => run.succeeded().await.is_ok(),
                    Turn::AlreadyRun { ago } => {
                        assert!(ago < WINDOW, "{ago:?}");
                        false
                    }
                }
            })
            .await;
        let after = clock.now().since(before);
        assert!(after + COARSE >= WINDOW, "it runs again after {after:?}");
        before = asked;
    }
}

/// An ended grant records nothing.
pub async fn a_lost_grant_records_nothing<S: Subject>(trial: Trial<S>) {
    if !trial.capabilities().remembers {
        return;
    }
    let name = LockName::parse(trial.name("lost")).unwrap();
    let engine = trial.client().engine().clone();
    let start = Start::new(Duration::ZERO, LONG);
    let refused = async |grant: Grant, how: &str| {
        let late = engine.clone().remember(grant, start).await;
        assert!(matches!(late, Err(RememberError::Lost(_))), "{how}: {late:?}");
        assert_eq!(engine.clone().recall(name.clone(), LONG).await.unwrap(), None, "{how}");
    };
    let released = grant(&engine, &name).await;
    engine.clone().release(released.clone()).await.unwrap();
    refused(released.clone(), "released").await;
    let next = grant(&engine, &name).await;
    refused(released, "released, and another's").await;
    engine.clone().release(next).await.unwrap();
    let breaking = trial.capabilities().breaking;
    if breaking == Breaking::Force {
        let broken = grant(&engine, &name).await;
        engine.clone().break_lock(name.clone(), Break::Force).await.unwrap();
        refused(broken, "broken").await;
    }
    if breaking != Breaking::None {
        // Some engines report the break with the next renewal.
        let request = trial.client().once_per(&name, LONG).ttl(Trial::<S>::KEPT);
        let run = yours(request.record(Record::AtSuccess).begin().await.unwrap());
        trial.another_client().await.break_lock(&name, Break::Ask).await.unwrap();
        trial.soon("the holder is told", run.guard().lost()).await;
        let late = run.succeeded().await;
        assert!(matches!(late, Err(OncePerError::Lost(_))), "{late:?}");
    }
    let standing =
        trial.soon("nothing is recorded", begin::<S>(trial.client(), name.as_str(), Record::AtStart));
    let run = yours(standing.await);
    let again = engine.clone().remember(grant_of(&run), start).await.unwrap();
    assert!(matches!(again, Remembered::Already { .. }), "each call is a start of its own: {again:?}");
    let _ = run.succeeded().await.unwrap();
}

fn grant_of(run: &Run) -> Grant {
    run.guard().hold().grant()
}

/// A value and a recorded start of one resource do not affect each other.
pub async fn a_value_and_a_start_leave_each_other_alone<S: Subject>(trial: Trial<S>) {
    if !trial.capabilities().remembers || !trial.capabilities().value {
        return;
    }
    let name = trial.name("value");
    let guard = trial.holder(&name).await;
    guard.set_value("before").await.unwrap();
    let _ = guard.release().await.unwrap();
    let run = yours(begin::<S>(trial.client(), &name, Record::AtSuccess).await);
    assert_eq!(run.guard().value().bytes, "before");
    run.guard().set_value("while it runs").await.unwrap();
    let _ = run.succeeded().await.unwrap();
    let guard = trial.holder(&name).await;
    let found = guard.value();
    assert_eq!((&*found.bytes, found.in_doubt), (&b"while it runs"[..], false), "the start cost the value");
    ago(&begin::<S>(trial.client(), &name, Record::AtStart).await);
    guard.set_value("after").await.unwrap();
    let _ = guard.release().await.unwrap();
    // A grant that changes nothing does not affect them either.
    let _ = trial.holder(&name).await.release().await.unwrap();
    ago(&begin::<S>(trial.client(), &name, Record::AtStart).await);
    assert_eq!(trial.holder(&name).await.value().bytes, "after");
}

/// Two calls of one owner are two starts, although their locks re-enter.
pub async fn an_owner_that_reenters_runs_it_once<S: Subject>(trial: Trial<S>) {
    if !trial.capabilities().remembers {
        return;
    }
    let owner = trial.client().owner();
    for turn in 0..10 {
        let name = trial.name(format_args!("owner-{turn}"));
        let both =
            [(); 2].map(|()| tokio::spawn(owner.lock(&name).ttl(Trial::<S>::LONG).once_per(LONG).begin()));
        let mut runs = Vec::new();
        for begun in both {
            match trial.soon("both are answered", begun).await.unwrap().unwrap() {
                Turn::Yours(run) => runs.push(run),
                Turn::AlreadyRun { .. } => {}
            }
        }
        assert_eq!(runs.len(), 1);
    }
}

/// A call that is dropped at any point leaves neither a lock nor a waiter behind. It may leave a recorded start.
pub async fn a_dropped_begin_leaves_nothing<S: Subject>(trial: Trial<S>) {
    if !trial.capabilities().remembers {
        return;
    }
    for polls in 0..8 {
        for record in [Record::AtStart, Record::AtSuccess] {
            let name = trial.name(format_args!("dropped-{polls}-{record:?}"));
            drop(poll_times(begin::<S>(trial.client(), &name, record), polls).await);
            trial.assert_nothing_left(&name).await;
            if record == Record::AtSuccess {
                let _ = yours(begin::<S>(trial.client(), &name, record).await).succeeded().await.unwrap();
            }
        }
    }
    let name = trial.name("dropped-wait");
    let held = trial.holder(&name).await;
    drop(poll_times(begin::<S>(trial.client(), &name, Record::AtStart), 8).await);
    trial.waiters(&name, 0).await;
    let _ = held.release().await.unwrap();
    trial.assert_nothing_left(&name).await;
    let _ = yours(begin::<S>(trial.client(), &name, Record::AtStart).await).succeeded().await.unwrap();
}

/// The blocking API does the same.
pub async fn the_blocking_api_runs_it_once<S: Subject>(trial: Trial<S>) {
    if !trial.capabilities().remembers {
        return;
    }
    let (client, name) = (blocking::Client::from_async(trial.another_client().await), trial.name("blocking"));
    let work = tokio::task::spawn_blocking(move || {
        let begin = || client.once_per(&name, LONG).record(Record::AtSuccess).begin().unwrap();
        let blocking::Turn::Yours(run) = begin() else { panic!("nobody ran it") };
        run.guard().check().unwrap();
        assert_eq!(run.failed().unwrap(), Release::Released);
        let blocking::Turn::Yours(run) = begin() else { panic!("it failed") };
        assert_eq!(run.succeeded().unwrap(), Release::Released);
        let blocking::Turn::AlreadyRun { .. } = begin() else { panic!("it succeeded") };
    });
    trial.soon("the blocking calls end", work).await.unwrap();
}
