//! The command line: what `--help`, the completions and the man pages are made from.
//!
//! Every example in a help text is run by a test.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueHint};
use tenure::{LockName, Mode};

use crate::duration;

/// Run a job under a lock, and see who holds what.
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
  tenure who nightly-report || echo \"nobody holds it\"

`tenure COMMAND --help` says more about one of them.

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
    /// The engine, as `file:/var/lib/myapp/locks`, `redis://host:6379/0`, `postgres://user@host/database` or `zookeeper://a,b,c/locks`; `file:` below the user's state directory if nothing is said [env: `TENURE_URL`]
    #[arg(long, global = true, value_name = "URL", value_hint = ValueHint::Url)]
    pub(crate) url: Option<OsString>,

    /// The configuration file; else ~/.config/tenure/config.toml or /etc/tenure/config.toml, if there is one [env: `TENURE_CONFIG`]
    #[arg(long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) config: Option<OsString>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a command under a lock
    ///
    /// Takes the lock, runs the command, releases the lock, and exits as the command did.
    ///
    /// The command and all that it starts are gone before anybody else gets the lock: also if the lock is lost, and if `tenure` is
    /// killed, with -9 too. (What it leaves running when it ends by itself is left alone.) In its environment are `TENURE_LOCK`, `TENURE_TOKEN` (send it along with every write) and `TENURE_OWNER`. A
    /// `tenure run` inside of it re-enters the locks that it holds.
    ///
    /// How far a lock reaches is the engine's: with `file:`, to the processes of this host; with `redis:`, to all who reach that Redis.
    Run(RunArgs),
    /// List the locks that are held or waited for
    ///
    /// On a terminal a table; else a line for each lock, its fields separated by tabs: name, mode, token, holders, held since, how many
    /// wait. What is not known is `-`.
    Ls(LsArgs),
    /// Show who holds a lock and who waits for it
    ///
    /// On a terminal a table, and the lock's value; else a line for each, its fields separated by tabs: `holder` or `waiter`, mode, token,
    /// label, host, pid, since when, whether it is `present` or `gone`. A lock that nobody holds or waits for is no line at all.
    ///
    /// The exit code is 1 if nobody holds the lock; then stderr says that it is free.
    Who(WhoArgs),
    /// Show each change of a lock as it is seen
    ///
    /// Shows the lock as it is, and then each change, a line for each, until it is interrupted. It looks once in a while: who came and
    /// went between two looks is not seen, but the token shows how many did.
    Watch(WatchArgs),
    /// Ask the holder of a lock to let go, or take the lock away
    ///
    /// A `tenure run` that is asked to let go kills its command, and exits with 76. Without --wait this command does not wait for that: a
    /// holder with a lease hears of it at its next renewal, within a third of its ttl.
    ///
    /// With --force the engine frees the lock at once, although its holder may still act as the holder: only fencing tokens protect
    /// the data then. An engine that cannot do that says which process to end instead, and the exit code is 73.
    Break(BreakArgs),
    /// Make the tables that the engine needs, or print how
    ///
    /// The engines on databases make their tables when they are first used. Where the user that runs the jobs may not do that, somebody
    /// who may runs this once, or runs the statements that --print shows. What is there already is left as it is.
    ///
    /// Nothing is connected to with --print. The other engines need no tables.
    Migrate(MigrateArgs),
    /// Print the completions for a shell
    Completions(CompletionsArgs),
    /// Print the manual, or write a page for each command to a folder
    Man(ManArgs),
}

impl Command {
    /// The lock that it is about.
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
  tenure run --no-wait backup -- echo \"exit code 75 if somebody else runs it\"
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
    /// What is locked: 1 to 512 bytes, `/` makes a path
    pub(crate) name: LockName,

    /// The command and its arguments
    #[arg(last = true, required = true, value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,

    /// How long connecting and waiting for the lock may take together; without a limit if no duration is given
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, conflicts_with = "no_wait")]
    pub(crate) wait: Option<Duration>,

    /// Do not wait: exit with 75 if somebody else holds it, with 69 if the engine does not answer within 3s
    #[arg(long)]
    pub(crate) no_wait: bool,

    /// Lock it in shared mode: together with others who do the same
    #[arg(long, conflicts_with = "mode")]
    pub(crate) shared: bool,

    /// How to lock it: NL, CR, CW, PR (shared), PW or EX (exclusive)
    #[arg(long, default_value = "EX", value_name = "MODE")]
    pub(crate) mode: Mode,

    /// How long the lock lives without renewal, which is done every third of it [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) ttl: Option<Duration>,

    /// How long the lock may be held: the command gets TERM a grace before, and KILL at the end
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) max_hold: Option<Duration>,

    /// How long before its end a lock that cannot be renewed is given up: the command gets TERM then, and KILL at the end
    /// [default, and at most: a third of the ttl or of --max-hold; no more than 10s by default]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) grace: Option<Duration>,

    /// What the holder calls itself, for `tenure who`; the command's name if nothing is said
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,

    /// Do not run if a run was begun less than this (less the spread) ago, by whomever, by the engine's clock
    #[arg(long, value_name = "PERIOD", value_parser = duration::parse)]
    pub(crate) once_per: Option<Duration>,

    /// How much earlier than after a full period the next run may begin [default: a tenth of the period]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, requires = "once_per")]
    pub(crate) spread: Option<Duration>,

    /// Count only runs that exited with 0, so that a failed one is tried again; else a run counts from its start
    #[arg(long, requires = "once_per")]
    pub(crate) retry_failed: bool,

    /// Exit with this if it has run already
    #[arg(long, value_name = "CODE", default_value_t = 0, requires = "once_per")]
    pub(crate) already_run_exit: u8,

    /// Say where the lock is, when it was acquired, with which token, and when it was released; twice, all that the library does
    #[arg(short, long, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,

    /// Say nothing but errors
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
    /// Only those whose names start with this
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,

    /// Print a JSON array
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tenure who nightly-report || echo \"nobody holds it\"
  tenure who --json stuck-job

Exit codes:
  0   somebody holds the lock
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

    /// How often to look: every 10ms at most
    #[arg(long, value_name = "DURATION", value_parser = watch_interval, default_value = "1s")]
    pub(crate) every: Duration,

    /// How long to watch; until it is interrupted, if nothing is said
    #[arg(long = "for", value_name = "DURATION", value_parser = duration::parse)]
    pub(crate) limit: Option<Duration>,

    /// Print a JSON object for each
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tenure break stuck-job --wait 30s

Exit codes:
  0   the holders were asked to let go; with --wait, they have
  1   nobody holds the lock
  64  bad usage or bad input
  69  the engine cannot be reached
  73  the engine cannot do what was asked
  75  with --wait: a holder has not let go in that time")]
pub(crate) struct BreakArgs {
    /// The lock
    pub(crate) name: LockName,

    /// Wait until the present holders have let go: for this long at most, or without a limit if no duration is given
    #[arg(long, value_name = "DURATION", value_parser = break_wait, conflicts_with = "force")]
    #[expect(clippy::option_option, reason = "to clap, this is an option whose value may be left out")]
    pub(crate) wait: Option<Option<Duration>>,

    /// Free the lock at once, although its holder may still act as the holder
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
    /// Print the statements, and do nothing
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
    /// Where to write all pages; it is created if it is not there
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub(crate) folder: Option<PathBuf>,
}

/// Reads how often to look.
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
