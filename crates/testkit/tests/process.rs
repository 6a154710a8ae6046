//! What a supervised process promises: its life is in the hands of the test.

mod common;

use std::env;
use std::io::{self, BufRead, BufReader};
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::thread;

use tenure_testkit::{Persistence, Process, Redis, eventually, find_program};

use common::is_silent;

#[test]
fn a_started_redis_is_ready_for_commands() {
    let redis = Redis::start();
    assert_eq!(redis.command(&["SET", "a", "1"]), "OK");
    assert_eq!(redis.command(&["GET", "a"]), "1");
    assert_eq!((redis.calls("get"), redis.calls("del")), (1, 0));
    assert_eq!(redis.url(), format!("redis://127.0.0.1:{}", redis.port()));
    assert!(redis.log().contains("Ready to accept connections"));
}

#[test]
fn extra_arguments_override_those_of_the_kit() {
    let redis = Redis::builder().args(["--maxmemory", "3mb"]).arg("--appendonly").arg("yes").start();
    assert_eq!(redis.command(&["CONFIG", "GET", "maxmemory"]), "maxmemory\n3145728");
    assert_eq!(redis.command(&["CONFIG", "GET", "appendonly"]), "appendonly\nyes");
}

#[test]
fn a_killed_redis_with_an_always_synced_log_comes_back_with_its_keys() {
    let mut redis = Redis::builder().persistence(Persistence::AofAlways).start();
    let (port, pid) = (redis.port(), redis.pid());
    redis.command(&["SET", "held", "by me"]);
    redis.kill();
    assert!(TcpStream::connect(redis.addr()).is_err(), "a killed Redis must not listen");
    redis.restart();
    assert_eq!(redis.command(&["GET", "held"]), "by me");
    assert_eq!(redis.port(), port);
    assert_ne!(redis.pid(), pid);
}

#[test]
fn a_redis_without_persistence_comes_back_empty() {
    let mut redis = Redis::start();
    redis.command(&["SET", "held", "by me"]);
    redis.restart();
    assert_eq!(redis.command(&["GET", "held"]), "(nil)");
}

#[test]
fn a_paused_redis_answers_nothing_until_it_is_resumed() {
    let mut redis = Redis::start();
    let mut connection = redis.connect().unwrap();
    assert_eq!(connection.command(&["PING"]).unwrap(), "PONG");
    redis.pause();
    connection.send(&["PING"]).unwrap();
    assert!(is_silent(&mut connection));
    redis.resume();
    assert_eq!(connection.receive().unwrap(), "PONG");
}

#[test]
fn a_stopped_redis_ended_by_itself_on_sigterm() {
    let mut redis = Redis::start();
    let status = redis.stop();
    assert_eq!((status.code(), status.signal()), (Some(0), None), "{}", redis.log());
    assert!(redis.log().contains("Received SIGTERM"), "{}", redis.log());
}

#[test]
fn a_paused_redis_can_be_stopped_and_killed() {
    let mut redis = Redis::start();
    redis.pause();
    assert_eq!(redis.stop().code(), Some(0));
    redis.restart();
    redis.pause();
    redis.kill();
    assert!(TcpStream::connect(redis.addr()).is_err());
}

#[test]
fn a_dropped_redis_is_gone_and_so_is_its_folder() {
    let redis = Redis::start();
    let (addr, folder) = (redis.addr(), redis.folder().to_owned());
    drop(redis);
    assert!(TcpStream::connect(addr).is_err());
    assert!(!folder.exists());
}

#[test]
fn the_shared_redis_is_one_and_the_same_and_leaves_no_folder() {
    let port = thread::spawn(|| Redis::shared().port()).join().unwrap();
    // The thread that started it has ended. A child of that thread would have died with it.
    assert_eq!(Redis::shared().port(), port);
    assert_eq!(Redis::shared().command(&["PING"]), "PONG");
    assert!(!Redis::shared().folder().exists());
}

#[test]
#[should_panic(expected = "such-an-option-does-not-exist")]
fn a_server_that_ends_before_it_is_ready_is_noticed_at_once_and_its_log_is_shown() {
    Redis::builder().arg("--such-an-option-does-not-exist").arg("x").start();
}

#[test]
fn a_missing_server_gives_the_advice() {
    let missing = find_program("no-such-server").unwrap_err();
    let advice =
        "no-such-server is not installed: run `cargo xtask test`, or `apt-get install no-such-server`";
    assert_eq!(missing.to_string(), advice);
}

#[test]
#[should_panic(expected = "no-such-server is not installed: run `cargo xtask test`")]
fn starting_a_missing_server_fails_with_the_advice() {
    Process::start("a server", tempfile::tempdir().unwrap(), Command::new("no-such-server"));
}

const HELPER: &str = "helper_that_starts_a_redis_and_waits_to_be_killed";
const AS_HELPER: &str = "TENURE_TESTKIT_HELPER";

#[test]
fn a_server_dies_when_its_parent_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let mut helper = Command::new(env::current_exe().unwrap())
        .args(["--exact", HELPER, "--nocapture"])
        .env(AS_HELPER, "1")
        // A killed process cannot tidy up, so its Redis lives in a folder of ours.
        .env("TMPDIR", folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(helper.stdout.take().unwrap()).lines();
    let port: u16 = lines
        .map(Result::unwrap)
        .find_map(|line| line.split_once("redis-port=").map(|(_, port)| port.parse().unwrap()))
        .expect("the helper says where its Redis listens");
    let addr = ("127.0.0.1", port);
    assert!(TcpStream::connect(addr).is_ok(), "the helper's Redis must run before the helper is killed");

    helper.kill().unwrap();
    helper.wait().unwrap();
    eventually("the helper's Redis to die", || TcpStream::connect(addr).is_err());
}

/// Not a test by itself: it does something only when the test above runs it.
#[test]
fn helper_that_starts_a_redis_and_waits_to_be_killed() {
    if env::var_os(AS_HELPER).is_some() {
        let redis = Redis::start();
        println!("redis-port={}", redis.port());
        // Waits to be killed, or for the end of the test that should have done it.
        let _ = io::stdin().read_line(&mut String::new());
    }
}
