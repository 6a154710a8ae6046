//! `cargo xtask bench`: each engine beside the bare recipe that it stands on, and the command beside flock(1), measured in one run.

use crate::packages;
use crate::step::{Outcome, Steps, cargo, run as run_program};

pub(crate) const HELP: &str = "\
Each engine beside the bare recipe that it stands on, measured in one run.

Usage: cargo xtask bench [ENGINE…] [WORKLOAD…] [command] [--rounds N] [--seconds S] [--recipe NAME] [--only NAME]

Installs the servers that are missing, builds with all optimizations, and measures the engines that are
named, and `tenure run` beside util-linux's flock if `command` is; or all of it. The figures are good for
ratios within a run, not for comparing machines.

Engines:
  file      flock(2), alone and with a synced token
  redis     SET NX PX, alone, with a token, and with all that ours sends, and the crate rslock, on one Redis
  redlock   Redlock by hand, and the crate rslock, on five
  mysql     the SQL of `table`, `row` and `named` by hand, on one MariaDB each
  postgres  the SQL of `table`, `row` and `advisory` by hand, on one PostgreSQL each
  zookeeper the nodes of `sequential` and `simple` by hand, and the client crate's own lock, on one and on three
  etcd      keys under a lease by hand, on one and on three

Workloads, all if none is named:
  W1        one client, uncontended
  W2        64 clients, each with its own lock
  W3        64 clients, one lock

Options:
  --rounds N     rounds of each contender, interleaved [default: 15]
  --seconds S    how long a round lasts, from 0.1 on [default: 1]
  --recipe NAME  only the recipes whose names contain this, of engines that have several
  --only NAME    only the contender of this name, or those whose names contain it, for a profiler

Examples:
  cargo xtask bench
  cargo xtask bench file
  cargo xtask bench redis redlock
  cargo xtask bench mysql postgres W1 W2 --seconds 0.5
  cargo xtask bench zookeeper etcd
  cargo xtask bench zookeeper W2 --recipe three
  cargo xtask bench command
  cargo xtask bench file --rounds 3
";

/// What the words mean is known to the benchmark program alone, and it complains for itself.
pub(crate) fn run(words: &[String]) -> Outcome {
    let mut steps = Steps::default();
    steps.run("packages", "cargo xtask test --only packages", packages::ensure)?;

    // The program under test lies beside the one that measures it.
    let build = ["build", "--release", "--locked", "-p", "tenure-cli"];
    steps.run("build", &format!("cargo {}", build.join(" ")), || run_program(&mut cargo(&build)))?;
    let mut args = vec!["run", "--release", "--locked", "-p", "tenure-bench", "--"];
    args.extend(words.iter().map(String::as_str));
    let alone = format!("cargo {}", args.join(" "));
    steps.run("bench", alone.trim_end_matches(" --"), || run_program(&mut cargo(&args)))
}
