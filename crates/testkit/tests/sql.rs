//! What the SQL servers promise: their life is in the hands of the test, with all of their processes.

use std::env;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use tenure_testkit::{MariaDb, Postgres, eventually, find_program};

/// How long silence is listened to. It can only hide a fault, never report one that is not there.
const SHORT: Duration = Duration::from_millis(200);

#[test]
fn a_started_postgresql_is_ready_for_statements() {
    let postgres = Postgres::start();
    assert_eq!(postgres.sql("CREATE TABLE t (a int); INSERT INTO t VALUES (1), (2)"), "");
    assert_eq!(postgres.sql("SELECT a, NULL, 'x' FROM t ORDER BY a"), "1||x\n2||x");
    assert_eq!(postgres.url(), format!("postgres://postgres@127.0.0.1:{}/postgres", postgres.port()));
    assert!(postgres.log().contains("ready to accept connections"));
}

#[test]
fn a_started_mariadb_is_ready_for_statements() {
    let mariadb = MariaDb::start();
    assert_eq!(mariadb.sql("CREATE TABLE t (a INT); INSERT INTO t VALUES (1), (2)"), "");
    assert_eq!(
        mariadb.sql("SELECT a, NULL, DATABASE() FROM t ORDER BY a"),
        "1\tNULL\ttenure\n2\tNULL\ttenure"
    );
    assert_eq!(mariadb.url(), format!("mysql://root@127.0.0.1:{}/tenure", mariadb.port()));
    assert!(mariadb.log().contains("ready for connections"));
}

#[test]
fn a_postgresql_is_durable_unless_an_argument_says_otherwise() {
    let usual = Postgres::start();
    let unlike = Postgres::builder().args(["-c", "fsync=off"]).arg("-c").arg("max_connections=20").start();
    let settings = "SELECT current_setting('fsync'), current_setting('synchronous_commit'), \
                    current_setting('max_connections')";
    assert_eq!(usual.sql(settings), "on|on|100");
    assert_eq!(unlike.sql(settings), "off|on|20");
}

#[test]
fn a_mariadb_is_durable_unless_an_argument_says_otherwise() {
    let usual = MariaDb::start();
    let unlike =
        MariaDb::builder().args(["--innodb-flush-log-at-trx-commit=0"]).arg("--max-connections=20").start();
    let settings = "SELECT @@innodb_flush_log_at_trx_commit, @@innodb_doublewrite, @@max_connections";
    assert_eq!(usual.sql(settings), "1\t1\t151");
    assert_eq!(unlike.sql(settings), "0\t1\t20");
}

#[test]
fn servers_that_start_at_once_do_not_meet() {
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert_eq!(MariaDb::start().sql("CREATE TABLE t (a INT)"), ""));
        }
        for _ in 0..2 {
            scope.spawn(|| assert_eq!(Postgres::start().sql("CREATE TABLE t (a int)"), ""));
        }
    });
}

#[test]
fn what_a_server_refuses_is_told_in_its_own_words() {
    let (postgres, mariadb) = (Postgres::shared(), MariaDb::shared());
    assert!(
        postgres
            .try_sql("SELECT * FROM nowhere")
            .unwrap_err()
            .contains("relation \"nowhere\" does not exist")
    );
    assert!(
        mariadb
            .try_sql("SELECT * FROM nowhere")
            .unwrap_err()
            .contains("Table 'tenure.nowhere' doesn't exist")
    );
}

#[test]
#[should_panic(expected = "PostgreSQL did not do \"SELECT * FROM nowhere\": ERROR:")]
fn a_statement_that_must_not_fail_panics_with_the_error() {
    Postgres::shared().sql("SELECT * FROM nowhere");
}

#[test]
#[should_panic(expected = "such_a_setting_does_not_exist")]
fn a_postgresql_that_ends_before_it_is_ready_is_noticed_at_once_and_its_log_is_shown() {
    Postgres::builder().args(["-c", "such_a_setting_does_not_exist=1"]).start();
}

#[test]
#[should_panic(expected = "such-an-option-does-not-exist")]
fn a_mariadb_that_ends_before_it_is_ready_is_noticed_at_once_and_its_log_is_shown() {
    MariaDb::builder().arg("--such-an-option-does-not-exist").start();
}

#[test]
fn a_killed_postgresql_comes_back_with_what_it_had_committed() {
    let mut postgres = Postgres::start();
    let (port, pid) = (postgres.port(), postgres.pid());
    postgres.sql("CREATE TABLE t AS SELECT 'by me' AS held");
    let mut client = busy_psql(&postgres);
    postgres.kill();
    assert_eq!(processes_of(postgres.folder()), []);
    assert!(TcpStream::connect(postgres.addr()).is_err(), "a killed PostgreSQL must not listen");
    assert!(!client.wait().unwrap().success());
    postgres.restart();
    assert_eq!(postgres.sql("SELECT held FROM t"), "by me");
    assert!(postgres.log().contains("was not properly shut down"), "{}", postgres.log());
    assert_eq!(postgres.port(), port);
    assert_ne!(postgres.pid(), pid);
}

#[test]
fn a_killed_mariadb_comes_back_with_what_it_had_committed() {
    let mut mariadb = MariaDb::start();
    let (port, pid) = (mariadb.port(), mariadb.pid());
    mariadb.sql("CREATE TABLE t AS SELECT 'by me' AS held");
    mariadb.kill();
    assert_eq!(processes_of(mariadb.folder()), []);
    assert!(TcpStream::connect(mariadb.addr()).is_err(), "a killed MariaDB must not listen");
    mariadb.restart();
    assert_eq!(mariadb.sql("SELECT held FROM t"), "by me");
    assert!(mariadb.log().contains("Starting crash recovery"), "{}", mariadb.log());
    assert_eq!(mariadb.port(), port);
    assert_ne!(mariadb.pid(), pid);
}

#[test]
fn a_paused_postgresql_runs_nothing_until_it_is_resumed() {
    let mut postgres = Postgres::start();
    let mut connected = busy_psql(&postgres);
    postgres.pause();
    let processes = processes_of(postgres.folder());
    assert!(processes.len() > 2, "the first one, its helpers, and that of the client: {processes:?}");
    assert!(processes.iter().all(|pid| is_halted(*pid)));
    let mut new = psql(&postgres, "SELECT 1");
    thread::sleep(SHORT);
    assert!(new.try_wait().unwrap().is_none() && connected.try_wait().unwrap().is_none());
    postgres.resume();
    assert!(new.wait().unwrap().success());
    assert!(!processes.iter().any(|pid| is_halted(*pid)));
    assert!(connected.try_wait().unwrap().is_none(), "its connection is still open");
    postgres.kill();
    connected.wait().unwrap();
}

#[test]
fn a_paused_mariadb_runs_nothing_until_it_is_resumed() {
    let mut mariadb = MariaDb::start();
    mariadb.pause();
    assert!(is_halted(mariadb.pid()));
    let mut client = client_of(&mariadb, "SELECT 1");
    thread::sleep(SHORT);
    assert!(client.try_wait().unwrap().is_none());
    mariadb.resume();
    assert!(client.wait().unwrap().success());
}

#[test]
fn a_stopped_server_ended_by_itself_whoever_is_connected() {
    let (mut postgres, mut mariadb) = (Postgres::start(), MariaDb::start());
    let mut clients = [busy_psql(&postgres), client_of(&mariadb, "SELECT SLEEP(3600)")];
    let running = "SELECT COUNT(*) FROM information_schema.processlist WHERE state = 'User sleep'";
    eventually("the statement to run", || mariadb.sql(running) == "1");
    for (status, log) in [(postgres.stop(), postgres.log()), (mariadb.stop(), mariadb.log())] {
        assert_eq!((status.code(), status.signal()), (Some(0), None), "{log}");
    }
    for client in &mut clients {
        client.wait().unwrap();
    }
}

#[test]
fn a_paused_server_can_be_stopped_and_killed() {
    let (mut postgres, mut mariadb) = (Postgres::start(), MariaDb::start());
    postgres.pause();
    mariadb.pause();
    assert_eq!(postgres.stop().code(), Some(0), "{}", postgres.log());
    assert_eq!(mariadb.stop().code(), Some(0), "{}", mariadb.log());
    postgres.restart();
    mariadb.restart();
    postgres.pause();
    mariadb.pause();
    postgres.kill();
    mariadb.kill();
    assert!(TcpStream::connect(postgres.addr()).is_err());
    assert!(TcpStream::connect(mariadb.addr()).is_err());
}

#[test]
fn a_dropped_postgresql_leaves_neither_processes_nor_folder_nor_shared_memory() {
    let postgres = Postgres::start();
    let (folder, memory) = (postgres.folder().to_owned(), shared_memory_in(postgres.folder()));
    let mut client = busy_psql(&postgres);
    assert!(shared_memory().contains(&memory));
    drop(postgres);
    client.wait().unwrap();
    assert_eq!(processes_of(&folder), []);
    assert!(!folder.exists());
    assert!(!shared_memory().contains(&memory));
}

#[test]
fn a_dropped_mariadb_leaves_neither_a_process_nor_a_folder() {
    let mariadb = MariaDb::start();
    let folder = mariadb.folder().to_owned();
    assert_eq!(processes_of(&folder), [mariadb.pid()]);
    drop(mariadb);
    assert_eq!(processes_of(&folder), []);
    assert!(!folder.exists());
}

#[test]
fn the_shared_servers_are_one_and_the_same() {
    let ports = thread::spawn(|| (Postgres::shared().port(), MariaDb::shared().port())).join().unwrap();
    // The thread that started them has ended. A child of that thread would have died with it.
    assert_eq!((Postgres::shared().port(), MariaDb::shared().port()), ports);
    assert_eq!(Postgres::shared().sql("SELECT 1"), "1");
    assert_eq!(MariaDb::shared().sql("SELECT 1"), "1");
}

const HELPER: &str = "helper_that_starts_servers_and_waits_to_be_killed";
const AS_HELPER: &str = "TENURE_TESTKIT_SQL_HELPER";

#[test]
fn nothing_is_left_when_the_process_that_started_the_servers_is_killed() {
    let mut helper = Command::new(env::current_exe().unwrap())
        .args(["--exact", HELPER, "--nocapture"])
        .env(AS_HELPER, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(helper.stdout.take().unwrap()).lines();
    let folders: Vec<PathBuf> = lines
        .map(Result::unwrap)
        .filter_map(|line| line.split_once("folder=").map(|(_, folder)| PathBuf::from(folder)))
        .take(4)
        .collect();
    assert_eq!(folders.len(), 4, "the helper says where its servers live");
    for folder in &folders {
        assert_ne!(processes_of(folder), [], "they must run before the helper is killed");
    }
    let memory = shared_memory_in(&folders[0]);

    helper.kill().unwrap();
    helper.wait().unwrap();
    for folder in &folders {
        eventually("the helper's servers to die", || processes_of(folder).is_empty());
        eventually("their folders to vanish", || !folder.exists());
    }
    assert!(!shared_memory().contains(&memory));
}

/// Not a test by itself: it does something only when the test above runs it.
#[test]
fn helper_that_starts_servers_and_waits_to_be_killed() {
    if env::var_os(AS_HELPER).is_none() {
        return;
    }
    let (mut paused, mut paused_mariadb) = (Postgres::start(), MariaDb::start());
    paused.pause();
    paused_mariadb.pause();
    let (shared, shared_mariadb) = (Postgres::shared(), MariaDb::shared());
    let mut client = busy_psql(shared);
    for folder in [shared.folder(), shared_mariadb.folder(), paused.folder(), paused_mariadb.folder()] {
        println!("folder={}", folder.display());
    }
    // Waits to be killed, or for the end of the test that should have done it.
    let _ = io::stdin().read_line(&mut String::new());
    let _ = client.kill().and_then(|()| client.wait());
}

/// A client with a statement.
fn psql(postgres: &Postgres, statement: &str) -> Child {
    let mut psql = Command::new(find_program("psql").unwrap());
    quiet(psql.args(["--no-psqlrc", &postgres.url(), "-c", statement]))
}

/// A client whose process in the server never looks up from its work, not even when the server dies.
fn busy_psql(postgres: &Postgres) -> Child {
    let busy = "SELECT COUNT(*) FROM pg_stat_activity WHERE query LIKE 'DO %' AND state = 'active'";
    let client = psql(postgres, "DO $$ BEGIN LOOP END LOOP; END $$");
    eventually("the statement to run", || postgres.sql(busy) == "1");
    client
}

/// A client with a statement.
fn client_of(mariadb: &MariaDb, statement: &str) -> Child {
    let port = format!("--port={}", mariadb.port());
    let mut client = Command::new(find_program("mariadb").unwrap());
    quiet(client.args(["--no-defaults", "--host=127.0.0.1", "--user=root", &port, "--execute", statement]))
}

fn quiet(client: &mut Command) -> Child {
    client.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// All processes of the server in this folder. One that has ended and was not waited for is none.
fn processes_of(folder: &Path) -> Vec<u32> {
    let name = folder.file_name().unwrap().to_str().unwrap();
    let pids = fs::read_dir("/proc")
        .unwrap()
        .filter_map(|process| process.unwrap().file_name().to_str()?.parse().ok());
    pids.filter(|pid| {
        let read = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let is_server = matches!(read("comm").trim_ascii(), b"postgres" | b"mariadbd");
        is_server && String::from_utf8_lossy(&read("cmdline")).contains(name)
    })
    .collect()
}

/// Whether it is there, and halted.
fn is_halted(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
}

/// The number of the piece of shared memory of the PostgreSQL in this folder.
fn shared_memory_in(folder: &Path) -> String {
    let file = fs::read_to_string(folder.join("data/postmaster.pid")).unwrap();
    file.lines().nth(6).and_then(|line| line.split_whitespace().nth(1)).unwrap().to_owned()
}

/// The numbers of all such pieces on this machine.
fn shared_memory() -> Vec<String> {
    let table = fs::read_to_string("/proc/sysvipc/shm").unwrap();
    table.lines().skip(1).filter_map(|line| line.split_whitespace().nth(1).map(str::to_owned)).collect()
}
