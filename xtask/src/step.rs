//! Running steps one after the other, and the programs within a step.
//!
//! What a program prints goes straight through, unchanged and at once, since people and continuous
//! integration read it. A failure says which step it was, and how to run that step alone.

use std::env;
use std::fmt::Write;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

/// What went wrong, in a sentence for the person at the terminal.
pub(crate) type Outcome = Result<(), String>;

/// How often a program that may not take too long is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The steps that were run so far.
#[derive(Default)]
pub(crate) struct Steps {
    done: Vec<Done>,
}

struct Done {
    name: String,
    took: Duration,
    failed: bool,
}

impl Steps {
    /// Runs a step; `alone` is the command that runs just this one.
    pub(crate) fn run(&mut self, name: &str, alone: &str, work: impl FnOnce() -> Outcome) -> Outcome {
        println!("==> {name}");
        let started = now();
        let outcome = work();
        self.done.push(Done { name: name.to_owned(), took: started.elapsed(), failed: outcome.is_err() });
        outcome.map_err(|reason| format!("step `{name}` failed: {reason}\nto run it alone: {alone}"))
    }

    /// The steps with their durations, for the end.
    pub(crate) fn table(&self) -> String {
        let mut table = String::new();
        let mut line = |name: &str, took: Duration, note: &str| {
            let _ = writeln!(table, "    {name:<13} {:>7.1} s{note}", took.as_secs_f64());
        };
        for Done { name, took, failed } in &self.done {
            line(name, *took, if *failed { "  FAILED" } else { "" });
        }
        line("total", self.done.iter().map(|done| done.took).sum(), "");
        table
    }
}

/// `cargo`, the one that runs us, in the root of the repository, as if it was started from a shell.
pub(crate) fn cargo(args: &[&str]) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(args).current_dir(root());
    // What cargo says of this package to this program. Some build scripts look at it, and would run again, with all that depends on
    // them, whenever `cargo xtask` follows a plain `cargo`.
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(|name| OF_THIS_PACKAGE.iter().any(|prefix| name.starts_with(prefix))) {
            command.env_remove(name);
        }
    }
    command
}

const OF_THIS_PACKAGE: [&str; 2] = ["CARGO_PKG_", "CARGO_MANIFEST_"];

/// The root of the repository.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("this package lies in a folder of the repository")
}

/// Runs a program to its end, and fails if it does.
pub(crate) fn run(command: &mut Command) -> Outcome {
    let shown = shown(command);
    println!("    {shown}");
    let status = command.status().map_err(|error| format!("cannot run `{shown}`: {error}"))?;
    judge(&shown, status)
}

/// The same, but a program that takes longer than `limit` is killed, and has failed.
pub(crate) fn run_within(limit: Duration, command: &mut Command) -> Outcome {
    let shown = shown(command);
    println!("    {shown}");
    let mut child = command.spawn().map_err(|error| format!("cannot run `{shown}`: {error}"))?;
    let started = now();
    loop {
        if let Some(status) = child.try_wait().map_err(|error| format!("lost `{shown}`: {error}"))? {
            return judge(&shown, status);
        }
        if started.elapsed() > limit {
            // `cargo run` has become the program by now, so this reaches the program itself.
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("`{shown}` was killed, since it took longer than {} s", limit.as_secs()));
        }
        thread::sleep(LOOK_EVERY);
    }
}

/// Whether a program runs and succeeds; it prints nothing.
pub(crate) fn succeeds(command: &mut Command) -> bool {
    command.output().is_ok_and(|output| output.status.success())
}

pub(crate) fn judge(shown: &str, status: ExitStatus) -> Outcome {
    if status.success() { Ok(()) } else { Err(format!("`{shown}` ended with {status}")) }
}

/// The command as one would type it, with the variables that were set for it.
pub(crate) fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let variables = command.get_envs().filter_map(|(name, value)| {
        let (name, value) = (name.to_string_lossy(), value?.to_string_lossy());
        Some(if value.contains(' ') { format!("{name}=\"{value}\"") } else { format!("{name}={value}") })
    });
    let program = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned();
    let args = command.get_args().map(|arg| arg.to_string_lossy().into_owned());
    variables.chain([program]).chain(args).collect::<Vec<_>>().join(" ")
}

#[expect(clippy::disallowed_methods, reason = "it measures how long a person has waited, no lease")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_step_says_which_it_was_and_how_to_run_it_alone() {
        let mut steps = Steps::default();
        steps.run("good", "try good", || Ok(())).unwrap();
        let failure = steps.run("bad", "try bad", || run(&mut Command::new("false"))).unwrap_err();
        assert_eq!(failure, "step `bad` failed: `false` ended with exit status: 1\nto run it alone: try bad");
        let table = steps.table();
        assert!(table.contains("good") && table.contains("bad") && table.contains("FAILED"), "{table}");
    }

    #[test]
    fn cargo_is_not_told_of_the_package_that_runs_it() {
        assert!(
            env::var_os("CARGO_MANIFEST_DIR").is_some(),
            "whoever runs tests says where their package is"
        );
        let command = cargo(&["--version"]);
        assert!(command.get_envs().any(|(name, value)| name == "CARGO_MANIFEST_DIR" && value.is_none()));
    }

    #[test]
    fn a_program_that_takes_too_long_is_killed() {
        let failure = run_within(Duration::from_millis(1), Command::new("sleep").arg("600")).unwrap_err();
        assert!(failure.starts_with("`sleep 600` was killed"), "{failure}");
        assert_eq!(run_within(Duration::from_mins(1), &mut Command::new("true")), Ok(()));
    }

    #[test]
    fn a_command_is_shown_as_one_would_type_it() {
        let mut command = Command::new("/usr/bin/cargo");
        command.args(["doc", "--locked"]).env("RUSTDOCFLAGS", "-D warnings").env("B", "1");
        assert_eq!(shown(&command), "B=1 RUSTDOCFLAGS=\"-D warnings\" cargo doc --locked");
    }
}
