//! `tenure run x -- true` beside util-linux's `flock x true`, measured by hyperfine.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

/// So many runs of each in a round.
const RUNS: &str = "200";

struct Measured {
    median_ms: Vec<f64>,
    min_ms: f64,
}

/// Rounds of both, one after the other.
pub(crate) fn measure(rounds: usize) -> Result<()> {
    let own = std::env::current_exe()?;
    let tenure = own.with_file_name("tenure");
    ensure!(tenure.exists(), "{} is not built: use `cargo xtask bench command`", tenure.display());
    let folder = tempfile::tempdir()?;
    let place = folder.path().display();
    let commands = [
        format!("flock {place}/lock true"),
        format!("{} run --url file:{place}/locks x -- true", tenure.display()),
    ];
    let mut measured = commands.clone().map(|_| Measured { median_ms: Vec::new(), min_ms: f64::MAX });
    for _ in 0..rounds {
        for (command, measured) in commands.iter().zip(&mut measured) {
            let result = hyperfine(command, folder.path())?;
            measured.median_ms.push(milliseconds(&result, "median")?);
            measured.min_ms = measured.min_ms.min(milliseconds(&result, "min")?);
        }
    }
    println!("### the command: {rounds} rounds of {RUNS} runs each\n");
    println!("| | median (lowest–highest round) | fastest run | tenure to it |\n| --- | --- | --- | --- |");
    let medians = measured.map(|mut measured| {
        measured.median_ms.sort_by(f64::total_cmp);
        measured
    });
    let middle = |measured: &Measured| measured.median_ms[measured.median_ms.len() / 2];
    let ours = middle(&medians[1]);
    for (name, measured) in
        ["`flock x true` (util-linux)", "`tenure run x -- true`, `file:`"].into_iter().zip(&medians)
    {
        let (low, high) = (measured.median_ms[0], measured.median_ms[measured.median_ms.len() - 1]);
        let (median, fastest) = (middle(measured), measured.min_ms);
        println!("| {name} | {median:.1} ms ({low:.1}–{high:.1}) | {fastest:.1} ms | {:.2} |", ours / median);
    }
    println!();
    Ok(())
}

fn hyperfine(command: &str, folder: &Path) -> Result<Value> {
    let json = folder.join("result.json");
    let output = Command::new("hyperfine")
        .args(["--shell=none", "--warmup", "20", "--runs", RUNS, "--style", "none", "--export-json"])
        .args([json.as_os_str(), command.as_ref()])
        .output()
        .context("hyperfine is missing: `apt-get install hyperfine`")?;
    if !output.status.success() {
        bail!("{command}: {}", String::from_utf8_lossy(&output.stderr));
    }
    let all: Value = serde_json::from_slice(&std::fs::read(json)?)?;
    Ok(all["results"][0].clone())
}

fn milliseconds(result: &Value, field: &str) -> Result<f64> {
    Ok(result[field].as_f64().with_context(|| format!("hyperfine does not say its {field}"))? * 1000.0)
}
