//! A place of one's own for locks, and the command that uses it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tenure::blocking::Client;
use tenure_testkit::{Process, eventually};

/// A folder with locks in it, and whatever else a test writes there.
pub(crate) struct Place {
    folder: TempDir,
    /// Where the locks are, if not in the folder.
    elsewhere: Option<String>,
}

impl Place {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), elsewhere: None }
    }

    /// With locks at that URL.
    pub(crate) fn with_locks_at(url: impl Into<String>) -> Self {
        Self { elsewhere: Some(url.into()), ..Self::new() }
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.folder.path().join(file)
    }

    pub(crate) fn url(&self) -> String {
        self.elsewhere.clone().unwrap_or_else(|| format!("file:{}", self.path("locks").display()))
    }

    pub(crate) fn client(&self) -> Client {
        Client::connect(&self.url()).unwrap()
    }

    /// Any program, in this place: with `tenure` in its PATH, nobody's configuration, and no signal ignored.
    pub(crate) fn program(&self, program: &str) -> Command {
        let tenure = Path::new(env!("CARGO_BIN_EXE_tenure"));
        let path = std::env::join_paths(
            std::iter::once(tenure.parent().unwrap().to_owned())
                .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
        );
        // Whatever these tests were started by may have had them ignore signals, as `nohup` and a shell's `&` do.
        let mut command = Command::new("env");
        command.args(["--default-signal", program]);
        command.current_dir(self.folder.path());
        for (variable, _) in std::env::vars().filter(|(variable, _)| variable.starts_with("TENURE_")) {
            command.env_remove(variable);
        }
        command.env_remove("XDG_CONFIG_HOME").env_remove("XDG_STATE_HOME").env("HOME", self.folder.path());
        command.env("PATH", path.unwrap()).env("TENURE_URL", self.url());
        command
    }

    pub(crate) fn tenure(&self, arguments: &[&str]) -> Command {
        let mut command = self.program(env!("CARGO_BIN_EXE_tenure"));
        command.args(arguments);
        command
    }

    /// Runs `tenure` to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Done {
        Done::of(&self.tenure(arguments).output().unwrap())
    }

    /// Starts `tenure` beside the test.
    pub(crate) fn start(&self, arguments: &[&str]) -> Process {
        Process::start("tenure", tempfile::tempdir().unwrap(), self.tenure(arguments))
    }

    /// Starts a `tenure run` that holds a lock for as long as it lives, and waits until it does.
    pub(crate) fn hold(&self, name: &str) -> Process {
        let holder = self.start(&["run", name, "--", "sleep", "1000"]);
        eventually("the lock to be held", || self.is_held(name));
        holder
    }

    pub(crate) fn is_held(&self, name: &str) -> bool {
        self.client().inspect(name).unwrap().present_holders().next().is_some()
    }

    pub(crate) fn waiters(&self, name: &str) -> usize {
        self.client().inspect(name).unwrap().waiters.len()
    }

    /// Where the engine keeps a lock.
    pub(crate) fn lock_folder(&self, name: &str) -> PathBuf {
        let mut folders = std::fs::read_dir(self.path("locks")).unwrap().map(|entry| entry.unwrap().path());
        let is_it =
            |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().starts_with(&format!("{name}."));
        folders.find(is_it).unwrap()
    }

    /// The numbers in a file, one in each line; those that are still being written are not there yet.
    pub(crate) fn numbers(&self, file: &str) -> Vec<i32> {
        let text = std::fs::read_to_string(self.path(file)).unwrap_or_default();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().map(|line| line.trim().parse().unwrap()).collect()
    }

    pub(crate) fn numbers_as_u64(&self, file: &str) -> Vec<u64> {
        self.lines(file).iter().map(|line| line.parse().unwrap()).collect()
    }

    /// The lines of a file.
    pub(crate) fn lines(&self, file: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.path(file)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

/// How a program ended, and what it said.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Done {
    pub(crate) fn of(output: &Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
    }

    /// It ended with this code, and said this on stderr.
    #[track_caller]
    pub(crate) fn expect(self, code: i32, said: &str) -> Self {
        assert!(self.code == Some(code) && self.err.contains(said), "not {code} and {said:?}: {self:#?}");
        self
    }
}

/// Processes that do not outlive a test which fails.
pub(crate) struct Pids(pub(crate) Vec<i32>);

impl Drop for Pids {
    fn drop(&mut self) {
        for pid in self.0.iter().copied().filter(|pid| is_alive(*pid)) {
            let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
        }
    }
}

/// Whether a process still runs: one that only waits to be waited for does not.
pub(crate) fn is_alive(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit_once(')').unwrap().1.trim_start().starts_with(['Z', 'X']))
}

/// The children of a process.
pub(crate) fn children(pid: u32) -> Vec<i32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// The process that minds the command of a `tenure run`.
pub(crate) fn minder(tenure: u32) -> i32 {
    eventually("the minder", || children(tenure).first().copied())
}

pub(crate) fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
}

/// How a process that was started beside the test ended.
#[track_caller]
pub(crate) fn code_of(process: &mut Process) -> Option<i32> {
    eventually("it to end", || process.exit_status()).code()
}
