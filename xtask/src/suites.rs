//! Running the test programs: which of them at once, with how many threads, and what is said of them.
//!
//! Most tests wait: for leases to end, for servers to restart, for networks to heal. So more of them run at once than there are
//! cores. All of a program's tests run also if some fail, and all programs run also if one has failed.

use std::collections::VecDeque;
use std::fmt;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;

use crate::programs::{Kind, Program};
use crate::servers::Servers;
use crate::step::{self, now};
use crate::timings::{Line, Outcome, Timings};

/// So many programs run at once: while one is down to its last and longest tests, another has begun.
const PROGRAMS: usize = 2;

/// So many tests of a program run at once.
const THREADS: usize = 5;

/// Those that take longest begin first.
const FIRST: [&str; 9] =
    ["zookeeper", "postgres", "mysql", "etcd", "redlock", "redis", "cli", "coordinators", "reference"];

/// Tests that run when all else is done, one after the other: those that type on terminals, whose programs must be on time, and those
/// beside which nothing else would be.
const ALONE: [(&str, &str); 2] = [("cli", "terminal::"), ("zookeeper", "a_thousand_clients")];

/// The package whose tests start and end servers, and so have servers of their own.
const TESTKIT: &str = "tenure-testkit";

/// The program of the test kit that keeps the servers of a run.
const KEEPER: &str = "tenure-test-servers";

/// With `--full`, ten times the command sequences and damaged snapshots that the lock table is tested with by default.
const LONGER: [(&str, &str); 2] = [("TENURE_TABLE_CASES", "100000"), ("TENURE_FUZZ_INPUTS", "200000")];

/// Which tests run, and what is measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// Those too that are not part of the default.
    pub(crate) full: bool,
    /// Measure how long each test takes.
    pub(crate) timings: bool,
}

/// What to run of a program.
struct Run<'a> {
    program: &'a Program,
    arguments: Vec<String>,
    threads: usize,
}

impl<'a> Run<'a> {
    fn new(program: &'a Program, arguments: &[&str], threads: usize) -> Self {
        Self { program, arguments: arguments.iter().map(ToString::to_string).collect(), threads }
    }
}

/// How many tests ended how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    passed: usize,
    failed: usize,
    skipped: usize,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// What came of all runs.
#[derive(Default)]
struct Report {
    counts: Counts,
    /// What failed, and how to run it alone.
    failed: Vec<String>,
    timings: Timings,
}

/// Runs all test programs. `state` is a folder for what they would otherwise leave in the home of whoever runs them.
pub(crate) fn run(programs: &[Program], options: Options, state: &Path) -> step::Outcome {
    let keeper = programs.iter().find(|program| program.name == KEEPER && program.kind == Kind::Command);
    let keeper = keeper.ok_or_else(|| format!("cargo has not built `{KEEPER}`"))?;
    let servers = Servers::start(&keeper.executable)?;
    let report = Mutex::new(Report::default());
    let (together, alone) = plan(programs);
    for (runs, at_once) in [(together, PROGRAMS), (alone, 1)] {
        let queue = Mutex::new(VecDeque::from(runs));
        thread::scope(|scope| {
            for _ in 0..at_once {
                scope.spawn(|| {
                    while let Some(run) = next(&queue) {
                        run_one(&run, options, &servers, state, &report);
                    }
                });
            }
        });
    }
    let report = report.into_inner().unwrap_or_else(PoisonError::into_inner);
    if options.timings {
        println!("{}", report.timings.tables());
    }
    println!("{}", report.counts);
    if report.failed.is_empty() {
        Ok(())
    } else {
        Err(format!("these failed:\n  {}", report.failed.join("\n  ")))
    }
}

fn next<'a>(queue: &Mutex<VecDeque<Run<'a>>>) -> Option<Run<'a>> {
    lock(queue).pop_front()
}

/// What runs beside other programs, and what runs afterwards.
fn plan(programs: &[Program]) -> (Vec<Run<'_>>, Vec<Run<'_>>) {
    let mut together = Vec::new();
    let mut alone = Vec::new();
    for program in programs.iter().filter(|program| matches!(program.kind, Kind::UnitTests | Kind::Tests)) {
        let apart = ALONE.iter().find(|(name, _)| *name == program.name && program.kind == Kind::Tests);
        if let Some((_, pattern)) = apart {
            together.push(Run::new(program, &["--skip", pattern], THREADS));
            alone.push(Run::new(program, &[pattern], 1));
        } else {
            together.push(Run::new(program, &[], THREADS));
        }
    }
    let rank = |run: &Run<'_>| {
        let is_it = |name: &&str| **name == run.program.name && run.program.kind == Kind::Tests;
        FIRST.iter().position(is_it).unwrap_or(FIRST.len())
    };
    together.sort_by_key(rank);
    (together, alone)
}

fn run_one(run: &Run<'_>, options: Options, servers: &Servers, state: &Path, report: &Mutex<Report>) {
    let program = run.program;
    let title = program.title();
    let mut command = Command::new(&program.executable);
    command.args(&run.arguments).arg(format!("--test-threads={}", run.threads));
    if options.full {
        command.arg("--include-ignored").envs(LONGER);
    }
    if options.timings {
        // The harness says how long a test took only to those who accept that this may change.
        command.args(["-Z", "unstable-options", "--report-time"]).env("RUSTC_BOOTSTRAP", "1");
    }
    if program.package != TESTKIT {
        servers.lend_to(&mut command);
    }
    command.current_dir(&program.folder).env("CARGO_MANIFEST_DIR", &program.folder);
    command.env("RUST_BACKTRACE", "1").env("XDG_STATE_HOME", state);
    command.stdin(Stdio::null()).stdout(Stdio::piped());
    println!("    {title}: {}", program.executable.display());
    let started = now();
    let mut seen = Seen::default();
    let ended = command.spawn().and_then(|mut child| {
        let output = BufReader::new(child.stdout.take().expect("its output is piped"));
        seen = follow(output, &title, report);
        child.wait()
    });
    seen.end = match ended {
        Ok(status) if status.success() || seen.counts.failed > 0 => None,
        Ok(status) => Some(format!("ended with {status}")),
        Err(error) => Some(format!("cannot be run: {error}")),
    };
    seen.counts.failed += usize::from(seen.end.is_some());
    let took = started.elapsed();
    println!("    {title}: {} in {:.1} s", seen.counts, took.as_secs_f64());
    let mut report = lock(report);
    report.timings.program(&title, took);
    report.counts.passed += seen.counts.passed;
    report.counts.failed += seen.counts.failed;
    report.counts.skipped += seen.counts.skipped;
    let by_hand = format!("cargo test --all-features {} --", program.selector());
    let failures = seen.failures.iter().map(|test| format!("{title} {test}\n    alone: {by_hand} {test}"));
    report.failed.extend(failures.chain(seen.end.map(|end| format!("{title} {end}"))));
}

/// What was seen of a program's tests.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    counts: Counts,
    /// The tests that failed.
    failures: Vec<String>,
    /// How the program ended, if no test that failed is the reason.
    end: Option<String>,
}

/// Shows what a program prints, with its title before each test. What it says of failures comes in one piece, whatever runs beside.
fn follow(output: impl BufRead, title: &str, report: &Mutex<Report>) -> Seen {
    let (mut seen, mut explained) = (Seen::default(), String::new());
    for line in output.split(b'\n').map_while(Result::ok) {
        let line = String::from_utf8_lossy(&line);
        let Some(test) = Line::parse(&line) else {
            if line == "failures:" || !explained.is_empty() {
                explained.push_str(&line);
                explained.push('\n');
            } else if !(line.is_empty() || line.starts_with("running ") || line.starts_with("test result: "))
            {
                println!("{title} {line}");
            }
            continue;
        };
        match test.outcome {
            Outcome::Ignored => {
                seen.counts.skipped += 1;
                continue;
            }
            Outcome::Passed => seen.counts.passed += 1,
            Outcome::Failed => {
                seen.counts.failed += 1;
                seen.failures.push(test.test.to_owned());
            }
        }
        println!("{title} {line}");
        if let Some(took) = test.took {
            lock(report).timings.test(title, test.test, took);
        }
    }
    print!("{explained}");
    seen
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(name: &str, kind: Kind) -> Program {
        Program {
            name: name.to_owned(),
            package: "tenure".to_owned(),
            kind,
            executable: "true".into(),
            folder: "/".into(),
        }
    }

    #[test]
    fn the_longest_begin_first_and_terminals_come_last() {
        let programs = [
            program("tenure", Kind::UnitTests),
            program("cli", Kind::Tests),
            program("plain_lock", Kind::Example),
            program("zookeeper", Kind::Tests),
            program("tenure", Kind::Command),
        ];
        let (together, alone) = plan(&programs);
        let named = |runs: &[Run<'_>]| -> Vec<String> {
            runs.iter().map(|run| format!("{} {}", run.program.title(), run.arguments.join(" "))).collect()
        };
        let zookeeper = "zookeeper --skip a_thousand_clients";
        assert_eq!(named(&together), [zookeeper, "cli --skip terminal::", "tenure (unit) "]);
        assert_eq!(named(&alone), ["cli terminal::", "zookeeper a_thousand_clients"]);
    }

    #[test]
    fn tests_that_failed_are_named_and_those_that_were_left_out_are_counted() {
        let output = "running 4 tests\ntest a ... ok <0.100s>\ntest b ... FAILED\ntest c ... ignored, x\n";
        let report = Mutex::new(Report::default());
        let seen = follow(output.as_bytes(), "redis", &report);
        assert_eq!(seen.failures, ["b"]);
        assert_eq!(seen.counts.to_string(), "1 passed, 1 failed, 1 skipped");
        assert!(report.into_inner().unwrap().timings.tables().contains("0.1  redis a"));
    }
}
