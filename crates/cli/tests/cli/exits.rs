//! How it exits: as the command did, or with a code of its own that stays what it is.

use std::io::Write;
use std::process::Stdio;

use crate::place::{Done, Pids, Place, code_of};

#[test]
fn it_exits_as_the_command_did() {
    let place = Place::new();
    for code in [0, 1, 3, 75, 255] {
        place.run(&["run", "job", "--", "sh", "-c", &format!("exit {code}")]).expect(code, "");
    }
    for (signal, code) in [("TERM", 143), ("KILL", 137), ("SEGV", 139)] {
        place.run(&["run", "job", "--", "sh", "-c", &format!("kill -{signal} $$")]).expect(code, "");
    }
}

#[test]
fn each_way_not_to_run_has_its_code() {
    let place = Place::new();
    let _holder = place.hold("busy");
    place
        .run(&["run", "--no-wait", "busy", "--", "echo"])
        .expect(75, "`busy` is not free: held by sleep (pid ");
    place
        .run(&["run", "--wait", "2s", "busy", "--", "echo"])
        .expect(75, "did not become free within 2s: held by");
    place.run(&["run", "--mode", "PW", "job", "--", "echo"]).expect(73, "does not offer mode PW");
    // Before the lock is waited for.
    place.run(&["run", "busy", "--", "no-such-program"]).expect(127, "there is no program `no-such-program`");
    place.run(&["run", "job", "--", "/etc/passwd"]).expect(126, "`/etc/passwd` is not a program");
    std::fs::write(place.path("script"), "#!/no/such/interpreter\n").unwrap();
    let mode = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o755);
    std::fs::set_permissions(place.path("script"), mode).unwrap();
    place
        .run(&["run", "job", "--", "./script"])
        .expect(127, "`./script` is to be run by /no/such/interpreter");
    let nobody = Place::new();
    std::fs::write(nobody.path("locks"), "a file where a directory should be").unwrap();
    let refused =
        nobody.run(&["run", "job", "--", "echo", "ran"]).expect(69, "name a directory, as in file:/path");
    assert_eq!(refused.out, "", "what is not locked is not run");
}

#[test]
fn bad_input_is_64_and_says_what_to_do() {
    let place = Place::new();
    for (arguments, said) in [
        (vec!["run", "job"], "required"),
        (vec!["run", "job", "echo"], "write `--` before the command"),
        (vec!["run", "", "--", "echo"], "must not be empty"),
        (vec!["run", "a\tb", "--", "echo"], "no control characters"),
        (vec!["run", "--wait", "90", "job", "--", "echo"], "Write 90s for seconds"),
        (vec!["run", "--wait", "1s", "--no-wait", "job", "--", "echo"], "cannot be used with"),
        (vec!["run", "--mode", "XX", "job", "--", "echo"], "XX"),
        (vec!["run", "--ttl", "1ms", "job", "--", "echo"], "a ttl is between"),
        (vec!["run", "--ttl", "9s", "--grace", "5s", "job", "--", "echo"], "a grace of 5s is too long"),
        (vec!["run", "--max-hold", "0s", "job", "--", "echo"], "less than a second leaves no time"),
        (vec!["run", "--ttl", "500ms", "job", "--", "echo"], "less than a second leaves no time"),
        (vec!["run", "--grace", "1ms", "job", "--", "echo"], "too short to end anything in"),
        (vec!["run", "--once-per", "0s", "job", "--", "echo"], "must be longer than zero"),
        (
            vec!["run", "--once-per", "1m", "--spread", "1m", "job", "--", "echo"],
            "must be shorter than its period",
        ),
        (vec!["run", "--once-per", "1m", "--shared", "job", "--", "echo"], "in mode EX or PW"),
        (vec!["run", "--spread", "1m", "job", "--", "echo"], "--once-per"),
        (vec!["run", "--url", "gopher://x", "job", "--", "echo"], "is not an engine"),
        (vec!["run", "--url", "file:x?fair=true", "job", "--", "echo"], "has no option `fair`"),
        (vec!["run", "--wait", "-5s", "job", "--", "echo"], "-5s is negative; durations look like"),
        (vec!["run", "--wait=-5s", "job", "--", "echo"], "-5s is negative; durations look like"),
        (vec!["run", "--ttl", "-1", "job", "--", "echo"], "-1 is negative; durations look like"),
        (vec!["break", "job", "--wait", "-5s"], "-5s is negative; durations look like"),
        (vec!["break", "--wait", "job"], "tenure break job --wait"),
        (vec!["break", "--wait", "--force", "job"], "cannot be used with"),
        (vec!["watch", "--every", "0s", "job"], "0s is too short: 10ms is the shortest"),
        (vec!["watch", "--every", "9ms", "job"], "9ms is too short"),
        (vec!["who"], "required"),
        (vec!["who", "a\nb"], "no control characters"),
        (vec!["frobnicate"], "unrecognized subcommand"),
    ] {
        place.run(&arguments).expect(64, said);
    }
}

/// The environment names the engine here.
#[test]
fn usage_does_not_ask_for_what_the_environment_says() {
    let place = Place::new();
    for arguments in [vec!["run", "job"], vec!["who"], vec!["break"]] {
        let done = place.run(&arguments).expect(64, "Usage: tenure ");
        assert!(!done.err.contains("--url"), "{}", done.err);
    }
}

#[test]
fn an_overlong_name_is_shortened_in_messages() {
    let place = Place::new();
    let (long, shown) = ("long/".repeat(100), format!("`{}…`", "long/".repeat(12)));
    let _holder = place.hold(&long);
    for (arguments, code) in [
        (vec!["run", "--no-wait", &long, "--", "true"], 75),
        (vec!["run", "--wait", "2s", &long, "--", "true"], 75),
        (vec!["run", "--mode", "PW", &long, "--", "true"], 73),
        (vec!["break", "--force", &long], 73),
        (vec!["break", &long], 0),
    ] {
        let done = place.run(&arguments).expect(code, "");
        assert!(!done.err.contains(&long), "{}", done.err);
        assert!(code == 73 || done.err.contains(&shown), "{}", done.err);
    }
    let too_long = "x".repeat(600);
    let done = place.run(&["who", &too_long]).expect(64, &format!("'{}…'", "x".repeat(60)));
    assert!(!done.err.contains(&too_long), "{}", done.err);
}

#[test]
fn two_runs_of_one_lock_do_not_overlap() {
    let place = Place::new();
    let script = "mkdir inside || exit 9; echo $TENURE_TOKEN >> tokens; sleep 0.02; rmdir inside";
    let mut runs: Vec<_> = (0..8).map(|_| place.start(&["run", "job", "--", "sh", "-c", script])).collect();
    for run in &mut runs {
        assert_eq!(code_of(run), Some(0), "{}", run.log());
    }
    let tokens = place.numbers_as_u64("tokens");
    assert_eq!(tokens.len(), 8);
    assert!(tokens.is_sorted_by(|a, b| a < b), "tokens rise: {tokens:?}");
}

#[test]
fn readers_share_and_keep_a_writer_out() {
    let place = Place::new();
    let script = "echo in >> in; until [ -e done ]; do sleep 0.02; done";
    let mut readers = [(); 2].map(|()| place.start(&["run", "--shared", "job", "--", "sh", "-c", script]));
    tenure_testkit::eventually("both readers to be in", || place.lines("in").len() == 2);
    place.run(&["run", "--no-wait", "job", "--", "echo"]).expect(75, "and 1 more");
    std::fs::write(place.path("done"), "").unwrap();
    for reader in &mut readers {
        assert_eq!(code_of(reader), Some(0));
    }
    place.run(&["run", "--no-wait", "job", "--", "echo"]).expect(0, "");
}

#[test]
fn stdin_and_the_environment_are_the_commands() {
    let place = Place::new();
    let mut command =
        place.tenure(&["run", "orders/42", "--", "sh", "-c", "cat; echo $TENURE_LOCK $TENURE_TOKEN"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"from stdin\n").unwrap();
    let done = Done::of(&child.wait_with_output().unwrap());
    let token = place.client().inspect("orders/42").unwrap().last_token.unwrap();
    assert_eq!(done.out, format!("from stdin\norders/42 {token}\n"));
}

#[test]
fn it_says_where_the_lock_is_and_when_it_got_it_if_it_is_asked_to() {
    let place = Place::new();
    let done = place
        .run(&["run", "-v", "job", "--", "echo", "hi"])
        .expect(0, "tenure: got `job` in mode EX with token ")
        .expect(0, &format!("tenure: the lock `job` is at {}\n", place.url()));
    assert!(done.err.contains("tenure: released `job`\n") && done.out == "hi\n", "{done:?}");
    assert_eq!(place.run(&["run", "job", "--", "echo", "hi"]).err, "");
}

#[test]
fn what_a_command_leaves_running_is_left_alone_and_does_not_keep_the_lock() {
    let place = Place::new();
    let done =
        place.run(&["run", "-v", "job", "--", "sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $! > left"]);
    let pids = Pids(place.numbers("left"));
    let left = pids.0[0];
    assert!(crate::place::is_alive(left));
    done.expect(0, &format!("left processes running, which `job` does not cover any more: {left}"));
    place.run(&["run", "--no-wait", "job", "--", "true"]).expect(0, "");
}

#[test]
fn signals_that_are_ignored_stay_ignored_also_while_it_waits() {
    let place = Place::new();
    let holder = place.hold("job");
    let mut command = place.program("sh");
    command.args(["-c", "trap '' HUP; exec tenure run job -- echo got it"]);
    let mut waiter = tenure_testkit::Process::start("tenure", tempfile::tempdir().unwrap(), command);
    tenure_testkit::eventually("it to wait", || place.waiters("job") == 1);
    crate::place::signal(waiter.pid().cast_signed(), rustix::process::Signal::HUP);
    drop(holder);
    assert_eq!((code_of(&mut waiter), waiter.log()), (Some(0), "got it\n".to_owned()));
}

#[test]
fn signals_that_are_ignored_stay_ignored() {
    let place = Place::new();
    let mut command = place.program("sh");
    // As `nohup` does.
    command.args(["-c", "trap '' HUP; exec tenure run job -- sh -c 'kill -HUP $$ $PPID; kill -HUP $(cut -d\\  -f4 /proc/$PPID/stat); echo alive'"]);
    let done = Done::of(&command.output().unwrap());
    assert_eq!((done.code, done.out.as_str()), (Some(0), "alive\n"), "{done:?}");
}

#[test]
fn that_nobody_listens_changes_nothing() {
    let place = Place::new();
    let mut shell = place.program("bash");
    shell.args(["-c", "tenure run -vv job -- sh -c 'exit 3' 2>/dev/full; echo $?; tenure run -vv job -- sh -c 'exit 4' 2>&-; echo $?"]);
    assert_eq!(Done::of(&shell.output().unwrap()).out, "3\n4\n");
}

/// The command does not mind them, and neither does the release.
#[test]
fn signals_that_come_while_it_ends_do_not_cost_the_exit_code() {
    let place = Place::new();
    let script = "trap '' USR1; echo > ready; until [ -e go ]; do sleep 0.02; done";
    let mut run =
        place.start(&["run", "--once-per", "1h", "--retry-failed", "job", "--", "sh", "-c", script]);
    tenure_testkit::eventually("it to be ready", || place.path("ready").exists());
    std::fs::write(place.path("go"), "").unwrap();
    tenure_testkit::eventually("it to end", || {
        let ended = run.exit_status();
        if ended.is_none() {
            crate::place::signal(run.pid().cast_signed(), rustix::process::Signal::USR1);
        }
        ended
    });
    assert_eq!(code_of(&mut run), Some(0), "{}", run.log());
    place.run(&["run", "--once-per", "1h", "--retry-failed", "job", "--", "true"]).expect(0, "already begun");
}
