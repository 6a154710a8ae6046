//! A real etcd on a free loopback port, with its data in a folder that vanishes.
//!
//! It is ready when it says that it is healthy, so a test may speak to it as soon as it has one. It is as durable
//! as etcd is by default, and lets everybody in.

use std::io::{self, Read, Write};
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
use crate::{client, program, shared};

mod cluster;

pub use cluster::{EtcdCluster, EtcdClusterBuilder};

/// How long one look at an etcd may take, before it is looked whether it still runs. It takes a second itself to
/// find out that it is not healthy.
const LOOK_LIMIT: Duration = Duration::from_secs(2);

const SERVER: &str = "etcd";

/// What sort of etcd to start; see [`Etcd::builder`].
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct EtcdBuilder {
    args: Vec<String>,
}

impl EtcdBuilder {
    /// Another argument, as on the command line. It comes after those of the kit, and so overrides them.
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Other arguments: `["--heartbeat-interval=50", "--election-timeout=500"]`.
    pub fn args<A: Into<String>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Starts it, and waits until it is healthy.
    ///
    /// # Panics
    ///
    /// If etcd is not installed or does not start, with what to do, or with its log.
    #[track_caller]
    pub fn start(self) -> Etcd {
        let member = Member::new(1);
        let process = self.process("etcd", process::folder("tenure-etcd-"), &member, &member.as_peer());
        Etcd(Server::new(Etcd::NAME, process, member.port, None, is_healthy))
    }

    /// Starts the process only. `peers` are all members of its cluster, itself among them.
    fn process(&self, name: &str, folder: TempDir, member: &Member, peers: &str) -> Process {
        let command = self.command(folder.path(), member, peers);
        Process::start(name, folder, command).guarded(SERVER, "")
    }

    fn command(&self, folder: &Path, member: &Member, peers: &str) -> Command {
        let mut command = Command::new(program::require(SERVER));
        client::forget_variables(&mut command, "ETCD_");
        command.arg("--data-dir").arg(folder.join("data")).args(["--name", &member.name]);
        let (clients, others) = (http(member.port), http(member.peer_port));
        command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
        command.args(["--listen-peer-urls", &others, "--initial-advertise-peer-urls", &others]);
        command.args(["--initial-cluster", peers, "--initial-cluster-state", "new"]);
        command.args(["--logger", "zap", "--log-outputs", "stderr"]).args(&self.args);
        command
    }
}

/// One etcd, which is a cluster even if it is alone.
struct Member {
    name: String,
    port: u16,
    peer_port: u16,
}

impl Member {
    fn new(number: usize) -> Self {
        Self { name: format!("etcd-{number}"), port: free_port(), peer_port: free_port() }
    }

    /// How the others know it.
    fn as_peer(&self) -> String {
        format!("{}={}", self.name, http(self.peer_port))
    }
}

/// A running etcd; it ends when this is dropped.
#[derive(Debug)]
pub struct Etcd(Server);

is_a_server!(Etcd);

impl Etcd {
    pub(crate) const NAME: &str = "etcd";

    /// One for many tests at once.
    pub(crate) fn to_share() -> Self {
        Self::start()
    }

    /// An etcd that stands alone.
    ///
    /// # Panics
    ///
    /// As [`EtcdBuilder::start`].
    #[track_caller]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// An etcd with wishes.
    pub fn builder() -> EtcdBuilder {
        EtcdBuilder::default()
    }

    /// One etcd for all tests of a run, or of this test program if it was started by itself. Each test uses names of its own.
    ///
    /// It cannot be killed or paused, since these need a `&mut`.
    ///
    /// # Panics
    ///
    /// As [`EtcdBuilder::start`].
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Etcd> = OnceLock::new();
        SHARED.get_or_init(|| shared::of_this_run(Self::NAME, is_healthy).map_or_else(Self::to_share, Self))
    }

    /// Lets it live as long as this process, for a test binary whose tests share several. Its folder
    /// vanishes then.
    pub fn leak(self) -> &'static Self {
        Box::leak(Box::new(self))
    }

    /// `etcd://127.0.0.1:PORT`
    pub fn url(&self) -> String {
        format!("etcd://{}", self.addr())
    }

    /// Runs `etcdctl` with these arguments, and returns what it printed: `["get", "--prefix", "orders"]`.
    ///
    /// # Panics
    ///
    /// If it fails, or does not end within 60 seconds; [`Etcd::try_ctl`] is for those who expect that.
    #[track_caller]
    pub fn ctl(&self, args: &[&str]) -> String {
        match self.try_ctl(args) {
            Ok(printed) => printed,
            Err(error) => panic!("etcdctl did not do {args:?}: {error}"),
        }
    }

    /// The same as [`Etcd::ctl`], with the text of the error if there is one.
    pub fn try_ctl(&self, args: &[&str]) -> Result<String, String> {
        client::ask(DEFAULT_LIMIT, self.ctl_command().args(args))
    }

    /// An `etcdctl` that speaks to it, for what takes long, such as `lock` and `watch`. It dies with the test if
    /// it is given to [`Process::start`].
    ///
    /// # Panics
    ///
    /// If it is not installed, with advice on how to change that.
    pub fn ctl_command(&self) -> Command {
        let mut command = Command::new(program::require("etcdctl"));
        client::forget_variables(&mut command, "ETCDCTL_");
        command.env("ETCDCTL_API", "3").args(["--endpoints", &http(self.port())]);
        command
    }

    /// The sum of all figures in `/metrics` whose line starts so: `etcd_debugging_mvcc_put_total`, or with labels
    /// `grpc_server_handled_total{grpc_code="OK",grpc_method="Txn"`. Without any it is 0: etcd shows some only
    /// when they are no longer 0.
    ///
    /// # Panics
    ///
    /// If it does not answer within 60 seconds.
    #[track_caller]
    pub fn metric(&self, name: &str) -> f64 {
        match metric(self.port(), DEFAULT_LIMIT, name) {
            Ok(sum) => sum,
            Err(error) => panic!("etcd did not tell its metrics: {error}"),
        }
    }
}

fn http(port: u16) -> String {
    format!("http://{}", loopback(port))
}

/// That it is a part of a cluster that has a leader, and can write.
fn is_healthy(port: u16) -> bool {
    get(port, LOOK_LIMIT, "/health").is_ok_and(|answer| answer.contains(r#""health":"true""#))
}

fn metric(port: u16, limit: Duration, name: &str) -> io::Result<f64> {
    let metrics = get(port, limit, "/metrics")?;
    let lines = metrics.lines().filter(|line| line.starts_with(name));
    Ok(lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok()).sum())
}

/// What is under this path, with or without success.
fn get(port: u16, limit: Duration, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&loopback(port), limit)?;
    stream.set_read_timeout(Some(limit))?;
    // The older version: what it answers comes in one piece, and ends with the connection.
    write!(stream, "GET {path} HTTP/1.0\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let not_http =
        || io::Error::new(io::ErrorKind::InvalidData, format!("not an answer of HTTP: {answer:?}"));
    let (_, body) = answer.split_once("\r\n\r\n").ok_or_else(not_http)?;
    Ok(body.to_owned())
}
