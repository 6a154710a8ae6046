//! Each engine beside the bare recipe that it stands on, measured in one run.
//!
//! A figure means something only beside another one of the same run: rounds of the contenders are interleaved, and what
//! is printed is their medians, their spread, and the ratio of ours to the bare recipe.

mod command;
mod engines;
mod report;
mod workload;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use tokio::runtime::Builder;

/// `EX_USAGE` of sysexits.h: the command line was not understood.
const EXIT_USAGE: u8 = 64;

/// What is to be measured, and for how long.
struct Plan {
    engines: Vec<String>,
    /// Whether `tenure run` is to be measured.
    command: bool,
    rounds: usize,
    round: Duration,
}

fn plan() -> Result<Plan> {
    let mut plan = Plan { engines: Vec::new(), command: false, rounds: 5, round: Duration::from_secs(3) };
    let mut words = std::env::args().skip(1);
    let number = |option: &str, word: Option<String>| match word.as_deref().map(str::parse::<u32>) {
        Some(Ok(number @ 1..=3600)) => Ok(number),
        _ => bail!("{option} takes a whole number from 1 to 3600"),
    };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--rounds" => plan.rounds = number("--rounds", words.next())? as usize,
            "--seconds" => plan.round = Duration::from_secs(number("--seconds", words.next())?.into()),
            "command" => plan.command = true,
            engine if engines::NAMES.contains(&engine) => plan.engines.push(word),
            _ => bail!(
                "`{word}` is neither an engine ({}), nor `command`, nor an option: see `cargo xtask bench --help`",
                engines::NAMES.join(", ")
            ),
        }
    }
    if plan.engines.is_empty() && !plan.command {
        plan.command = true;
        plan.engines = engines::NAMES.map(str::to_owned).to_vec();
    }
    Ok(plan)
}

fn main() -> ExitCode {
    let (measured, failure) = match plan() {
        Ok(plan) => (measure(&plan), ExitCode::FAILURE),
        Err(error) => (Err(error), ExitCode::from(EXIT_USAGE)),
    };
    match measured {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            failure
        }
    }
}

fn measure(plan: &Plan) -> Result<()> {
    report::machine();
    // One for the whole run: a connection is driven by the runtime that it was opened on.
    let runtime = Builder::new_current_thread().enable_all().build()?;
    for engine in &plan.engines {
        for recipe in engines::recipes(engine) {
            let lineup = runtime.block_on(engines::start(engine, recipe))?;
            let title = if recipe.is_empty() { engine.clone() } else { format!("{engine}, {recipe}") };
            for workload in workload::ALL {
                let rounds =
                    workload::measure(&runtime, workload, &lineup.contenders, plan.rounds, plan.round)?;
                report::table(&title, workload, &rounds);
            }
        }
    }
    if plan.command {
        command::measure(plan.rounds)?;
    }
    Ok(())
}
