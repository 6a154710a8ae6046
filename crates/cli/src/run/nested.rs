//! A `tenure run` inside of another: which locks are held around it, and by whom.
//!
//! The environment says so, and the environment is inherited further than a lock is held: by a daemon that was started under it, for
//! instance. So each entry names the minder that holds, and counts only while that very process is an ancestor of ours. As a
//! minder is a subreaper, it is one for exactly those who were started below it and still are.

use std::hash::{DefaultHasher, Hash, Hasher};

use rustix::process::Pid;
use tenure::{LockName, OwnerId};

use super::tree::Process;

/// A line for each lock that is held around: `pid:started:place:owner:name`.
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
    /// Where the locks are, as a hash: there is no need for others to read it.
    place: u64,
    owner: OwnerId,
    name: LockName,
}

impl Around {
    /// What the environment says, as far as it is still true.
    pub(super) fn look() -> Self {
        let Ok(text) = std::env::var(VARIABLE) else { return Self::default() };
        let Some(me) = Process::find(rustix::process::getpid()) else { return Self::default() };
        let ancestors: Vec<_> = me.ancestors().collect();
        let is_around = |held: &Held| {
            ancestors.iter().any(|process| process.pid == held.minder && process.started == held.started)
        };
        Self { held: text.lines().filter_map(Held::parse).filter(is_around).collect() }
    }

    /// Whether there is a run around this one, in whose process group it stays.
    pub(super) fn is_nested(&self) -> bool {
        !self.held.is_empty()
    }

    /// The owner that holds this very lock around us. What it holds is entered again; any other lock is got as somebody of our
    /// own, since two that run side by side inside of one run must exclude each other.
    pub(super) fn owner_of(&self, place: &str, name: &LockName) -> Option<OwnerId> {
        let place = hash(place);
        self.held.iter().find(|held| held.place == place && held.name == *name).map(|held| held.owner)
    }

    /// Whether what this process sends has reached the command below us too. The outermost minder sends to the whole process group;
    /// the others to their own command, and what asks to end to everything below.
    pub(super) fn reaches_all(&self, sender: u32, asks_to_end: bool) -> bool {
        let is_sender = |held: &Held| held.minder.as_raw_pid().cast_unsigned() == sender;
        self.held.first().is_some_and(is_sender) || (asks_to_end && self.held.iter().any(is_sender))
    }

    /// The variable for the command of a run inside of all these.
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
    // Its keys are fixed, so all processes of one version agree; those of another see a lock that they do not know.
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
