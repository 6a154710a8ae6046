//! Tables that can be pasted into `docs/performance/measurements.md`.

use std::time::Duration;

use crate::workload::{Measured, Round, Workload};

/// What the figures were taken on.
pub(crate) fn machine() {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown");
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    let kernel = read("/proc/sys/kernel/osrelease");
    let load = read("/proc/loadavg");
    println!(
        "{cores} cores ({}), Linux {}, load before the run {}\n",
        model.trim_start_matches([' ', '\t', ':']),
        kernel.trim(),
        load.split(' ').next().unwrap_or("unknown"),
    );
}

pub(crate) fn table(engine: &str, workload: Workload, all: &[Measured]) {
    let together = workload == Workload::Together;
    println!("### {engine}, {}\n", workload.title());
    if together {
        println!(
            "| | hand-offs/s (min–max) | pairs/s | p99 wait | most/least | hand-offs, ours to it (half of the rounds) |"
        );
    } else {
        println!("| | pairs/s (min–max) | p50 | p99 | pairs, ours to it (half of the rounds) |");
    }
    println!(
        "{}",
        if together { "| --- | --- | --- | --- | --- | --- |" } else { "| --- | --- | --- | --- | --- |" }
    );
    let rate = |round: &Round| if together { round.hand_offs_per_s } else { round.pairs_per_s };
    let ours = all.iter().find(|rounds| rounds.is_ours).map_or(&[][..], |ours| &ours.rounds);
    for Measured { contender, rounds, .. } in all {
        let rates = sorted(rounds, rate);
        let spread = format!("{:.0} ({:.0}–{:.0})", median(rounds, rate), rates[0], rates[rates.len() - 1]);
        let ratio = ratio(ours, rounds, rate);
        let p99 = median_time(rounds, |round| round.p99);
        if together {
            let (most, least) =
                rounds.iter().fold((0, 0), |(most, least), round| (most + round.most, least + round.least));
            let pairs = median(rounds, |round| round.pairs_per_s);
            println!("| {contender} | {spread} | {pairs:.0} | {p99:.1?} | {most}/{least} | {ratio} |");
        } else {
            let p50 = median_time(rounds, |round| round.p50);
            println!("| {contender} | {spread} | {p50:.1?} | {p99:.1?} | {ratio} |");
        }
    }
    println!();
}

/// Ours to another one, in rounds of the same time: the median, and between which two figures the middle half of the rounds lies. Of rounds
/// that lie apart, the medians may be those of different hours.
fn ratio(ours: &[Round], others: &[Round], rate: impl Fn(&Round) -> f64) -> String {
    let mut ratios: Vec<f64> =
        ours.iter().zip(others).map(|(our, other)| rate(our) / rate(other).max(f64::MIN_POSITIVE)).collect();
    ratios.sort_by(f64::total_cmp);
    let at = |part: usize| ratios.get(ratios.len() * part / 4).copied().unwrap_or_default();
    format!("{:.2} ({:.2}–{:.2})", at(2), at(1), at(3))
}

fn sorted(rounds: &[Round], of: impl Fn(&Round) -> f64) -> Vec<f64> {
    let mut values: Vec<f64> = rounds.iter().map(of).collect();
    values.sort_by(f64::total_cmp);
    values
}

fn median(rounds: &[Round], of: impl Fn(&Round) -> f64) -> f64 {
    sorted(rounds, of)[rounds.len() / 2]
}

fn median_time(rounds: &[Round], of: impl Fn(&Round) -> Duration) -> Duration {
    Duration::from_secs_f64(median(rounds, |round| of(round).as_secs_f64()))
}
