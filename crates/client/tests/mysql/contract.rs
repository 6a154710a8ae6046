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

/// A row that an open transaction locks.
struct Row;

impl Subject for Row {
    async fn start() -> Self {
        Self
    }

    fn address(&self) -> String {
        format!("{}?recipe=row", MariaDb::shared().url())
    }

    fn network(&self) -> Option<Box<dyn Network>> {
        Some(Box::new(Proxies::before([MariaDb::shared().addr()], |host| {
            format!("mysql://root@{host}/tenure?recipe=row&timeout_ms=3000")
        })))
    }

    async fn connect(address: &str) -> Client {
        Client::connect(address).await.unwrap()
    }
}

tenure::contract_suite!(row, Row);

/// A lock that a session holds.
struct Named;

impl Subject for Named {
    async fn start() -> Self {
        Self
    }

    fn address(&self) -> String {
        format!("{}?recipe=named", MariaDb::shared().url())
    }

    fn network(&self) -> Option<Box<dyn Network>> {
        Some(Box::new(Proxies::before([MariaDb::shared().addr()], |host| {
            format!("mysql://root@{host}/tenure?recipe=named&timeout_ms=3000")
        })))
    }

    async fn connect(address: &str) -> Client {
        Client::connect(address).await.unwrap()
    }
}

tenure::contract_suite!(named, Named);
