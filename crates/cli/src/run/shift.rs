//! The front while the command runs: its orders to the minder, signals and the terminal.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::time::Duration;

use nix::sys::signal::Signal;
use rustix::process::Pid;
use tenure::clock::BootTime;
use tenure::{Guard, LostReason};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};

use super::job::{Job, longest_grace};
use super::minder;
use super::order::{self, End, Limits, Order, Patience, Report, Start, Why};
use super::signals::{self, Came, Heard, Whom};
use super::terminal::Terminal;
use crate::exit::{self, Failure};
use crate::say::say;

/// How the command ended, and whether the lock was lost before.
pub(super) struct Ended {
    pub(super) end: End,
    pub(super) lost: Option<LostReason>,
    /// The keyboard's signal that ended the command, if one did, and its remaining receivers.
    pub(super) keyboard: Option<(Signal, Whom)>,
}

pub(super) struct Shift<'a> {
    job: &'a Job,
    guard: &'a Guard,
    place: &'a str,
    /// How long before the deadline the command is asked to end.
    grace: Duration,
    signals: &'a mut Heard,
    terminal: Option<Terminal>,
    minder: Pid,
    socket: &'a UnixStream,
    reports: Lines<BufReader<tokio::net::UnixStream>>,
    /// The command's process, once it is running.
    command: Option<Pid>,
    /// When the front ends the command itself, if the minder has not.
    take_over_at: Option<BootTime>,
    /// The last signal from the keyboard to this process group.
    keyboard: Option<Signal>,
    /// How many times in a row the command wanted a terminal that this group does not have, and this process was not stopped for it.
    unstopped: u32,
}

/// The longest time until the minder reports that all processes are killed. A few milliseconds are usual.
const KILL_LIMIT: Duration = Duration::from_millis(500);

impl<'a> Shift<'a> {
    pub(super) fn new(
        job: &'a Job,
        guard: &'a Guard,
        place: &'a str,
        signals: &'a mut Heard,
        terminal: Option<Terminal>,
        minder: Pid,
        socket: &'a UnixStream,
    ) -> Result<Self, Failure> {
        let reports = || {
            socket.set_nonblocking(true)?;
            Ok(BufReader::new(tokio::net::UnixStream::from_std(socket.try_clone()?)?).lines())
        };
        let reports = reports().map_err(|error: std::io::Error| Failure::system("no socket", error))?;
        let (command, take_over_at, keyboard, unstopped) = (None, None, None, 0);
        Ok(Self {
            job,
            guard,
            place,
            grace: job.grace,
            signals,
            terminal,
            minder,
            socket,
            reports,
            command,
            take_over_at,
            keyboard,
            unstopped,
        })
    }

    /// Runs the command, and returns how it ended.
    pub(super) async fn work(&mut self) -> Result<Ended, Failure> {
        let mut watch = self.guard.watch();
        self.guard.check().map_err(|lost| Failure::new(exit::NOT_GOT, format!("{lost}; nothing was run")))?;
        self.start(watch.deadline())?;
        let mut lost = pin!(self.guard.lost());
        let mut lost_reason = None;
        let end = loop {
            let take_over = sleep_until(self.take_over_at);
            tokio::select! {
                biased;
                reason = &mut lost, if lost_reason.is_none() => {
                    lost_reason = Some(reason);
                    self.order(&Order::Kill);
                    self.take_over_by(BootTime::now() + KILL_LIMIT);
                }
                line = self.reports.next_line() => match line.ok().flatten().map(|line| serde_json::from_str(&line)) {
                    Some(Ok(Report::Started { pid })) => self.command = Pid::from_raw(pid),
                    Some(Ok(Report::NotStarted { message })) => return Err(Failure::new(exit::SYSTEM, message)),
                    Some(Ok(Report::Stopped { signal })) => self.stopped(signal),
                    Some(Ok(Report::Ended(end))) => break end,
                    Some(Err(_)) | None => break self.take_over("the process that minds the command is gone", Why::ByItself),
                },
                Some(came) = self.signals.next() => self.pass_on(came),
                () = watch.moved() => self.deadline_moved(watch.deadline()),
                () = take_over => break self.take_over("the process that minds the command does not do it", Why::Deadline),
            }
        };
        let keyboard = self.take_terminal_back(&end);
        Ok(Ended { end, lost: lost_reason, keyboard })
    }

    /// Returns the command's own process group, if it has one.
    fn group(&self) -> Option<Pid> {
        self.command.filter(|_| !self.job.around.is_nested())
    }

    fn order(&mut self, order: &Order) {
        if order::send(self.socket, order, &[], Patience::None).is_err() {
            // The minder no longer reads.
            self.take_over_by(BootTime::now());
        }
    }

    fn take_over_by(&mut self, at: BootTime) {
        self.take_over_at = Some(self.take_over_at.map_or(at, |before| before.min(at)));
    }

    fn deadline_moved(&mut self, deadline: Option<BootTime>) {
        let limits = deadline.map(|deadline| Limits::before(deadline, self.grace));
        self.take_over_at = deadline.zip(limits).map(|(deadline, limits)| limits.take_over_at(deadline));
        self.order(&Order::Until(limits));
    }

    fn start(&mut self, deadline: Option<BootTime>) -> Result<(), Failure> {
        let terminal = self.terminal.as_ref().filter(|terminal| terminal.should_be_given());
        if let Some(terminal) = terminal {
            terminal.note_given();
        }
        // An engine may grant a shorter lease than requested, and a safety margin is subtracted from it.
        if let Some(deadline) = deadline {
            self.grace = self.grace.min(longest_grace(deadline.since(BootTime::now())));
        }
        let (name, owner) = (&self.job.name, self.guard.owner());
        let token = self.guard.token().map(|token| token.to_string());
        let limits = deadline.map(|deadline| Limits::before(deadline, self.grace));
        let start = Start {
            environment: vec![
                ("TENURE_LOCK".to_owned(), Some(name.to_string())),
                ("TENURE_TOKEN".to_owned(), token),
                ("TENURE_OWNER".to_owned(), Some(owner.to_string())),
                self.job.around.with(self.minder, self.place, owner, name),
            ]
            .into_iter()
            // A run inside must find the same locks, in every working directory.
            .chain(self.job.engine.for_those_inside(self.place))
            .collect(),
            limits,
            grace: self.grace,
            terminal: terminal.is_some(),
        };
        let anchors: Vec<OwnedFd> = self
            .guard
            .anchors()
            .map_err(|error| Failure::system("the lock cannot be shared with the command", error))?;
        order::send(self.socket, &Order::Start(start), &anchors, Patience::None)
            .map_err(|error| Failure::system("the command cannot be started", error))?;
        self.take_over_at = deadline.zip(limits).map(|(deadline, limits)| limits.take_over_at(deadline));
        Ok(())
    }

    /// Ends all processes without the minder. As a subreaper, this process inherits the minder's descendants.
    fn take_over(&self, what: &str, why: Why) -> End {
        say(format!("{what}: the command is killed"));
        let _ = rustix::process::kill_process(self.minder, rustix::process::Signal::KILL);
        minder::end_tree(self.group());
        let signal = Signal::SIGKILL as i32;
        End { code: exit::of_signal(signal), signal: Some(signal), why, asked: true, left: Vec::new() }
    }

    /// Passes a signal on to the command, unless the command has already received it.
    fn pass_on(&mut self, came: Came) {
        let around = &self.job.around;
        let asks_to_end = minder::asks_to_end(came.signal as i32);
        let went_to_all =
            around.is_nested() && came.from.is_none_or(|from| around.reaches_all(from, asks_to_end));
        self.keyboard = came.of_the_keyboard().or(self.keyboard);
        if !went_to_all {
            self.order(&Order::Signal(came.signal as i32));
        }
        // Inside another run, the outer one handles the terminal. Otherwise, this process stops after the command has stopped.
        if self.job.around.is_nested() && came.signal == Signal::SIGTSTP {
            signals::stop(Whom::Itself);
            if !went_to_all {
                self.resume();
            }
        }
    }

    /// Handles a stopped command. For job control, this process group stops too, so that the shell sees its job stop.
    fn stopped(&mut self, signal: i32) {
        /// The most attempts that may fail by chance.
        const UNSTOPPED: u32 = 3;
        let Some(terminal) = &self.terminal else { return };
        let wants_terminal = [Signal::SIGTTIN as i32, Signal::SIGTTOU as i32].contains(&signal);
        if wants_terminal && terminal.is_ours() {
            terminal.note_given();
            self.order(&Order::Continue { terminal: true });
        } else if wants_terminal || signal == Signal::SIGTSTP as i32 {
            let before = BootTime::now();
            signals::stop(Whom::Group);
            let was_stopped = BootTime::now().since(before) > Duration::from_millis(10);
            self.unstopped = if was_stopped || !wants_terminal { 0 } else { self.unstopped + 1 };
            if self.unstopped > UNSTOPPED {
                // No shell can give the group the terminal. The kernel sends SIGHUP to such a group too.
                self.order(&Order::Signal(Signal::SIGHUP as i32));
            }
            self.resume();
        }
    }

    /// Continues the command after this process was continued, unless the deadline has passed. Signals that arrived during the stop are
    /// passed on first. Otherwise a job that a shell's `kill %1` should end would be continued, ask for the terminal, and stop again.
    fn resume(&mut self) {
        while let Some(came) = self.signals.by_now() {
            if came.signal != Signal::SIGCONT {
                self.pass_on(came);
            }
        }
        let terminal = self.terminal.as_ref().is_some_and(|tty| tty.was_given() && tty.is_ours());
        self.order(&Order::Continue { terminal });
    }

    /// Takes the terminal back from the command. Returns the keyboard's signal that ended the command, if one did.
    fn take_terminal_back(&mut self, end: &End) -> Option<(Signal, Whom)> {
        let of_keyboard =
            [Signal::SIGINT, Signal::SIGQUIT].into_iter().find(|signal| end.signal == Some(*signal as i32));
        let unfinished = end.signal.is_some() || end.asked || end.why != Why::ByItself;
        let had_terminal = match (&self.terminal, self.group()) {
            (Some(terminal), Some(group)) => terminal.take_back(group, unfinished),
            _ => false,
        };
        if !had_terminal {
            // The signal went to this group, and reached the command directly or through this process. It has arrived, but the report of
            // the command's end may have been read first.
            let of_keyboard = of_keyboard?;
            while self.keyboard != Some(of_keyboard)
                && let Some(came) = self.signals.by_now()
            {
                self.keyboard = came.of_the_keyboard().or(self.keyboard);
            }
            return (self.keyboard == Some(of_keyboard)).then_some((of_keyboard, Whom::Itself));
        }
        // Only the command received the signal. The rest of this group, such as a script or make around it, must receive it too.
        of_keyboard.map(|signal| (signal, Whom::Group))
    }
}

async fn sleep_until(at: Option<BootTime>) {
    let Some(at) = at else { return std::future::pending().await };
    loop {
        let left = at.since(BootTime::now());
        if left.is_zero() {
            return;
        }
        // Timers do not count the time of a suspend.
        tokio::time::sleep(left.min(Duration::from_secs(1))).await;
    }
}
