//! What a `tenure` that has ended leaves at the engine: nothing, on every engine.

use tenure_testkit::{MariaDb, Postgres, Process, Redis, ZooKeeper, eventually};

use crate::place::{Place, code_of};

/// In each round several servers start the same job at once. One runs it, the others exit. The queue is empty when they have exited, and the
/// lock is free when the job has ended.
fn a_job_that_is_already_run_leaves_nothing_behind(url: &str) {
    const ROUNDS: usize = 6;
    const STARTS: usize = 4;
    let place = Place::with_locks_at(url);
    for round in 0..ROUNDS {
        let (name, go) = (format!("left-{round}"), format!("go-{round}"));
        let script = format!("until [ -e {go} ]; do sleep 0.05; done");
        let run = ["run", "--once-per", "1m", &name, "--", "sh", "-c", &script];
        let mut starts: Vec<Process> = (0..STARTS).map(|_| place.start(&run)).collect();
        eventually("all but one to exit", || {
            starts.iter_mut().filter_map(Process::exit_status).count() == STARTS - 1
        });
        let seen = place.client().inspect(&name).unwrap();
        assert!(seen.waiters.is_empty(), "round {round}: {:#?}", seen.waiters);
        std::fs::write(place.path(&go), "").unwrap();
        for start in &mut starts {
            assert_eq!(code_of(start), Some(0), "{}", start.log());
        }
        let shown = place.run(&["who", "--json", &name]).out;
        assert!(shown.contains("\"held\":false") && shown.contains("\"waiters\":[]"), "{shown}");
        place.run(&["run", "--no-wait", &name, "--", "true"]).expect(0, "");
    }
}

#[test]
fn nothing_is_left_on_redis() {
    a_job_that_is_already_run_leaves_nothing_behind(&Redis::shared().url());
}

#[test]
fn nothing_is_left_on_postgresql() {
    a_job_that_is_already_run_leaves_nothing_behind(&Postgres::shared().url());
}

#[test]
fn nothing_is_left_on_mariadb() {
    a_job_that_is_already_run_leaves_nothing_behind(&MariaDb::shared().url());
}

#[test]
fn nothing_is_left_on_zookeeper() {
    a_job_that_is_already_run_leaves_nothing_behind(&ZooKeeper::shared().url());
}

#[test]
fn nothing_is_left_on_etcd() {
    a_job_that_is_already_run_leaves_nothing_behind(&tenure_testkit::Etcd::shared().url());
}
