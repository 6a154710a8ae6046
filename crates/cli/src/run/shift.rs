//! The time during which the command runs: what the front tells the minder, and what it does about signals and the terminal.

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

/// How the command ended, and whether the lock did before it.
pub(super) struct Ended {
    pub(super) end: End,
    pub(super) lost: Option<LostReason>,
    /// The keyboard's signal that ended it, if one did, and who has not heard of it yet.
    pub(super) keyboard: Option<(Signal, Whom)>,
}

pub(super) struct Shift<'a> {
    job: &'a Job,
    guard: &'a Guard,
    place: &'a str,
    /// How long before the deadline the command is told to end.
    grace: Duration,
    signals: &'a mut Heard,
    terminal: Option<Terminal>,
    minder: Pid,
    socket: &'a UnixStream,
    reports: Lines<BufReader<tokio::net::UnixStream>>,
    /// The command's process, once it runs.
    command: Option<Pid>,
    /// When the minder must have done what it should, or else we do.
    take_over_at: Option<BootTime>,
    /// The last signal that the keyboard sent to our group.
    keyboard: Option<Signal>,
    /// How often in a row the command wanted a terminal that is not ours, and we were not stopped for it.
    unstopped: u32,
}

/// So long after the order to kill the minder may take to report that all is gone. It takes a few milliseconds.
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

    /// Has the command run, and says how it ended.
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

    /// The command's group, if that is its own.
    fn group(&self) -> Option<Pid> {
        self.command.filter(|_| !self.job.around.is_nested())
    }

    fn order(&mut self, order: &Order) {
        if order::send(self.socket, order, &[], Patience::None).is_err() {
            // It does not read any more.
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
        // Of what was asked for, an engine may grant less, and of that a margin is not to be believed in.
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
            // A run inside is to find the same locks, wherever it is.
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

    /// Ends everything ourselves: as a subreaper we inherit what the minder had.
    fn take_over(&self, what: &str, why: Why) -> End {
        say(format!("{what}: the command is killed"));
        let _ = rustix::process::kill_process(self.minder, rustix::process::Signal::KILL);
        minder::end_tree(self.group());
        let signal = Signal::SIGKILL as i32;
        End { code: exit::of_signal(signal), signal: Some(signal), why, asked: true, left: Vec::new() }
    }

    /// A signal came for us: it is meant for the command too, unless that has got it already.
    fn pass_on(&mut self, came: Came) {
        let around = &self.job.around;
        let asks_to_end = minder::asks_to_end(came.signal as i32);
        let went_to_all =
            around.is_nested() && came.from.is_none_or(|from| around.reaches_all(from, asks_to_end));
        self.keyboard = came.of_the_keyboard().or(self.keyboard);
        if !went_to_all {
            self.order(&Order::Signal(came.signal as i32));
        }
        // Inside of another run, the one around us minds the terminal. Else we stop when the command has.
        if self.job.around.is_nested() && came.signal == Signal::SIGTSTP {
            signals::stop(Whom::Itself);
            if !went_to_all {
                self.resume();
            }
        }
    }

    /// The command has stopped. If that is job control, we do as it did, so that the shell sees its job stop.
    fn stopped(&mut self, signal: i32) {
        /// So often it may be chance.
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
                // There is no shell that could ever give it the terminal: the kernel does this to such a group.
                self.order(&Order::Signal(Signal::SIGHUP as i32));
            }
            self.resume();
        }
    }

    /// We were continued: so is the command, unless the minder finds that the deadline has passed. A signal that came while both were
    /// stopped goes first: a shell's `kill %1` ends a stopped job that would only ask for the terminal, and stop again, when it is continued.
    fn resume(&mut self) {
        while let Some(came) = self.signals.by_now() {
            if came.signal != Signal::SIGCONT {
                self.pass_on(came);
            }
        }
        let terminal = self.terminal.as_ref().is_some_and(|tty| tty.was_given() && tty.is_ours());
        self.order(&Order::Continue { terminal });
    }

    /// Takes the terminal back from the command. The keyboard's signal that ended it, if one did.
    fn take_terminal_back(&mut self, end: &End) -> Option<(Signal, Whom)> {
        let of_keyboard =
            [Signal::SIGINT, Signal::SIGQUIT].into_iter().find(|signal| end.signal == Some(*signal as i32));
        let unfinished = end.signal.is_some() || end.asked || end.why != Why::ByItself;
        let had_terminal = match (&self.terminal, self.group()) {
            (Some(terminal), Some(group)) => terminal.take_back(group, unfinished),
            _ => false,
        };
        if !had_terminal {
            // It went to our group, and to the command with it or through us. So it has come, but the command's end may have been heard of first.
            let of_keyboard = of_keyboard?;
            while self.keyboard != Some(of_keyboard)
                && let Some(came) = self.signals.by_now()
            {
                self.keyboard = came.of_the_keyboard().or(self.keyboard);
            }
            return (self.keyboard == Some(of_keyboard)).then_some((of_keyboard, Whom::Itself));
        }
        // It went to the command alone. A script or a make that we are part of is to hear of it too.
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
        // Timers do not count suspend.
        tokio::time::sleep(left.min(Duration::from_secs(1))).await;
    }
}
