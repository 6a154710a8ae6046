//! `etcd:` is held to the contract, on one member and on three.

use std::time::Duration;

use tenure::Client;
use tenure::contract::{Network, Subject};
use tenure_testkit::{Etcd, EtcdCluster};

use crate::proxies::Proxies;

/// Longer than a slow machine takes to answer, and short enough to be waited for.
fn url(hosts: &str) -> String {
    format!("etcd://{hosts}?timeout_ms=3000")
}

/// The shortest that an etcd grants.
const TTL: Duration = Duration::from_secs(2);

struct One;

impl Subject for One {
    const TTL: Duration = TTL;

    async fn start() -> Self {
        Self
    }

    fn address(&self) -> String {
        Etcd::shared().url()
    }

    fn network(&self) -> Option<Box<dyn Network>> {
        Some(Box::new(Proxies::before([Etcd::shared().addr()], url)))
    }

    async fn connect(address: &str) -> Client {
        Client::connect(address).await.unwrap()
    }
}

tenure::contract_suite!(one, One, recipe);

struct Three;

impl Subject for Three {
    const TTL: Duration = TTL;

    async fn start() -> Self {
        Self
    }

    fn address(&self) -> String {
        EtcdCluster::shared().url()
    }

    fn network(&self) -> Option<Box<dyn Network>> {
        Some(Box::new(Proxies::before(EtcdCluster::shared().addrs(), url)))
    }

    async fn connect(address: &str) -> Client {
        Client::connect(address).await.unwrap()
    }
}

tenure::contract_suite!(three, Three, variant);
