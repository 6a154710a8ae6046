//! `redis:` is held to the contract, by both of its recipes; readers are a part of each.

use tenure::Client;
use tenure::contract::Subject;
use tenure_testkit::Redis;

/// Whoever finds the lock free takes it.
struct Plain;

impl Subject for Plain {
    async fn start() -> Self {
        Self
    }

    fn address(&self) -> String {
        Redis::shared().url()
    }

    fn other_recipes(&self) -> Vec<String> {
        vec![Fair.address()]
    }

    async fn connect(address: &str) -> Client {
        Client::connect(address).await.unwrap()
    }
}

tenure::contract_suite!(plain, Plain);

/// First come, first served.
struct Fair;

impl Subject for Fair {
    async fn start() -> Self {
        Self
    }

    fn address(&self) -> String {
        format!("{}?fair=true", Redis::shared().url())
    }

    fn other_recipes(&self) -> Vec<String> {
        vec![Plain.address()]
    }

    async fn connect(address: &str) -> Client {
        Client::connect(address).await.unwrap()
    }
}

tenure::contract_suite!(fair, Fair);
