//! What the clusters of the kit have in common: members that are servers of their own, one of which leads.
//!
//! A member is there when its port answers, also where the cluster cannot serve: a test that restarts one of
//! three while the others are dead must get on. Whoever needs the cluster waits for it, by its own name.

use std::net::SocketAddr;
use std::ops::DerefMut;

use crate::server::Server;
use crate::wait::eventually;

/// How many members a cluster has: the fewest of which one may fail.
pub(crate) const SIZE: usize = 3;

/// A running cluster of three servers; they end when this is dropped. [`ZooKeeperCluster`](crate::ZooKeeperCluster)
/// and [`EtcdCluster`](crate::EtcdCluster) are such.
#[derive(Debug)]
pub struct Cluster<T> {
    members: Vec<T>,
    /// Whether the member on this port serves, as a part of the whole.
    serves: fn(u16) -> bool,
    /// Whether the member on this port says that it leads.
    leads: fn(u16) -> bool,
}

impl<T: DerefMut<Target = Server>> Cluster<T> {
    /// Waits until all members serve.
    #[track_caller]
    pub(crate) fn new(members: Vec<T>, serves: fn(u16) -> bool, leads: fn(u16) -> bool) -> Self {
        let mut cluster = Self { members, serves, leads };
        cluster.wait_until_all_serve();
        cluster
    }

    /// The members, whether they run or not.
    pub fn members(&self) -> &[T] {
        &self.members
    }

    /// One member: 0, 1 or 2.
    #[track_caller]
    pub fn member(&self, index: usize) -> &T {
        &self.members[index]
    }

    /// One member, to be killed, paused or restarted.
    ///
    /// [`Server::restart`] waits until it listens, and not until the cluster serves:
    /// [`Cluster::wait_until_all_serve`] and [`Cluster::leader`] do.
    #[track_caller]
    pub fn member_mut(&mut self, index: usize) -> &mut T {
        &mut self.members[index]
    }

    /// Where the members listen.
    pub fn addrs(&self) -> Vec<SocketAddr> {
        self.members.iter().map(|member| member.addr()).collect()
    }

    /// Which member leads. Waits until one does, and no other says so, as it may for a moment after it was paused.
    ///
    /// # Panics
    ///
    /// If there is none for 60 seconds.
    #[track_caller]
    pub fn leader(&self) -> usize {
        eventually("one member of the cluster to lead", || {
            let leads = |index: &usize| (self.leads)(self.members[*index].port());
            let mut leaders = (0..self.members.len()).filter(leads);
            leaders.next().filter(|_| leaders.next().is_none())
        })
    }

    /// Waits until all members serve, as they do when it was started.
    ///
    /// # Panics
    ///
    /// If one does not within 60 seconds, or at once if it has ended, with the end of its log.
    #[track_caller]
    pub fn wait_until_all_serve(&mut self) {
        let serves = self.serves;
        for member in &mut self.members {
            let port = member.port();
            member.process().wait_until_ready(|| serves(port));
        }
    }

    /// `SCHEME://127.0.0.1:PORT,127.0.0.1:PORT,127.0.0.1:PORT`
    pub(crate) fn url(&self, scheme: &str) -> String {
        let addrs: Vec<String> = self.addrs().iter().map(ToString::to_string).collect();
        format!("{scheme}://{}", addrs.join(","))
    }
}

/// Makes a cluster of the kit one that is such.
macro_rules! is_a_cluster {
    ($name:ident of $member:ident) => {
        impl std::ops::Deref for $name {
            type Target = $crate::cluster::Cluster<$member>;

            fn deref(&self) -> &Self::Target {
                &self.0
            }
        }

        impl std::ops::DerefMut for $name {
            fn deref_mut(&mut self) -> &mut Self::Target {
                &mut self.0
            }
        }
    };
}
pub(crate) use is_a_cluster;
