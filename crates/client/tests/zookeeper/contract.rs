//! `zookeeper:` is held to the contract by both of its recipes, on one server and on three.

use std::net::SocketAddr;
use std::time::Duration;

use tenure::Client;
use tenure::contract::{Network, Subject};
use tenure_testkit::{ZooKeeper, ZooKeeperCluster};

use crate::proxies::Proxies;

/// A subject: where its servers are, and how it is used.
macro_rules! subject {
    ($(#[$doc:meta])* $name:ident, $module:ident, $servers:expr, $recipe:literal beside $other:literal, $part:ident) => {
        $(#[$doc])*
        struct $name;

        impl Subject for $name {
            // Of a shorter session, the three ticks that a proof takes leave too little.
            const TTL: Duration = Duration::from_secs(2);

            async fn start() -> Self {
                Self
            }

            fn address(&self) -> String {
                url(&hosts(&$servers), $recipe, PATIENT_MS)
            }

            fn other_recipes(&self) -> Vec<String> {
                vec![url(&hosts(&$servers), $other, PATIENT_MS)]
            }

            fn network(&self) -> Option<Box<dyn Network>> {
                Some(Box::new(Proxies::before($servers, |hosts| url(hosts, $recipe, CUT_OFF_MS))))
            }

            async fn connect(address: &str) -> Client {
                Client::connect(address).await.unwrap()
            }
        }

        tenure::contract_suite!($module, $name, $part);
    };
}

fn hosts(servers: &[SocketAddr]) -> String {
    servers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// A request may take longer than a slow machine takes to answer.
const PATIENT_MS: u32 = 60_000;

/// Through a network that is cut, not longer than can be waited for.
const CUT_OFF_MS: u32 = 3000;

fn url(hosts: &str, recipe: &str, timeout_ms: u32) -> String {
    format!("zookeeper://{hosts}/contract?recipe={recipe}&tick_ms=500&timeout_ms={timeout_ms}")
}

fn one() -> Vec<SocketAddr> {
    vec![ZooKeeper::shared().addr()]
}

fn three() -> Vec<SocketAddr> {
    ZooKeeperCluster::shared().members().iter().map(|member| member.addr()).collect()
}

subject! {
    /// A queue, on one server.
    Sequential, sequential, one(), "sequential" beside "simple", recipe
}
subject! {
    /// One node, on one server.
    Simple, simple, one(), "simple" beside "sequential", recipe
}
subject! {
    /// A queue, on three servers.
    SequentialOnThree, sequential_on_three, three(), "sequential" beside "simple", variant
}
subject! {
    /// One node, on three servers.
    SimpleOnThree, simple_on_three, three(), "simple" beside "sequential", variant
}
