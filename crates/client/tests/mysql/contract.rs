//! `mysql:` is held to the contract, by each of its recipes.

use tenure::Client;
use tenure::contract::{Network, Subject};
use tenure_testkit::MariaDb;

use crate::proxies::Proxies;

/// Rows that say who holds.
struct Table;

impl Subject for Table {
    async fn start() -> Self {
        Self
    }

    fn address(&self) -> String {
        MariaDb::shared().url()
    }

    fn network(&self) -> Option<Box<dyn Network>> {
        Some(Box::new(Proxies::before([MariaDb::shared().addr()], |host| {
            format!("mysql://root@{host}/tenure?timeout_ms=3000")
        })))
    }

    async fn connect(address: &str) -> Client {
        Client::connect(address).await.unwrap()
    }
}

tenure::contract_suite!(table, Table);
