//! A process and its children, for a server that forks: PostgreSQL has a process for each connection.
//!
//! Each child of PostgreSQL is in a session of its own, so no signal to a group reaches them: they are
//! looked up in `/proc`. The list is complete, and stays true, as long as their parent is halted: it starts
//! no other then, and does not wait for those that end, so that none of their ids goes to a stranger.

use std::fs;

use rustix::process::{Pid, Signal, kill_process};

use crate::wait::eventually;

/// The children of a process, those that have ended and were not waited for among them.
pub(crate) fn children_of(parent: u32) -> Vec<u32> {
    let processes = fs::read_dir("/proc").expect("Linux shows its processes in /proc").flatten();
    processes
        .filter_map(|process| process.file_name().to_str()?.parse().ok())
        .filter(|pid| stat(&format!("/proc/{pid}/stat")).is_some_and(|stat| stat.parent == parent))
        .collect()
}

/// Sends a signal to each.
pub(crate) fn signal_all(pids: &[u32], signal: Signal) {
    for pid in pids {
        let pid = i32::try_from(*pid).ok().and_then(Pid::from_raw);
        // One that has ended since is no error.
        let _ = kill_process(pid.expect("an id that /proc shows is a positive number"), signal);
    }
}

/// Waits until each has ended: it has no open file any more then, and no memory.
#[track_caller]
pub(crate) fn wait_until_ended(pids: &[u32]) {
    eventually("killed processes to end", || pids.iter().all(|pid| has_ended(*pid)));
}

/// Whether the process runs not one instruction more: it has ended, or each of its threads is halted.
pub(crate) fn is_halted(pid: u32) -> bool {
    if has_ended(pid) {
        return true;
    }
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return false;
    };
    threads.flatten().all(|thread| {
        stat(thread.path().join("stat").to_str().unwrap_or_default()).is_some_and(|stat| stat.state == 'T')
    })
}

fn has_ended(pid: u32) -> bool {
    stat(&format!("/proc/{pid}/stat")).is_none_or(|stat| matches!(stat.state, 'Z' | 'X'))
}

struct Stat {
    state: char,
    parent: u32,
}

/// What the kernel says of a process or a thread, if there is one.
fn stat(file: &str) -> Option<Stat> {
    let text = fs::read_to_string(file).ok()?;
    // The second field is the program's name in parentheses, which may hold anything, also spaces.
    let (_, rest) = text.rsplit_once(')')?;
    let mut fields = rest.split_whitespace();
    Some(Stat { state: fields.next()?.chars().next()?, parent: fields.next()?.parse().ok()? })
}
