//! The front: the process that the caller started. It has the lock, and gives the minder its orders.

use std::io::IsTerminal;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::time::Duration;

use nix::sys::signal::Signal;
use rustix::process::Pid;
use tenure::clock::BootTime;
use tenure::{
    AcquireError, Client, Guard, GuardState, LockName, LockRequest, LostReason, Mode, OncePerError, OwnerId,
    Record, Release, ReleaseError, Run, Ttl, Turn, Wait, WhenLost,
};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::sync::mpsc::UnboundedReceiver;

use super::nested::Around;
use super::order::{self, End, Limits, Order, Report, Start, Why};
use super::signals::{self, Came, Signals, Stop};
use super::terminal::Terminal;
use super::waiting::{self, Waiting};
use super::{check, grace, minder};
use crate::args::RunArgs;
use crate::config::Config;
use crate::duration;
use crate::exit::{self, Failure};
use crate::say::say;

/// What is to be done.
pub(super) struct Job {
    name: LockName,
    mode: Mode,
    wait: Wait,
    ttl: Duration,
    max_hold: Option<Duration>,
    grace: Duration,
    label: String,
    once: Option<Once>,
    talk: Talk,
    url: String,
    pub(super) around: Around,
}

/// Only once in a period.
struct Once {
    period: Duration,
    spread: Option<Duration>,
    record: Record,
    already_run: u8,
}

/// How much is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Talk {
    Errors,
    Normal,
    Verbose,
    Everything,
}

impl Job {
    pub(super) fn new(args: RunArgs, config: Config, url: String) -> Result<Self, Failure> {
        let ttl = args.ttl.or(config.ttl).unwrap_or(Ttl::DEFAULT.get());
        check(&args, ttl)?;
        let wait = match args.wait.or(config.wait) {
            _ if args.no_wait => Wait::Try,
            Some(limit) => Wait::For(limit),
            None => Wait::Forever,
        };
        // Not its arguments: they may be secret, and the label is for everybody to see.
        let program = std::path::Path::new(&args.command[0]).file_name().unwrap_or(&args.command[0]);
        let label = args.label.or(config.label).unwrap_or_else(|| program.to_string_lossy().into_owned());
        let once = args.once_per.map(|period| Once {
            period,
            spread: args.spread,
            record: if args.retry_failed { Record::AtSuccess } else { Record::AtStart },
            already_run: args.already_run_exit,
        });
        Ok(Self {
            name: args.name,
            mode: if args.shared { Mode::SHARED } else { args.mode },
            wait,
            ttl,
            max_hold: args.max_hold,
            grace: grace(args.grace, ttl, args.max_hold)?,
            label,
            once,
            talk: match (args.quiet, args.verbose) {
                (true, _) => Talk::Errors,
                (false, 0) => Talk::Normal,
                (false, 1) => Talk::Verbose,
                (false, _) => Talk::Everything,
            },
            url,
            around: Around::look(),
        })
    }

    fn request(&self, client: &Client) -> LockRequest {
        let owner = self.around.owner_of(&self.url, &self.name).unwrap_or_else(OwnerId::random);
        let request = client.owner_with_id(owner).lock(&self.name);
        let request = request.mode(self.mode).ttl(self.ttl).wait(self.wait).label(&self.label);
        // Whatever ends it: not before the command is gone.
        let request = request.when_lost(WhenLost::Keep);
        match self.max_hold {
            Some(most) => request.max_hold(most),
            None => request,
        }
    }
}

/// What was got.
enum Got {
    Lock(Guard),
    Turn(Run),
    AlreadyRun { ago: Duration },
}

/// How waiting for something ended.
enum Waited<T> {
    Got(T),
    /// A signal ended it.
    Interrupted(Signal),
}

pub(super) struct Front {
    job: Job,
    signals: Signals,
    terminal: Option<Terminal>,
    minder: Pid,
    socket: UnixStream,
}

impl Front {
    pub(super) const fn new(
        job: Job,
        signals: Signals,
        terminal: Option<Terminal>,
        minder: Pid,
        socket: UnixStream,
    ) -> Self {
        Self { job, signals, terminal, minder, socket }
    }

    pub(super) fn run(self) -> Result<u8, Failure> {
        let level = match self.job.talk {
            Talk::Errors => tracing_subscriber::filter::LevelFilter::ERROR,
            Talk::Normal | Talk::Verbose => tracing_subscriber::filter::LevelFilter::WARN,
            Talk::Everything => tracing_subscriber::filter::LevelFilter::DEBUG,
        };
        tracing_subscriber::fmt()
            .with_max_level(level)
            .with_writer(std::io::stderr)
            .with_ansi(std::io::stderr().is_terminal())
            .with_target(false)
            .without_time()
            .init();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(|error| Failure::system("no runtime", error))?.block_on(self.go())
    }

    async fn go(self) -> Result<u8, Failure> {
        let Self { job, signals, terminal, minder, socket } = self;
        let mut signals = signals.listen()?;
        let began = BootTime::now();
        let client = match interruptible(&mut signals, Client::connect(&job.url)).await {
            Waited::Got(client) => client?,
            Waited::Interrupted(signal) => return Ok(exit::of_signal(signal as i32)),
        };
        let waiting = Waiting::new(&client, &job.name, job.talk);
        let got = match interruptible(&mut signals, waiting.show_while(get(&job, &client))).await {
            Waited::Got(Ok(got)) => got,
            Waited::Got(Err(failure)) => return Err(failure.or_who_holds(&client, &job).await),
            Waited::Interrupted(signal) => {
                // What had been begun is undone before we go.
                let _ = client.close().await;
                return Ok(exit::of_signal(signal as i32));
            }
        };
        let hold = match got {
            Got::AlreadyRun { ago } => {
                let Some(once) = &job.once else {
                    unreachable!("only a job for once in a period has already run")
                };
                if job.talk >= Talk::Normal {
                    let (ago, period) = (duration::text(ago), duration::text(once.period));
                    say(format!(
                        "`{}` was already begun {ago} ago, and is for once per {period}: nothing was run",
                        job.name
                    ));
                }
                return Ok(once.already_run);
            }
            got => got,
        };
        if job.talk >= Talk::Verbose {
            let token =
                hold.guard().token().map_or_else(|| "no token".to_owned(), |token| format!("token {token}"));
            let waited = duration::text(BootTime::now().since(began));
            say(format!("got `{}` in mode {} with {token} after {waited}", job.name, hold.guard().mode()));
        }
        let reports = reports(&socket).map_err(|error| Failure::system("no socket", error))?;
        let mut shift = Shift {
            job: &job,
            guard: hold.guard(),
            signals,
            terminal,
            minder,
            socket,
            reports,
            command: None,
        };
        let end = shift.work().await?;
        drop(shift);
        hand_back(&job, hold, end).await
    }
}

fn reports(socket: &UnixStream) -> std::io::Result<Lines<BufReader<tokio::net::UnixStream>>> {
    socket.set_nonblocking(true)?;
    Ok(BufReader::new(tokio::net::UnixStream::from_std(socket.try_clone()?)?).lines())
}

impl Got {
    fn guard(&self) -> &Guard {
        match self {
            Self::Lock(guard) => guard,
            Self::Turn(run) => run.guard(),
            Self::AlreadyRun { .. } => unreachable!("what has already run is not held"),
        }
    }
}

/// Gets the lock, or the turn.
async fn get(job: &Job, client: &Client) -> Result<Got, NotGot> {
    let request = job.request(client);
    let Some(once) = &job.once else {
        return Ok(Got::Lock(request.acquire().await.map_err(NotGot::Lock)?));
    };
    let mut request = request.once_per(once.period).record(once.record);
    if let Some(spread) = once.spread {
        request = request.spread(spread);
    }
    Ok(match request.begin().await.map_err(NotGot::Turn)? {
        Turn::Yours(run) => Got::Turn(run),
        Turn::AlreadyRun { ago } => Got::AlreadyRun { ago },
    })
}

/// Why there is nothing to run under.
enum NotGot {
    Lock(AcquireError),
    Turn(OncePerError),
}

impl NotGot {
    /// The failure, with the name of who holds it, if somebody does.
    async fn or_who_holds(self, client: &Client, job: &Job) -> Failure {
        let error = match self {
            Self::Lock(error) | Self::Turn(OncePerError::Acquire(error)) => error,
            Self::Turn(error) => return error.into(),
        };
        let how = match &error {
            AcquireError::Busy { .. } => "is not free".to_owned(),
            AcquireError::TimedOut { waited, .. } => {
                format!("did not become free within {}", duration::text(*waited))
            }
            _ => return error.into(),
        };
        let held = waiting::held_by(client, &job.name).await;
        Failure::new(exit::NOT_GOT, format!("`{}` {how}{held}: nothing was run", job.name))
    }
}

/// Waits for something, or for a signal that ends the waiting.
async fn interruptible<T>(signals: &mut UnboundedReceiver<Came>, what: impl Future<Output = T>) -> Waited<T> {
    let mut what = pin!(what);
    loop {
        tokio::select! {
            got = &mut what => return Waited::Got(got),
            Some(came) = signals.recv() => match came.signal {
                Signal::SIGTSTP => signals::stop(Stop::Itself),
                Signal::SIGCONT | Signal::SIGWINCH => {}
                signal => return Waited::Interrupted(signal),
            },
        }
    }
}

/// The time during which the command runs.
struct Shift<'a> {
    job: &'a Job,
    guard: &'a Guard,
    signals: UnboundedReceiver<Came>,
    terminal: Option<Terminal>,
    minder: Pid,
    socket: UnixStream,
    reports: Lines<BufReader<tokio::net::UnixStream>>,
    /// The command's process, once it runs.
    command: Option<Pid>,
}

impl Shift<'_> {
    /// Has the command run, and says how it ended.
    async fn work(&mut self) -> Result<Ended, Failure> {
        let mut watch = self.guard.watch();
        self.start(watch.deadline())?;
        let mut lost = pin!(self.guard.lost());
        let mut lost_reason = None;
        loop {
            tokio::select! {
                biased;
                reason = &mut lost, if lost_reason.is_none() => {
                    lost_reason = Some(reason);
                    self.order(&Order::Kill);
                }
                line = self.reports.next_line() => match line.ok().flatten().map(|line| serde_json::from_str(&line)) {
                    Some(Ok(Report::Started { pid })) => self.command = Pid::from_raw(pid),
                    Some(Ok(Report::NotStarted { message })) => return Err(Failure::new(exit::SYSTEM, message)),
                    Some(Ok(Report::Stopped { signal })) => self.stopped(signal),
                    Some(Ok(Report::Ended(end))) => {
                        self.take_terminal_back(&end);
                        return Ok(Ended { end, lost: lost_reason });
                    }
                    // What it says cannot be read, or it was killed: then so was the command, and what is left is ours to end.
                    Some(Err(_)) | None => {
                        let _ = rustix::process::kill_process(self.minder, rustix::process::Signal::KILL);
                        minder::end_tree(self.group());
                        let signal = Some(Signal::SIGKILL as i32);
                        let end = End { code: exit::of_signal(Signal::SIGKILL as i32), signal, why: Why::ByItself, left: Vec::new() };
                        self.take_terminal_back(&end);
                        return Ok(Ended { end, lost: lost_reason });
                    }
                },
                Some(came) = self.signals.recv() => self.pass_on(came),
                () = watch.moved() => {
                    let limits = self.limits(watch.deadline());
                    self.order(&Order::Until(limits));
                }
            }
        }
    }

    fn group(&self) -> Option<Pid> {
        self.command.filter(|_| !self.job.around.is_nested())
    }

    fn limits(&self, deadline: Option<BootTime>) -> Option<Limits> {
        deadline.map(|deadline| Limits::before(deadline, self.job.grace))
    }

    fn order(&self, order: &Order) {
        // If the minder is gone, its last report is the end of the socket.
        let _ = order::send(&self.socket, order, &[]);
    }

    fn start(&self, deadline: Option<BootTime>) -> Result<(), Failure> {
        let terminal = self.terminal.as_ref().filter(|terminal| terminal.should_be_given());
        if let Some(terminal) = terminal {
            terminal.note_given();
        }
        let token = self.guard.token().map(|token| token.to_string());
        let held = self.job.around.with(self.minder, &self.job.url, self.guard.owner(), &self.job.name);
        let start = Start {
            environment: vec![
                ("TENURE_LOCK".to_owned(), Some(self.job.name.to_string())),
                ("TENURE_TOKEN".to_owned(), token),
                ("TENURE_OWNER".to_owned(), Some(self.guard.owner().to_string())),
                held,
            ],
            limits: self.limits(deadline),
            grace: self.job.grace,
            terminal: terminal.is_some(),
        };
        let anchors: Vec<OwnedFd> = self
            .guard
            .anchors()
            .map_err(|error| Failure::system("the lock cannot be shared with the command", error))?;
        order::send(&self.socket, &Order::Start(start), &anchors)
            .map_err(|error| Failure::system("the command cannot be started", error))
    }

    /// A signal came for us: it is meant for the command too, unless that has got it already.
    fn pass_on(&self, came: Came) {
        let nested = self.job.around.is_nested();
        let went_to_all = nested && came.from.is_none_or(|from| self.job.around.is_minder(from));
        if !went_to_all {
            self.order(&Order::Signal(came.signal as i32));
        }
        // Inside of another run, the one around us minds the terminal. Else we stop when the command has.
        if nested && came.signal == Signal::SIGTSTP {
            signals::stop(Stop::Itself);
            if !went_to_all {
                self.resume();
            }
        }
    }

    /// The command has stopped. If that is job control, we do as it did, so that the shell sees its job stop.
    fn stopped(&self, signal: i32) {
        let Some(terminal) = &self.terminal else { return };
        let wants_terminal = [Signal::SIGTTIN as i32, Signal::SIGTTOU as i32].contains(&signal);
        if wants_terminal && terminal.is_ours() {
            terminal.note_given();
            self.order(&Order::Continue { terminal: true });
        } else if wants_terminal || signal == Signal::SIGTSTP as i32 {
            signals::stop(Stop::Group);
            self.resume();
        }
    }

    /// We were continued: so is the command, unless the minder finds that the deadline has passed.
    fn resume(&self) {
        let terminal = self.terminal.as_ref().is_some_and(|tty| tty.was_given() && tty.is_ours());
        self.order(&Order::Continue { terminal });
    }

    fn take_terminal_back(&self, end: &End) {
        let Some(terminal) = self.terminal.as_ref().filter(|terminal| terminal.was_given()) else { return };
        terminal.take_back(end.signal.is_some());
        // Ctrl-C went to the command alone. A script or a make that we are part of is to hear of it too.
        let whole_group =
            [Signal::SIGINT, Signal::SIGQUIT].into_iter().find(|signal| end.signal == Some(*signal as i32));
        if let Some(signal) =
            whole_group.and_then(|signal| rustix::process::Signal::from_named_raw(signal as i32))
        {
            let _ = rustix::process::kill_current_process_group(signal);
        }
    }
}

/// How the command ended, and whether the lock did before it.
struct Ended {
    end: End,
    lost: Option<LostReason>,
}

/// Releases, and says how it all went.
async fn hand_back(job: &Job, hold: Got, Ended { end, lost }: Ended) -> Result<u8, Failure> {
    let name = &job.name;
    let why_told = match (end.why, hold.guard().state()) {
        (Why::Deadline, GuardState::Held) if job.max_hold.is_some() => Some(reason_text(LostReason::MaxHold)),
        (Why::Deadline, GuardState::Lost(reason)) => Some(reason_text(reason)),
        (Why::Deadline, _) => Some("it could not be renewed in time".to_owned()),
        (Why::ByItself | Why::Lost, _) => lost.map(reason_text),
    };
    if job.talk >= Talk::Verbose && !end.left.is_empty() {
        let pids: Vec<_> = end.left.iter().map(ToString::to_string).collect();
        say(format!(
            "the command left processes running, which `{name}` does not cover any more: {}",
            pids.join(", ")
        ));
    }
    let succeeded = end.code == 0 && why_told.is_none();
    let released = match hold {
        Got::Turn(run) if succeeded => run.succeeded().await.map_err(Unreleased::from),
        Got::Turn(run) => run.failed().await.map_err(Unreleased::from),
        Got::Lock(guard) => guard.release().await.map_err(Unreleased::from),
        Got::AlreadyRun { .. } => unreachable!("what has already run is not held"),
    };
    if let Some(why) = why_told {
        return Err(Failure::new(
            exit::LOST,
            format!("the lock on `{name}` is lost: {why}; the command was ended"),
        ));
    }
    match released {
        Ok(Release::AlreadyLost(reason)) => {
            let message = format!("the lock on `{name}` was lost before the command ended: {reason}");
            return Err(Failure::new(exit::LOST, message));
        }
        Ok(_) if job.talk >= Talk::Verbose => say(format!("released `{name}`")),
        Ok(_) => {}
        Err(Unreleased(message)) => say(format!("`{name}`: {message}")),
    }
    Ok(end.code)
}

/// Why it was lost, in the words of the command line.
fn reason_text(reason: LostReason) -> String {
    match reason {
        LostReason::MaxHold => "it was held for as long as --max-hold allows".to_owned(),
        reason => reason.to_string(),
    }
}

/// The command has done its work, and something is to be said about the lock.
struct Unreleased(String);

impl From<ReleaseError> for Unreleased {
    fn from(error: ReleaseError) -> Self {
        Self(error.to_string())
    }
}

impl From<OncePerError> for Unreleased {
    fn from(error: OncePerError) -> Self {
        Self(error.to_string())
    }
}
