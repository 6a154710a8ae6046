//! The command line: what `--help`, the completions and the man pages are made from.
//!
//! Every example in a help text is run by a test.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueHint};
use tenure::{LockName, Mode};

use crate::duration;

/// Run a command under a distributed lock, and show holders and waiters.
#[derive(Debug, Parser)]
#[command(
    name = "tenure",
    version,
    arg_required_else_help = true,
    subcommand_required = true,
    disable_help_subcommand = true,
    after_help = "\
Examples:
  tenure run nightly-report -- echo \"one at a time\"
  tenure run --once-per 1m text-messages -- echo \"sent once, however many start this\"
  tenure ls
  tenure who nightly-report; test $? -eq 1 && echo \"it is free\"

`tenure COMMAND --help` shows the options and examples of one command.

Exit codes:
  the command's own, or 128+n if signal n ended it
  1   the lock is free: `who` and `break`
  64  bad usage or bad input
  69  the engine cannot be reached
  73  the engine cannot do what was asked
  75  the lock was not acquired, nothing was run; or `break --wait` timed out
  76  the lock was lost while the command ran
  77  the engine rejected the login, or a permission is missing
  78  the URL names a host, a database or a directory that does not exist"
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) engine: EngineArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Where the locks are. The variables are not the parser's to read: its messages would show the options as given on the command line.
#[derive(Debug, Args)]
#[command(next_help_heading = "Engine")]
pub(crate) struct EngineArgs {
    /// The engine: `file:/var/lib/myapp/locks`, `redis://host:6379/0`, `postgres://user@host/database`, `zookeeper://a,b,c/locks` [env: `TENURE_URL`] [default: `file:` in the user's state directory]
    #[arg(long, global = true, value_name = "URL", value_hint = ValueHint::Url)]
    pub(crate) url: Option<OsString>,

    /// The configuration file [env: `TENURE_CONFIG`] [default: ~/.config/tenure/config.toml or /etc/tenure/config.toml, if present]
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<OsString>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command under a lock
    ///
    /// Acquires the lock, runs the command, releases the lock, and exits with the command's exit code.
    ///
    /// The command and its child processes are gone before the next holder gets the lock, also if the lock is lost or `tenure` is killed
    /// with -9. Processes that the command leaves running when it ends by itself are not touched. The environment of the command contains
    /// `TENURE_LOCK`, `TENURE_TOKEN` (the fencing token: send it with every write) and `TENURE_OWNER`. A nested `tenure run` re-enters the
    /// locks of the outer one.
    ///
    /// With `file:` a lock excludes the processes of this host; with a server, all clients of that server.
    Run(RunArgs),
    /// List the locks that are held or waited for
    ///
    /// Prints a table on a terminal. Otherwise one line per lock, with fields separated by tabs: name, mode, token, holders, held since,
    /// number of waiters. An unknown field is `-`.
    Ls(LsArgs),
    /// Show the holders and waiters of a lock
    ///
    /// Prints a table and the lock's value on a terminal. Otherwise one line per holder and waiter, with fields separated by tabs: `holder`
    /// or `waiter`, mode, token, label, host, pid, since, `present` or `gone`. An unused lock has no lines.
    ///
    /// The exit code is 1 if the lock has no holder; stderr then says that it is free.
    Who(WhoArgs),
    /// Show each change of a lock
    ///
    /// Prints the current state of the lock, then one line per change, until it is interrupted. The lock is polled: a holder that comes and
    /// goes between two polls is not shown, but the token shows that there was one.
    Watch(WatchArgs),
    /// Ask the holder of a lock to release it, or free it by force
    ///
    /// A `tenure run` that is asked to release its lock kills its command and exits with 76. A holder notices within a
    /// third of its TTL, on ZooKeeper and etcd at once. Without --wait, this command does not wait for that.
    ///
    /// With --force the engine frees the lock at once. The old holder may still act as the holder for a while: only fencing tokens
    /// protect the data then. An engine that cannot do this names the process to end instead, and the exit code is 73.
    Break(BreakArgs),
    /// Create the tables that the engine needs, or print the statements
    ///
    /// The engines on databases create their tables at first use. If the database user of the jobs may not create tables, an administrator
    /// runs this once, or the statements that --print shows. Existing tables stay as they are.
    ///
    /// --print does not connect. The other engines need no tables.
    Migrate(MigrateArgs),
    /// Print the completions for a shell
    Completions(CompletionsArgs),
    /// Print the manual, or write a page for each command to a folder
    Man(ManArgs),
}

impl Command {
    /// The lock that the command works on.
    pub(crate) const fn name(&self) -> Option<&LockName> {
        match self {
            Self::Run(args) => Some(&args.name),
            Self::Who(args) => Some(&args.name),
            Self::Watch(args) => Some(&args.name),
            Self::Break(args) => Some(&args.name),
            Self::Ls(_) | Self::Migrate(_) | Self::Completions(_) | Self::Man(_) => None,
        }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tenure run nightly-report -- echo \"one at a time\"
  tenure run --wait 10s deploy -- echo \"waited ten seconds at most\"
  tenure run --no-wait backup -- echo \"exit code 75 if it runs elsewhere\"
  tenure run --shared config -- cat /etc/hostname
  tenure run --once-per 1m text-messages -- echo \"sent once, however many start this\"
  tenure run --once-per 1h --retry-failed import -- sh -c 'echo \"with token $TENURE_TOKEN\"'

Exit codes:
  the command's own, or 128+n if signal n ended it
  64  bad usage or bad input
  69  the engine cannot be reached
  73  the engine cannot do what was asked
  75  the lock was not acquired, nothing was run
  76  the lock was lost while the command ran
  77  the engine rejected the login, or a permission is missing
  78  the URL names a host, a database or a directory that does not exist
  126, 127  the command cannot be run, or was not found")]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own, and is set by its name")]
pub(crate) struct RunArgs {
    /// The name of the lock: 1 to 512 bytes; `/` separates parts
    pub(crate) name: LockName,

    /// The command and its arguments
    #[arg(last = true, required = true, value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,

    /// The longest time for connecting and waiting for the lock together [default: no limit]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, conflicts_with = "no_wait")]
    pub(crate) wait: Option<Duration>,

    /// Do not wait: exit with 75 if the lock is held, with 69 if the engine does not answer within 3s
    #[arg(long)]
    pub(crate) no_wait: bool,

    /// Acquire the lock in shared mode, together with other shared holders
    #[arg(long, conflicts_with = "mode")]
    pub(crate) shared: bool,

    /// The lock mode: NL, CR, CW, PR (shared), PW or EX (exclusive)
    #[arg(long, default_value = "EX", value_name = "MODE")]
    pub(crate) mode: Mode,

    /// The time to live of the lock without renewal; it is renewed every third of it [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) ttl: Option<Duration>,

    /// The longest time to hold the lock: the command gets TERM one grace period before, and KILL at the end
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) max_hold: Option<Duration>,

    /// How long before its deadline a lock that cannot be renewed is given up: the command gets TERM then, and KILL shortly before the deadline
    /// [default, and at most: a third of the ttl or of --max-hold; no more than 10s by default]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) grace: Option<Duration>,

    /// The label of the holder in `tenure who` [default: the command's name]
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,

    /// Do not run if a run on any host began less than this period (minus the spread) ago, by the engine's clock
    #[arg(long, value_name = "PERIOD", value_parser = duration::parse)]
    pub(crate) once_per: Option<Duration>,

    /// How much earlier than a full period after the last run the next one may begin [default: a tenth of the period]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, requires = "once_per")]
    pub(crate) spread: Option<Duration>,

    /// Count only runs that exited with 0, so that a failed run is repeated; by default a run counts from its start
    #[arg(long, requires = "once_per")]
    pub(crate) retry_failed: bool,

    /// The exit code if the job has run already
    #[arg(long, value_name = "CODE", default_value_t = 0, requires = "once_per")]
    pub(crate) already_run_exit: u8,

    /// Print the engine, the acquire with its token, and the release; twice, also the log of the library
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,

    /// Print only errors
    #[arg(short, long, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tenure ls
  tenure ls orders/
  tenure ls --json")]
pub(crate) struct LsArgs {
    /// List only names with this prefix
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,

    /// Print a JSON array
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tenure who nightly-report; test $? -eq 1 && echo \"it is free\"
  tenure who --json stuck-job

Exit codes:
  0   the lock is held
  1   the lock is free
  69  the engine cannot be reached")]
pub(crate) struct WhoArgs {
    /// The lock
    pub(crate) name: LockName,

    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tenure watch --for 2s nightly-report
  tenure watch --json --every 200ms --for 1s nightly-report")]
pub(crate) struct WatchArgs {
    /// The lock
    pub(crate) name: LockName,

    /// The polling interval, at least 10ms
    #[arg(long, value_name = "DURATION", value_parser = watch_interval, default_value = "1s")]
    pub(crate) every: Duration,

    /// How long to watch [default: until interrupted]
    #[arg(long = "for", value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) limit: Option<Duration>,

    /// Print one JSON object per line
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tenure break stuck-job --wait 30s

Exit codes:
  0   the holders were asked to release; with --wait, they have released
  1   the lock is free
  64  bad usage or bad input
  69  the engine cannot be reached
  73  the engine cannot do what was asked
  75  with --wait: a holder has not released in that time")]
pub(crate) struct BreakArgs {
    /// The lock
    pub(crate) name: LockName,

    /// Wait until the present holders have released, at most this long; without a duration, as long as it takes
    #[arg(long, value_name = "DURATION", value_parser = break_wait, conflicts_with = "force")]
    #[expect(clippy::option_option, reason = "to clap, this is an option whose value may be left out")]
    pub(crate) wait: Option<Option<Duration>>,

    /// Free the lock at once; its holder may still act as the holder for a while
    #[arg(long)]
    pub(crate) force: bool,

    /// Print a JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tenure migrate --print --url postgres://db/shop
  tenure migrate --print --url 'mysql://db/shop?recipe=row&table=job_lock'
  tenure migrate

Exit codes:
  64  bad usage or bad input
  69  the engine cannot be reached
  73  the engine cannot do what was asked
  77  the engine rejected the login, or a permission is missing
  78  the URL names a host or a database that does not exist")]
pub(crate) struct MigrateArgs {
    /// Print the statements without connecting
    #[arg(long)]
    pub(crate) print: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tenure completions bash
  tenure completions zsh > _tenure")]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tenure man
  tenure man --folder man1")]
pub(crate) struct ManArgs {
    /// The folder for all pages; it is created if it is missing
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub(crate) folder: Option<PathBuf>,
}

/// Reads a polling interval.
fn watch_interval(text: &str) -> Result<Duration, String> {
    const SHORTEST: Duration = Duration::from_millis(10);
    let interval = duration::parse(text)?;
    if interval < SHORTEST {
        return Err(format!("{text} is too short: {} is the shortest", duration::text(SHORTEST)));
    }
    Ok(interval)
}

/// Reads how long to wait, or a name that was written behind an option whose value may be left out.
fn break_wait(text: &str) -> Result<Duration, String> {
    duration::parse(text).map_err(|complaint| match LockName::parse(text) {
        Ok(name) if !text.starts_with(|first: char| first.is_ascii_digit() || first == '-') => {
            format!("{complaint}; without a limit, write it behind the name: tenure break {name} --wait")
        }
        _ => complaint,
    })
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definitions_are_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_command_is_told_from_options_by_two_dashes() {
        let Command::Run(run) = Cli::parse_from(["tenure", "run", "job", "--", "ls", "--json"]).command
        else {
            panic!("not a run");
        };
        assert_eq!(run.command, ["ls", "--json"]);
        assert!(Cli::try_parse_from(["tenure", "run", "job", "ls"]).is_err());
        assert!(Cli::try_parse_from(["tenure", "run", "job", "--"]).is_err());
    }
}
