//! The minder: the second process of `tenure run`, and the parent of the command.
//!
//! It is forked before any thread is started. It has one task: **the command and all its descendants have ended before the lock can be
//! granted again.** It ends them in three cases: when the front reports that the lock is lost, when the last deadline from the front comes
//! near (even if the front is stopped or hangs), and when the front has ended for any reason. It keeps descriptors that hold the lock, so
//! that the kernel does not free the lock before the minder itself ends.
//!
//! If the minder is killed, the kernel kills the command by its parent-death signal, which a setuid program does not have. The front kills
//! the command's descendants.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use fork::Fork;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, Signal, WaitStatus};
use tenure::clock::BootTime;

use super::order::{self, Channel, End, Limits, Order, Patience, Report, Start, Why};
use super::signals::{self, FirstMask, Signals};
use super::terminal::Terminal;
use super::tree::{self, Reaped};
use crate::exit;
use crate::say::say;

/// The minder's data from before the fork.
pub(super) struct Setup {
    pub(super) command: Vec<OsString>,
    /// Whether the command leads a new process group. Not inside another run.
    pub(super) own_group: bool,
    pub(super) first_mask: FirstMask,
    pub(super) terminal: Option<Terminal>,
}

struct Minder {
    setup: Setup,
    front: Channel,
    signals: Signals,
    command: Option<Minded>,
    limits: Option<Limits>,
    grace: Duration,
    why: Why,
    /// Whether the command was asked to end. Then its remaining descendants are ended too.
    asked_to_end: bool,
    /// Whether more ended children may exist, for which no further SIGCHLD will arrive.
    more_to_reap: bool,
}

/// The command.
struct Minded {
    pid: Pid,
    /// The command's own process group, if it has one, as long as its number cannot have been reused.
    group: Option<Pid>,
    ended: Option<WaitStatus>,
    /// When the remaining descendants are killed.
    left_until: Option<BootTime>,
    /// When surviving processes are killed again.
    kill_again: Option<BootTime>,
}

/// Runs the minder, and returns its exit code.
pub(super) fn mind(socket: UnixStream, setup: Setup) -> u8 {
    // Distinguishes the two processes in `ps`.
    let _ = rustix::thread::set_name(c"tenure-minder");
    if setup.own_group {
        // The minder must not get signals to the front's group, such as a shell's `kill -9 %1`.
        let _ = rustix::process::setpgid(None, None);
    }
    let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
    let signals = match signals::for_minder() {
        Ok(signals) => signals,
        Err(failure) => {
            say(&failure.message);
            return failure.code;
        }
    };
    let minder = Minder {
        setup,
        front: Channel::new(socket),
        signals,
        command: None,
        limits: None,
        grace: Duration::ZERO,
        why: Why::ByItself,
        asked_to_end: false,
        more_to_reap: false,
    };
    minder.run()
}

impl Minder {
    fn run(mut self) -> u8 {
        loop {
            let heard = self.wait();
            while self.signals.next().is_some() {}
            if heard {
                let Ok(orders) = self.front.receive::<Order>() else {
                    // The front has ended. The descriptors that hold the lock remain open here until the last process has ended.
                    if let Some(minded) = &self.command {
                        end_tree(minded.group);
                    }
                    return exit::OK;
                };
                for order in orders {
                    self.obey(order);
                }
            }
            self.keep_the_time();
            if let Some(end) = self.look_at_children() {
                return self.hand_over(end);
            }
        }
    }

    /// Reports the end, and waits until the front has released the lock.
    fn hand_over(mut self, end: End) -> u8 {
        let mut hears = order::send(&self.front.socket, &Report::Ended(end), &[], Patience::Wait).is_ok();
        while hears {
            hears = self.front.receive::<Order>().is_ok();
        }
        // If the front has released, this does nothing. If it died before, processes that the command left running have inherited the
        // lock's descriptors, and would keep the lock.
        self.front.unlock_kept();
        exit::OK
    }

    /// Waits for the next event. Returns whether the front has sent something or ended.
    fn wait(&self) -> bool {
        let mut polled = [
            PollFd::new(&self.front.socket, PollFlags::IN),
            PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN),
        ];
        // Timers do not count the time of a suspend, so every wait is short while a time is due.
        let pause = self.next_due().map(|due| due.since(BootTime::now()).min(Duration::from_secs(1)));
        let pause = pause.map(|pause| Timespec {
            tv_sec: pause.as_secs().cast_signed(),
            tv_nsec: i64::from(pause.subsec_nanos()),
        });
        let _ = rustix::event::poll(&mut polled, pause.as_ref());
        !polled[0].revents().is_empty()
    }

    fn next_due(&self) -> Option<BootTime> {
        let minded = self.command.as_ref()?;
        if self.more_to_reap {
            return Some(BootTime::now());
        }
        if minded.kill_again.is_some() {
            return minded.kill_again;
        }
        let term_at = self.limits.filter(|_| self.why == Why::ByItself).map(Limits::term_at);
        let kill_at = self.limits.map(Limits::kill_at);
        [minded.left_until, term_at, kill_at].into_iter().flatten().min()
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Start(start) => self.start(&start),
            Order::Until(limits) => self.limits = limits,
            Order::Signal(number) => {
                if let Some(signal) = Signal::from_named_raw(number) {
                    self.asked_to_end |= asks_to_end(number);
                    self.signal(signal);
                }
            }
            Order::Continue { terminal } => {
                // A command is not continued after its deadline.
                self.keep_the_time();
                if let (true, Some(minded), Some(tty)) = (terminal, &self.command, &self.setup.terminal) {
                    tty.give(minded.pid);
                }
                self.signal(Signal::CONT);
            }
            Order::Kill => {
                self.why = Why::Lost;
                self.kill();
            }
        }
    }

    fn start(&mut self, start: &Start) {
        (self.limits, self.grace) = (start.limits, start.grace);
        let minder = rustix::process::getpid();
        let report = match fork::fork() {
            Ok(Fork::Child) => {
                let code = self.become_the_command(minder, start);
                std::process::exit(code.into());
            }
            Ok(Fork::Parent(pid)) => {
                let pid = Pid::from_raw(pid).expect("the number of a process is not zero");
                if self.setup.own_group {
                    // Done here and in the child, because either may be the first to depend on it.
                    let _ = rustix::process::setpgid(Some(pid), Some(pid));
                }
                let group = self.setup.own_group.then_some(pid);
                self.command = Some(Minded { pid, group, ended: None, left_until: None, kill_again: None });
                Report::Started { pid: pid.as_raw_pid() }
            }
            Err(error) => Report::NotStarted { message: format!("cannot start a process: {error}") },
        };
        self.report(&report);
    }

    /// Sends a report to the front without waiting: a stopped front must not block the minder.
    fn report(&self, report: &Report) {
        let _ = order::send(&self.front.socket, report, &[], Patience::None);
    }

    /// In the child: executes the command, or returns the exit code of the failure.
    fn become_the_command(&self, minder: Pid, start: &Start) -> u8 {
        let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
        if rustix::process::getppid() != Some(minder) {
            // The minder died before the death signal was set.
            return exit::of_signal(Signal::KILL.as_raw());
        }
        if self.setup.own_group {
            let _ = rustix::process::setpgid(None, None);
            if let (true, Some(terminal)) = (start.terminal, &self.setup.terminal) {
                terminal.give(rustix::process::getpid());
            }
        }
        let Some((program, arguments)) = self.setup.command.split_first() else { return exit::USAGE };
        let mut command = Command::new(program);
        command.args(arguments);
        for (variable, value) in &start.environment {
            match value {
                Some(value) => command.env(variable, value),
                None => command.env_remove(variable),
            };
        }
        self.setup.first_mask.restore();
        let error = command.exec();
        say(format!("cannot run `{}`: {error}", program.to_string_lossy()));
        if error.kind() == std::io::ErrorKind::NotFound { exit::NOT_FOUND } else { exit::NOT_EXECUTABLE }
    }

    /// Sends the command a signal: to its whole group if it has its own. Otherwise, a signal that asks to end goes to all descendants, and
    /// any other to the command only.
    fn signal(&self, signal: Signal) {
        let Some(Minded { pid, group, ended, .. }) = self.command else { return };
        if let Some(group) = group {
            let _ = rustix::process::kill_process_group(group, signal);
        } else if ended.is_some() || asks_to_end(signal.as_raw()) {
            tree::signal_below(signal);
        } else {
            let _ = rustix::process::kill_process(pid, signal);
        }
    }

    /// Kills all processes, and repeats that until none is left.
    fn kill(&mut self) {
        if let Some(minded) = &mut self.command {
            tree::kill_below(minded.group);
            minded.kill_again = Some(BootTime::now() + KILL_AGAIN);
        }
    }

    /// Does what is due now.
    fn keep_the_time(&mut self) {
        let Some(minded) = &self.command else { return };
        let now = BootTime::now();
        let is_over = |at: Option<BootTime>| at.is_some_and(|at| now >= at);
        let kill_due = match minded.kill_again {
            None => is_over(self.limits.map(Limits::kill_at)) || is_over(minded.left_until),
            again => is_over(again),
        };
        if self.why == Why::ByItself && is_over(self.limits.map(Limits::term_at)) {
            self.why = Why::Deadline;
            self.asked_to_end = true;
            self.signal(Signal::TERM);
            // A stopped command could not handle the signal.
            self.signal(Signal::CONT);
        }
        if kill_due {
            self.kill();
        }
    }

    /// Reaps ended children. Returns the end of the command once everything has ended.
    fn look_at_children(&mut self) -> Option<End> {
        let mut found = Reaped::Nothing;
        // Limited, because a deadline may have to be kept.
        for _ in 0..REAPED_AT_ONCE {
            found = tree::reap();
            let Reaped::Child(pid, status) = found else { break };
            self.note(pid, status);
        }
        self.more_to_reap = matches!(found, Reaped::Child(..));
        let all_gone = matches!(found, Reaped::AllGone);
        let minded = self.command.as_mut()?;
        let status = minded.ended?;
        let must_end_all = self.asked_to_end || self.why != Why::ByItself || was_interrupted(status);
        if all_gone || !must_end_all {
            let left = if all_gone { Vec::new() } else { left_running() };
            return Some(End::new(status, self.why, self.asked_to_end, left));
        }
        // The descendants are asked to end too, and are killed after the grace.
        if minded.left_until.is_none() {
            minded.left_until = Some(BootTime::now() + self.grace);
            tree::signal_below(Signal::TERM);
            tree::signal_below(Signal::CONT);
        }
        None
    }

    fn note(&mut self, pid: Pid, status: WaitStatus) {
        let Some(minded) = self.command.as_mut().filter(|minded| minded.pid == pid) else { return };
        match status.stopping_signal() {
            Some(signal) if status.stopped() => {
                self.report(&Report::Stopped { signal });
            }
            _ => {
                minded.ended = Some(status);
                // The command has been reaped. The other members of its group are descendants of the minder.
                minded.group = None;
            }
        }
    }
}

/// The number of children that are reaped before the time is checked again.
const REAPED_AT_ONCE: usize = 64;

/// The pause between two attempts to kill surviving processes.
const KILL_AGAIN: Duration = Duration::from_millis(20);

/// Kills a group and all descendants of this process, and returns when none is left. The caller must be a subreaper.
pub(super) fn end_tree(group: Option<Pid>) {
    // Only once: after its leader has been reaped, the group's number may be reused.
    tree::kill_below(group);
    loop {
        for _ in 0..REAPED_AT_ONCE {
            match tree::reap() {
                Reaped::Child(..) => {}
                Reaped::Nothing => {
                    std::thread::sleep(Duration::from_millis(1));
                    break;
                }
                Reaped::AllGone => return,
            }
        }
        tree::kill_below(None);
    }
}

/// Returns the processes that the command left running.
fn left_running() -> Vec<i32> {
    let below = tree::descendants(rustix::process::getpid());
    below.iter().filter(|process| !process.is_zombie).map(|process| process.pid.as_raw_pid()).collect()
}

/// Whether a signal asks its receiver to end.
pub(super) fn asks_to_end(signal: i32) -> bool {
    [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM].map(Signal::as_raw).contains(&signal)
}

/// Whether a signal ended the command, or, by the exit code of a shell, its child. Then all other descendants are ended too.
fn was_interrupted(status: WaitStatus) -> bool {
    let code = status.exit_status().unwrap_or(0);
    status.signaled() || (code > 128 && asks_to_end(code - 128))
}

impl End {
    fn new(status: WaitStatus, why: Why, asked: bool, left: Vec<i32>) -> Self {
        let signal = status.terminating_signal();
        let code = signal.map_or_else(
            || u8::try_from(status.exit_status().unwrap_or(0)).unwrap_or(u8::MAX),
            exit::of_signal,
        );
        Self { code, signal, why, asked, left }
    }
}
