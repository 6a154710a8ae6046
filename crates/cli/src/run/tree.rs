//! The processes below one: how to find them, end them, and know that none is left.
//!
//! Whoever ends a tree must be its *subreaper*: then an orphan in it becomes its child instead of init's, nobody leaves the tree by
//! detaching, and "no child left" means that the whole tree is gone.

use std::collections::HashMap;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, WaitStatus};

/// A process, told from a later one with the same number by when it was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: Pid,
    pub(super) parent: Option<Pid>,
    pub(super) started: u64,
    /// It has ended, and only not been waited for; or its first thread has, and others go on.
    pub(super) is_zombie: bool,
}

impl Process {
    /// Looks a process up.
    pub(super) fn find(pid: Pid) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name stands in parentheses and may have anything in it, parentheses too.
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
        let (state, parent) = (fields.next()?, fields.next()?.parse().ok()?);
        let started = fields.nth(17)?.parse().ok()?;
        Some(Self { pid, parent: Pid::from_raw(parent), started, is_zombie: state == "Z" })
    }

    /// The processes that are this one's parent, its parent's parent and so on.
    pub(super) fn ancestors(self) -> impl Iterator<Item = Self> {
        std::iter::successors(Some(self), |process| Self::find(process.parent?)).skip(1)
    }

    fn signal(self, signal: Signal) {
        let Ok(pidfd) = rustix::process::pidfd_open(self.pid, PidfdFlags::empty()) else { return };
        // The number may have become somebody else's before it was opened.
        if Self::find(self.pid).is_some_and(|now| now.started == self.started) {
            let _ = rustix::process::pidfd_send_signal(pidfd, signal);
        }
    }
}

/// The processes below this one.
pub(super) fn descendants(root: Pid) -> Vec<Process> {
    let numbers = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let mut children: HashMap<Pid, Vec<Process>> = HashMap::new();
    for number in numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok()) {
        if let Some(process) = Pid::from_raw(number).and_then(Process::find)
            && let Some(parent) = process.parent
        {
            children.entry(parent).or_default().push(process);
        }
    }
    let mut found = children.remove(&root).unwrap_or_default();
    let mut next = 0;
    while let Some(process) = found.get(next) {
        found.extend(children.remove(&process.pid).unwrap_or_default());
        next += 1;
    }
    found
}

/// Sends a signal to a process group and to everything else below this process.
pub(super) fn signal_all(group: Option<Pid>, signal: Signal) {
    if let Some(group) = group {
        // At once: nobody in it can start another one in between.
        let _ = rustix::process::kill_process_group(group, signal);
    }
    for process in descendants(rustix::process::getpid()) {
        process.signal(signal);
    }
}

/// What a look for ended or stopped children found.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reaped {
    Child(Pid, WaitStatus),
    /// There are children, and nothing is new of them.
    Nothing,
    /// There are none: as this process is a subreaper, nothing is left below it.
    AllGone,
}

/// Looks for a child that has ended or stopped. Never blocks.
pub(super) fn reap() -> Reaped {
    match rustix::process::wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
        Ok(Some((pid, status))) => Reaped::Child(pid, status),
        Ok(None) | Err(Errno::INTR) => Reaped::Nothing,
        Err(_) => Reaped::AllGone,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_and_those_above_and_below_it_are_found() {
        let me = Process::find(rustix::process::getpid()).unwrap();
        assert_eq!(me.parent, rustix::process::getppid());
        assert_eq!(me.ancestors().next().map(|parent| Some(parent.pid)), Some(me.parent));
        let mut child =
            std::process::Command::new("cat").stdin(std::process::Stdio::piped()).spawn().unwrap();
        let below = descendants(me.pid);
        assert!(below.iter().any(|process| process.pid == Pid::from_child(&child)), "{below:?}");
        drop(child.stdin.take());
        child.wait().unwrap();
        assert_eq!(Process::find(Pid::from_child(&child)), None);
    }
}
