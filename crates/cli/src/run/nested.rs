//! A `tenure run` inside another: finds the locks that are held around it, and their owners.
//!
//! The environment lists them, but it may be inherited by processes that outlive the lock, such as a daemon. So each entry names the minder
//! of its run, and is valid only while that process is an ancestor of this one. Because a minder is a subreaper, it is an ancestor of
//! exactly the processes that were started below it and still are.

use std::hash::{DefaultHasher, Hash, Hasher};

use rustix::process::Pid;
use tenure::{LockName, OwnerId};

use super::tree::Process;

/// One line for each lock that is held around: `pid:started:place:owner:name`.
const VARIABLE: &str = "TENURE_HELD";

/// The locks that are held around this process.
#[derive(Debug, Default)]
pub(super) struct Around {
    held: Vec<Held>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Held {
    minder: Pid,
    started: u64,
    /// A hash of the engine's place, which other processes need not read.
    place: u64,
    owner: OwnerId,
    name: LockName,
}

impl Around {
    /// Reads the environment, and keeps the entries that are still valid.
    pub(super) fn look() -> Self {
        let Ok(text) = std::env::var(VARIABLE) else { return Self::default() };
        let Some(me) = Process::find(rustix::process::getpid()) else { return Self::default() };
        let ancestors: Vec<_> = me.ancestors().collect();
        let is_around = |held: &Held| {
            ancestors.iter().any(|process| process.pid == held.minder && process.started == held.started)
        };
        Self { held: text.lines().filter_map(Held::parse).filter(is_around).collect() }
    }

    /// Whether this run is inside another one, and stays in its process group.
    pub(super) fn is_nested(&self) -> bool {
        !self.held.is_empty()
    }

    /// Returns the owner that holds this lock around this run: such a lock is re-entered. Any other lock gets a new owner, because two runs
    /// inside one run must exclude each other.
    pub(super) fn owner_of(&self, place: &str, name: &LockName) -> Option<OwnerId> {
        let place = hash(place);
        self.held.iter().find(|held| held.place == place && held.name == *name).map(|held| held.owner)
    }

    /// Whether a signal from this process has also reached the command of this run. The outermost minder signals the whole process group.
    /// The other minders signal their own command, or, for a signal that asks to end, all their descendants.
    pub(super) fn reaches_all(&self, sender: u32, asks_to_end: bool) -> bool {
        let is_sender = |held: &Held| held.minder.as_raw_pid().cast_unsigned() == sender;
        self.held.first().is_some_and(is_sender) || (asks_to_end && self.held.iter().any(is_sender))
    }

    /// Returns the variable for the command of this run.
    pub(super) fn with(
        &self,
        minder: Pid,
        place: &str,
        owner: OwnerId,
        name: &LockName,
    ) -> (String, Option<String>) {
        let started = Process::find(minder).map_or(0, |process| process.started);
        let mine = Held { minder, started, place: hash(place), owner, name: name.clone() };
        let lines: Vec<_> = self.held.iter().chain([&mine]).map(Held::line).collect();
        (VARIABLE.to_owned(), Some(lines.join("\n")))
    }
}

impl Held {
    fn line(&self) -> String {
        let Self { minder, started, place, owner, name } = self;
        format!("{minder}:{started}:{place:016x}:{owner}:{name}")
    }

    fn parse(line: &str) -> Option<Self> {
        let mut fields = line.splitn(5, ':');
        Some(Self {
            minder: Pid::from_raw(fields.next()?.parse().ok()?)?,
            started: fields.next()?.parse().ok()?,
            place: u64::from_str_radix(fields.next()?, 16).ok()?,
            owner: fields.next()?.parse().ok()?,
            name: LockName::parse(fields.next()?).ok()?,
        })
    }
}

fn hash(place: &str) -> u64 {
    // The keys are fixed, so all processes of one version agree. For another version, the lock is an unknown one.
    let mut hasher = DefaultHasher::new();
    place.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_read_as_it_was_written() {
        let held = Held {
            minder: Pid::from_raw(42).unwrap(),
            started: 4711,
            place: hash("file:/locks"),
            owner: OwnerId::from_u128(42),
            name: LockName::parse("a:b/c d").unwrap(),
        };
        assert_eq!(Held::parse(&held.line()), Some(held));
        for wrong in ["", "42", "0:1:2:3:4", "x:1:2:3:name"] {
            assert_eq!(Held::parse(wrong), None, "{wrong}");
        }
    }
}
