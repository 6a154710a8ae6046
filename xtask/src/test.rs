//! `cargo xtask test`: all that must hold before a change is merged, the cheap checks first.

use std::fmt::Write;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{env, io, process};

use crate::step::{Outcome, Steps, cargo, run as run_program, run_within};
use crate::suites::Options;
use crate::{dependencies, links, packages, peers, programs, suites, tools};

/// How long an example may take: each is something to read in a minute, and to watch in less.
const EXAMPLE_LIMIT: Duration = Duration::from_mins(2);

struct Step {
    name: &'static str,
    about: &'static str,
    run: fn(Options) -> Outcome,
    /// Only with `--full`.
    full: bool,
}

const fn step(name: &'static str, about: &'static str, run: fn(Options) -> Outcome) -> Step {
    Step { name, about, run, full: false }
}

impl Step {
    const fn only_with_full(self) -> Self {
        Self { full: true, ..self }
    }
}

const STEPS: &[Step] = &[
    step("packages", "install the Debian packages that are missing", |_| packages::ensure()),
    step("peers", "install the locks of other languages that ours are tested beside", |_| peers::ensure()),
    step("fmt", "the source is formatted", fmt),
    step("links", "links in the documentation lead somewhere", |_| links::check()),
    step("dependencies", "licences, sources and bans of the dependencies", |_| dependencies::check()),
    step("deny", "the same, by cargo-deny", deny).only_with_full(),
    step("features", "each engine builds alone, and without any", features).only_with_full(),
    step("clippy", "no warnings, of the compiler or of clippy", clippy),
    step("doc", "the documentation builds without warnings", doc),
    step("build", "the test programs and the examples are built", build),
    step("test", "unit tests, and tests against real servers", test),
    step("doctest", "the programs in the documentation work", doctest),
    step("examples", "every example runs and succeeds", examples),
];

/// Runs all steps, or one; the first that fails is the last.
pub(crate) fn run(only: Option<&str>, options: Options) -> Outcome {
    let mut steps = Steps::default();
    let chosen = STEPS.iter().filter(|step| match only {
        Some(only) => only == step.name,
        None => options.full || !step.full,
    });
    let mut outcome = Ok(());
    for step in chosen {
        let alone = format!("cargo xtask test --only {}", step.name);
        outcome = steps.run(step.name, &alone, || (step.run)(options));
        if outcome.is_err() {
            break;
        }
    }
    print!("==> summary\n{}", steps.table());
    outcome
}

pub(crate) fn is_step(name: &str) -> bool {
    STEPS.iter().any(|step| step.name == name)
}

/// The names of the steps, in their order, for messages.
pub(crate) fn step_names() -> String {
    STEPS.iter().map(|step| step.name).collect::<Vec<_>>().join(", ")
}

pub(crate) fn help() -> String {
    let mut steps = String::new();
    for Step { name, about, full, .. } in STEPS {
        let _ = writeln!(steps, "  {name:<13} {about}{}", if *full { " (with --full)" } else { "" });
    }
    format!(
        "\
All that must hold before a change is merged: what continuous integration runs.

Usage: cargo xtask test [--only STEP] [--full] [--timings]

Options:
  --only STEP  run one step, and not those before it
  --full       run every case on every engine, longer model tests, each engine built alone, and cargo-deny
  --timings    print how long each program, each suite and the slowest tests took

Steps, in this order; the first failure ends the run:
{steps}
One test program, or one suite of it, is run by cargo:
  cargo test --workspace --all-features --test redis -- fair::

Examples:
  cargo xtask test
  cargo xtask test --only clippy
  cargo xtask test --only test --timings
  cargo xtask test --full
"
    )
}

fn fmt(_: Options) -> Outcome {
    tools::ensure_components()?;
    run_program(&mut cargo(&["fmt", "--all", "--check"]))
}

fn clippy(_: Options) -> Outcome {
    tools::ensure_components()?;
    run_program(cargo(&["clippy", "--all-targets"]).args(programs::ALL).args(["--", "-D", "warnings"]))
}

fn doc(_: Options) -> Outcome {
    run_program(cargo(&["doc", "--no-deps"]).args(programs::ALL).env("RUSTDOCFLAGS", "-D warnings"))
}

/// The features of the library that bring an engine, and those that a program has by default.
const FEATURES: &[&str] =
    &["", "file", "memory", "redis", "postgres", "mysql", "zookeeper", "etcd", "http", "file,memory"];

fn features(_: Options) -> Outcome {
    for features in FEATURES {
        let alone = ["clippy", "--package", "tenure", "--no-default-features", "--features", features];
        run_program(cargo(&alone).args(["--", "-D", "warnings"]))?;
    }
    Ok(())
}

fn deny(_: Options) -> Outcome {
    tools::ensure_deny()?;
    // Not the advisories: they come from a network that is not there everywhere, and change overnight.
    run_program(&mut cargo(&["deny", "--locked", "check", "bans", "licenses", "sources"]))
}

fn build(_: Options) -> Outcome {
    programs::build().map(|_| ())
}

fn test(options: Options) -> Outcome {
    // What the command keeps in the user's state directory is not the tests' to touch.
    let state = StateFolder::new()?;
    suites::run(&programs::build()?, options, &state.0)
}

fn doctest(_: Options) -> Outcome {
    let state = StateFolder::new()?;
    run_program(cargo(&["test", "--doc"]).args(programs::ALL).env("XDG_STATE_HOME", &state.0))
}

fn examples(_: Options) -> Outcome {
    let state = StateFolder::new()?;
    let programs = programs::build()?;
    for example in programs.iter().filter(|program| program.kind == programs::Kind::Example) {
        let mut command = Command::new(&example.executable);
        command
            .current_dir(&example.folder)
            .env("XDG_STATE_HOME", &state.0)
            .env_remove("TENURE_URL")
            .stdin(Stdio::null());
        run_within(EXAMPLE_LIMIT, &mut command)?;
    }
    Ok(())
}

/// Where tests and examples keep what they would otherwise leave in the home of whoever runs them.
struct StateFolder(PathBuf);

impl StateFolder {
    fn new() -> Result<Self, String> {
        let path = env::temp_dir().join(format!("tenure-state-{}", process::id()));
        // It must be new: a folder that was there before may be somebody else's.
        let made: io::Result<()> = DirBuilder::new().mode(0o700).create(&path);
        made.map_err(|error| format!("cannot make a temporary folder: {error}"))?;
        Ok(Self(path))
    }
}

impl Drop for StateFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
