//! `tenure run` on an engine with leases: what cannot be renewed is ended before its lease is.
//!
//! This program is the command itself, on that engine, when it is told to be; else it is the checks. It has no test harness, since that
//! would have threads before the command forks.

mod engine;
#[path = "../cli/place.rs"]
#[expect(dead_code, reason = "the other tests use more of it")]
mod place;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use tenure::Client;
use tenure::clock::BootTime;
use tenure_testkit::{Process, eventually};

use self::engine::Leased;
use self::place::{Pids, Place, code_of, is_alive};

/// Set for the process that is to be the command; it names the folder.
const FOLDER: &str = "LEASED_FOLDER";

fn main() -> ExitCode {
    if std::env::var_os(FOLDER).is_some() {
        return tenure_cli::main(|_| {
            Box::pin(async {
                let folder = PathBuf::from(std::env::var_os(FOLDER).unwrap_or_default());
                Client::with_engine(|context| Leased::open(folder, context))
            })
        });
    }
    let checks: [(&str, fn()); 4] = [
        ("a lock that is renewed is kept for longer than its lease", renewed),
        ("a cable that is mended in time costs nothing", mended),
        ("what cannot be renewed is told to end, and killed before its lease ends", cut),
        ("a front that is stopped does not renew, and the minder kills before the lease ends", stopped),
    ];
    std::thread::scope(|scope| {
        for (name, check) in checks {
            // A panic in one of them is this program's.
            scope.spawn(move || {
                check();
                // As a test harness says it, for whoever counts.
                println!("test {name} ... ok");
            });
        }
    });
    ExitCode::SUCCESS
}

/// A run of this program as the command, with a command that ends when it is told to, or never.
struct Run {
    place: Place,
    process: Process,
    pids: Pids,
}

/// It notes that it was told, and does not end; neither does what it has started.
const DEAF: &str = "trap 'echo told >> told' TERM; echo $$ >> pids
    setsid sh -c 'trap \"\" TERM; echo $$ >> pids; while :; do sleep 0.1; done' &
    until [ -e go ]; do sleep 0.05; done; kill -9 $!";

impl Run {
    fn start(options: &[&str]) -> Self {
        let place = Place::new();
        let mut command = place.program(std::env::current_exe().unwrap().to_str().unwrap());
        command.env(FOLDER, place.path(""));
        command.arg("run").args(options).args(["job", "--", "sh", "-c", DEAF]);
        let process = Process::start("leased", tempfile::tempdir().unwrap(), command);
        let pids =
            eventually("both to be there", || Some(place.numbers("pids")).filter(|pids| pids.len() == 2));
        Self { place, process, pids: Pids(pids) }
    }

    fn leases(&self) -> usize {
        self.place.lines("leases").len()
    }

    /// Waits until all are dead, and says whether the last lease still stood then.
    fn died_in_time(&self) -> bool {
        let died_at = eventually("all to be dead", || {
            let now = BootTime::now();
            (!self.pids.0.iter().any(|pid| is_alive(*pid))).then_some(now)
        });
        let ends: u64 = self.place.lines("leases").last().unwrap().parse().unwrap();
        died_at < BootTime::from_boot(Duration::from_nanos(ends))
    }

    fn go(mut self) {
        std::fs::write(self.place.path("go"), "").unwrap();
        assert_eq!(code_of(&mut self.process), Some(0), "{}", self.process.log());
        assert_eq!(self.place.lines("told").len(), 0, "it was never told to end");
    }
}

fn renewed() {
    let run = Run::start(&["--ttl", "12s"]);
    // One for each third of what is believed in.
    eventually("it to be held for longer than its lease", || run.leases() > 8);
    run.go();
}

fn mended() {
    let run = Run::start(&["--ttl", "30s"]);
    std::fs::write(run.place.path("cut"), "").unwrap();
    eventually("a renewal to fail", || run.process.log().contains("renewal failed"));
    std::fs::remove_file(run.place.path("cut")).unwrap();
    let before = run.leases();
    eventually("it to be renewed again", || run.leases() > before);
    run.go();
}

fn cut() {
    let mut run = Run::start(&["--ttl", "12s", "--grace", "2s"]);
    std::fs::write(run.place.path("cut"), "").unwrap();
    assert!(run.died_in_time());
    assert_eq!(code_of(&mut run.process), Some(76), "{}", run.process.log());
    assert_eq!(run.place.lines("told"), ["told"], "it was told first");
    assert!(
        run.process.log().contains("it could not be renewed in time; the command was ended"),
        "{}",
        run.process.log()
    );
}

fn stopped() {
    let mut run = Run::start(&["--ttl", "12s", "--grace", "2s"]);
    run.process.pause();
    assert!(run.died_in_time());
    assert_eq!(run.place.lines("told"), ["told"], "it was told first");
    run.process.resume();
    assert_eq!(code_of(&mut run.process), Some(76), "{}", run.process.log());
}
