//! The front: the process that the caller started. It has the lock, and gives it back when the command is gone.

use std::os::unix::net::UnixStream;
use std::pin::pin;
use std::time::Duration;

use nix::sys::signal::Signal;
use rustix::process::{Pid, WaitOptions};
use tenure::clock::BootTime;
use tenure::{GuardState, Lost, LostReason, OncePerError, Release, ReleaseError};
use tracing_subscriber::filter::LevelFilter;

use super::job::{Got, Held, Job, Talk};
use super::order::Why;
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

/// How it all ended.
struct Finish {
    code: u8,
    /// The keyboard's signal that ended it, if one did.
    keyboard: Option<(Signal, Whom)>,
}

/// How waiting for something ended.
enum Waited<T> {
    Got(T),
    /// A signal ended it.
    Interrupted(Came),
}

impl Finish {
    const fn code(code: u8) -> Self {
        Self { code, keyboard: None }
    }

    fn interrupted(came: Came) -> Self {
        Self {
            code: exit::of_signal(came.signal as i32),
            keyboard: came.of_the_keyboard().map(|signal| (signal, Whom::Itself)),
        }
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
        let finish = runtime.map_err(|error| Failure::system("no runtime", error))?.block_on(self.go());
        // The socket is closed, so it ends; and whoever is our parent may not be one that waits for it.
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
        let began = BootTime::now();
        let client = match interruptible(&mut signals, connect(job.engine.url.clone())).await {
            Waited::Got(client) => client?,
            Waited::Interrupted(came) => return Ok(Finish::interrupted(came)),
        };
        let waiting = Waiting::new(&client, &job.name, job.talk);
        let got = match interruptible(&mut signals, waiting.show_while(job.get(&client))).await {
            Waited::Got(Ok(got)) => got,
            Waited::Got(Err(not_got)) => return Err(not_got.or_who_holds(&client, &job).await),
            Waited::Interrupted(came) => {
                // What had been begun is undone before we go.
                let _ = client.close().await;
                return Ok(Finish::interrupted(came));
            }
        };
        let held = match got {
            Got::Held(held) => held,
            Got::AlreadyRun { ago } => return Ok(Finish::code(already_run(&job, ago))),
        };
        if job.talk >= Talk::Verbose {
            let (guard, waited) = (held.guard(), duration::text(BootTime::now().since(began)));
            let token = guard.token().map_or_else(|| "no token".to_owned(), |token| format!("token {token}"));
            say(format!("got `{}` in mode {} with {token} after {waited}", job.name, guard.mode()));
        }
        let place = client.engine().place();
        let mut shift = Shift::new(&job, held.guard(), &place, &mut signals, terminal, minder, &socket)?;
        let ended = shift.work().await?;
        drop(shift);
        let (keyboard, code) = (ended.keyboard, ended.end.code);
        let mut handing_back = pin!(hand_back(&job, held, ended));
        if let Ok(code) = tokio::time::timeout(RELEASE_PATIENCE, &mut handing_back).await {
            return Ok(Finish { code: code?, keyboard });
        }
        // The engine does not answer. Whoever does not want to wait for it need not.
        let code = match interruptible(&mut signals, handing_back).await {
            Waited::Got(code) => code?,
            Waited::Interrupted(_) => {
                say(format!(
                    "the release of `{}` is not confirmed: it is free when its lease ends",
                    job.name
                ));
                code
            }
        };
        Ok(Finish { code, keyboard })
    }
}

/// So long a release may take before a signal ends the waiting for it.
const RELEASE_PATIENCE: Duration = Duration::from_secs(5);

/// A panic must not run destructors: a guard that is dropped gives the lock back, and the command may still run. If this process just dies,
/// the minder ends the command first.
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
            job.name
        ));
    }
    once.already_run
}

/// Waits for something, or for a signal that ends the waiting.
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

/// Releases, and says how it all went.
async fn hand_back(job: &Job, held: Held, Ended { end, lost, .. }: Ended) -> Result<u8, Failure> {
    let name = &job.name;
    let why_told = match (end.why, held.guard().state()) {
        (Why::Deadline, GuardState::Held) if job.max_hold.is_some() => Some(reason_text(LostReason::MaxHold)),
        (Why::Deadline, GuardState::Lost(reason)) => Some(reason_text(reason)),
        (Why::Deadline, _) => Some("it could not be renewed in time".to_owned()),
        (Why::ByItself | Why::Lost, _) => lost.map(reason_text),
    };
    if job.talk >= Talk::Verbose && !end.left.is_empty() {
        let pids: Vec<_> = end.left.iter().map(ToString::to_string).collect();
        let left = "the command left processes running, which";
        say(format!("{left} `{name}` does not cover any more: {}", pids.join(", ")));
    }
    let succeeded = end.code == 0 && why_told.is_none();
    let released = match held {
        Held::Turn(run) if succeeded => run.succeeded().await.map_err(Unreleased::from),
        Held::Turn(run) => run.failed().await.map_err(Unreleased::from),
        Held::Lock(guard) => guard.release().await.map_err(Unreleased::from),
    };
    if let Some(why) = why_told {
        let message = format!("the lock on `{name}` is lost: {why}; the command was ended");
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

/// Why it was lost, in the words of the command line.
fn reason_text(reason: LostReason) -> String {
    match reason {
        LostReason::MaxHold => "it was held for as long as --max-hold allows".to_owned(),
        reason => reason.to_string(),
    }
}

/// The command has done its work, and something is to be said about the lock.
enum Unreleased {
    /// It was lost before the run could be recorded.
    Lost(Lost),
    InDoubt(String),
}

impl From<ReleaseError> for Unreleased {
    fn from(error: ReleaseError) -> Self {
        Self::InDoubt(error.to_string())
    }
}

impl From<OncePerError> for Unreleased {
    fn from(error: OncePerError) -> Self {
        match error {
            OncePerError::Lost(lost) => Self::Lost(lost),
            error => Self::InDoubt(error.to_string()),
        }
    }
}
