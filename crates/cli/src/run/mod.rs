//! `tenure run`: acquires the lock, runs the command, releases the lock.
//!
//! It has two processes. The **front**, which the caller started, acquires, renews and releases the lock, passes signals on, and exits as
//! the command did. The [`minder`] is the command's parent and ends it in time. The two watch each other: if either is killed, the command
//! and all its descendants end before the lock can be granted again.

mod find;
mod front;
mod job;
mod minder;
mod nested;
mod order;
mod shift;
mod signals;
mod terminal;
mod tree;
mod waiting;

use std::os::unix::net::UnixStream;

use fork::Fork;
use rustix::process::Pid;

use self::front::Front;
use self::job::Job;
use self::minder::Setup;
use self::terminal::Terminal;
use crate::Connect;
use crate::args::RunArgs;
use crate::config::{Config, Engine};
use crate::exit::Failure;

pub(crate) fn run(args: RunArgs, config: Config, engine: Engine, connect: Connect) -> Result<u8, Failure> {
    find::program(&args.command[0])?;
    if !tree::can_be_seen() {
        return Err(Failure::system("the command could not be ended in time", "/proc is not mounted"));
    }
    let command = args.command.clone();
    let job = Job::new(args, config, engine)?;

    // From here on, signals are read. Until the fork there is only one thread.
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
            // If the minder is killed, this process inherits its descendants.
            let _ = rustix::process::set_child_subreaper(Some(rustix::process::getpid()));
            Front { job, connect, signals, terminal: terminal(), minder, socket: ours }.run()
        }
    }
}
