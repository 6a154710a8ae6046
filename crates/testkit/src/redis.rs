//! A real Redis on a free loopback port, with its data in a folder that vanishes.
//!
//! It is ready when it has answered a PING, so a test may speak to it as soon as it has one.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use crate::faketime::Faketime;
use crate::port::{free_port, loopback};
use crate::process::{self, Process};
use crate::resp::RedisConnection;
use crate::server::{Server, is_a_server};
use crate::shared;

/// How long one look at whether Redis is ready may take, before it is looked whether Redis still runs.
const LOOK_LIMIT: Duration = Duration::from_secs(1);

/// What Redis keeps on its disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Persistence {
    /// Nothing: a restart forgets everything.
    #[default]
    None,
    /// Each write, synced before it is answered (`appendonly yes`, `appendfsync always`).
    AofAlways,
}

/// What sort of Redis to start; see [`Redis::builder`].
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct RedisBuilder {
    persistence: Persistence,
    faketime: bool,
    sentinel: Option<PathBuf>,
    args: Vec<String>,
}

impl RedisBuilder {
    /// What it keeps on its disk; nothing unless told.
    pub fn persistence(mut self, persistence: Persistence) -> Self {
        self.persistence = persistence;
        self
    }

    /// Starts it on a wall clock of its own, for [`Server::step_clock`].
    pub fn faketime(mut self) -> Self {
        self.faketime = true;
        self
    }

    /// Another argument, as on the command line. It comes after those of the kit, and so overrides them.
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Other arguments: `["--maxmemory", "2mb"]`.
    pub fn args<A: Into<String>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Starts a Sentinel instead, with this file for its configuration, which it rewrites.
    pub fn sentinel(mut self, config: &Path) -> Self {
        self.sentinel = Some(config.to_owned());
        self
    }

    /// Starts it, and waits until it answers.
    ///
    /// # Panics
    ///
    /// If Redis is not installed or does not start, with what to do, or with its log.
    #[track_caller]
    pub fn start(self) -> Redis {
        let folder = process::folder("tenure-redis-");
        let port = free_port();
        let mut command = self.command(folder.path(), port);
        let mut faketime = None;
        if self.faketime {
            let (clock, changed) = Faketime::around(&command, folder.path());
            (command, faketime) = (changed, Some(clock));
        }
        let process = Process::start("Redis", folder, command);
        Redis(Server::new(Redis::NAME, process, port, faketime, answers))
    }

    fn command(&self, folder: &Path, port: u16) -> Command {
        let mut command = Command::new(crate::program::require("redis-server"));
        if let Some(config) = &self.sentinel {
            command.arg(config).args(["--sentinel", "--bind", "127.0.0.1", "--port", &port.to_string()]);
            command.arg("--dir").arg(folder).args(&self.args);
            return command;
        }
        command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--daemonize", "no"]);
        // No snapshots: in either mode they would come at a moment of Redis' choosing.
        command.args(["--save", ""]).arg("--dir").arg(folder);
        command.args(match self.persistence {
            Persistence::None => ["--appendonly", "no"].as_slice(),
            Persistence::AofAlways => &["--appendonly", "yes", "--appendfsync", "always"],
        });
        command.args(&self.args);
        command
    }
}

/// A running Redis; it ends when this is dropped.
#[derive(Debug)]
pub struct Redis(Server);

is_a_server!(Redis);

impl Redis {
    pub(crate) const NAME: &str = "Redis";

    /// One for many tests at once.
    pub(crate) fn to_share() -> Self {
        Self::start().without_folder()
    }

    /// Nobody drops it, so its folder would stay. Redis itself dies with this process, and needs no folder.
    fn without_folder(mut self) -> Self {
        self.process().remove_folder();
        self
    }

    /// A Redis that keeps nothing on its disk.
    ///
    /// # Panics
    ///
    /// As [`RedisBuilder::start`].
    #[track_caller]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// A Redis with wishes.
    pub fn builder() -> RedisBuilder {
        RedisBuilder::default()
    }

    /// One Redis for all tests of a run, or of this test program if it was started by itself. Each test uses names of its own.
    ///
    /// It cannot be killed, paused or stepped, since all of these need a `&mut`.
    ///
    /// # Panics
    ///
    /// As [`RedisBuilder::start`].
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Redis> = OnceLock::new();
        SHARED.get_or_init(|| shared::of_this_run(Self::NAME, answers).map_or_else(Self::to_share, Self))
    }

    /// Lets it live as long as this process: one that keeps nothing on its disk, for a test binary whose tests share several.
    pub fn leak(self) -> &'static Self {
        Box::leak(Box::new(self.without_folder()))
    }

    /// `redis://127.0.0.1:PORT`
    pub fn url(&self) -> String {
        format!("redis://{}", self.addr())
    }

    /// A new connection.
    pub fn connect(&self) -> io::Result<RedisConnection> {
        RedisConnection::open(self.addr())
    }

    /// Runs one command on a connection of its own: a nil as `(nil)`, an array with a line for each element.
    ///
    /// # Panics
    ///
    /// If Redis answers with an error, or not within 60 seconds; [`Redis::connect`] is for those who
    /// expect that.
    #[track_caller]
    pub fn command(&self, words: &[&str]) -> String {
        match self.connect().and_then(|mut connection| connection.command(words)) {
            Ok(answer) => answer,
            Err(error) => panic!("Redis did not do {words:?}: {error}"),
        }
    }

    /// How often a command was done, by itself or in scripts, since it was started or its statistics were reset.
    ///
    /// # Panics
    ///
    /// As [`Redis::command`].
    #[track_caller]
    pub fn calls(&self, command: &str) -> usize {
        let (stats, prefix) = (self.command(&["INFO", "commandstats"]), format!("cmdstat_{command}:calls="));
        let calls = stats.lines().find_map(|line| line.strip_prefix(&prefix)?.split(',').next());
        calls.map_or(0, |calls| calls.parse().expect("Redis counts in whole numbers"))
    }
}

fn answers(port: u16) -> bool {
    RedisConnection::open_within(LOOK_LIMIT, loopback(port))
        .and_then(|mut connection| connection.command(&["PING"]))
        .is_ok_and(|answer| answer == "PONG")
}
