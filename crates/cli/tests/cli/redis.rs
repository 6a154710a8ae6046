//! The command on locks that a server keeps: several hosts, leases, and a network that is really cut.

use tenure_testkit::{Process, Proxy, Redis, eventually};

use crate::once::eight_servers_send_one_message;
use crate::place::{Pids, Place, is_alive};

/// A command that does not end when it is told to, with another one of its own that has left the process group.
const DEAF: &str = "trap 'echo told >> told' TERM; echo $$ >> pids
    setsid sh -c 'trap \"\" TERM; echo $$ >> pids; while :; do sleep 0.1; done' &
    while :; do sleep 0.1; done";

fn start(place: &Place, options: &[&str], script: &str) -> Process {
    let mut command = place.tenure(&["run"]);
    command.args(options).args(["job", "--", "sh", "-c", script]);
    Process::start("tenure", tempfile::tempdir().unwrap(), command)
}

#[test]
fn eight_servers_send_one_message_over_redis() {
    eight_servers_send_one_message(&Redis::shared().url());
}

#[test]
fn nested_runs_enter_again_and_others_are_kept_out() {
    let place = Place::with_locks_at(Redis::shared().url());
    let script = "echo $TENURE_TOKEN; tenure run --no-wait nested -- printenv TENURE_TOKEN
        env -u TENURE_HELD tenure run --no-wait nested -- echo in; echo $?";
    let done = place.run(&["run", "nested", "--", "sh", "-c", script]).expect(0, "held by");
    let lines: Vec<_> = done.out.lines().collect();
    assert!(lines.len() == 3 && lines[0] == lines[1] && lines[2] == "75", "{lines:?}");
}

/// Where an owner cannot enter again from another process, a nested run would wait for the one around it, and that for it.
#[test]
fn a_nested_run_on_redlock_is_refused_and_does_not_wait_for_itself() {
    let servers = [Redis::start(), Redis::start(), Redis::start()];
    let place = Place::with_locks_at(format!(
        "redlock://{}",
        servers.each_ref().map(|redis| redis.addr().to_string()).join(",")
    ));
    let done = place.run(&["run", "job", "--", "tenure", "run", "job", "--", "echo", "in"]);
    assert!(done.code != Some(0) && done.err.contains("re-enters from another client"), "{done:?}");
    assert_eq!(place.run(&["run", "job", "--", "echo", "alone"]).expect(0, "").out, "alone\n");
}

#[test]
fn who_and_ls_show_what_redis_has() {
    let redis = Redis::start();
    let place = Place::with_locks_at(redis.url());
    let mut running =
        start(&place, &["--label", "the job", "--ttl", "6s"], "echo $$ >> pids; while :; do sleep 0.1; done");
    let pids = Pids(eventually("it to run", || Some(place.numbers("pids")).filter(|pids| !pids.is_empty())));
    let who = place.run(&["who", "job"]).expect(0, "").out;
    assert!(who.contains("the job") && who.contains("EX"), "{who}");
    assert_eq!(place.run(&["ls"]).expect(0, "").out.lines().count(), 1);
    // Asked to let go, it ends its command; it hears of it when it renews.
    place.run(&["break", "job"]).expect(0, "");
    eventually("the command to end", || !is_alive(pids.0[0]));
    assert_eq!(eventually("tenure to end", || running.exit_status()).code(), Some(76), "{}", running.log());
}

/// The network is cut while the command runs: it is told to end, then killed with all that it started, and only then does somebody else
/// get the lock.
#[test]
fn a_command_that_is_cut_off_is_gone_before_the_next_one_begins() {
    let redis = Redis::start();
    let network = Proxy::to(redis.addr());
    let far = Place::with_locks_at(format!("redis://{}?timeout_ms=4000", network.addr()));
    let near = Place::with_locks_at(redis.url());
    let mut cut_off = start(&far, &["--ttl", "15s", "--grace", "3s"], DEAF);
    let pids =
        Pids(eventually("both to be there", || Some(far.numbers("pids")).filter(|pids| pids.len() == 2)));
    network.cut();
    // The next one looks, as soon as it has the lock, whether any of them is still there.
    let look = format!(
        "for pid in {} {}; do [ -d /proc/$pid ] && grep -v '^State:.*Z' /proc/$pid/status | grep -q '^State' && echo alive; done; true",
        pids.0[0], pids.0[1]
    );
    let next = near.run(&["run", "--wait", "2m", "job", "--", "sh", "-c", &look]).expect(0, "");
    assert_eq!(next.out, "", "the next one began while the first was still there");
    assert_eq!(far.lines("told"), ["told"], "it was told first");
    let code = eventually("tenure to end", || cut_off.exit_status()).code();
    assert_eq!(code, Some(76), "{}", cut_off.log());
    network.heal();
}

/// A short cut costs the command nothing.
#[test]
fn a_command_outlasts_a_short_cut() {
    let redis = Redis::start();
    let network = Proxy::to(redis.addr());
    let place = Place::with_locks_at(format!("redis://{}?timeout_ms=4000", network.addr()));
    let mut running =
        start(&place, &["--ttl", "30s"], "echo $$ >> pids; until [ -e go ]; do sleep 0.05; done");
    eventually("it to run", || {
        assert!(running.exit_status().is_none(), "{}", running.log());
        !place.numbers("pids").is_empty()
    });
    network.cut();
    eventually("a renewal to fail", || running.log().contains("renewal failed"));
    network.heal();
    let renewed = || redis.command(&["PTTL", "job"]).parse::<u64>().unwrap() > 25_000;
    eventually("it to be renewed again", renewed);
    std::fs::write(place.path("go"), "").unwrap();
    assert_eq!(eventually("tenure to end", || running.exit_status()).code(), Some(0), "{}", running.log());
    assert_eq!(redis.command(&["EXISTS", "job"]), "0");
}

#[test]
fn what_is_wrong_is_said_with_a_code_of_its_own() {
    let mut redis = Redis::start();
    let place = Place::with_locks_at(redis.url());
    redis.kill();
    place.run(&["run", "job", "--", "echo", "never"]).expect(69, "does not answer");
    place.run(&["ls"]).expect(69, "does not answer");
    Place::with_locks_at("redis://a,b").run(&["ls"]).expect(64, "several servers");
    Place::with_locks_at("redlock://a,b").run(&["ls"]).expect(64, "an even number");
}
