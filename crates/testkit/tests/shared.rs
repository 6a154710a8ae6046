//! What the servers of a run promise: its test programs find them, and they end with the run.

use std::env;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

use tenure_testkit::{Etcd, MariaDb, Postgres, Redis, Server, ZooKeeper};

/// Set for the process that is a test program of the run: the ports that it must find.
const PORTS: &str = "TENURE_TESTKIT_PORTS";

#[test]
fn the_servers_of_a_run_are_found_by_its_programs_and_end_with_it() {
    let mut keeper = Command::new(env!("CARGO_BIN_EXE_tenure-test-servers"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(keeper.stdout.take().unwrap());
    let mut servers = String::new();
    while !servers.ends_with("ready\n") {
        assert_ne!(output.read_line(&mut servers).unwrap(), 0, "it ended after\n{servers}");
    }
    let of_each: Vec<Vec<&str>> = servers.lines().map(|line| line.splitn(4, ' ').collect()).collect();
    let of_each = &of_each[..of_each.len() - 1];
    let ports: Vec<&str> = of_each.iter().map(|words| words[1]).collect();
    let program = Command::new(env::current_exe().unwrap())
        .args(["--exact", "helper_that_finds_the_servers_of_its_run", "--nocapture"])
        .env("TENURE_TEST_SERVERS", &servers)
        .env(PORTS, ports.join(" "))
        .output()
        .unwrap();
    assert!(program.status.success(), "{}", String::from_utf8_lossy(&program.stderr));

    drop(keeper.stdin.take());
    assert!(keeper.wait().unwrap().success());
    assert_eq!(output.read_to_string(&mut String::new()).unwrap(), 0);
    for words in of_each {
        let [name, port, _, folder] = words[..] else { panic!("{words:?}") };
        assert!(TcpStream::connect(("127.0.0.1", port.parse().unwrap())).is_err(), "{name} still listens");
        assert!(!Path::new(folder).exists(), "{name} left {folder}");
    }
}

/// Not a test by itself: it does something only when the test above runs it.
#[test]
fn helper_that_finds_the_servers_of_its_run() {
    let Ok(expected) = env::var(PORTS) else { return };
    let redis = Redis::shared();
    assert_eq!(redis.command(&["PING"]), "PONG");
    assert_eq!(Postgres::shared().sql("SELECT 1"), "1");
    assert_eq!(MariaDb::shared().sql("SELECT 1"), "1");
    assert_eq!(ZooKeeper::shared().command("ruok"), "imok");
    assert!(Etcd::shared().ctl(&["put", "a", "1"]).contains("OK"));
    let servers: [&Server; 5] =
        [redis, Postgres::shared(), MariaDb::shared(), ZooKeeper::shared(), Etcd::shared()];
    assert_eq!(servers.map(|server| server.port().to_string()).join(" "), expected);
    for server in servers {
        assert!(Path::new(&format!("/proc/{}", server.pid())).exists());
    }
    assert!(ZooKeeper::shared().log().contains("binding to port"));
}
