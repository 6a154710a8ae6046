//! Once in a period, however many start it: the eight text messages.

use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tenure_testkit::{Faketime, unprivileged};

use crate::place::{Done, Place};

const SERVERS: u64 = 8;
const SEND: &str = "echo sent >> sent-$TENURE_LOCK";

/// Eight servers start the job within two seconds of each other. A hundred times; several of these times at once, each with a
/// name of its own, since two seconds times a hundred is long.
#[test]
fn eight_servers_send_one_message_a_hundred_times_in_a_row() {
    const ROUNDS: usize = 100;
    const AT_ONCE: usize = 10;
    let (place, next) = (Place::new(), AtomicUsize::new(0));
    let round = |number: usize| {
        let name = format!("sms-{number}");
        let server = |server: u64| {
            // Spread over two seconds, in another order each time.
            let order = (server * 5 + number as u64 * 3) % SERVERS;
            std::thread::sleep(Duration::from_secs(2) * u32::try_from(order).unwrap() / 8);
            place.run(&["run", "--once-per", "1m", &name, "--", "sh", "-c", SEND])
        };
        let done: Vec<Done> = std::thread::scope(|scope| {
            let servers: Vec<_> = (0..SERVERS).map(|number| scope.spawn(move || server(number))).collect();
            servers.into_iter().map(|server| server.join().unwrap()).collect()
        });
        assert_eq!(place.lines(&format!("sent-{name}")), ["sent"], "{done:#?}");
        assert!(done.iter().all(|done| done.code == Some(0)), "{done:#?}");
        let already = done.iter().filter(|done| done.err.contains("was already begun")).count();
        assert_eq!(already, 7, "{done:#?}");
    };
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= ROUNDS {
                        break;
                    }
                    round(number);
                }
            });
        }
    });
}

/// Servers that share nothing but the locks at a URL start the job at once, five times.
pub(crate) fn eight_servers_send_one_message(url: &str) {
    let servers: Vec<_> = (0..SERVERS).map(|_| Place::with_locks_at(url)).collect();
    for round in 0..5 {
        let name = format!("sms-{round}");
        let start = |place: &Place| place.run(&["run", "--once-per", "1m", &name, "--", "sh", "-c", SEND]);
        let done: Vec<Done> = std::thread::scope(|scope| {
            let running: Vec<_> = servers.iter().map(|place| scope.spawn(move || start(place))).collect();
            running.into_iter().map(|server| server.join().unwrap()).collect()
        });
        let sent: usize = servers.iter().map(|place| place.lines(&format!("sent-{name}")).len()).sum();
        assert_eq!(sent, 1, "{done:#?}");
        assert!(done.iter().all(|done| done.code == Some(0)), "{done:#?}");
    }
}

/// The servers' clocks stand on both sides of a minute, and some are an hour off: whose clock is it that counts?
#[test]
fn a_minutes_boundary_and_false_clocks_do_not_make_it_two() {
    let place = Place::new();
    let (mut all, mut sent) = (Vec::new(), 0);
    for (number, offset_s) in [-3600, -60, -1, 0, 1, 59, 61, 3600].into_iter().enumerate() {
        let folder = place.path(&format!("clock-{number}"));
        std::fs::create_dir(&folder).unwrap();
        let plain = place.tenure(&[
            "run",
            "--once-per",
            "1m",
            "sms",
            "--",
            "sh",
            "-c",
            "date +%H:%M; echo sent >> sent",
        ]);
        let (mut clock, mut command) = Faketime::around(&plain, &folder);
        clock.step(offset_s);
        command.current_dir(place.path("")).env("HOME", place.path("")).env("TENURE_URL", place.url());
        let done = Done::of(&command.output().unwrap());
        assert_eq!(done.code, Some(0), "{done:?}");
        sent += usize::from(!done.out.is_empty());
        all.push(done);
    }
    assert_eq!((sent, place.lines("sent").len()), (1, 1), "{all:#?}");
}

#[test]
fn another_period_is_another_run() {
    let place = Place::new();
    let run = || place.run(&["run", "--once-per", "300ms", "job", "--", "echo", "ran"]);
    assert_eq!(run().out, "ran\n");
    tenure_testkit::eventually("the next period", || run().out == "ran\n");
}

#[test]
fn one_that_has_already_run_says_so_with_the_code_that_was_asked_for() {
    let place = Place::new();
    let run = |options: &[&str]| {
        place.run(&[&["run", "--once-per", "1h"], options, &["job", "--", "false"]].concat())
    };
    run(&[]).expect(1, "");
    // At most once: it was begun, and that counts, although it failed.
    run(&[]).expect(0, "`job` was already begun");
    run(&["--already-run-exit", "42"]).expect(42, "once per 1h: nothing was run");
    assert_eq!(run(&["--quiet"]).err, "");
}

#[test]
fn a_failed_run_is_tried_again_if_that_is_asked_for() {
    let place = Place::new();
    let run =
        |exit: &str| place.run(&["run", "--once-per", "1h", "--retry-failed", "job", "--", "sh", "-c", exit]);
    run("exit 3").expect(3, "");
    run("kill $$").expect(143, "");
    run("exit 0").expect(0, "");
    run("exit 4").expect(0, "was already begun");
}

#[test]
fn a_success_that_is_not_recorded_because_the_lock_is_lost_is_no_success() {
    let place = Place::new();
    let arguments =
        ["run", "--once-per", "1h", "--retry-failed", "job", "--", "sh", "-c", "rm locks/job.*/lock"];
    place.run(&arguments).expect(76, "lost");
}

/// Only this user's right to run it counts, and the turn is still there afterwards.
#[test]
fn a_command_that_this_user_may_not_run_does_not_use_up_the_turn() {
    let place = Place::new();
    std::fs::set_permissions(place.path(""), std::fs::Permissions::from_mode(0o777)).unwrap();
    // Where it was built, others may not look.
    std::fs::copy(env!("CARGO_BIN_EXE_tenure"), place.path("tenure")).unwrap();
    std::fs::write(place.path("script"), "#!/bin/sh\necho ran\n").unwrap();
    let allow =
        |mode| std::fs::set_permissions(place.path("script"), std::fs::Permissions::from_mode(mode)).unwrap();
    let run = || {
        let mut nobody = unprivileged(place.path("tenure"));
        nobody.args(["run", "--once-per", "1h", "job", "--", "./script"]);
        nobody.current_dir(place.path("")).env("TENURE_URL", place.url()).env("HOME", "/dev/null");
        Done::of(&nobody.output().unwrap())
    };
    allow(0o700);
    run().expect(126, "is not a program that can be run");
    allow(0o755);
    assert_eq!(run().expect(0, "").out, "ran\n");
}

#[test]
fn those_who_come_while_it_runs_do_not_wait_for_it() {
    let place = Place::new();
    let first = place.start(&["run", "--once-per", "1h", "job", "--", "sleep", "1000"]);
    tenure_testkit::eventually("it to be begun", || {
        place.is_held("job") && !crate::place::children(first.pid()).is_empty()
    });
    tenure_testkit::eventually("the others to be told", || {
        let done = place.run(&["run", "--once-per", "1h", "--wait", "10ms", "job", "--", "echo", "ran"]);
        assert_eq!(done.out, "");
        done.code == Some(0)
    });
    assert!(place.is_held("job"), "it still runs");
}
