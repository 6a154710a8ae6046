//! `cargo xtask bench`: each engine beside the bare recipe that it stands on, measured in one run.

use crate::packages;
use crate::step::{Outcome, Steps, cargo, run as run_program};

pub(crate) const HELP: &str = "\
Each engine beside the bare recipe that it stands on, measured in one run.

Usage: cargo xtask bench [ENGINE…]

Installs the servers that are missing, builds with all optimizations, and measures the engines that are
named, or all of them. The figures are good for ratios within a run, not for comparing machines.

Examples:
  cargo xtask bench
  cargo xtask bench redis
";

pub(crate) fn run(engines: &[String]) -> Outcome {
    let mut steps = Steps::default();
    steps.run("packages", "cargo xtask test --only packages", packages::ensure)?;

    let mut args = vec!["run", "--release", "--locked", "-p", "tenure-bench", "--"];
    args.extend(engines.iter().map(String::as_str));
    let alone = format!("cargo {}", args.join(" "));
    steps.run("bench", alone.trim_end_matches(" --"), || run_program(&mut cargo(&args)))
}
