//! A `tenure run` inside of another.

use tenure_testkit::eventually;

use crate::place::{Place, is_alive, signal};

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

/// The environment outlives the lock: it must not open it.
#[test]
fn a_daemon_that_was_started_under_a_lock_does_not_enter_it_later() {
    let place = Place::new();
    let daemon = "until [ -e go ]; do sleep 0.05; done; tenure run --no-wait job -- echo got; echo $? > code";
    let script = format!("setsid sh -c '{daemon}' >/dev/null 2>&1 & echo $! > daemon");
    place.run(&["run", "job", "--", "sh", "-c", &script]).expect(0, "");
    assert!(is_alive(place.numbers("daemon")[0]));
    let owner_is_free = place.hold("job");
    std::fs::write(place.path("go"), "").unwrap();
    let code = eventually("the daemon to try", || place.numbers("code").first().copied());
    assert_eq!(code, 75, "somebody else holds it");
    drop(owner_is_free);
}

#[test]
fn the_inner_one_in_the_same_group_is_signalled_once() {
    let place = Place::new();
    let inner = "trap 'echo heard >> heard' USR1; echo > ready; while [ ! -e done ]; do sleep 0.05; done";
    std::fs::write(place.path("inner.sh"), inner).unwrap();
    // The outer shell must not die of it.
    let script = "trap '' USR1; (trap - USR1; tenure run inner -- sh inner.sh)";
    let mut run = place.start(&["run", "outer", "--", "sh", "-c", script]);
    eventually("it to be ready", || place.path("ready").exists());
    signal(run.pid().cast_signed(), rustix::process::Signal::USR1);
    eventually("it to hear", || !place.lines("heard").is_empty());
    std::fs::write(place.path("done"), "").unwrap();
    assert_eq!(crate::place::code_of(&mut run), Some(0), "{}", run.log());
    assert_eq!(place.lines("heard"), ["heard"]);
}
