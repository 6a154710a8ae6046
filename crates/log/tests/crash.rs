//! A log after a crash at every step, with every way in which a disk may keep or lose what was not synced.

use bytes::Bytes;
use tenure_log::simulated::{Fate, SimulatedDisk};
use tenure_log::{Batch, Identity, Log, LogError, Options, SECTOR};

const OURS: Identity = Identity([7; 32]);

/// Segments of eight sectors: a log of a few entries has several.
const OPTIONS: Options = Options { segment_bytes: 8 * SECTOR as u64, memory_bytes: 1000 };

/// What a log is to contain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Model {
    /// The index of the first entry that was not purged; the log may still have earlier ones.
    first: u64,
    /// All entries ever, by index - 1; purged ones too.
    entries: Vec<Bytes>,
    hard_state: Bytes,
    /// After a reset: entries before this are in no log.
    reset_to: u64,
}

#[derive(Clone, Debug)]
enum Step {
    Append(Vec<usize>),
    Truncate(u64, Vec<usize>),
    HardState(u8),
    Purge(u64),
    Reset(u64),
    Reopen,
    Prepare,
}

fn script() -> Vec<Step> {
    use Step::{Append, HardState, Prepare, Purge, Reopen, Reset, Truncate};
    vec![
        Append(vec![10]),
        HardState(1),
        Append(vec![700, 0, 1200]),
        Prepare,
        Append(vec![1, 2, 3]),
        Truncate(4, vec![900, 40]),
        Reopen,
        Append(vec![2000]),
        Purge(3),
        HardState(2),
        Append(vec![496, 497, 5]),
        Prepare,
        Append(vec![1500]),
        Purge(8),
        Reopen,
        Truncate(9, vec![30]),
        Reset(40),
        Append(vec![100, 600]),
        Append(vec![1500]),
        Append(vec![20]),
    ]
}

fn bytes(index: u64, length: usize, salt: u8) -> Bytes {
    // Zeros too: the payload of a sector may be all zeros.
    let value = |at: usize| u8::try_from((index + at as u64) % 251).unwrap() ^ salt;
    (0..length).map(|at| if length > 1000 { 0 } else { value(at) }).collect()
}

fn open(disk: &SimulatedDisk) -> Result<Log<SimulatedDisk>, LogError> {
    Log::open(disk.clone(), OURS, OPTIONS)
}

impl Model {
    fn next(&self) -> u64 {
        self.reset_to.max(1) + self.entries.len() as u64
    }

    fn base(&self) -> u64 {
        self.reset_to.max(1)
    }

    fn at(&self, index: u64) -> usize {
        usize::try_from(index - self.base()).unwrap()
    }

    /// Does a step to the log, and if that succeeds to this.
    fn step(
        &mut self,
        log: &mut Log<SimulatedDisk>,
        disk: &SimulatedDisk,
        step: &Step,
    ) -> Result<(), LogError> {
        match step {
            Step::Append(lengths) | Step::Truncate(_, lengths) => {
                let from = if let Step::Truncate(from, _) = step { *from } else { self.next() };
                let salt = if matches!(step, Step::Truncate(..)) { 0x55 } else { 0 };
                let new: Vec<_> =
                    (from..).zip(lengths).map(|(index, length)| bytes(index, *length, salt)).collect();
                let mut batch = Batch::new().entries(new.clone());
                if let Step::Truncate(from, _) = step {
                    batch = batch.truncate_from(*from);
                }
                log.write(batch)?;
                self.entries.truncate(self.at(from));
                self.entries.extend(new);
            }
            Step::HardState(value) => {
                let value = Bytes::from(vec![*value; 20]);
                log.write(Batch::new().hard_state(value.clone()))?;
                self.hard_state = value;
            }
            Step::Purge(index) => {
                log.purge_before(*index)?;
                self.first = *index;
            }
            Step::Reset(next) => {
                log.reset(*next)?;
                self.entries.clear();
                (self.reset_to, self.first) = (*next, *next);
            }
            Step::Reopen => *log = open(disk)?,
            Step::Prepare => log.preparer().prepare()?,
        }
        Ok(())
    }

    /// Whether the log has what this has, and nothing else.
    fn agrees_with(&self, log: &Log<SimulatedDisk>) -> bool {
        let first = log.first();
        if log.next() != self.next() || first > self.first.max(self.base()) || first < self.base() {
            return false;
        }
        if *log.hard_state() != self.hard_state {
            return false;
        }
        let found = log.read(first, log.next(), usize::MAX).expect("it can be read");
        found == self.entries[self.at(first)..]
    }
}

/// Runs the script until it ends or the machine crashes: what was acknowledged, and what might be there beside it.
fn run(disk: &SimulatedDisk) -> (Model, Option<Model>) {
    let mut model = Model { first: 1, ..Model::default() };
    let Ok(mut log) = open(disk) else { return (model, None) };
    for step in script() {
        let before = model.clone();
        if model.step(&mut log, disk, &step).is_err() {
            // What it would have been, had it succeeded.
            let other = SimulatedDisk::new();
            let mut replayed = Model { first: 1, ..Model::default() };
            let mut replay = open(&other).unwrap();
            for again in script() {
                if replayed == before && format!("{again:?}") == format!("{step:?}") {
                    replayed.step(&mut replay, &other, &again).unwrap();
                    return (before, Some(replayed));
                }
                replayed.step(&mut replay, &other, &again).unwrap();
            }
            unreachable!("the step is in the script");
        }
        assert!(model.agrees_with(&log), "after {step:?}: {model:?}");
    }
    (model, None)
}

/// After a crash, all that was acknowledged is there, and of the batch under way all or nothing; and the log goes on.
fn recovers(disk: &SimulatedDisk, acknowledged: &Model, possible: Option<&Model>, what: &str) {
    let log = open(disk).unwrap_or_else(|error| panic!("{what}: {error}"));
    let model = [Some(acknowledged), possible].into_iter().flatten().find(|model| model.agrees_with(&log));
    let Some(model) = model else {
        let entries = log.read(log.first(), log.next(), usize::MAX).unwrap();
        panic!("{what}: {acknowledged:?} or {possible:?}, and not {}: {entries:?}", log.first());
    };
    let (mut model, mut log) = (model.clone(), log);
    for step in [Step::Append(vec![600, 3]), Step::HardState(9), Step::Reopen] {
        model.step(&mut log, disk, &step).unwrap_or_else(|error| panic!("{what}: {step:?}: {error}"));
        assert!(model.agrees_with(&log), "{what}: {step:?}");
    }
}

/// Ways in which what was not synced is kept and lost: all of them where few things are at stake, else those that matter and some by chance.
fn fates(at_stake: usize) -> Vec<u64> {
    if at_stake <= 7 {
        return (0..1 << at_stake).collect();
    }
    let single = (0..at_stake.min(60)).flat_map(|one| [1 << one, !(1 << one)]);
    let random = (1..24_u64).map(|seed| seed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(31));
    [0, u64::MAX].into_iter().chain(single).chain(random).collect()
}

fn crash(disk: &SimulatedDisk, fates: u64) {
    let mut at = 0;
    disk.crash(|| {
        at += 1;
        if fates >> ((at - 1) % 64) & 1 == 1 { Fate::Kept } else { Fate::Lost }
    });
}

#[test]
fn nothing_that_was_acknowledged_is_lost_at_any_step() {
    let whole = SimulatedDisk::new();
    run(&whole);
    let mut crashes = 0;
    for step in 0..whole.steps() {
        let disk = SimulatedDisk::new();
        disk.crash_at(step);
        run(&disk);
        for fate in fates(disk.at_stake()) {
            let disk = SimulatedDisk::new();
            disk.crash_at(step);
            let (acknowledged, possible) = run(&disk);
            crash(&disk, fate);
            recovers(&disk, &acknowledged, possible.as_ref(), &format!("crash at {step}, fate {fate:#x}"));
            crashes += 1;
        }
    }
    assert!(crashes > 200, "{crashes}");
}

/// The machine crashes again while the log recovers.
#[test]
fn a_crash_in_recovery_loses_nothing() {
    let whole = SimulatedDisk::new();
    run(&whole);
    let mut crashes = 0;
    for step in 0..whole.steps() {
        for fate in [0, u64::MAX, 0x5555_5555_5555_5555, 0xaaaa_aaaa_aaaa_aaaa] {
            for second in 0.. {
                let disk = SimulatedDisk::new();
                disk.crash_at(step);
                let (acknowledged, possible) = run(&disk);
                crash(&disk, fate);
                disk.crash_at(disk.steps() + second);
                let recovered = open(&disk).is_ok();
                crash(&disk, !fate);
                let what = format!("crash at {step} and {second} steps later, fate {fate:#x}");
                recovers(&disk, &acknowledged, possible.as_ref(), &what);
                crashes += 1;
                if recovered {
                    break;
                }
            }
        }
    }
    assert!(crashes > 300, "{crashes}");
}

#[test]
fn a_failed_sync_ends_the_log_and_recovery_decides() {
    for syncs in 0..20 {
        let disk = SimulatedDisk::new();
        disk.fail_sync_after(syncs);
        let mut model = Model { first: 1, ..Model::default() };
        let Ok(mut log) = open(&disk) else { continue };
        let mut failed = None;
        for step in script().into_iter().filter(|step| !matches!(step, Step::Reopen)) {
            if let Err(error) = model.step(&mut log, &disk, &step) {
                failed = Some((step, error));
                break;
            }
        }
        let Some((step, error)) = failed else { continue };
        assert!(matches!(error, LogError::Disk { .. }), "{step:?}: {error}");
        let again = log.write(Batch::new().entry(&b"more"[..]));
        assert!(matches!(again, Err(LogError::Failed(_))), "{again:?}");
        crash(&disk, 0);
        // The one that failed may be there or not.
        let log = open(&disk).unwrap();
        assert!(log.next() >= model.next().min(log.first()), "{step:?}");
        let entries = log.read(log.first(), log.next().min(model.next()), usize::MAX).unwrap();
        assert!(model.reset_to > 1 || entries == model.entries[model.at(log.first())..][..entries.len()]);
    }
}

#[test]
fn a_full_disk_is_an_error_and_no_end() {
    let disk = SimulatedDisk::new();
    let mut log = open(&disk).unwrap();
    disk.set_free_bytes(Some(OPTIONS.segment_bytes));
    let mut written = 0;
    let error = loop {
        match log.write(Batch::new().entry(vec![1; 1000])) {
            Ok(()) => written += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, LogError::Full { .. }), "{error}");
    assert!(matches!(log.write(Batch::new().entry(vec![1; 1000])), Err(LogError::Full { .. })));
    assert_eq!(log.next(), written + 1);
    disk.set_free_bytes(None);
    log.write(Batch::new().entry(vec![2; 1000])).unwrap();
    drop(log);
    let log = open(&disk).unwrap();
    assert_eq!(log.next(), written + 2);
    assert_eq!(log.read(written + 1, written + 2, 0).unwrap(), [vec![2; 1000]]);
}
