//! `postgres:` is held to the contract, by each of its recipes.

use tenure::Client;
use tenure::contract::{Network, Subject};
use tenure_testkit::Postgres;

use crate::proxies::Proxies;

/// Rows that say who holds.
struct Table;

impl Subject for Table {
    async fn start() -> Self {
        Self
    }

    fn address(&self) -> String {
        Postgres::shared().url()
    }

    fn network(&self) -> Option<Box<dyn Network>> {
        Some(Box::new(Proxies::before([Postgres::shared().addr()], |host| {
            format!("postgres://postgres@{host}/postgres?timeout_ms=3000")
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
        format!("{}?recipe=row", Postgres::shared().url())
    }

    fn network(&self) -> Option<Box<dyn Network>> {
        Some(Box::new(Proxies::before([Postgres::shared().addr()], |host| {
            format!("postgres://postgres@{host}/postgres?recipe=row&timeout_ms=3000")
        })))
    }

    async fn connect(address: &str) -> Client {
        Client::connect(address).await.unwrap()
    }
}

tenure::contract_suite!(row, Row);

/// A lock that a session holds.
struct Advisory;

impl Subject for Advisory {
    async fn start() -> Self {
        Self
    }

    fn address(&self) -> String {
        format!("{}?recipe=advisory", Postgres::shared().url())
    }

    fn network(&self) -> Option<Box<dyn Network>> {
        Some(Box::new(Proxies::before([Postgres::shared().addr()], |host| {
            format!("postgres://postgres@{host}/postgres?recipe=advisory&timeout_ms=3000")
        })))
    }

    async fn connect(address: &str) -> Client {
        Client::connect(address).await.unwrap()
    }
}

tenure::contract_suite!(advisory, Advisory);
