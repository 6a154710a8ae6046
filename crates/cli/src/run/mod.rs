//! `tenure run`: takes the lock, runs the command, releases.
//!
//! It is two processes. The **front**, which the caller started, waits for the lock, renews it and releases it, passes signals on, and exits as
//! the command did. The [`minder`] is the command's parent and ends it in time. Each of them watches the other: whichever is killed, the
//! command and all below it are gone before anybody else gets the lock.

mod front;
mod minder;
mod nested;
mod order;
mod signals;
mod terminal;
mod tree;
mod waiting;

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fork::Fork;
use rustix::process::Pid;
use tenure::Ttl;

use self::front::{Front, Job};
use self::minder::Setup;
use self::terminal::Terminal;
use crate::args::RunArgs;
use crate::config::Config;
use crate::exit::{self, Failure};

pub(crate) fn run(args: RunArgs, config: Config, url: String) -> Result<u8, Failure> {
    find(&args.command[0])?;
    let command = args.command.clone();
    let job = Job::new(args, config, url)?;

    // From here on signals are read, and from here to the fork there is one thread.
    let (signals, first_mask) = signals::for_front()?;
    fork::ensure_waitable_children()
        .map_err(|error| Failure::system("children cannot be waited for", error))?;
    let (ours, theirs) = UnixStream::pair().map_err(|error| Failure::system("no socket", error))?;
    let own_group = !job.around.is_nested();
    let terminal = || if own_group { Terminal::open() } else { None };
    match fork::fork().map_err(|error| Failure::system("cannot start a process", error))? {
        Fork::Child => {
            drop(ours);
            Ok(minder::mind(theirs, Setup { command, own_group, first_mask, terminal: terminal() }))
        }
        Fork::Parent(pid) => {
            drop(theirs);
            let minder = Pid::from_raw(pid).expect("the number of a process is not zero");
            // Should the minder be killed, what it minded becomes ours.
            let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
            Front::new(job, signals, terminal(), minder, ours).run()
        }
    }
}

/// Finds the program before the lock is waited for: perhaps for an hour, and for nothing.
fn find(program: &OsStr) -> Result<(), Failure> {
    let is_executable = |path: &Path| {
        path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    let shown = program.to_string_lossy();
    if program.as_encoded_bytes().contains(&b'/') {
        let path = Path::new(program);
        if !path.exists() {
            return Err(Failure::new(exit::NOT_FOUND, format!("there is no program `{shown}`")));
        }
        if !is_executable(path) {
            return Err(Failure::new(
                exit::NOT_EXECUTABLE,
                format!("`{shown}` is not a program that can be run"),
            ));
        }
        return Ok(());
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let mut places = std::env::split_paths(&path).map(|folder: PathBuf| folder.join(program));
    if places.any(|place| is_executable(&place)) {
        return Ok(());
    }
    Err(Failure::new(
        exit::NOT_FOUND,
        format!("there is no program `{shown}` in any folder of PATH ({})", path.to_string_lossy()),
    ))
}

/// How long before the end of a lock its command is told to end.
fn grace(given: Option<Duration>, ttl: Duration, max_hold: Option<Duration>) -> Result<Duration, Failure> {
    const LONGEST: Duration = Duration::from_secs(10);
    let whole = max_hold.map_or(ttl, |most| most.min(ttl));
    let grace = given.unwrap_or_else(|| LONGEST.min(whole / 3));
    if grace > whole / 2 {
        let complaint = format!(
            "a grace of {grace:?} is too long: it may be half of the ttl ({ttl:?}) and of --max-hold at most, or the command would be \
             told to end while all is well"
        );
        return Err(Failure::usage(complaint));
    }
    Ok(grace)
}

/// Checks what only the command line knows to go together.
fn check(args: &RunArgs, ttl: Duration) -> Result<(), Failure> {
    Ttl::new(ttl).map_err(Failure::usage)?;
    if args.max_hold == Some(Duration::ZERO) {
        return Err(Failure::usage("--max-hold must be longer than zero"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_grace_leaves_time_to_work() {
        assert_eq!(grace(None, 30 * SECOND, None).unwrap(), 10 * SECOND);
        assert_eq!(grace(None, 600 * SECOND, None).unwrap(), 10 * SECOND);
        assert_eq!(grace(None, 30 * SECOND, Some(3 * SECOND)).unwrap(), SECOND);
        assert_eq!(grace(Some(15 * SECOND), 30 * SECOND, None).unwrap(), 15 * SECOND);
        assert_eq!(grace(Some(16 * SECOND), 30 * SECOND, None).unwrap_err().code, exit::USAGE);
        assert_eq!(grace(Some(2 * SECOND), 30 * SECOND, Some(3 * SECOND)).unwrap_err().code, exit::USAGE);
    }

    #[test]
    fn a_program_is_looked_for_before_the_lock_is() {
        assert!(find(OsStr::new("sh")).is_ok());
        assert!(find(OsStr::new("/bin/sh")).is_ok());
        assert_eq!(find(OsStr::new("no-such-program")).unwrap_err().code, exit::NOT_FOUND);
        assert_eq!(find(OsStr::new("/no/such/program")).unwrap_err().code, exit::NOT_FOUND);
        assert_eq!(find(OsStr::new("/etc/passwd")).unwrap_err().code, exit::NOT_EXECUTABLE);
        assert_eq!(find(OsStr::new("/etc")).unwrap_err().code, exit::NOT_EXECUTABLE);
    }
}
