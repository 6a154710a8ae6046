//! The job of a run, and how it acquires its lock.

use std::borrow::Cow;
use std::time::Duration;

use tenure::clock::BootTime;
use tenure::{
    AcquireError, Capability, Client, Guard, LockName, LockRequest, Mode, OncePerError, Record, Run, Ttl,
    Turn, Wait, WhenLost,
};

use super::nested::Around;
use super::order::Limits;
use super::waiting::{self, Ourselves};
use crate::args::RunArgs;
use crate::config::{Config, Engine};
use crate::exit::{self, Failure};
use crate::{Connect, duration, say};

/// The job of a run.
pub(super) struct Job {
    pub(super) name: LockName,
    mode: Mode,
    wait: Wait,
    /// The start of the run. The time to connect counts as a part of the wait.
    pub(super) began: BootTime,
    ttl: Duration,
    pub(super) max_hold: Option<Duration>,
    /// How long before the end of the lock the command is asked to end.
    pub(super) grace: Duration,
    label: String,
    pub(super) once: Option<Once>,
    pub(super) talk: Talk,
    pub(super) engine: Engine,
    pub(super) around: Around,
}

/// The settings of a job that runs once in a period.
pub(super) struct Once {
    pub(super) period: Duration,
    spread: Option<Duration>,
    record: Record,
    pub(super) already_run: u8,
}

/// The verbosity of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Talk {
    Errors,
    Normal,
    Verbose,
    Everything,
}

/// The shortest time of a lock. A shorter one leaves no time to end a command.
const SHORTEST: Duration = Duration::from_secs(1);

/// The longest time to connect with `--no-wait`.
const NO_WAIT_CONNECT: Duration = Duration::from_secs(3);

impl Job {
    pub(super) fn new(args: RunArgs, config: Config, engine: Engine) -> Result<Self, Failure> {
        let ttl = args.ttl.or(config.ttl).unwrap_or(Ttl::DEFAULT.get());
        Ttl::new(ttl).map_err(Failure::usage)?;
        let wait = match args.wait.or(config.wait) {
            _ if args.no_wait => Wait::Try,
            Some(Duration::ZERO) => Wait::Try,
            Some(limit) => Wait::For(limit),
            None => Wait::Forever,
        };
        // Without the arguments: they may be secret, and the label is public.
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
            began: BootTime::now(),
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
            engine,
            around: Around::look(),
        })
    }

    /// Returns the lock's name as messages show it.
    pub(super) fn title(&self) -> Cow<'_, str> {
        say::short(&self.name)
    }

    /// Connects, within the time that the run may wait.
    pub(super) async fn connect(&self, connect: Connect) -> Result<Client, Failure> {
        let connecting = connect(self.engine.url.clone());
        let (limit, advice) = match self.wait {
            Wait::For(limit) => (limit, "wait longer with --wait"),
            Wait::Try => (NO_WAIT_CONNECT, "wait for it with --wait"),
            _ => return Ok(connecting.await?),
        };
        let Ok(connected) = tokio::time::timeout(limit, connecting).await else {
            let (server, limit) = (self.engine.server(), duration::text(limit));
            let message = format!(
                "{server} did not answer within {limit}: check that the server is up and the URL is right, or {advice}; nothing was run"
            );
            return Err(Failure::new(exit::UNREACHABLE, message));
        };
        Ok(connected?)
    }

    /// Returns the remaining time to wait for the lock.
    fn wait_left(&self) -> Wait {
        match self.wait {
            Wait::For(limit) => Wait::For(limit.saturating_sub(BootTime::now().since(self.began))),
            wait => wait,
        }
    }

    fn request(&self, client: &Client) -> LockRequest {
        let place = client.engine().place();
        let request = match self.around.owner_of(&place, &self.name) {
            // Without shared owners, this run would wait for the run around it, which waits for this run.
            Some(owner) => client.owner_with_id(owner).lock(&self.name).require(Capability::SharedOwners),
            None => client.owner().lock(&self.name),
        };
        let request = request.mode(self.mode).ttl(self.ttl).wait(self.wait_left()).label(&self.label);
        // A lost lock is kept until the command has ended, whatever the reason of the loss.
        let request = request.when_lost(WhenLost::Keep);
        match self.max_hold {
            Some(most) => request.max_hold(most),
            None => request,
        }
    }

    /// Acquires the lock, or the turn.
    pub(super) async fn get(&self, client: &Client) -> Result<Got, NotGot> {
        let request = self.request(client);
        let Some(once) = &self.once else {
            return Ok(Got::Held(Held::Lock(request.acquire().await.map_err(NotGot::Lock)?)));
        };
        let mut request = request.once_per(once.period).record(once.record);
        if let Some(spread) = once.spread {
            request = request.spread(spread);
        }
        Ok(match request.begin().await.map_err(NotGot::Turn)? {
            Turn::Yours(run) => Got::Held(Held::Turn(run)),
            Turn::AlreadyRun { ago } => Got::AlreadyRun { ago },
        })
    }
}

/// Returns the longest grace for a lock with this TTL. A renewal is sent every third of the TTL. If it is late by less than another third,
/// the command need not end.
pub(super) fn longest_grace(lives: Duration) -> Duration {
    lives / 3
}

/// Returns how long before the end of a lock its command is asked to end.
fn grace(given: Option<Duration>, ttl: Duration, max_hold: Option<Duration>) -> Result<Duration, Failure> {
    const LONGEST: Duration = Duration::from_secs(10);
    let whole = max_hold.map_or(ttl, |most| most.min(ttl));
    if whole < SHORTEST {
        let complaint = "a lock that is held for less than a second leaves no time to end a command in: use a longer --ttl or --max-hold";
        return Err(Failure::usage(complaint));
    }
    let grace = given.unwrap_or_else(|| LONGEST.min(longest_grace(whole)));
    if grace > longest_grace(whole) {
        let complaint = format!(
            "a grace of {grace:?} is too long: it may be a third of the ttl ({ttl:?}) and of --max-hold at most, or the command would be \
             told to end while all is well"
        );
        return Err(Failure::usage(complaint));
    }
    if grace < Limits::SHORTEST_GRACE {
        let shortest = Limits::SHORTEST_GRACE;
        return Err(Failure::usage(format!(
            "a grace of {grace:?} is too short to end anything in: {shortest:?} is the least"
        )));
    }
    Ok(grace)
}

/// The result of a successful request.
pub(super) enum Got {
    Held(Held),
    AlreadyRun { ago: Duration },
}

/// The held lock.
pub(super) enum Held {
    Lock(Guard),
    Turn(Run),
}

impl Held {
    pub(super) fn guard(&self) -> &Guard {
        match self {
            Self::Lock(guard) => guard,
            Self::Turn(run) => run.guard(),
        }
    }
}

/// Why no lock was acquired.
pub(super) enum NotGot {
    Lock(AcquireError),
    Turn(OncePerError),
}

impl NotGot {
    /// Returns the failure, with the name of a holder if there is one.
    pub(super) async fn or_who_holds(self, client: &Client, job: &Job) -> Failure {
        let error = match self {
            Self::Lock(error) | Self::Turn(OncePerError::Acquire(error)) => error,
            Self::Turn(error) => return error.into(),
        };
        let how = match (&error, job.wait) {
            (AcquireError::Busy { .. }, _) => "is not free".to_owned(),
            // The error contains the wait at the engine, which is shorter by the time to connect.
            (AcquireError::TimedOut { .. }, Wait::For(limit)) => {
                format!("did not become free within {}", duration::text(limit))
            }
            _ => return error.into(),
        };
        let held = client.inspect(&job.name).await;
        let held = held.map(|info| waiting::held_by(&info, client, Ourselves::Gone)).unwrap_or_default();
        Failure::new(exit::NOT_GOT, format!("`{}` {how}{held}: nothing was run", job.title()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_grace_leaves_time_to_work_and_to_end() {
        assert_eq!(grace(None, 30 * SECOND, None).unwrap(), 10 * SECOND);
        assert_eq!(grace(None, 600 * SECOND, None).unwrap(), 10 * SECOND);
        assert_eq!(grace(None, 30 * SECOND, Some(3 * SECOND)).unwrap(), SECOND);
        assert_eq!(grace(Some(5 * SECOND), 30 * SECOND, None).unwrap(), 5 * SECOND);
        assert_eq!(grace(None, SECOND, None).unwrap(), SECOND / 3);
        for (given, ttl, max_hold) in [
            (Some(11 * SECOND), 30 * SECOND, None),
            (Some(2 * SECOND), 30 * SECOND, Some(3 * SECOND)),
            (Some(SECOND / 100), 30 * SECOND, None),
            (Some(Duration::ZERO), 30 * SECOND, None),
            (None, SECOND / 2, None),
            (None, 30 * SECOND, Some(Duration::ZERO)),
        ] {
            assert_eq!(
                grace(given, ttl, max_hold).unwrap_err().code,
                exit::USAGE,
                "{given:?} {ttl:?} {max_hold:?}"
            );
        }
    }
}
