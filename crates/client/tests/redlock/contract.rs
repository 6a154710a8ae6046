//! `redlock:` is held to the contract, without tokens and with them.

use std::net::SocketAddr;
use std::sync::OnceLock;

use tenure::Client;
use tenure::contract::{Network, Subject};
use tenure_testkit::Redis;

use crate::proxies::Proxies;

/// Five servers, which all tests share.
fn five() -> [SocketAddr; 5] {
    static FIVE: OnceLock<[&Redis; 5]> = OnceLock::new();
    FIVE.get_or_init(|| [(); 5].map(|()| Redis::start().leak())).map(|redis| redis.addr())
}

/// Longer than a slow machine takes to answer.
const PATIENT: &str = "timeout_ms=5000";

fn url() -> String {
    format!("redlock://{}?{PATIENT}", five().map(|addr| addr.to_string()).join(","))
}

struct Plain;

impl Subject for Plain {
    // There is no queue, and whoever waits looks again after a random while.
    const PROCESSES: usize = 6;
    const INCREMENTS: usize = 25;

    async fn start() -> Self {
        Self
    }

    fn address(&self) -> String {
        url()
    }

    fn other_recipes(&self) -> Vec<String> {
        vec![Fencing.address()]
    }

    fn network(&self) -> Option<Box<dyn Network>> {
        Some(Box::new(Proxies::before(five(), |hosts| format!("redlock://{hosts}"))))
    }

    async fn connect(address: &str) -> Client {
        Client::connect(address).await.unwrap()
    }
}

tenure::contract_suite!(plain, Plain, recipe);

struct Fencing;

impl Subject for Fencing {
    const PROCESSES: usize = 6;
    const INCREMENTS: usize = 25;

    async fn start() -> Self {
        Self
    }

    fn address(&self) -> String {
        format!("{}&fencing=true", url())
    }

    fn other_recipes(&self) -> Vec<String> {
        vec![Plain.address()]
    }

    fn network(&self) -> Option<Box<dyn Network>> {
        Some(Box::new(Proxies::before(five(), |hosts| format!("redlock://{hosts}?fencing=true"))))
    }

    async fn connect(address: &str) -> Client {
        Client::connect(address).await.unwrap()
    }
}

tenure::contract_suite!(fencing, Fencing, variant);
