//! A `tenure run` inside of another.

use rustix::process::Signal;
use tenure_testkit::eventually;

use crate::place::{Done, Pids, Place, is_alive, signal};

#[test]
fn the_same_lock_is_entered_again_with_the_same_token() {
    let place = Place::new();
    let script = "echo $TENURE_TOKEN; tenure run --no-wait job -- sh -c 'echo $TENURE_TOKEN; tenure run --no-wait job -- printenv TENURE_TOKEN'";
    let done = place.run(&["run", "job", "--", "sh", "-c", script]).expect(0, "");
    let tokens: Vec<_> = done.out.lines().collect();
    assert!(tokens.len() == 3 && tokens.iter().all(|token| *token == tokens[0]), "{tokens:?}");
}

#[test]
fn it_is_entered_again_also_through_another_lock() {
    let place = Place::new();
    let script = "tenure run --no-wait b -- tenure run --no-wait a -- echo in";
    assert_eq!(place.run(&["run", "a", "--", "sh", "-c", script]).expect(0, "").out, "in\n");
}

#[test]
fn two_inside_of_one_exclude_each_other_from_another_lock() {
    let place = Place::new();
    let script = "for i in 1 2 3 4; do tenure run b -- sh -c 'mkdir in || echo met; sleep 0.05; rmdir in' & done; wait";
    assert_eq!(place.run(&["run", "a", "--", "sh", "-c", script]).expect(0, "").out, "");
}

#[test]
fn the_same_name_on_another_engine_is_another_lock() {
    let place = Place::new();
    let script = "echo $TENURE_OWNER; tenure run --url file:other job -- printenv TENURE_OWNER";
    let done = place.run(&["run", "job", "--", "sh", "-c", script]).expect(0, "");
    let owners: Vec<_> = done.out.lines().collect();
    assert!(owners.len() == 2 && owners[0] != owners[1], "{owners:?}");
}

/// The environment outlives the run: it must not make two of those who have it one owner.
#[test]
fn two_daemons_that_were_started_under_a_lock_exclude_each_other_later() {
    let place = Place::new();
    let first = "until [ -e go ]; do sleep 0.05; done; exec tenure run job -- sleep 1000";
    let second = "until [ -e go-too ]; do sleep 0.05; done; tenure run --no-wait job -- echo; echo $? > code";
    // A daemon is one when it is in a session of its own: before that, it is the command's, and ends with it.
    let start = |file, daemon| {
        let begun = format!("setsid sh -c 'echo $$ > {file}; {daemon}' >/dev/null 2>&1 & ");
        begun + &format!("until [ -s {file} ]; do sleep 0.02; done; ")
    };
    let script = start("first", first) + &start("second", second);
    place.run(&["run", "job", "--", "sh", "-c", &script]).expect(0, "");
    let pids = Pids([place.numbers("first"), place.numbers("second")].concat());
    let daemons = &pids.0;
    std::fs::write(place.path("go"), "").unwrap();
    eventually("the first to get it", || place.is_held("job"));
    std::fs::write(place.path("go-too"), "").unwrap();
    let code = eventually("the second to try", || place.numbers("code").first().copied());
    assert_eq!(code, 75, "somebody else holds it");
    signal(daemons[0], Signal::TERM);
    eventually("the first to end", || !is_alive(daemons[0]));
}

#[test]
fn the_inner_one_in_the_same_group_is_signalled_once() {
    let place = Place::new();
    // A shell would take two for one, since it looks only between two commands.
    let inner = r#"$| = 1;
        for my $signal ("USR1", "USR2") { $SIG{$signal} = sub { syswrite STDERR, "heard $signal\n" } }
        syswrite STDERR, "ready\n";
        sleep 1 until -e "done";"#;
    std::fs::write(place.path("inner.pl"), inner).unwrap();
    // The outer shell must not die of it.
    let script = "trap : USR1 USR2; tenure run inner -- perl inner.pl";
    let mut run = place.start(&["run", "outer", "--", "sh", "-c", script]);
    eventually("it to be ready", || run.log().contains("ready"));
    // What was sent first, once or twice, has come before what was sent next.
    signal(run.pid().cast_signed(), Signal::USR1);
    eventually("it to hear the first", || run.log().contains("heard USR1"));
    signal(run.pid().cast_signed(), Signal::USR2);
    eventually("it to hear the second", || run.log().contains("heard USR2"));
    std::fs::write(place.path("done"), "").unwrap();
    assert_eq!(crate::place::code_of(&mut run), Some(0), "{}", run.log());
    assert_eq!(run.log().matches("heard").count(), 2, "{}", run.log());
}

/// What a run in the middle is told, the command at the bottom hears, once.
#[test]
fn a_signal_to_one_in_the_middle_goes_all_the_way_down() {
    let place = Place::new();
    let leaf = r#"$SIG{USR1} = sub { syswrite STDERR, "heard USR1\n" };
        $SIG{TERM} = sub { syswrite STDERR, "heard TERM\n"; $told = 1 };
        syswrite STDERR, "ready\n";
        sleep 1 until $told;
        # What was sent twice has come twice by now.
        for (1 .. 10) { select undef, undef, undef, 0.1 }"#;
    std::fs::write(place.path("leaf.pl"), leaf).unwrap();
    let script = "echo $$ > middle; exec tenure run b -- tenure run c -- tenure run d -- perl leaf.pl";
    let mut run = place.start(&["run", "a", "--", "sh", "-c", script]);
    eventually("it to be ready", || run.log().contains("ready"));
    let middle = place.numbers("middle")[0];
    signal(middle, Signal::USR1);
    eventually("it to hear the first", || run.log().contains("heard USR1"));
    signal(middle, Signal::TERM);
    crate::place::code_of(&mut run);
    let log = run.log();
    assert_eq!((log.matches("heard USR1").count(), log.matches("heard TERM").count()), (1, 1), "{log}");
}

#[test]
fn another_spelling_of_the_engine_is_the_same_lock() {
    let place = Place::new();
    let script = "tenure run --no-wait --url file:locks/../locks/ job -- echo in";
    assert_eq!(place.run(&["run", "job", "--", "sh", "-c", script]).expect(0, "").out, "in\n");
}

#[test]
fn one_inside_finds_the_engine_that_the_outer_one_was_given() {
    let place = Place::new();
    std::fs::write(place.path("c.toml"), format!("url = \"{}\"\n", place.url())).unwrap();
    std::fs::create_dir(place.path("below")).unwrap();
    let script = "echo $TENURE_TOKEN; cd below && tenure run --no-wait job -- printenv TENURE_TOKEN";
    for options in [["--url", "file:by-option"], ["--config", "c.toml"]] {
        let mut command = place.tenure(&[&options[..], &["run", "job", "--", "sh", "-c", script]].concat());
        command.env_remove("TENURE_URL");
        let done = Done::of(&command.output().unwrap()).expect(0, "");
        let tokens: Vec<_> = done.out.lines().collect();
        assert!(tokens.len() == 2 && tokens[0] == tokens[1], "{options:?}: {done:?}");
    }
}
