//! How long connecting takes: no longer than the run may wait, also where nobody answers.

use std::net::TcpListener;

use tenure_testkit::{Etcd, MariaDb, Postgres, Process, Proxy, Redis, ZooKeeper, eventually};

use crate::place::{Place, code_of};

/// URLs whose server takes connections and never says a word. The engines would wait for a minute.
fn silent(listener: &TcpListener) -> Vec<String> {
    let server = listener.local_addr().unwrap();
    vec![
        format!("redis://user:secret@{server}?timeout_ms=60000"),
        format!("postgres://user:secret@{server}/shop?timeout_ms=60000"),
        format!("mysql://user:secret@{server}/shop?timeout_ms=60000"),
        format!("zookeeper://{server}?timeout_ms=60000"),
        format!("etcd://{server}?timeout_ms=60000"),
    ]
}

#[test]
fn a_silent_server_does_not_make_a_run_wait_longer_than_it_may() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = listener.local_addr().unwrap();
    std::thread::scope(|scope| {
        for url in silent(&listener) {
            scope.spawn(move || {
                let place = Place::with_locks_at(&url);
                for (options, limit) in [
                    (["--wait", "300ms"].as_slice(), "300ms"),
                    (&["--no-wait"], "3s"),
                    (&["--wait", "0s"], "3s"),
                ] {
                    let done = place.run(&[&["run"], options, &["job", "--", "echo", "ran"]].concat());
                    let done = done.expect(69, &format!("://{server} did not answer within {limit}: check"));
                    assert!(done.out.is_empty() && !done.err.contains("secret"), "{url}: {done:#?}");
                }
            });
        }
    });
}

/// A wait goes on through an outage, and the terminal shows the reason.
#[test]
fn an_outage_shows_in_the_waiting_line() {
    let mut zookeeper = ZooKeeper::start();
    let place = Place::with_locks_at(format!("{}?timeout_ms=1000", zookeeper.url()));
    let holder = place.hold("job");
    let waiter = place.tenure(&["run", "job", "--", "echo", "my turn"]);
    let mut terminal = tenure_testkit::Terminal::start(&waiter);
    let mut logged = place.tenure(&["run", "-v", "job", "--", "true"]);
    logged.stdin(std::process::Stdio::null());
    let logged = Process::start("tenure", tempfile::tempdir().unwrap(), logged);
    terminal.wait_for("held by sleep");
    eventually("it to be logged", || logged.log().contains("held by sleep"));
    zookeeper.pause();
    terminal.wait_for("waiting for `job` for ");
    terminal.wait_for(": zookeeper cannot be reached, retrying");
    eventually("it to be logged", || logged.log().contains(": zookeeper cannot be reached, retrying"));
    terminal.wait_for(": zookeeper cannot be reached, retrying");
    terminal.wait_for(": zookeeper cannot be reached, retrying");
    assert_eq!(terminal.screen().len(), 1, "{:#?}", terminal.screen());
    assert_eq!(logged.log().matches("cannot be reached, retrying").count(), 1, "{}", logged.log());
    zookeeper.resume();
    drop(holder);
}

/// A command whose server stops answering says so and ends: closing its client does not hold it up.
#[test]
fn a_command_ends_when_its_server_falls_silent() {
    let (redis, postgres, mariadb) = (Redis::shared(), Postgres::shared(), MariaDb::shared());
    let zookeeper = ZooKeeper::shared();
    let etcd = Etcd::shared();
    let servers = [
        (redis.addr(), redis.url()),
        (postgres.addr(), postgres.url()),
        (mariadb.addr(), mariadb.url()),
        (zookeeper.addr(), zookeeper.url()),
        (etcd.addr(), etcd.url()),
    ];
    std::thread::scope(|scope| {
        for (server, url) in servers {
            scope.spawn(move || {
                let network = Proxy::to(server);
                let url = url.replace(&server.to_string(), &network.addr().to_string());
                let place = Place::with_locks_at(format!("{url}?timeout_ms=1000"));
                let mut watch = place.start(&["watch", "--every", "10ms", "silent"]);
                eventually("it to watch", || watch.log().contains("\tfree\t"));
                network.cut();
                assert_eq!(code_of(&mut watch), Some(69), "{}", watch.log());
            });
        }
    });
}
