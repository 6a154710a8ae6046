//! Three servers of etcd that are one.

use std::net::TcpStream;
use std::sync::OnceLock;

use crate::cluster::{Cluster, SIZE, is_a_cluster};
use crate::port::loopback;
use crate::process;
use crate::server::Server;

use super::{Etcd, EtcdBuilder, LOOK_LIMIT, Member, is_healthy, metric};

/// What sort of cluster to start; see [`EtcdCluster::builder`].
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct EtcdClusterBuilder(EtcdBuilder);

impl EtcdClusterBuilder {
    /// As [`EtcdBuilder::arg`], for each member.
    pub fn arg(self, arg: impl Into<String>) -> Self {
        Self(self.0.arg(arg))
    }

    /// As [`EtcdBuilder::args`], for each member.
    pub fn args<A: Into<String>>(self, args: impl IntoIterator<Item = A>) -> Self {
        Self(self.0.args(args))
    }

    /// Starts the members, and waits until all of them are healthy.
    ///
    /// # Panics
    ///
    /// If etcd is not installed or does not start, with what to do, or with its log.
    #[track_caller]
    pub fn start(self) -> EtcdCluster {
        let members: Vec<Member> = (1..=SIZE).map(Member::new).collect();
        let peers: Vec<String> = members.iter().map(Member::as_peer).collect();
        let started = members.iter().map(|member| {
            let (name, folder) = (format!("{} of {SIZE}", member.name), process::folder("tenure-etcd-"));
            let process = self.0.process(&name, folder, member, &peers.join(","));
            Etcd(Server::new(Etcd::NAME, process, member.port, None, listens))
        });
        EtcdCluster(Cluster::new(started.collect(), is_healthy, leads))
    }
}

/// A running cluster of three; it ends when this is dropped.
#[derive(Debug)]
pub struct EtcdCluster(Cluster<Etcd>);

is_a_cluster!(EtcdCluster of Etcd);

impl EtcdCluster {
    /// A cluster of three.
    ///
    /// # Panics
    ///
    /// As [`EtcdClusterBuilder::start`].
    #[track_caller]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// A cluster with wishes.
    pub fn builder() -> EtcdClusterBuilder {
        EtcdClusterBuilder::default()
    }

    /// One cluster for all tests of a test binary, each of which uses names of its own.
    ///
    /// Its members cannot be killed or paused, since these need a `&mut`.
    ///
    /// # Panics
    ///
    /// As [`EtcdClusterBuilder::start`].
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<&EtcdCluster> = OnceLock::new();
        SHARED.get_or_init(|| Self::start().leak())
    }

    /// Lets it live as long as this process, for a test binary whose tests share several. Its folders
    /// vanish then.
    pub fn leak(self) -> &'static Self {
        Box::leak(Box::new(self))
    }

    /// `etcd://127.0.0.1:PORT,127.0.0.1:PORT,127.0.0.1:PORT`
    pub fn url(&self) -> String {
        self.0.url("etcd")
    }
}

/// All that one can tell of a member which waits for the others: it answers nothing before it has met them.
fn listens(port: u16) -> bool {
    TcpStream::connect_timeout(&loopback(port), LOOK_LIMIT).is_ok()
}

fn leads(port: u16) -> bool {
    metric(port, LOOK_LIMIT, "etcd_server_is_leader").is_ok_and(|value| value > 0.0)
}
