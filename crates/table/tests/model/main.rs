//! The real table, held against a naive one: random commands, the same effects, the same state after every step, the same again from
//! a snapshot and in another process.
//!
//! `TENURE_TABLE_CASES` says how many sequences are tried, and `PROPTEST_RNG_SEED` makes them the same ones again.

mod chains;
mod invariants;
mod model;
mod pair;
mod strategy;

use std::cell::{Cell, RefCell};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command as Process;

use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};
use tenure_table::{Command, Effect, Limits, Refusal, Request, Table};

use crate::model::Model;
use crate::pair::{Look, Pair};
use crate::strategy::{Act, Step, World, fixed_steps, lines, shortened, steps};

fn cases(by_default: u32) -> u32 {
    std::env::var("TENURE_TABLE_CASES").map_or(by_default, |cases| cases.parse().expect("a number of cases"))
}

/// Runs both over the steps. The error names the act that they differ in.
fn run(mut world: World, steps: &[Step], look: Look) -> Result<Pair, String> {
    let acts = world.acts(steps);
    let mut pair = Pair::new(Model::new(Limits::default()), world.names(), 0, look);
    run_acts(&mut pair, &acts)?;
    Ok(pair)
}

fn run_acts(pair: &mut Pair, acts: &[Act]) -> Result<(), String> {
    for (done, act) in acts.iter().enumerate() {
        let stepped = catch_unwind(AssertUnwindSafe(|| pair.step(act)));
        let stepped = stepped.unwrap_or_else(|_| Err("it panicked".to_owned()));
        stepped.map_err(|why| format!("after\n{}{}", lines(&acts[..=done]), shortened(&why)))?;
    }
    Ok(())
}

/// Tries many sequences, and shows the shortest that fails.
fn try_many(cases: u32, at_most: usize, test: impl Fn(&[Step]) -> Result<(), String>) {
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 50_000, ..Config::default() };
    let mut runner = TestRunner::new(config);
    match runner.run(&steps(at_most), |steps| test(&steps).map_err(TestCaseError::fail)) {
        Err(TestError::Fail(_, steps)) => panic!("{}", test(&fewer(steps, &test)).unwrap_err()),
        Err(TestError::Abort(why)) => panic!("given up: {why}"),
        Ok(()) => {}
    }
}

/// Leaves out what a failure does not need. `proptest` does so only once, before it makes the steps simpler.
fn fewer(mut steps: Vec<Step>, test: impl Fn(&[Step]) -> Result<(), String>) -> Vec<Step> {
    loop {
        let count = steps.len();
        for i in (0..count).rev() {
            let left_out = steps.remove(i);
            if test(&steps).is_ok() {
                steps.insert(i, left_out);
            }
        }
        if steps.len() == count {
            return steps;
        }
    }
}

#[test]
fn the_table_does_what_the_model_does() {
    try_many(cases(10_000), 60, |steps| run(World::small(), steps, Look::Everything).map(|_| ()));
}

#[test]
fn owners_that_wait_for_one_another_do_so_too() {
    try_many(cases(10_000).div_ceil(4), 60, |steps| {
        run(World::tangled(), steps, Look::Everything).map(|_| ())
    });
}

/// Many sessions and names, so that the table's maps grow, and searches have a long way to go.
#[test]
fn a_larger_table_does_so_too() {
    for seed in 0..u64::from(cases(10_000) / 2_000).max(1) {
        let mut world = World::new(12, 16, 10);
        let acts = world.acts(&fixed_steps(seed, 600));
        let mut pair = Pair::new(Model::new(Limits::default()), world.names(), seed, Look::Everything);
        if let Err(why) = run_acts(&mut pair, &acts) {
            panic!("with seed {seed}, {why}");
        }
    }
}

/// What is in the hash is the state, and not how it came to be.
#[test]
fn equal_states_have_equal_hashes() {
    let (hashes, met_again) = (RefCell::new(HashMap::new()), Cell::new(0));
    // Short ones, so that many end in the same state.
    let cases = cases(10_000).div_ceil(2);
    try_many(cases, 6, |steps| {
        let pair = run(World::small(), steps, Look::Effects)?;
        let (state, hash) = (format!("{:?}", pair.model), pair.table.state_hash());
        match hashes.borrow_mut().entry(state) {
            Entry::Occupied(before) if *before.get() != hash => {
                let (before, acts) = (before.get(), lines(&World::small().acts(steps)));
                return Err(format!("the hash was {before} another time, and is {hash} after\n{acts}"));
            }
            Entry::Occupied(_) => met_again.set(met_again.get() + 1),
            Entry::Vacant(new) => drop(new.insert(hash)),
        }
        Ok(())
    });
    assert!(cases < 1_000 || met_again.get() > 100, "too few states were met again: {}", met_again.get());
}

/// A long sequence, and what came of it in a few words: each effect is in the digest.
fn digest(seed: u64) -> String {
    let mut world = World::new(40, 60, 50);
    let mut table = Table::new(Limits::default(), seed);
    let mut digest = DefaultHasher::new();
    let mut effects = Vec::new();
    for act in world.acts(&fixed_steps(1, 20_000)) {
        // A table that is read from a snapshot has a seed that was drawn elsewhere.
        let Act::Apply(command) = act else { continue };
        table.apply(command, &mut effects);
        format!("{effects:?}").hash(&mut digest);
        effects.clear();
    }
    format!("effects {:016x}, state {}", digest.finish(), table.state_hash())
}

/// Hash maps of another seed in another process are in another order, and nobody can tell.
#[test]
fn another_process_with_another_seed_does_the_same() {
    const SEED: &str = "TENURE_TABLE_SEED";
    if let Ok(seed) = std::env::var(SEED) {
        println!("<{}>", digest(seed.parse().unwrap()));
        return;
    }
    let here = digest(1);
    for seed in ["2", "18446744073709551615"] {
        let mut child = Process::new(std::env::current_exe().unwrap());
        child
            .args(["another_process_with_another_seed_does_the_same", "--exact", "--nocapture"])
            .env(SEED, seed);
        let output = child.output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
        assert!(said.contains(&format!("<{here}>")), "with seed {seed} it is {said} and here it is {here}");
    }
}

/// A comparison is worth what the commands reach. Each kind of effect, answer and refusal must come many times in few sequences.
#[test]
fn the_commands_reach_everything() {
    let mut reached = BTreeMap::<String, u32>::new();
    for seed in 0..1_000 {
        let mut model = Model::new(Limits::default());
        let mut world = if seed % 2 == 0 { World::small() } else { World::tangled() };
        for act in world.acts(&fixed_steps(seed, 60)) {
            let Act::Apply(command) = act else { continue };
            let effects = model.apply(&command);
            // Requests that did not just queue.
            let victims = effects.iter().skip(1).filter(|effect| kind(effect).contains("Deadlock")).count();
            if victims > 0 {
                let converts = matches!(command, Command::Request { request: Request::Convert { .. }, .. });
                let by = if converts { "a conversion" } else { "another's end" };
                *reached.entry(format!("{} by {by}", victims.min(2))).or_default() += 1;
            }
            for effect in effects {
                *reached.entry(kind(&effect)).or_default() += 1;
            }
        }
    }
    println!("{reached:#?}");
    let everything = [
        "1 by a conversion",
        "2 by a conversion",
        "1 by another's end",
        "SessionOpen",
        "SessionRefused TooManySessions",
        "SessionRefused LabelTooLong",
        "SessionUnknown",
        "SessionEnded Closed",
        "SessionEnded Expired",
        "Lost",
        "LetGo",
        "Wanted",
        "Delay",
        "Changed",
        "RulesUnknown",
        "Queued",
        "Granted",
        "GrantedAll",
        "Released",
        "Cancelled",
        "Written",
        "Remembered",
        "AlreadyStarted",
        "Broken",
        "Observed",
        "Unobserved",
        "Err(NoSession",
        "Err(Forgotten",
        "Err(TooManyAnswers",
        "Err(Busy",
        "Err(Deadlock of 2",
        "Err(Deadlock of 3",
        "Err(Cancelled",
        "Err(NotCovered",
        "Err(AlreadyHeld",
        "Err(NotHeld",
        "Err(NotQueued",
        "Err(GrantTaken",
        "Err(Converting",
        "Err(MayNotWrite",
        "Err(ValueOnTheWayUp",
        "Err(NoNames",
        "Err(NamedTwice",
        "Err(TooManyItems",
        "Err(TooManyLocks",
        "Err(TooManyNames",
        "Err(TooManyWaiters",
        "Err(TooManyObserved",
        "Err(TooManyObservers",
        "Err(NameTooLong",
        "Err(LabelTooLong",
        "Err(ValueTooLong",
    ];
    for kind in everything {
        let times = reached.get(kind).copied().unwrap_or(0);
        assert!(times >= 5, "{kind} was reached {times} times");
    }
}

/// An effect's kind, as the first words of its text.
fn kind(effect: &Effect) -> String {
    let first =
        |text: String| text.split([' ', '{']).next().unwrap_or_default().trim_end_matches(')').to_owned();
    match effect {
        Effect::Answer { outcome: Err(Refusal::Deadlock { cycle }), .. } => {
            format!("Err(Deadlock of {}", cycle.len())
        }
        Effect::Answer { outcome: Ok(answer), .. } => first(format!("{answer:?}").replace('(', " ")),
        Effect::Answer { outcome, .. } => first(format!("{outcome:?}")),
        Effect::SessionRefused { why, .. } => format!("SessionRefused {}", first(format!("{why:?}"))),
        Effect::SessionEnded { end, .. } => format!("SessionEnded {end:?}"),
        other => first(format!("{other:?}")),
    }
}
