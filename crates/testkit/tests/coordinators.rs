//! What ZooKeeper and etcd promise: the life of each, and of each member of a cluster, is in the hands of the test.

use std::env;
use std::io::{self, BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use tenure_testkit::{Etcd, EtcdCluster, Process, ZooKeeper, ZooKeeperCluster, eventually, find_program};

/// How long silence is listened to. It can only hide a fault, never report one that is not there.
const SHORT: Duration = Duration::from_millis(200);

#[test]
fn a_started_zookeeper_serves() {
    let zookeeper = ZooKeeper::start();
    assert_eq!(zookeeper.url(), format!("zookeeper://127.0.0.1:{}", zookeeper.port()));
    assert_eq!(zookeeper.command("ruok"), "imok");
    assert!(zookeeper.command("srvr").contains("Mode: standalone"));
    assert!(zookeeper.log().contains("binding to port"), "{}", zookeeper.log());
}

#[test]
fn a_started_etcd_serves() {
    let etcd = Etcd::start();
    assert_eq!(etcd.url(), format!("etcd://127.0.0.1:{}", etcd.port()));
    assert_eq!(etcd.ctl(&["put", "orders", "held"]), "OK");
    assert_eq!(etcd.ctl(&["get", "orders"]), "orders\nheld");
    assert!(etcd.log().contains("serving client traffic"), "{}", etcd.log());
}

#[test]
fn a_zookeeper_is_durable_and_ticks_fast_unless_told_otherwise() {
    let usual = ZooKeeper::shared();
    let unlike = ZooKeeper::builder()
        .tick(Duration::from_secs(1))
        .setting("maxSessionTimeout", "7000")
        .property("zookeeper.forceSync", "no")
        .containers_checked_every(Duration::from_millis(123))
        .start();
    for (zookeeper, tick, shortest, longest) in [(usual, 500, 1000, 60_000), (&unlike, 1000, 2000, 7000)] {
        let settings = zookeeper.command("conf");
        for line in [
            format!("tickTime={tick}"),
            format!("minSessionTimeout={shortest}"),
            format!("maxSessionTimeout={longest}"),
        ] {
            assert!(settings.lines().any(|found| found == line), "{line} in\n{settings}");
        }
    }
    // It serves before it has started all that checks containers.
    eventually("the interval to be logged", || unlike.log().contains("checkIntervalMs=123 "));
    assert!(!usual.command("envi").contains("forceSync"));
    assert!(command_line(unlike.pid()).contains("-Dzookeeper.forceSync=no"));
}

#[test]
fn an_etcd_takes_arguments() {
    let etcd = Etcd::builder().args(["--quota-backend-bytes=20000000"]).arg("--max-txn-ops=2").start();
    assert!((etcd.metric("etcd_server_quota_backend_bytes") - 20_000_000.0).abs() < 1.0);
}

#[test]
fn what_a_zookeeper_counts_can_be_read() {
    let zookeeper = ZooKeeper::start();
    let before = zookeeper.counter("zk_znode_count");
    zk(&zookeeper, &["create", "/orders", "held"]);
    assert_eq!(zookeeper.counter("zk_znode_count"), before + 1);
}

#[test]
#[should_panic(expected = "ZooKeeper has no figure zk_nothing")]
fn a_figure_that_zookeeper_does_not_have_is_no_figure() {
    ZooKeeper::shared().counter("zk_nothing");
}

#[test]
fn what_an_etcd_counts_can_be_read_and_summed_up() {
    let etcd = Etcd::start();
    assert_eq!(whole(etcd.metric("etcd_debugging_mvcc_put_total")), 0);
    for value in ["one", "two"] {
        etcd.ctl(&["put", "orders", value]);
    }
    etcd.ctl(&["get", "orders"]);
    assert_eq!(whole(etcd.metric("etcd_debugging_mvcc_put_total")), 2);
    let handled = r#"grpc_server_handled_total{grpc_code="OK",grpc_method="#;
    assert_eq!(whole(etcd.metric(&format!("{handled}\"Put\""))), 2);
    assert_eq!(whole(etcd.metric(&format!("{handled}\"Range\""))), 1);
    assert_eq!(whole(etcd.metric(handled)), 3);
    assert_eq!(whole(etcd.metric("there_is_no_such_figure")), 0);
}

#[test]
#[should_panic(expected = "etcdctl did not do [\"lease\", \"revoke\", \"1\"]: ")]
fn what_etcdctl_must_not_fail_at_panics_with_the_error() {
    Etcd::shared().ctl(&["lease", "revoke", "1"]);
}

#[test]
fn an_etcdctl_that_takes_long_is_a_process_of_the_test() {
    let etcd = Etcd::start();
    let mut lock = etcd.ctl_command();
    lock.args(["lock", "orders"]);
    let mut holder = Process::start("etcdctl", tempfile::tempdir().unwrap(), lock);
    eventually("it to hold the lock", || !etcd.ctl(&["get", "--prefix", "orders/"]).is_empty());
    holder.stop();
    assert_eq!(etcd.ctl(&["get", "--prefix", "orders/"]), "");
}

#[test]
#[should_panic(expected = "ended before it was ready")]
fn a_zookeeper_that_ends_before_it_is_ready_is_noticed_at_once() {
    ZooKeeper::builder().setting("tickTime", "no number").start();
}

#[test]
#[should_panic(expected = "such-a-flag-does-not-exist")]
fn an_etcd_that_ends_before_it_is_ready_is_noticed_at_once_and_its_log_is_shown() {
    Etcd::builder().arg("--such-a-flag-does-not-exist").start();
}

#[test]
fn a_killed_zookeeper_comes_back_with_what_it_had_committed() {
    let mut zookeeper = ZooKeeper::start();
    let (port, pid) = (zookeeper.port(), zookeeper.pid());
    zk(&zookeeper, &["create", "/orders", "held"]);
    zookeeper.kill();
    assert!(is_deaf(zookeeper.addr()), "a killed ZooKeeper must not listen");
    zookeeper.restart();
    assert!(zk(&zookeeper, &["get", "/orders"]).lines().any(|line| line == "held"));
    assert_eq!(zookeeper.port(), port);
    assert_ne!(zookeeper.pid(), pid);
}

#[test]
fn a_killed_etcd_comes_back_with_what_it_had_committed() {
    let mut etcd = Etcd::start();
    let (port, pid) = (etcd.port(), etcd.pid());
    etcd.ctl(&["put", "orders", "held"]);
    etcd.kill();
    assert!(is_deaf(etcd.addr()), "a killed etcd must not listen");
    etcd.restart();
    assert_eq!(etcd.ctl(&["get", "orders"]), "orders\nheld");
    assert_eq!(etcd.port(), port);
    assert_ne!(etcd.pid(), pid);
}

#[test]
fn a_paused_zookeeper_answers_nothing_until_it_is_resumed() {
    let mut zookeeper = ZooKeeper::start();
    zookeeper.pause();
    let mut client = zk_command(zookeeper.addr(), &["ls", "/"]).spawn().unwrap();
    assert_waits(&mut client);
    zookeeper.resume();
    assert!(client.wait().unwrap().success());
}

#[test]
fn a_paused_etcd_answers_nothing_until_it_is_resumed() {
    let mut etcd = Etcd::start();
    etcd.pause();
    let mut get = etcd.ctl_command();
    let mut client = quiet(get.args(["--command-timeout=60s", "get", "orders"])).spawn().unwrap();
    assert_waits(&mut client);
    etcd.resume();
    assert!(client.wait().unwrap().success());
}

#[test]
fn a_dropped_coordinator_leaves_neither_a_process_nor_a_folder() {
    let (zookeeper, etcd) = (ZooKeeper::start(), Etcd::start());
    let left = [zookeeper.folder(), etcd.folder()].map(ToOwned::to_owned);
    let addrs = [zookeeper.addr(), etcd.addr()];
    drop((zookeeper, etcd));
    assert!(addrs.into_iter().all(is_deaf));
    assert!(!left.iter().any(|folder| folder.exists()));
}

#[test]
fn the_shared_coordinators_are_one_and_the_same() {
    let ports = thread::spawn(|| (ZooKeeper::shared().port(), Etcd::shared().port())).join().unwrap();
    // The thread that started them has ended. A child of that thread would have died with it.
    assert_eq!((ZooKeeper::shared().port(), Etcd::shared().port()), ports);
    assert_eq!(ZooKeeper::shared().command("ruok"), "imok");
    assert_eq!(Etcd::shared().ctl(&["get", "nothing"]), "");
}

const HELPER: &str = "helper_that_starts_coordinators_and_waits_to_be_killed";
const AS_HELPER: &str = "TENURE_TESTKIT_COORDINATORS_HELPER";

#[test]
fn nothing_is_left_when_the_process_that_started_the_coordinators_is_killed() {
    let mut helper = Command::new(env::current_exe().unwrap())
        .args(["--exact", HELPER, "--nocapture"])
        .env(AS_HELPER, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(helper.stdout.take().unwrap()).lines();
    let told: Vec<(PathBuf, SocketAddr)> = lines
        .map(Result::unwrap)
        .filter_map(|line| {
            let (folder, addr) = line.split_once("folder=")?.1.split_once(' ')?;
            Some((folder.into(), addr.parse().unwrap()))
        })
        .take(4)
        .collect();
    assert!(told.iter().all(|(folder, addr)| folder.exists() && !is_deaf(*addr)));

    helper.kill().unwrap();
    helper.wait().unwrap();
    for (folder, addr) in told {
        eventually("the helper's servers to die", || is_deaf(addr));
        eventually("their folders to vanish", || !folder.exists());
    }
}

/// Not a test by itself: it does something only when the test above runs it.
#[test]
fn helper_that_starts_coordinators_and_waits_to_be_killed() {
    if env::var_os(AS_HELPER).is_none() {
        return;
    }
    let (mut zookeeper, mut etcd) = (ZooKeeper::start(), Etcd::start());
    zookeeper.pause();
    etcd.pause();
    for server in [&**ZooKeeper::shared(), &**Etcd::shared(), &*zookeeper, &*etcd] {
        println!("folder={} {}", server.folder().display(), server.addr());
    }
    // Waits to be killed, or for the end of the test that should have done it.
    let _ = io::stdin().read_line(&mut String::new());
}

#[test]
fn the_members_of_a_zookeeper_cluster_are_one() {
    let cluster = ZooKeeperCluster::start();
    assert_eq!(cluster.url(), format!("zookeeper://{}", hosts(&cluster.addrs())));
    let leader = cluster.leader();
    for (index, member) in cluster.members().iter().enumerate() {
        let mode = if index == leader { "Mode: leader" } else { "Mode: follower" };
        assert!(member.command("srvr").contains(mode));
    }
    zk(cluster.member(leader), &["create", "/orders", "held"]);
    let follower = cluster.member((leader + 1) % 3);
    eventually("a follower to have it", || zk(follower, &["get", "/orders"]).contains("held"));
}

#[test]
fn the_members_of_an_etcd_cluster_are_one() {
    let cluster = EtcdCluster::start();
    assert_eq!(cluster.url(), format!("etcd://{}", hosts(&cluster.addrs())));
    cluster.member(0).ctl(&["put", "orders", "held"]);
    for member in cluster.members() {
        assert_eq!(member.ctl(&["get", "orders"]), "orders\nheld");
    }
    let leading = cluster.members().iter().map(|member| whole(member.metric("etcd_server_is_leader")));
    assert_eq!(leading.enumerate().find(|(_, leads)| *leads == 1), Some((cluster.leader(), 1)));
}

#[test]
fn another_member_of_a_zookeeper_cluster_leads_when_the_leader_was_killed_or_paused() {
    let mut cluster = ZooKeeperCluster::builder().setting("syncLimit", "4").start();
    let first = cluster.leader();
    zk(cluster.member(first), &["create", "/orders", "held"]);
    cluster.member_mut(first).kill();
    let second = cluster.leader();
    assert_ne!(second, first);
    assert!(zk(cluster.member(second), &["get", "/orders"]).contains("held"));

    cluster.member_mut(first).restart();
    cluster.wait_until_all_serve();
    assert_eq!(cluster.leader(), second, "who comes back follows");

    cluster.member_mut(second).pause();
    let third = cluster.leader();
    assert_ne!(third, second);
    cluster.member_mut(second).resume();
    cluster.wait_until_all_serve();
    assert_eq!(cluster.leader(), third);
}

#[test]
fn another_member_of_an_etcd_cluster_leads_when_the_leader_was_killed_or_paused() {
    let mut cluster =
        EtcdCluster::builder().arg("--heartbeat-interval=50").args(["--election-timeout=500"]).start();
    let first = cluster.leader();
    cluster.member(first).ctl(&["put", "orders", "held"]);
    cluster.member_mut(first).kill();
    let second = cluster.leader();
    assert_ne!(second, first);
    assert_eq!(cluster.member(second).ctl(&["get", "orders"]), "orders\nheld");

    cluster.member_mut(first).restart();
    cluster.wait_until_all_serve();

    let second = cluster.leader();
    cluster.member_mut(second).pause();
    let third = cluster.leader();
    assert_ne!(third, second);
    cluster.member_mut(second).resume();
    cluster.wait_until_all_serve();
    assert_eq!(cluster.member(second).ctl(&["get", "orders"]), "orders\nheld");
}

#[test]
fn a_member_of_a_dead_zookeeper_cluster_can_be_restarted_before_the_others() {
    let mut cluster = ZooKeeperCluster::start();
    for index in 0..3 {
        cluster.member_mut(index).kill();
    }
    cluster.member_mut(0).restart();
    assert!(cluster.member(0).command("srvr").contains("not currently serving requests"));
    cluster.member_mut(1).restart();
    assert_ne!(cluster.leader(), 2);
    cluster.member_mut(2).restart();
    cluster.wait_until_all_serve();
}

#[test]
fn a_member_of_a_dead_etcd_cluster_can_be_restarted_before_the_others() {
    let mut cluster = EtcdCluster::start();
    for index in 0..3 {
        cluster.member_mut(index).kill();
    }
    cluster.member_mut(0).restart();
    assert!(cluster.member(0).try_ctl(&["--command-timeout=200ms", "get", "orders"]).is_err());
    cluster.member_mut(1).restart();
    assert_ne!(cluster.leader(), 2);
    cluster.member_mut(2).restart();
    cluster.wait_until_all_serve();
}

#[test]
fn a_zookeeper_that_has_lost_the_others_serves_readers_if_it_was_told_to() {
    let mut cluster = ZooKeeperCluster::builder()
        .property("readonlymode.enabled", "true")
        .tick(Duration::from_millis(200))
        .containers_checked_every(Duration::from_secs(1))
        .start();
    cluster.member_mut(1).kill();
    cluster.member_mut(2).kill();
    eventually("the last to serve readers", || cluster.member(0).command("isro") == "ro");
}

/// What ZooKeeper's own client prints when it does this.
fn zk(zookeeper: &ZooKeeper, words: &[&str]) -> String {
    let output = zk_command(zookeeper.addr(), words).stdout(Stdio::piped()).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

fn zk_command(addr: SocketAddr, words: &[&str]) -> Command {
    let mut client = Command::new(find_program("java").unwrap());
    client.args(["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"]);
    client.args(["-cp", "/usr/share/java/zookeeper.jar", "org.apache.zookeeper.ZooKeeperMain"]);
    client.args(["-timeout", "60000", "-waitforconnection", "-server", &addr.to_string()]).args(words);
    quiet(&mut client);
    client
}

fn quiet(client: &mut Command) -> &mut Command {
    client.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null())
}

#[track_caller]
fn assert_waits(client: &mut Child) {
    thread::sleep(SHORT);
    assert!(client.try_wait().unwrap().is_none());
}

fn is_deaf(addr: SocketAddr) -> bool {
    TcpStream::connect(addr).is_err()
}

fn hosts(addrs: &[SocketAddr]) -> String {
    addrs.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn command_line(pid: u32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap()
}

/// What is counted in whole numbers, and told in others.
fn whole(figure: f64) -> i64 {
    format!("{figure:.0}").parse().unwrap()
}
