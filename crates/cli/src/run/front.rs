//! The front: the process that the caller started. It holds the lock, and releases it after the command has ended.

use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::time::Duration;

use nix::sys::signal::Signal;
use rustix::process::{Pid, WaitOptions};
use tenure::clock::BootTime;
use tenure::{Client, GuardState, Lost, LostReason, OncePerError, Release, ReleaseError};
use tracing_subscriber::filter::LevelFilter;

use super::job::{Got, Held, Job, Talk};
use super::order::{End, Why};
use super::shift::{Ended, Shift};
use super::signals::{self, Came, Heard, Signals, Whom};
use super::terminal::Terminal;
use super::waiting::Waiting;
use crate::Connect;
use crate::duration;
use crate::exit::{self, Failure};
use crate::say::{self, say};

pub(super) struct Front {
    pub(super) job: Job,
    pub(super) connect: Connect,
    pub(super) signals: Signals,
    pub(super) terminal: Option<Terminal>,
    pub(super) minder: Pid,
    pub(super) socket: UnixStream,
}

/// The result of a run.
struct Finish {
    code: u8,
    /// The keyboard's signal that ended the run, if one did.
    keyboard: Option<(Signal, Whom)>,
    leave: Leave,
}

/// Whether the process waits for the engine before it exits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leave {
    WhenClosed,
    AtOnce,
}

/// The result of an interruptible wait.
enum Waited<T> {
    Got(T),
    /// A signal ended the wait.
    Interrupted(Came),
}

impl Finish {
    const fn code(code: u8) -> Self {
        Self { code, keyboard: None, leave: Leave::WhenClosed }
    }

    fn interrupted(came: Came) -> Self {
        let keyboard = came.of_the_keyboard().map(|signal| (signal, Whom::Itself));
        Self { keyboard, ..Self::code(exit::of_signal(came.signal as i32)) }
    }
}

impl Front {
    pub(super) fn run(self) -> Result<u8, Failure> {
        never_unwind();
        say::log(match self.job.talk {
            Talk::Errors => LevelFilter::ERROR,
            Talk::Normal | Talk::Verbose => LevelFilter::WARN,
            Talk::Everything => LevelFilter::DEBUG,
        });
        let minder = self.minder;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| Failure::system("no runtime", error))?;
        let finish = runtime.block_on(self.go());
        // Does not wait for a pending lookup of a host name.
        runtime.shutdown_background();
        // The minder ends, because the socket is closed. It is reaped here, because the process that would inherit it might not do so.
        let _ = rustix::process::waitpid(Some(minder), WaitOptions::empty());
        let finish = finish?;
        if let Some((signal, whom)) = finish.keyboard {
            signals::send(signal, whom);
        }
        Ok(finish.code)
    }

    async fn go(self) -> Result<Finish, Failure> {
        let Self { job, connect, signals, terminal, minder, socket } = self;
        let mut signals = signals.listen()?;
        let client = match interruptible(&mut signals, job.connect(connect)).await {
            Waited::Got(client) => client?,
            Waited::Interrupted(came) => return Ok(Finish::interrupted(came)),
        };
        let attempt = Attempt { job: &job, client: &client, terminal, minder, socket: &socket };
        let finish = attempt.run(&mut signals).await;
        // Every path after a successful connection ends here: requests at the engine are undone before the process exits.
        if !matches!(finish, Ok(Finish { leave: Leave::AtOnce, .. })) {
            // Signals do not interrupt this, because a terminal that is closed sends two of them.
            let closed = tokio::time::timeout(CLOSE_LIMIT, client.close()).await;
            if job.talk >= Talk::Verbose && !matches!(closed, Ok(Ok(()))) {
                let message = "the engine has not confirmed that it has forgotten this run's request for";
                say(format!("{message} `{}`: it ends with its lease", job.title()));
            }
        }
        finish
    }
}

/// One use of a client: the wait for the lock, the command, and the release.
struct Attempt<'a> {
    job: &'a Job,
    client: &'a Client,
    terminal: Option<Terminal>,
    minder: Pid,
    socket: &'a UnixStream,
}

impl Attempt<'_> {
    async fn run(self, signals: &mut Heard) -> Result<Finish, Failure> {
        let Self { job, client, terminal, minder, socket } = self;
        let place = client.engine().place();
        if job.talk >= Talk::Verbose {
            say(format!("the lock `{}` is at {place}", job.title()));
        }
        if job.once.is_some() && job.engine.is_implicit() && job.talk >= Talk::Normal {
            say(format!(
                "`{}` runs once on this host only, since no engine is named and its lock is at {place}: for several hosts, name one with --url or \
                 TENURE_URL; --url file: says that one host is meant",
                job.title()
            ));
        }
        let waiting = Waiting::new(client, job);
        let got = match interruptible(signals, waiting.show_while(job.get(client))).await {
            Waited::Got(Ok(got)) => got,
            Waited::Got(Err(not_got)) => return Err(not_got.or_who_holds(client, job).await),
            Waited::Interrupted(came) => return Ok(Finish::interrupted(came)),
        };
        let held = match got {
            Got::Held(held) => held,
            Got::AlreadyRun { ago } => return Ok(Finish::code(already_run(job, ago))),
        };
        if job.talk >= Talk::Verbose {
            let (guard, waited) = (held.guard(), duration::text(BootTime::now().since(job.began)));
            let token = guard.token().map_or_else(|| "no token".to_owned(), |token| format!("token {token}"));
            say(format!("got `{}` in mode {} with {token} after {waited}", job.title(), guard.mode()));
        }
        let mut shift = Shift::new(job, held.guard(), &place, signals, terminal, minder, socket)?;
        let ended = shift.work().await?;
        drop(shift);
        let (keyboard, why_lost) = (ended.keyboard, why_lost(job, &held, &ended));
        let code = if why_lost.is_some() { exit::LOST } else { ended.end.code };
        let lost = why_lost
            .map(|why| format!("the lock on `{}` is lost: {why}; the command was ended", job.title()));
        let mut handing_back = pin!(hand_back(job, held, ended.end, lost.clone()));
        if let Ok(code) = tokio::time::timeout(RELEASE_PATIENCE, &mut handing_back).await {
            return Ok(Finish { keyboard, ..Finish::code(code?) });
        }
        // The engine does not answer. A signal ends the wait.
        match interruptible(signals, handing_back).await {
            Waited::Got(code) => Ok(Finish { keyboard, ..Finish::code(code?) }),
            Waited::Interrupted(_) => {
                if let Some(lost) = lost {
                    say(lost);
                }
                say(format!(
                    "the release of `{}` is not confirmed: it is free when its lease ends",
                    job.title()
                ));
                Ok(Finish { code, keyboard, leave: Leave::AtOnce })
            }
        }
    }
}

/// The longest time to close the client. Only an engine that does not answer takes as long.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);

/// How long a release may take before a signal can end the wait for it.
const RELEASE_PATIENCE: Duration = Duration::from_secs(5);

/// Aborts on a panic, without running destructors: dropping a guard would release the lock while the command may still run. If this process
/// dies, the minder first ends the command.
fn never_unwind() {
    std::panic::set_hook(Box::new(|panic| {
        say(format!("this should not have happened, please report it: {panic}"));
        std::process::abort();
    }));
}

fn already_run(job: &Job, ago: Duration) -> u8 {
    let Some(once) = &job.once else { return exit::OK };
    if job.talk >= Talk::Normal {
        let (ago, period) = (duration::text(ago), duration::text(once.period));
        say(format!(
            "`{}` was already begun {ago} ago, and is for once per {period}: nothing was run",
            job.title()
        ));
    }
    once.already_run
}

/// Waits for a future, or for a signal that ends the wait.
async fn interruptible<T>(signals: &mut Heard, what: impl Future<Output = T>) -> Waited<T> {
    let mut what = pin!(what);
    loop {
        tokio::select! {
            biased;
            got = &mut what => return Waited::Got(got),
            Some(came) = signals.next() => match came.signal {
                Signal::SIGTSTP => signals::stop(Whom::Itself),
                Signal::SIGCONT | Signal::SIGWINCH => {}
                _ => return Waited::Interrupted(came),
            },
        }
    }
}

/// Returns why the lock was lost before the command ended by itself, if it was.
fn why_lost(job: &Job, held: &Held, Ended { end, lost, .. }: &Ended) -> Option<String> {
    match (end.why, held.guard().state()) {
        (Why::Deadline, GuardState::Held) if job.max_hold.is_some() => Some(reason_text(LostReason::MaxHold)),
        (Why::Deadline, GuardState::Lost(reason)) => Some(reason_text(reason)),
        (Why::Deadline, _) => Some("it could not be renewed in time".to_owned()),
        (Why::ByItself | Why::Lost, _) => lost.map(reason_text),
    }
}

/// Releases the lock, and reports the result of the run.
async fn hand_back(job: &Job, held: Held, end: End, lost: Option<String>) -> Result<u8, Failure> {
    let name = job.title();
    if job.talk >= Talk::Verbose && !end.left.is_empty() {
        let pids: Vec<_> = end.left.iter().map(ToString::to_string).collect();
        let left = "the command left processes running, which";
        say(format!("{left} `{name}` does not cover any more: {}", pids.join(", ")));
    }
    let succeeded = end.code == 0 && lost.is_none();
    let released = match held {
        Held::Turn(run) if succeeded => run.succeeded().await.map_err(Unreleased::from),
        Held::Turn(run) => run.failed().await.map_err(Unreleased::from),
        Held::Lock(guard) => guard.release().await.map_err(Unreleased::from),
    };
    if let Some(message) = lost {
        return Err(Failure::new(exit::LOST, message));
    }
    match released {
        Ok(Release::AlreadyLost(reason)) => {
            let message = format!("the lock on `{name}` was lost before the command ended: {reason}");
            return Err(Failure::new(exit::LOST, message));
        }
        Ok(_) if job.talk >= Talk::Verbose => say(format!("released `{name}`")),
        Ok(_) => {}
        Err(Unreleased::Lost(lost)) => {
            return Err(Failure::new(exit::LOST, format!("{lost}; it was not recorded")));
        }
        Err(Unreleased::InDoubt(message)) => say(format!("`{name}`: {message}")),
    }
    Ok(end.code)
}

/// Returns the reason of a loss, in terms of the command line.
fn reason_text(reason: LostReason) -> String {
    match reason {
        LostReason::MaxHold => "it was held for as long as --max-hold allows".to_owned(),
        reason => reason.to_string(),
    }
}

/// A problem with the lock after the command has ended.
enum Unreleased {
    /// The lock was lost before the run could be recorded.
    Lost(Lost),
    InDoubt(String),
}

impl From<ReleaseError> for Unreleased {
    fn from(error: ReleaseError) -> Self {
        Self::InDoubt(exit::with_causes(&error))
    }
}

impl From<OncePerError> for Unreleased {
    fn from(error: OncePerError) -> Self {
        match error {
            OncePerError::Lost(lost) => Self::Lost(lost),
            error => Self::InDoubt(exit::with_causes(&error)),
        }
    }
}
