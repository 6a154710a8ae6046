//! Each engine beside the bare recipe that it stands on, measured in one run.
//!
//! A figure means something only beside another one of the same run: rounds of the contenders are interleaved, and what
//! is printed is their medians, their spread, and the ratio of ours to the bare recipe.

mod engines;
mod report;
mod workload;

use std::time::Duration;

use anyhow::{Result, bail};

const HELP: &str = "\
Measures engines beside the bare recipes that they stand on.

Usage: cargo xtask bench [ENGINE…] [--rounds N] [--seconds S]

Engines: file (all of them if none is named)

Options:
  --rounds N     rounds of each contender, interleaved [default: 5]
  --seconds S    how long a round lasts [default: 3]

Examples:
  cargo xtask bench file
  cargo xtask bench file --rounds 3 --seconds 1
";

/// What is to be measured, and for how long.
struct Plan {
    engines: Vec<String>,
    rounds: usize,
    round: Duration,
}

fn plan() -> Result<Option<Plan>> {
    let mut plan = Plan { engines: Vec::new(), rounds: 5, round: Duration::from_secs(3) };
    let mut words = std::env::args().skip(1);
    let number = |option: &str, word: Option<String>| match word.as_deref().map(str::parse::<u32>) {
        Some(Ok(number @ 1..=3600)) => Ok(number),
        _ => bail!("{option} takes a whole number from 1 to 3600"),
    };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--help" | "-h" => return Ok(None),
            "--rounds" => plan.rounds = number("--rounds", words.next())? as usize,
            "--seconds" => plan.round = Duration::from_secs(number("--seconds", words.next())?.into()),
            engine if engines::NAMES.contains(&engine) => plan.engines.push(word),
            _ => bail!(
                "`{word}` is neither an engine ({}) nor an option: see --help",
                engines::NAMES.join(", ")
            ),
        }
    }
    if plan.engines.is_empty() {
        plan.engines = engines::NAMES.map(str::to_owned).to_vec();
    }
    Ok(Some(plan))
}

fn main() -> Result<()> {
    let Some(plan) = plan()? else {
        print!("{HELP}");
        return Ok(());
    };
    report::machine();
    for engine in &plan.engines {
        let contenders = engines::start(engine)?;
        for workload in workload::ALL {
            let rounds = workload::measure(workload, &contenders, plan.rounds, plan.round)?;
            report::table(engine, workload, &rounds);
        }
    }
    Ok(())
}
