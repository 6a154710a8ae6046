//! The descendants of a process: how to find them, end them, and know that none is left.
//!
//! A process that ends a tree must be its *subreaper*. Then it inherits each orphan of the tree instead of init, and no process leaves the
//! tree by detaching. So "no child left" means that the whole tree has ended.

use std::collections::HashSet;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, WaitStatus};

/// A process. Its start time distinguishes it from a later one with the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: Pid,
    pub(super) parent: Option<Pid>,
    pub(super) started: u64,
    /// The process has ended but is not reaped yet, or its first thread has ended and others continue.
    pub(super) is_zombie: bool,
}

impl Process {
    /// Looks a process up.
    pub(super) fn find(pid: Pid) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name is in parentheses and may contain anything, even parentheses.
        let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
        let (state, parent) = (fields.next()?, fields.next()?.parse().ok()?);
        let started = fields.nth(17)?.parse().ok()?;
        Some(Self { pid, parent: Pid::from_raw(parent), started, is_zombie: state == "Z" })
    }

    /// Iterates over the parent of this process, the parent's parent and so on.
    pub(super) fn ancestors(self) -> impl Iterator<Item = Self> {
        std::iter::successors(Some(self), |process| Self::find(process.parent?)).skip(1)
    }

    fn signal(self, signal: Signal) {
        let Ok(pidfd) = rustix::process::pidfd_open(self.pid, PidfdFlags::empty()) else { return };
        // The number may have been reused before the descriptor was opened.
        if Self::find(self.pid).is_some_and(|now| now.started == self.started) {
            let _ = rustix::process::pidfd_send_signal(pidfd, signal);
        }
    }
}

/// Returns the descendants of a process.
pub(super) fn descendants(root: Pid) -> Vec<Process> {
    let mut found: Vec<Process> = children(root).collect();
    let mut next = 0;
    while let Some(process) = found.get(next) {
        let pid = process.pid;
        found.extend(children(pid));
        next += 1;
    }
    found
}

/// Iterates over the children of a process. The kernel keeps a list for each of its threads. A search through all processes would miss one
/// that forks and ends again and again.
fn children(pid: Pid) -> impl Iterator<Item = Process> {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let lists = threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
    let numbers: Vec<i32> = lists
        .flat_map(|list| list.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>())
        .collect();
    numbers.into_iter().filter_map(|number| Process::find(Pid::from_raw(number)?))
}

/// Sends a signal to all descendants of this process.
pub(super) fn signal_below(signal: Signal) {
    for process in descendants(rustix::process::getpid()) {
        process.signal(signal);
    }
}

/// Kills a group and all descendants of this process. They may start others meanwhile, so this repeats while there are new ones, up to a
/// limit. The caller must check again.
pub(super) fn kill_below(group: Option<Pid>) {
    const PASSES: usize = 1000;
    if let Some(group) = group {
        // The whole group is killed in one step, so that no member can start another in between.
        let _ = rustix::process::kill_process_group(group, Signal::KILL);
    }
    let mut killed = HashSet::new();
    for _ in 0..PASSES {
        let mut any_new = false;
        for process in descendants(rustix::process::getpid()) {
            process.signal(Signal::KILL);
            any_new |= killed.insert((process.pid, process.started));
        }
        if !any_new {
            break;
        }
    }
}

/// Whether this system offers what is needed to find processes.
pub(super) fn can_be_seen() -> bool {
    let me = rustix::process::getpid();
    Process::find(me).is_some() && std::path::Path::new(&format!("/proc/{me}/task/{me}/children")).exists()
}

/// The result of a check for ended or stopped children.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reaped {
    Child(Pid, WaitStatus),
    /// There are children, and none of them has changed.
    Nothing,
    /// There are no children. Because this process is a subreaper, it has no descendants either.
    AllGone,
}

/// Checks for a child that has ended or stopped. Never blocks.
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
