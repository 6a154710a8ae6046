//! A supervised child process: a server with a folder of its own, a log, and a life that tests control.
//!
//! Two rules. Whatever ends or halts the process takes `&mut self`, so that a server which tests share
//! (`&'static`) cannot be disturbed by one of them. And the child is gone and reaped when its [`Process`]
//! is dropped, or when the test process dies in whatever way.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::guard::Guard;
use crate::wait::{DEFAULT_LIMIT, eventually, poll};
use crate::{family, program, spawner};

/// How long a server may take to end after it was asked to.
const STOP_LIMIT: Duration = Duration::from_secs(20);
/// How much of the log a failure shows.
const LOG_TAIL_LINES: usize = 40;

/// A running server, or any other program, as a child of this process.
#[derive(Debug)]
pub struct Process {
    name: String,
    /// Kept in order to start it once more.
    command: Command,
    child: Child,
    /// What asks it to end.
    stop_signal: Signal,
    /// Whether its children are a part of it: they are halted and killed with it then.
    with_children: bool,
    /// Whoever tidies up if this is never dropped. Fields are dropped in order: it comes after the child.
    guard: Option<Guard>,
    /// The last field: the folder vanishes after everything else.
    folder: TempDir,
}

impl Process {
    /// Starts `command`, with everything that it prints going to `log` in `folder`; `name` is what
    /// failures call it.
    ///
    /// The folder is where the program keeps its data too, and vanishes with the returned value. Standard
    /// streams that were set on `command` are not kept.
    ///
    /// # Panics
    ///
    /// If the program is not installed, with advice on how to change that.
    pub fn start(name: &str, folder: TempDir, command: Command) -> Self {
        // Asked here, since it is `setpriv` that would fail to find it, in the log and without advice.
        program::require(command.get_program());
        let child = spawn(name, &command, &log_of(folder.path()));
        Self {
            name: name.to_owned(),
            command,
            child,
            stop_signal: Signal::TERM,
            with_children: false,
            guard: None,
            folder,
        }
    }

    /// Takes its children for a part of it, as those of a server are that has a process per connection.
    pub(crate) fn with_children(mut self) -> Self {
        self.with_children = true;
        self
    }

    /// Asks it to end by this signal, and not by SIGTERM.
    pub(crate) fn stopped_by(mut self, signal: Signal) -> Self {
        self.stop_signal = signal;
        self
    }

    /// Has all of it killed and its folder removed also if this process is killed, or leaks it; see
    /// [`Guard::over`].
    pub(crate) fn guarded(mut self, server: &str, last: &str) -> Self {
        self.guard = Some(Guard::over(self.folder.path(), server, last));
        self
    }

    /// Waits until `ready` says so: a real request to the server is the best way to ask.
    ///
    /// # Panics
    ///
    /// If it is not ready within 60 seconds, or at once if it ends before, with the end of its log.
    #[track_caller]
    pub fn wait_until_ready(&mut self, mut ready: impl FnMut() -> bool) {
        let outcome = poll(DEFAULT_LIMIT, || {
            if ready() {
                return Some(Ok(()));
            }
            self.exit_status().map(Err)
        });
        match outcome {
            Some(Ok(())) => {}
            Some(Err(status)) => {
                panic!("{} ended before it was ready: {status}\n{}", self.name, self.log_tail())
            }
            None => {
                panic!("{} was not ready within {DEFAULT_LIMIT:?}\n{}", self.name, self.log_tail())
            }
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The folder that was given to [`Process::start`].
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// All that it has printed so far.
    pub fn log(&self) -> String {
        log_in(self.folder())
    }

    /// How it ended, if it has.
    pub fn exit_status(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("a child of ours can be waited for")
    }

    /// Asks it to end (SIGTERM), waits until it has, and returns how it ended.
    ///
    /// What does not end within 20 seconds is killed; the status then says so.
    pub fn stop(&mut self) -> ExitStatus {
        if self.exit_status().is_none() {
            self.signal(self.stop_signal);
            // A paused process hears of the first signal only when it is woken by the second.
            self.wake();
            if let Some(status) = poll(STOP_LIMIT, || self.exit_status()) {
                return status;
            }
        }
        self.end()
    }

    /// Kills it (SIGKILL), and waits until it is gone.
    pub fn kill(&mut self) {
        self.end();
    }

    /// Halts it (SIGSTOP), as a long garbage collection or a frozen virtual machine would: its connections
    /// stay open, and nobody answers. When this returns, it runs not one instruction more.
    ///
    /// # Panics
    ///
    /// If it has ended.
    pub fn pause(&mut self) {
        self.must_run("paused");
        self.halt();
    }

    /// Lets it run on after [`Process::pause`].
    ///
    /// # Panics
    ///
    /// If it has ended.
    pub fn resume(&mut self) {
        self.must_run("resumed");
        self.wake();
    }

    /// Starts it once more on the same folder, with the same arguments; stops it before, if it still runs.
    pub fn restart(&mut self) {
        self.stop();
        self.child = spawn(&self.name, &self.command, &log_of(self.folder()));
    }

    /// Removes the folder now, for a process that may never be dropped and needs no folder.
    pub(crate) fn remove_folder(&self) {
        let _ = fs::remove_dir_all(self.folder.path());
    }

    fn halt(&self) {
        let pid = self.pid();
        self.signal(Signal::STOP);
        // The signal is sent, not yet obeyed: each thread halts on its own.
        eventually(format_args!("{} to halt", self.name), || family::is_halted(pid));
        // Only now, when it starts no others.
        let children = self.children();
        family::signal_all(&children, Signal::STOP);
        eventually(format_args!("the children of {} to halt", self.name), || {
            children.iter().copied().all(family::is_halted)
        });
    }

    fn wake(&self) {
        family::signal_all(&self.children(), Signal::CONT);
        self.signal(Signal::CONT);
    }

    fn children(&self) -> Vec<u32> {
        if self.with_children { family::children_of(self.pid()) } else { Vec::new() }
    }

    fn end(&mut self) -> ExitStatus {
        if self.with_children && self.exit_status().is_none() {
            // Halted first, so that it neither starts others nor does anything about the death of these.
            self.halt();
            let children = self.children();
            family::signal_all(&children, Signal::KILL);
            family::wait_until_ended(&children);
        }
        // It may have ended by itself, which is no error: `kill` then does nothing.
        let _ = self.child.kill();
        self.child.wait().expect("a child of ours can be waited for")
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        // The id is still ours: it is free for others only after the child was waited for, and every
        // caller has just seen that it runs.
        kill_process(pid, signal).expect("a child of ours takes signals");
    }

    fn must_run(&mut self, to_be: &str) {
        if let Some(status) = self.exit_status() {
            panic!("{} cannot be {to_be}: {status}\n{}", self.name, self.log_tail());
        }
    }

    fn log_tail(&self) -> String {
        let log = self.log();
        let lines: Vec<&str> = log.lines().collect();
        let tail = &lines[lines.len().saturating_sub(LOG_TAIL_LINES)..];
        format!("the end of its log:\n{}", tail.join("\n"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

/// A folder for [`Process::start`].
pub(crate) fn folder(prefix: &str) -> TempDir {
    let folder = tempfile::Builder::new().prefix(prefix).tempdir();
    folder.expect("a test may make a folder for temporary files")
}

/// All that the process of this folder has printed so far.
pub(crate) fn log_in(folder: &Path) -> String {
    let bytes = fs::read(log_of(folder)).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn log_of(folder: &Path) -> PathBuf {
    folder.join("log")
}

fn spawn(name: &str, command: &Command, log: &Path) -> Child {
    // Appended to, so that a restart does not wipe out what led to it.
    let opened = File::options().create(true).append(true).open(log);
    let for_stdout = opened.unwrap_or_else(|error| panic!("cannot write {}: {error}", log.display()));
    let for_stderr = for_stdout.try_clone().expect("an open file can be shared");
    let spawned = spawner::spawn(command, |command| {
        command.stdin(std::process::Stdio::null()).stdout(for_stdout).stderr(for_stderr);
    });
    spawned.unwrap_or_else(|error| panic!("cannot start {name}: {error}"))
}
