//! Each engine beside the bare recipe that it stands on, measured in one run.
//!
//! A figure means something only beside another one of the same time: rounds of the contenders are short and interleaved, and what
//! is printed is their medians, their spread, and the ratio of ours to the bare recipe round by round.

mod command;
mod engines;
mod report;
mod workload;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};
use tokio::runtime::Builder;

use crate::workload::Workload;

/// `EX_USAGE` of sysexits.h: the command line was not understood.
const EXIT_USAGE: u8 = 64;

/// What is to be measured, and for how long.
struct Plan {
    engines: Vec<String>,
    workloads: Vec<Workload>,
    /// Whether `tenure run` is to be measured.
    command: bool,
    rounds: usize,
    round: Duration,
    /// Of the contenders, those whose names contain this.
    only: String,
    /// Of the recipes, those whose names contain this.
    recipe: String,
}

fn plan() -> Result<Plan> {
    let mut plan = Plan {
        engines: Vec::new(),
        workloads: Vec::new(),
        command: false,
        rounds: 15,
        round: Duration::from_secs(1),
        only: String::new(),
        recipe: String::new(),
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--rounds" => match words.next().map(|word| word.parse()) {
                Some(Ok(rounds @ 1..=3600)) => plan.rounds = rounds,
                _ => bail!("--rounds takes a whole number from 1 to 3600"),
            },
            "--seconds" => match words.next().map(|word| word.parse()) {
                Some(Ok(seconds)) if (0.1..=3600.0).contains(&seconds) => {
                    plan.round = Duration::from_secs_f64(seconds);
                }
                _ => bail!("--seconds takes a number from 0.1 to 3600"),
            },
            "--only" => match words.next() {
                Some(part) => plan.only = part,
                None => bail!("--only takes a part of a contender's name"),
            },
            "--recipe" => match words.next() {
                Some(part) => plan.recipe = part,
                None => bail!("--recipe takes a part of a recipe's name"),
            },
            "command" => plan.command = true,
            engine if engines::NAMES.contains(&engine) => plan.engines.push(word),
            other => match workload::ALL.into_iter().find(|workload| workload.name() == other) {
                Some(workload) => plan.workloads.push(workload),
                None => bail!(
                    "`{word}` is neither an engine ({}), nor a workload (W1, W2, W3), nor `command`, nor an option: see `cargo xtask bench --help`",
                    engines::NAMES.join(", ")
                ),
            },
        }
    }
    if plan.engines.is_empty() && !plan.command {
        plan.command = true;
        plan.engines = engines::NAMES.map(str::to_owned).to_vec();
    }
    if plan.workloads.is_empty() {
        plan.workloads = workload::ALL.to_vec();
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
        for recipe in engines::recipes(engine).iter().filter(|recipe| recipe.contains(&plan.recipe)) {
            let mut lineup = runtime.block_on(engines::start(engine, recipe))?;
            // One whose name is just that, or all whose names contain it.
            let is_named = lineup.contenders.iter().any(|contender| contender.name() == plan.only);
            lineup.contenders.retain(|contender| {
                contender.name() == plan.only || (!is_named && contender.name().contains(&plan.only))
            });
            let title = if recipe.is_empty() { engine.clone() } else { format!("{engine}, {recipe}") };
            for &workload in &plan.workloads {
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
