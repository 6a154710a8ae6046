//! `cargo xtask test`: all that must hold before a change is merged, the cheap checks first.

use std::fmt::Write;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;
use std::{env, io, process};

use crate::packages;
use crate::peers;
use crate::step::{Outcome, Steps, cargo, root, run as run_program, run_within};
use crate::tools;

/// How long an example may take: each is something to read in a minute, and to watch in less.
const EXAMPLE_LIMIT: Duration = Duration::from_mins(2);

struct Step {
    name: &'static str,
    about: &'static str,
    run: fn() -> Outcome,
}

const STEPS: &[Step] = &[
    Step { name: "packages", about: "install the Debian packages that are missing", run: packages::ensure },
    Step {
        name: "peers",
        about: "install the locks of other languages that ours are tested beside",
        run: peers::ensure,
    },
    Step { name: "fmt", about: "the source is formatted", run: fmt },
    Step { name: "clippy", about: "no warnings, of the compiler or of clippy", run: clippy },
    Step { name: "doc", about: "the documentation builds without warnings", run: doc },
    Step { name: "deny", about: "licences, sources and bans of the dependencies", run: deny },
    Step { name: "test", about: "unit tests, doc tests, and tests against real servers", run: test },
    Step { name: "examples", about: "every example runs and succeeds", run: examples },
];

/// Runs all steps, or one; the first that fails is the last.
pub(crate) fn run(only: Option<&str>) -> Outcome {
    let mut steps = Steps::default();
    let chosen = STEPS.iter().filter(|step| only.is_none_or(|only| only == step.name));
    let mut outcome = Ok(());
    for step in chosen {
        let alone = format!("cargo xtask test --only {}", step.name);
        outcome = steps.run(step.name, &alone, step.run);
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
    for Step { name, about, .. } in STEPS {
        let _ = writeln!(steps, "  {name:<10} {about}");
    }
    format!(
        "\
All that must hold before a change is merged: what continuous integration runs.

Usage: cargo xtask test [--only STEP]

Options:
  --only STEP  run one step, and not those before it

Steps, in this order; the first failure ends the run:
{steps}
Examples:
  cargo xtask test
  cargo xtask test --only clippy
"
    )
}

fn fmt() -> Outcome {
    tools::ensure_components()?;
    run_program(&mut cargo(&["fmt", "--all", "--check"]))
}

fn clippy() -> Outcome {
    tools::ensure_components()?;
    let scope = ["clippy", "--workspace", "--all-targets", "--all-features", "--locked"];
    run_program(cargo(&scope).args(["--", "-D", "warnings"]))
}

fn doc() -> Outcome {
    let args = ["doc", "--workspace", "--no-deps", "--all-features", "--locked"];
    run_program(cargo(&args).env("RUSTDOCFLAGS", "-D warnings"))
}

fn deny() -> Outcome {
    tools::ensure_deny()?;
    // Not the advisories: they come from a network that is not there everywhere, and change overnight.
    run_program(&mut cargo(&["deny", "--locked", "check", "bans", "licenses", "sources"]))
}

fn test() -> Outcome {
    let args = ["test", "--workspace", "--all-features", "--locked"];
    // What the README shows locks in the user's state directory, which is not the tests' to touch.
    let state = StateFolder::new().map_err(|error| format!("cannot make a temporary folder: {error}"))?;
    run_program(cargo(&args).env("RUST_BACKTRACE", "1").env("XDG_STATE_HOME", &state.0))
}

fn examples() -> Outcome {
    let names = example_names().map_err(|error| format!("cannot list the examples: {error}"))?;
    if names.is_empty() {
        println!("    there are no examples");
        return Ok(());
    }
    // Built beforehand, so that the time limit is that of the examples alone.
    run_program(&mut cargo(&["build", "--locked", "-p", "tenure", "--all-features", "--examples"]))?;
    let state = StateFolder::new().map_err(|error| format!("cannot make a temporary folder: {error}"))?;
    for name in names {
        let args = ["run", "--locked", "--quiet", "-p", "tenure", "--all-features", "--example", &name];
        let mut command = cargo(&args);
        command.env("XDG_STATE_HOME", &state.0).stdin(Stdio::null());
        run_within(EXAMPLE_LIMIT, &mut command)?;
    }
    Ok(())
}

/// The names of `examples/*.rs`, in the order of the alphabet.
fn example_names() -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(root().join("examples"))? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "rs") {
            names.extend(path.file_stem().map(|stem| stem.to_string_lossy().into_owned()));
        }
    }
    names.sort();
    Ok(names)
}

/// Where the examples keep what they would otherwise leave in the home of whoever runs them.
struct StateFolder(PathBuf);

impl StateFolder {
    fn new() -> io::Result<Self> {
        let path = env::temp_dir().join(format!("tenure-examples-{}", process::id()));
        // It must be new: a folder that was there before may be somebody else's.
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self(path))
    }
}

impl Drop for StateFolder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
