//! A network of a test's own: a client in there is cut off, and nobody is told.

use std::env;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{IpAddr, TcpListener};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use tenure_testkit::{Netns, Process, Proxy, Redis, eventually};

/// How long silence is listened to. It can only hide a fault, never report one that is not there.
const SHORT: Duration = Duration::from_millis(300);
/// How long an answer is waited for. TCP may take long to send again what was lost.
const LONG: Duration = Duration::from_mins(1);

#[test]
fn a_client_reaches_the_machine_and_is_cut_off_in_silence() {
    let (netns, redis) = (Netns::new(), Redis::start());
    let proxy = Proxy::listening_on(netns.host_addr(), redis.addr());
    assert_eq!(proxy.addr().ip(), netns.host_addr());
    let mut client = Client::start(&netns, &proxy);
    client.says("SET a before");
    assert_eq!(client.hears(), "OK");

    netns.cut();
    client.says("SET a after");
    assert!(client.hears_nothing());
    assert_eq!(redis.command(&["GET", "a"]), "before");

    netns.heal();
    assert_eq!(client.hears(), "OK");
    assert_eq!(redis.command(&["GET", "a"]), "after");
}

#[test]
fn a_cut_loses_what_comes_from_the_machine_too() {
    let (netns, redis) = (Netns::new(), Redis::start());
    let proxy = Proxy::listening_on(netns.host_addr(), redis.addr());
    let mut client = Client::start(&netns, &proxy);
    client.says("BLPOP queue 0");
    eventually("the client to wait", || redis.command(&["CLIENT", "LIST"]).contains("cmd=blpop"));

    netns.cut();
    redis.command(&["RPUSH", "queue", "work"]);
    assert!(client.hears_nothing());

    netns.heal();
    assert_eq!([client.hears(), client.hears()], ["queue", "work"]);
}

#[test]
fn a_connection_made_in_a_cut_hangs_and_works_after_it() {
    let (netns, redis) = (Netns::new(), Redis::start());
    let proxy = Proxy::listening_on(netns.host_addr(), redis.addr());
    netns.cut();
    let mut client = Client::start(&netns, &proxy);
    client.says("PING");
    assert!(client.hears_nothing());
    assert!(client.process.try_wait().unwrap().is_none());
    netns.heal();
    assert_eq!(client.hears(), "PONG");
}

#[test]
fn the_death_of_a_client_that_is_cut_off_is_not_heard_of() {
    let (netns, redis) = (Netns::new(), Redis::start());
    let proxy = Proxy::listening_on(netns.host_addr(), redis.addr());
    let mut client = Client::start(&netns, &proxy);
    client.says("CLIENT ID");
    let id = client.hears();
    netns.cut();
    drop(client);
    thread::sleep(SHORT);
    assert!(redis.command(&["CLIENT", "LIST", "ID", &id]).contains(&format!("id={id} ")));
}

#[test]
fn networks_do_not_meet_and_each_is_cut_off_by_itself() {
    let (one, other, redis) = (Netns::new(), Netns::new(), Redis::start());
    assert_ne!(one.host_addr(), other.host_addr());
    let [mut in_one, mut in_other] = [&one, &other]
        .map(|netns| (Proxy::listening_on(netns.host_addr(), redis.addr()), netns))
        .map(|(proxy, netns)| (Client::start(netns, &proxy), proxy));
    one.cut();
    in_one.0.says("PING");
    in_other.0.says("PING");
    assert_eq!(in_other.0.hears(), "PONG");
    assert!(in_one.0.hears_nothing());
}

#[test]
fn a_server_in_there_is_reached_from_the_machine() {
    let netns = Netns::new();
    let mut server = netns.command("redis-server");
    server.args(["--bind", &netns.addr().to_string(), "--protected-mode", "no", "--port", "7000"]);
    server.args(["--save", ""]);
    let mut server = Process::start("Redis", tempfile::tempdir().unwrap(), server);
    let proxy = Proxy::to((netns.addr(), 7000).into());
    server.wait_until_ready(|| {
        let connection = tenure_testkit::RedisConnection::open(proxy.addr());
        connection.and_then(|mut redis| redis.command(&["PING"])).is_ok()
    });
}

#[test]
fn nobody_but_the_machine_is_reached() {
    let netns = Netns::new();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let mut client = netns.command("redis-cli");
    let output = client.args(["-h", "127.0.0.1", "-p", &port, "PING"]).output().unwrap();
    let complaint = String::from_utf8(output.stderr).unwrap();
    assert!(complaint.contains("Connection refused"), "the loopback in there is another: {complaint}");
    let routes = netns.command("ip").args(["route", "show", "default"]).output().unwrap();
    assert_eq!(String::from_utf8(routes.stdout).unwrap(), "");
}

#[test]
fn a_dropped_network_leaves_nothing_on_the_machine() {
    let netns = Netns::new();
    let addr = netns.host_addr();
    assert!(is_on_this_machine(addr));
    netns.cut();
    drop(netns);
    assert!(!is_on_this_machine(addr));
}

#[test]
#[should_panic(expected = "there-is-no-such-program is not installed")]
fn a_program_that_is_missing_is_told_before_it_is_run() {
    Netns::new().command("there-is-no-such-program");
}

const HELPER: &str = "helper_that_makes_a_network_and_waits_to_be_killed";
const AS_HELPER: &str = "TENURE_TESTKIT_NETNS_HELPER";

#[test]
fn nothing_is_left_when_the_process_that_made_the_network_is_killed() {
    let mut helper = Command::new(env::current_exe().unwrap())
        .args(["--exact", HELPER, "--nocapture"])
        .env(AS_HELPER, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(helper.stdout.take().unwrap()).lines().map(Result::unwrap);
    let told = lines.find_map(|line| line.split_once("network=").map(|(_, told)| told.to_owned())).unwrap();
    let (addr, pids) = told.split_once(' ').unwrap();
    let addr: IpAddr = addr.parse().unwrap();
    assert!(is_on_this_machine(addr));

    helper.kill().unwrap();
    helper.wait().unwrap();
    for pid in pids.split(' ') {
        eventually("what runs in there to die", || has_ended(pid));
    }
    eventually("the network to vanish", || !is_on_this_machine(addr));
}

/// Not a test by itself: it does something only when the test above runs it.
#[test]
fn helper_that_makes_a_network_and_waits_to_be_killed() {
    if env::var_os(AS_HELPER).is_none() {
        return;
    }
    let netns = Netns::new();
    let mut sleeper = netns.command("sleep").arg("3600").spawn().unwrap();
    let mut command = netns.command("sleep");
    command.arg("3600");
    let process = Process::start("sleep", tempfile::tempdir().unwrap(), command);
    println!("network={} {} {}", netns.host_addr(), sleeper.id(), process.pid());
    // Waits to be killed, or for the end of the test that should have done it.
    let _ = io::stdin().read_line(&mut String::new());
    let _ = sleeper.kill().and_then(|()| sleeper.wait());
}

/// A client of Redis in a network of its own; it reads commands, and prints what it hears.
struct Client {
    process: Child,
    commands: ChildStdin,
    heard: Receiver<String>,
}

impl Client {
    fn start(netns: &Netns, proxy: &Proxy) -> Self {
        let (host, port) = (proxy.addr().ip().to_string(), proxy.port().to_string());
        let mut command = netns.command("redis-cli");
        command.args(["-h", &host, "-p", &port]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let commands = process.stdin.take().unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let (tell, heard) = channel();
        thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| tell.send(line)));
        Self { process, commands, heard }
    }

    fn says(&mut self, command: &str) {
        writeln!(self.commands, "{command}").unwrap();
    }

    #[track_caller]
    fn hears(&self) -> String {
        self.heard.recv_timeout(LONG).expect("an answer of Redis")
    }

    fn hears_nothing(&self) -> bool {
        self.heard.recv_timeout(SHORT) == Err(RecvTimeoutError::Timeout)
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Whether the machine has this address.
fn is_on_this_machine(addr: IpAddr) -> bool {
    TcpListener::bind((addr, 0)).is_ok()
}

/// One that has ended and was not waited for has ended, too.
fn has_ended(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('Z'))
}
