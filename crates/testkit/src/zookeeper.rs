//! A real ZooKeeper on a free loopback port, with its data in a folder that vanishes.
//!
//! It is ready when it serves, so a test may speak to it as soon as it has one. It is as durable as ZooKeeper
//! is by default, and lets everybody in. Its ticks are short, so that a session may end soon: the shortest
//! one lasts two ticks.

use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use tempfile::TempDir;

use crate::port::{free_port, loopback};
use crate::process::{self, Process};
use crate::server::{Server, is_a_server};
use crate::wait::DEFAULT_LIMIT;
use crate::{program, shared};

mod cluster;

pub use cluster::{ZooKeeperCluster, ZooKeeperClusterBuilder};

/// How long one look at a ZooKeeper may take, before it is looked whether it still runs.
const LOOK_LIMIT: Duration = Duration::from_secs(1);

const TICK: Duration = Duration::from_millis(500);

/// Where Debian has ZooKeeper. The file names the others that it needs.
const JAR: &str = "/usr/share/java/zookeeper.jar";
/// Of a package that ZooKeeper's depends on: what it says goes to standard error, and not nowhere.
const LOGGER: &str = "/usr/share/java/slf4j-simple.jar";
const MAIN: &str = "org.apache.zookeeper.server.quorum.QuorumPeerMain";

/// A Java that is small and starts fast, and leaves no file outside of the folder.
const JAVA: [&str; 5] =
    ["-Xms64m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData"];

/// What sort of ZooKeeper to start; see [`ZooKeeper::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct ZooKeeperBuilder {
    tick: Duration,
    settings: Vec<(String, String)>,
    properties: Vec<(String, String)>,
}

impl ZooKeeperBuilder {
    fn new() -> Self {
        Self { tick: TICK, settings: Vec::new(), properties: Vec::new() }
    }

    /// The unit of its time (`tickTime`), 500 ms unless told: a session lasts two ticks at least.
    pub fn tick(mut self, tick: Duration) -> Self {
        self.tick = tick;
        self
    }

    /// How often it looks for containers that nobody needs any more, each minute unless told.
    pub fn containers_checked_every(self, interval: Duration) -> Self {
        self.property("znode.container.checkIntervalMs", interval.as_millis().to_string())
    }

    /// Another line of `zoo.cfg`. It comes after those of the kit, and so overrides them.
    pub fn setting(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.settings.push((key.into(), value.into()));
        self
    }

    /// A property of Java, for what `zoo.cfg` cannot say: `("zookeeper.forceSync", "no")`.
    pub fn property(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.properties.push((name.into(), value.into()));
        self
    }

    /// Starts it, and waits until it serves.
    ///
    /// # Panics
    ///
    /// If ZooKeeper is not installed or does not start, with what to do, or with its log.
    #[track_caller]
    pub fn start(self) -> ZooKeeper {
        let port = free_port();
        let process = self.process("ZooKeeper", process::folder("tenure-zookeeper-"), port, "");
        ZooKeeper(Server::new(ZooKeeper::NAME, process, port, None, serves))
    }

    /// Starts the process only. `others` are lines of `zoo.cfg` that a member of a cluster needs.
    fn process(&self, name: &str, folder: TempDir, port: u16, others: &str) -> Process {
        let mut command = Command::new(program::require("java"));
        let classes =
            [program::require_file("zookeeper", JAR), program::require_file("libslf4j-java", LOGGER)];
        command.args(JAVA).arg("-Dorg.slf4j.simpleLogger.showDateTime=true");
        command.args(self.properties.iter().map(|(name, value)| format!("-D{name}={value}")));
        command.args(["-cp", &classes.join(":"), MAIN]);
        let config = folder.path().join("zoo.cfg");
        let text = format!("{}{others}{}", self.config(folder.path(), port), lines(&self.settings));
        fs::write(&config, text).unwrap_or_else(|error| panic!("cannot write {}: {error}", config.display()));
        command.arg(&config);
        Process::start(name, folder, command).guarded("java", "")
    }

    fn config(&self, folder: &Path, port: u16) -> String {
        let tick_ms = self.tick.as_millis();
        let setting = |key: &str, value: String| (key.to_owned(), value);
        lines(&[
            setting("tickTime", tick_ms.to_string()),
            // Generous: a slow machine is no reason for a member to be given up.
            setting("initLimit", "20".to_owned()),
            setting("syncLimit", "20".to_owned()),
            setting("minSessionTimeout", (2 * tick_ms).to_string()),
            setting("maxSessionTimeout", "60000".to_owned()),
            setting("dataDir", folder.join("data").display().to_string()),
            setting("clientPort", port.to_string()),
            setting("clientPortAddress", "127.0.0.1".to_owned()),
            setting("maxClientCnxns", "0".to_owned()),
            setting("admin.enableServer", "false".to_owned()),
            setting("4lw.commands.whitelist", "*".to_owned()),
        ])
    }
}

fn lines(settings: &[(String, String)]) -> String {
    settings.iter().fold(String::new(), |mut text, (key, value)| {
        let _ = writeln!(text, "{key}={value}");
        text
    })
}

/// A running ZooKeeper; it ends when this is dropped.
#[derive(Debug)]
pub struct ZooKeeper(Server);

is_a_server!(ZooKeeper);

impl ZooKeeper {
    pub(crate) const NAME: &str = "ZooKeeper";

    /// One for many tests at once.
    pub(crate) fn to_share() -> Self {
        Self::start()
    }

    /// A ZooKeeper that stands alone.
    ///
    /// # Panics
    ///
    /// As [`ZooKeeperBuilder::start`].
    #[track_caller]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// A ZooKeeper with wishes.
    pub fn builder() -> ZooKeeperBuilder {
        ZooKeeperBuilder::new()
    }

    /// One ZooKeeper for all tests of a run, or of this test program if it was started by itself. Each test uses names of its own.
    ///
    /// It cannot be killed or paused, since these need a `&mut`.
    ///
    /// # Panics
    ///
    /// As [`ZooKeeperBuilder::start`].
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<ZooKeeper> = OnceLock::new();
        SHARED.get_or_init(|| shared::of_this_run(Self::NAME, serves).map_or_else(Self::to_share, Self))
    }

    /// Lets it live as long as this process, for a test binary whose tests share several. Its folder
    /// vanishes then.
    pub fn leak(self) -> &'static Self {
        Box::leak(Box::new(self))
    }

    /// `zookeeper://127.0.0.1:PORT`
    pub fn url(&self) -> String {
        format!("zookeeper://{}", self.addr())
    }

    /// What it answers to one of its words of four letters: `srvr`, `mntr`, `cons`, `wchs`, `dump`.
    ///
    /// # Panics
    ///
    /// If it does not answer within 60 seconds.
    #[track_caller]
    pub fn command(&self, word: &str) -> String {
        match ask(self.port(), DEFAULT_LIMIT, word) {
            Ok(answer) => answer,
            Err(error) => panic!("ZooKeeper did not answer {word:?}: {error}"),
        }
    }

    /// A figure of what it counts, under the name that `mntr` has for it: `zk_watch_count`.
    ///
    /// # Panics
    ///
    /// If it does not serve, or has no such figure, or one that is no whole number.
    #[track_caller]
    pub fn counter(&self, name: &str) -> i64 {
        let answer = self.command("mntr");
        let mut figures = answer.lines().filter_map(|line| line.split_once('\t'));
        match figures.find(|(figure, _)| *figure == name).map(|(_, value)| value.parse()) {
            Some(Ok(value)) => value,
            _ => panic!("ZooKeeper has no figure {name} that is a whole number:\n{answer}"),
        }
    }
}

fn serves(port: u16) -> bool {
    mode(port).is_some()
}

/// Whether it answers, and be it that it does not serve: a member of a cluster that waits for the others.
fn answers(port: u16) -> bool {
    ask(port, LOOK_LIMIT, "srvr").is_ok_and(|answer| !answer.is_empty())
}

/// `standalone`, `leader` or `follower`, if it serves.
fn mode(port: u16) -> Option<String> {
    let answer = ask(port, LOOK_LIMIT, "srvr").ok()?;
    answer.lines().find_map(|line| line.strip_prefix("Mode: ")).map(str::to_owned)
}

fn ask(port: u16, limit: Duration, word: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&loopback(port), limit)?;
    stream.set_read_timeout(Some(limit))?;
    stream.write_all(word.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
