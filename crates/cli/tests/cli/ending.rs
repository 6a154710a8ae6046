//! The command, its children and a nested run's command are all gone before another process can get the lock, however the first one
//! loses it.

use std::fs::File;
use std::path::Path;
use std::thread::JoinHandle;

use rustix::fs::FlockOperation;
use rustix::process::Signal;
use tenure_testkit::{Process, eventually};

use crate::place::{Pids, Place, code_of, is_alive, minder, signal};

/// A command that is hard to end. Each process of it writes down its number.
const TREE: &str = r#"
trap 'echo told >> told; exit 0' TERM
echo $$ >> pids
# In the same group.
sh -c 'echo $$ >> pids; exec sleep 1000' &
# In a session of its own.
setsid sh -c 'echo $$ >> pids; exec sleep 1000' &
# Deaf.
sh -c 'trap "" TERM INT HUP QUIT; echo $$ >> pids; while :; do sleep 1; done' &
# An orphan in a session of its own.
sh -c 'setsid sh -c "echo \$\$ >> pids; exec sleep 1000" &'
# A nested run.
tenure run $INNER -- sh -c 'echo $$ >> pids; exec sleep 1000' &
while :; do wait; sleep 0.1; done
"#;
const TREE_SIZE: usize = 6;

/// A `tenure run` of that command, and somebody who waits for its lock.
struct Race {
    place: Place,
    holder: Process,
    pids: Pids,
    /// Which of them were alive when somebody else had got the lock.
    next: JoinHandle<Vec<i32>>,
}

impl Race {
    fn start(options: &[&str]) -> Self {
        Self::start_with("inner", options)
    }

    /// With a nested run of this lock.
    fn start_with(inner: &str, options: &[&str]) -> Self {
        let place = Place::new();
        std::fs::write(place.path("tree.sh"), TREE.replace("$INNER", inner)).unwrap();
        let arguments = [&["run", "--grace", "300ms"], options, &["job", "--", "sh", "tree.sh"]].concat();
        let holder = place.start(&arguments);
        let pids = eventually("the whole tree to be there", || {
            let pids = place.numbers("pids");
            (pids.len() == TREE_SIZE).then_some(pids)
        });
        let (client, numbers) = (place.client(), pids.clone());
        let lock = File::open(place.lock_folder("job").join("lock")).unwrap();
        let next = std::thread::spawn(move || {
            let alive = || numbers.iter().copied().filter(|pid| is_alive(*pid)).collect::<Vec<_>>();
            // First by waiting in the kernel, which loses not a moment; then as everybody else does.
            rustix::fs::flock(&lock, FlockOperation::LockExclusive).unwrap();
            let alive_at_once = alive();
            drop(lock);
            let guard = client.lock("job").acquire().unwrap();
            let alive_then = alive();
            let _ = guard.release().unwrap();
            [alive_at_once, alive_then].concat()
        });
        assert!(pids.iter().all(|pid| is_alive(*pid)));
        Self { place, holder, pids: Pids(pids), next }
    }

    /// Nobody was alive when the next one got the lock. How the first ended.
    #[track_caller]
    fn end(mut self) -> (Place, Option<i32>, String) {
        let alive = self.next.join().unwrap();
        assert!(alive.is_empty(), "of {:?}, {alive:?} were alive\n{}", self.pids.0, self.holder.log());
        let code = code_of(&mut self.holder);
        (self.place, code, self.holder.log())
    }
}

fn when_signalled(sent: Signal, code: i32) {
    let race = Race::start(&[]);
    signal(race.holder.pid().cast_signed(), sent);
    let (_, ended, log) = race.end();
    assert_eq!(ended, Some(code), "{log}");
}

#[test]
fn on_sigterm() {
    // The command hears of it, and exits as it likes.
    when_signalled(Signal::TERM, 0);
}

#[test]
fn on_sigint() {
    when_signalled(Signal::INT, 130);
}

#[test]
fn on_sighup() {
    when_signalled(Signal::HUP, 129);
}

#[test]
fn on_sigkill() {
    let race = Race::start(&[]);
    signal(race.holder.pid().cast_signed(), Signal::KILL);
    let (_, code, _) = race.end();
    assert_eq!(code, None, "a signal ended it");
}

/// The nested one holds the lock too, until it is killed.
#[test]
fn on_sigkill_with_a_nested_run_of_the_same_lock() {
    let race = Race::start_with("job", &[]);
    signal(race.holder.pid().cast_signed(), Signal::KILL);
    race.end();
}

#[test]
fn on_sigkill_of_the_minder() {
    let race = Race::start(&[]);
    signal(minder(race.holder.pid()), Signal::KILL);
    let (_, code, log) = race.end();
    assert_eq!(code, Some(137), "{log}");
    assert!(log.contains("the process that minds the command is gone"), "{log}");
}

/// Nobody is left to end what the command has started. But these have inherited what keeps the lock.
#[test]
fn on_sigkill_of_both_nobody_gets_in_before_the_last_is_gone() {
    let race = Race::start(&[]);
    let (front, minder, command) =
        (race.holder.pid().cast_signed(), minder(race.holder.pid()), race.pids.0[0]);
    // So that neither can do anything about the other.
    signal(front, Signal::STOP);
    signal(minder, Signal::KILL);
    signal(front, Signal::KILL);
    eventually("the command to be gone", || !is_alive(command));
    for pid in race.pids.0.iter().copied().filter(|pid| is_alive(*pid)) {
        assert!(race.place.is_held("job") && !race.next.is_finished());
        signal(pid, Signal::KILL);
    }
    race.end();
}

fn when_the_lock_file_is_deleted_under(inner: &str) {
    let race = Race::start_with(inner, &[]);
    let locks = std::fs::read_dir(race.place.path("locks")).unwrap();
    let mut folders = locks.map(|entry| entry.unwrap().path());
    let folder =
        folders.find(|path| path.file_name().unwrap().to_str().unwrap().starts_with("job.")).unwrap();
    std::fs::remove_file(folder.join("lock")).unwrap();
    let (_, code, log) = race.end();
    assert_eq!(code, Some(76), "{log}");
    let said = "the lock on `job` is lost: the engine no longer knows the grant; the command was ended";
    assert!(log.contains(said), "{log}");
}

#[test]
fn when_the_lock_file_is_deleted() {
    when_the_lock_file_is_deleted_under("inner");
}

#[test]
fn when_the_lock_file_is_deleted_with_a_nested_run_of_the_same_lock() {
    when_the_lock_file_is_deleted_under("job");
}

#[test]
fn when_an_operator_breaks_it() {
    let race = Race::start(&[]);
    race.place.run(&["break", "job"]).expect(0, "");
    let (_, code, log) = race.end();
    assert_eq!(code, Some(76), "{log}");
    assert!(log.contains("an operator broke it"), "{log}");
}

/// What cannot be kept is given up in time: first TERM, then KILL, then the deadline.
#[test]
fn when_it_has_held_it_for_too_long() {
    let race = Race::start(&["--max-hold", "20s"]);
    let (place, code, log) = race.end();
    assert_eq!(code, Some(76), "{log}");
    assert!(log.contains("it was held for as long as --max-hold allows"), "{log}");
    assert_eq!(place.lines("told"), ["told"], "the command was told before it was killed");
}

/// The front sleeps through the deadline: the minder does not.
#[test]
fn when_the_front_is_stopped() {
    let mut race = Race::start(&["--max-hold", "20s"]);
    race.holder.pause();
    eventually("the command and all below it to be gone", || !race.pids.0.iter().any(|pid| is_alive(*pid)));
    assert!(!race.next.is_finished(), "who is stopped has not released");
    race.holder.resume();
    let (_, code, log) = race.end();
    assert_eq!(code, Some(76), "{log}");
}

#[test]
fn a_command_that_is_told_to_end_has_time_for_it() {
    let place = Place::new();
    let script =
        "trap 'sleep 0.2; echo tidy > tidy; exit 7' TERM; echo > ready; while :; do sleep 0.05; done";
    let mut run = place.start(&["run", "job", "--", "sh", "-c", script]);
    eventually("it to be ready", || place.path("ready").exists());
    signal(run.pid().cast_signed(), Signal::TERM);
    assert_eq!(code_of(&mut run), Some(7));
    assert_eq!(place.lines("tidy"), ["tidy"]);
}

#[test]
fn signals_reach_the_command() {
    let place = Place::new();
    let script = "trap 'echo usr1 >> heard' USR1; trap 'echo usr2 >> heard; exit 0' USR2; echo > ready; while :; do sleep 0.05; done";
    let mut run = place.start(&["run", "job", "--", "sh", "-c", script]);
    eventually("it to be ready", || place.path("ready").exists());
    signal(run.pid().cast_signed(), Signal::USR1);
    eventually("it to hear the first", || place.lines("heard").len() == 1);
    signal(run.pid().cast_signed(), Signal::USR2);
    assert_eq!(code_of(&mut run), Some(0));
    assert_eq!(place.lines("heard"), ["usr1", "usr2"]);
}

#[test]
fn who_is_interrupted_while_it_waits_leaves_nothing_behind() {
    for (sent, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let place = Place::new();
        let _holder = place.hold("job");
        let mut waiter = place.start(&["run", "job", "--", "sh", "-c", "echo ran > ran"]);
        eventually("it to wait", || place.waiters("job") == 1);
        let minder = minder(waiter.pid());
        signal(waiter.pid().cast_signed(), sent);
        assert_eq!(code_of(&mut waiter), Some(code));
        assert_eq!(place.waiters("job"), 0);
        assert!(!place.path("ran").exists());
        eventually("the minder to be gone", || !is_alive(minder));
    }
}

/// The minder sleeps through the deadline, or through the loss: the front does not.
#[test]
fn when_the_minder_is_stopped() {
    let race = Race::start(&["--max-hold", "20s"]);
    signal(minder(race.holder.pid()), Signal::STOP);
    let (_, code, log) = race.end();
    assert_eq!(code, Some(76), "{log}");
    assert!(log.contains("the process that minds the command does not do it"), "{log}");

    let race = Race::start(&[]);
    signal(minder(race.holder.pid()), Signal::STOP);
    race.place.run(&["break", "job"]).expect(0, "");
    let (_, code, log) = race.end();
    assert_eq!(code, Some(76), "{log}");
}

/// One that starts itself anew, in another session, faster than all processes can be looked at.
#[test]
fn what_forks_without_end_is_ended() {
    let place = Place::new();
    let chain = r#"use POSIX;
        while (time < $^T + 50) { POSIX::setsid(); exit if fork }
        open my $end, ">", "outlived";"#;
    std::fs::write(place.path("chain.pl"), chain).unwrap();
    let script = "perl chain.pl & echo started; wait; sleep 1000";
    let mut run = place.start(&["run", "--max-hold", "3s", "job", "--", "sh", "-c", script]);
    assert_eq!(code_of(&mut run), Some(76), "{}", run.log());
    assert!(!place.path("outlived").exists());
}

#[test]
fn all_that_was_started_is_told_to_end_wherever_it_is() {
    let place = Place::new();
    let deaf_to_the_group = "trap 'echo told > told; exit' TERM; echo > ready; while :; do sleep 0.05; done";
    std::fs::write(place.path("apart.sh"), deaf_to_the_group).unwrap();
    let mut run = place.start(&["run", "job", "--", "sh", "-c", "setsid sh apart.sh & wait"]);
    eventually("it to be ready", || place.path("ready").exists());
    signal(run.pid().cast_signed(), Signal::TERM);
    assert_eq!(code_of(&mut run), Some(143));
    assert_eq!(place.lines("told"), ["told"]);
}

/// What the command left running has inherited the lock's descriptors, and must not keep it when the front could not release.
#[test]
fn a_front_that_dies_before_it_has_released_leaves_the_lock_free() {
    let place = Place::new();
    // It writes its number when it is in a session of its own: before that, it is the command's, and ends with it.
    let script = "setsid sh -c 'echo $$ > left; exec sleep 1000' >/dev/null 2>&1 & echo $$ > pid; until [ -e go ]; do sleep 0.02; done";
    let mut run = place.start(&["run", "job", "--", "sh", "-c", script]);
    let pid = eventually("it to start", || place.numbers("pid").first().copied());
    let left = eventually("what it leaves to have left", || place.numbers("left").first().copied());
    let left = Pids(vec![left]);
    run.pause();
    std::fs::write(place.path("go"), "").unwrap();
    // Not only dead: the minder has taken its end in, before it hears of the front's.
    eventually("the command to have ended", || !Path::new(&format!("/proc/{pid}")).exists());
    run.kill();
    eventually("the lock to be free", || !place.is_held("job"));
    assert!(is_alive(left.0[0]), "it ended by itself, and what it left is left alone");
}

#[test]
fn the_minder_is_gone_when_the_front_is() {
    let place = Place::new();
    for arguments in
        [["job", "--", "sh", "-c", "echo $PPID"], ["job", "--", "sh", "-c", "echo $PPID; exit 3"]]
    {
        let done = place.run(&[&["run"], &arguments[..]].concat());
        let minder = done.out.trim();
        assert!(!std::path::Path::new(&format!("/proc/{minder}")).exists(), "{done:?}");
    }
}
