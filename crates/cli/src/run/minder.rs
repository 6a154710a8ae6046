//! The minder: the second process of `tenure run`, the parent of the command.
//!
//! It is forked before there are threads and lives for one thing: **the command and all below it are gone before anybody else can get the
//! lock.** It ends them when the front says that the lock is lost, when the deadline that the front last gave it comes
//! near (also if the front is stopped, or hangs), and when the front is gone, however it went. It keeps descriptors that keep the
//! lock, so that the kernel does not free it before the minder itself ends.
//!
//! Should the minder be killed, the kernel kills the command (its parent-death signal, which a setuid program does not have), and the
//! front what is below it.

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

/// What the minder knows from before the fork.
pub(super) struct Setup {
    pub(super) command: Vec<OsString>,
    /// Whether the command leads a process group of its own: not inside of another run.
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
    /// Whether somebody asked the command to end: then what it leaves behind is ended too.
    asked_to_end: bool,
    /// Whether there may be more children to wait for, of which nothing more will be heard.
    more_to_reap: bool,
}

/// The command that is minded.
struct Minded {
    pid: Pid,
    /// Its group, if that is its own, for as long as its number is surely not somebody else's.
    group: Option<Pid>,
    ended: Option<WaitStatus>,
    /// When what it left is killed.
    left_until: Option<BootTime>,
    /// When what was killed is killed again, should it not be gone.
    kill_again: Option<BootTime>,
}

/// Does all of it, and returns the minder's exit code.
pub(super) fn mind(socket: UnixStream, setup: Setup) -> u8 {
    // So that `ps` tells them apart.
    let _ = rustix::thread::set_name(c"tenure-minder");
    if setup.own_group {
        // What is sent to the front's group, such as a shell's `kill -9 %1`, is not for the minder.
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
                    // The front is gone. Whatever keeps the lock is open here until the last of them is.
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

    /// Reports the end, and stays until the front has released the lock.
    fn hand_over(mut self, end: End) -> u8 {
        let mut hears = order::send(&self.front.socket, &Report::Ended(end), &[], Patience::Wait).is_ok();
        while hears {
            hears = self.front.receive::<Order>().is_ok();
        }
        // It has released, and this does nothing; or it died before it could, and what the command left running has the lock's
        // descriptors too, and would keep it.
        self.front.unlock_kept();
        exit::OK
    }

    /// Waits until there is something to do; whether the front said something, or is gone.
    fn wait(&self) -> bool {
        let mut polled = [
            PollFd::new(&self.front.socket, PollFlags::IN),
            PollFd::from_borrowed_fd(self.signals.as_fd(), PollFlags::IN),
        ];
        // Timers do not count suspend, so it never sleeps for long when there is something to come.
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
                // Not after the deadline.
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
                    // Here and in the child, since either may be the first to rely on it.
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

    /// Tells the front, unless that does not listen: a front that is stopped must not stop us.
    fn report(&self, report: &Report) {
        let _ = order::send(&self.front.socket, report, &[], Patience::None);
    }

    /// In the child: becomes the command, or says why not.
    fn become_the_command(&self, minder: Pid, start: &Start) -> u8 {
        let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
        if rustix::process::getppid() != Some(minder) {
            // It died before that could take effect.
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

    /// Sends the command a signal: its whole group, if that is its own; else, if it asks to end, all that is below us.
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

    /// Kills everything, and goes on with it until it is gone.
    fn kill(&mut self) {
        if let Some(minded) = &mut self.command {
            tree::kill_below(minded.group);
            minded.kill_again = Some(BootTime::now() + KILL_AGAIN);
        }
    }

    /// Does what is due by now.
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
            // A command that is stopped could not hear it.
            self.signal(Signal::CONT);
        }
        if kill_due {
            self.kill();
        }
    }

    /// Waits for what has ended; how it all ended, once it has.
    fn look_at_children(&mut self) -> Option<End> {
        let mut found = Reaped::Nothing;
        // Not without end: there may be a deadline to keep.
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
        // What it had started is told too, wherever it is, and has a while for it, and not more.
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
                // It has been waited for. Who else is in the group is below us, too.
                minded.group = None;
            }
        }
    }
}

/// So many children are waited for before the time is looked at again.
const REAPED_AT_ONCE: usize = 64;

/// Between two tries to kill what does not die.
const KILL_AGAIN: Duration = Duration::from_millis(20);

/// Kills a group and everything below this process, and returns when nothing is left: for a subreaper.
pub(super) fn end_tree(group: Option<Pid>) {
    // Only the first time: when its leader has been waited for, its number may become somebody else's.
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

/// What the command left running.
fn left_running() -> Vec<i32> {
    let below = tree::descendants(rustix::process::getpid());
    below.iter().filter(|process| !process.is_zombie).map(|process| process.pid.as_raw_pid()).collect()
}

/// Whether a signal asks whoever gets it to end.
pub(super) fn asks_to_end(signal: i32) -> bool {
    [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM].map(Signal::as_raw).contains(&signal)
}

/// Whether a signal ended it, or what it ran, as far as shells say so: then what else it started is to be ended too.
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
