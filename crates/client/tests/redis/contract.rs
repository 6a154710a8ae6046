//! `redis:` is held to the contract, by both of its recipes; readers are a part of each.

use tenure::Client;
use tenure::contract::{Network, Subject};
use tenure_testkit::Redis;

use crate::proxies::Proxies;

/// Longer than a slow machine takes to answer, and short enough to be waited for.
const SOON: &str = "timeout_ms=3000";

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

    fn network(&self) -> Option<Box<dyn Network>> {
        Some(Box::new(Proxies::before([Redis::shared().addr()], |host| format!("redis://{host}?{SOON}"))))
    }

    async fn connect(address: &str) -> Client {
        Client::connect(address).await.unwrap()
    }
}

tenure::contract_suite!(plain, Plain);

/// First come, first served.
pub(crate) struct Fair;

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

    fn network(&self) -> Option<Box<dyn Network>> {
        Some(Box::new(Proxies::before([Redis::shared().addr()], |host| {
            format!("redis://{host}?fair=true&{SOON}")
        })))
    }

    async fn connect(address: &str) -> Client {
        Client::connect(address).await.unwrap()
    }
}

tenure::contract_suite!(fair, Fair, variant);
