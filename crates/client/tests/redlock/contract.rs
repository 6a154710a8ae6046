//! `redlock:` is held to the contract, without tokens and with them.

use std::sync::OnceLock;

use tenure::Client;
use tenure::contract::Subject;
use tenure_testkit::Redis;

/// Five servers, which all tests share.
fn url() -> String {
    static FIVE: OnceLock<[&Redis; 5]> = OnceLock::new();
    let five = FIVE.get_or_init(|| [(); 5].map(|()| Redis::start().leak()));
    format!("redlock://{}", five.map(|redis| redis.addr().to_string()).join(","))
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

    async fn connect(address: &str) -> Client {
        Client::connect(address).await.unwrap()
    }
}

tenure::contract_suite!(plain, Plain);

struct Fencing;

impl Subject for Fencing {
    const PROCESSES: usize = 6;
    const INCREMENTS: usize = 25;

    async fn start() -> Self {
        Self
    }

    fn address(&self) -> String {
        format!("{}?fencing=true", url())
    }

    fn other_recipes(&self) -> Vec<String> {
        vec![Plain.address()]
    }

    async fn connect(address: &str) -> Client {
        Client::connect(address).await.unwrap()
    }
}

tenure::contract_suite!(fencing, Fencing);
