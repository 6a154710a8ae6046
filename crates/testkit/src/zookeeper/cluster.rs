//! Three servers of ZooKeeper that are one.

use std::fmt::Write as _;
use std::fs;
use std::sync::OnceLock;
use std::time::Duration;

use crate::cluster::{Cluster, SIZE, is_a_cluster};
use crate::port::free_port;
use crate::process;
use crate::server::Server;

use super::{ZooKeeper, ZooKeeperBuilder, answers, mode};

/// What sort of cluster to start; see [`ZooKeeperCluster::builder`].
#[derive(Clone, Debug)]
#[must_use]
pub struct ZooKeeperClusterBuilder(ZooKeeperBuilder);

impl ZooKeeperClusterBuilder {
    /// As [`ZooKeeperBuilder::tick`]. A member that hears nothing of the others for 20 ticks gives up.
    pub fn tick(self, tick: Duration) -> Self {
        Self(self.0.tick(tick))
    }

    /// As [`ZooKeeperBuilder::containers_checked_every`].
    pub fn containers_checked_every(self, interval: Duration) -> Self {
        Self(self.0.containers_checked_every(interval))
    }

    /// As [`ZooKeeperBuilder::setting`], for each member: `("syncLimit", "4")`.
    pub fn setting(self, key: impl Into<String>, value: impl Into<String>) -> Self {
        Self(self.0.setting(key, value))
    }

    /// As [`ZooKeeperBuilder::property`], for each member: `("readonlymode.enabled", "true")`.
    pub fn property(self, name: impl Into<String>, value: impl Into<String>) -> Self {
        Self(self.0.property(name, value))
    }

    /// Starts the members, and waits until all of them serve.
    ///
    /// # Panics
    ///
    /// If ZooKeeper is not installed or does not start, with what to do, or with its log.
    #[track_caller]
    pub fn start(self) -> ZooKeeperCluster {
        let others = others();
        // All are started before one is waited for: Java takes its time.
        let processes: Vec<_> = (1..=SIZE)
            .map(|id| {
                let (folder, port) = (process::folder("tenure-zookeeper-"), free_port());
                let data = folder.path().join("data");
                fs::create_dir(&data)
                    .and_then(|()| fs::write(data.join("myid"), id.to_string()))
                    .unwrap_or_else(|error| panic!("cannot write into {}: {error}", data.display()));
                (self.0.process(&format!("ZooKeeper {id} of {SIZE}"), folder, port, &others), port)
            })
            .collect();
        let members = processes
            .into_iter()
            .map(|(process, port)| ZooKeeper(Server::new(ZooKeeper::NAME, process, port, None, answers)))
            .collect();
        ZooKeeperCluster(Cluster::new(members, serves, leads))
    }
}

/// The lines of `zoo.cfg` that say who the others are, and where.
fn others() -> String {
    (1..=SIZE).fold("standaloneEnabled=false\n".to_owned(), |mut lines, id| {
        let _ = writeln!(lines, "server.{id}=127.0.0.1:{}:{}", free_port(), free_port());
        lines
    })
}

/// A running cluster of three; it ends when this is dropped.
#[derive(Debug)]
pub struct ZooKeeperCluster(Cluster<ZooKeeper>);

is_a_cluster!(ZooKeeperCluster of ZooKeeper);

impl ZooKeeperCluster {
    /// A cluster of three.
    ///
    /// # Panics
    ///
    /// As [`ZooKeeperClusterBuilder::start`].
    #[track_caller]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// A cluster with wishes.
    pub fn builder() -> ZooKeeperClusterBuilder {
        ZooKeeperClusterBuilder(ZooKeeperBuilder::new())
    }

    /// One cluster for all tests of a test binary, each of which uses names of its own.
    ///
    /// Its members cannot be killed or paused, since these need a `&mut`.
    ///
    /// # Panics
    ///
    /// As [`ZooKeeperClusterBuilder::start`].
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<&ZooKeeperCluster> = OnceLock::new();
        SHARED.get_or_init(|| Self::start().leak())
    }

    /// Lets it live as long as this process, for a test binary whose tests share several. Its folders
    /// vanish then.
    pub fn leak(self) -> &'static Self {
        Box::leak(Box::new(self))
    }

    /// `zookeeper://127.0.0.1:PORT,127.0.0.1:PORT,127.0.0.1:PORT`
    pub fn url(&self) -> String {
        self.0.url("zookeeper")
    }
}

/// Not one that serves only readers, because it has lost the others.
fn serves(port: u16) -> bool {
    mode(port).is_some_and(|mode| mode == "leader" || mode == "follower")
}

fn leads(port: u16) -> bool {
    mode(port).is_some_and(|mode| mode == "leader")
}
