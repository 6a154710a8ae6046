//! Which clients meet, and for how long there is a store.

use std::time::Duration;

use tenure::clock::ManualClock;
use tenure::memory::MemoryStore;
use tenure::{Client, ConnectError, UrlError};

use super::until;

async fn connect(url: &str) -> Client {
    Client::connect(url).await.unwrap()
}

#[tokio::test]
async fn clients_of_one_name_meet() {
    let (a, b) = (connect("memory:names-meet").await, connect("memory:names-meet").await);
    let other = connect("memory:names-meet-not").await;
    let _held = a.lock("x").acquire().await.unwrap();
    assert!(b.lock("x").try_acquire().await.unwrap().is_none());
    assert!(other.lock("x").try_acquire().await.unwrap().is_some());
    assert_eq!(a.engine().place(), b.engine().place());
    assert_ne!(a.engine().place(), other.engine().place());
}

#[tokio::test]
async fn clients_without_a_name_do_not_meet() {
    let (a, b) = (connect("memory:").await, connect("memory:").await);
    let _held = a.lock("x").acquire().await.unwrap();
    assert!(b.lock("x").try_acquire().await.unwrap().is_some());
    assert_ne!(a.engine().place(), b.engine().place());
    // But who is told the place of one finds it there.
    let c = connect(&a.engine().place()).await;
    assert!(c.lock("x").try_acquire().await.unwrap().is_none());
}

async fn leave_a_value(client: &Client) {
    let guard = client.lock("x").acquire().await.unwrap();
    guard.set_value("here").await.unwrap();
    let _ = guard.release().await.unwrap();
}

async fn finds_it(url: &str) -> bool {
    let client = connect(url).await;
    let found = client.inspect("x").await.unwrap().value.bytes == "here";
    client.close().await.unwrap();
    found
}

#[tokio::test]
async fn a_store_is_gone_with_its_last_client() {
    let url = "memory:names-gone";
    let (first, second) = (connect(url).await, connect(url).await);
    leave_a_value(&first).await;
    let kept = first.clone();
    first.close().await.unwrap();
    assert!(finds_it(url).await, "the second has it open");
    second.close().await.unwrap();
    assert!(!finds_it(url).await, "all are closed");
    let late = kept.lock("x").try_acquire().await;
    assert!(late.unwrap_err().to_string().contains("closed"));
}

#[tokio::test]
async fn a_client_that_is_dropped_lets_go_of_the_store_too() {
    let url = "memory:names-dropped";
    let client = connect(url).await;
    leave_a_value(&client).await;
    let guard = client.lock("y").acquire().await.unwrap();
    drop(client);
    assert!(finds_it(url).await, "a guard has it open");
    drop(guard);
    until("it is gone", async || !finds_it(url).await).await;
}

#[tokio::test]
async fn a_test_keeps_its_store_between_clients() {
    let store = MemoryStore::new();
    let client = store.connect().await.unwrap();
    leave_a_value(&client).await;
    client.close().await.unwrap();
    assert!(finds_it(&store.url()).await);
    let link = store.link();
    let (url, by_link) = (store.url(), link.url());
    drop(store);
    assert!(finds_it(&url).await && finds_it(&by_link).await, "a link has it open");
    drop(link);
    assert!(!finds_it(&url).await);
    assert!(!finds_it(&by_link).await);
}

#[tokio::test]
async fn what_is_wrong_with_a_url_is_said() {
    let error = Client::connect("memory:a?ttl=3").await.unwrap_err();
    assert!(matches!(error, ConnectError::Url(UrlError::UnknownOption { .. })), "{error}");
    let error = Client::connect("memory://a").await.unwrap_err();
    assert!(error.to_string().contains("memory:orders-test"), "{error}");
    let error = Client::connect("memorable:").await.unwrap_err();
    assert!(error.to_string().contains("memory:"), "{error}");
    assert_eq!(tenure::migration("memory:a"), Ok(Vec::new()));
}

#[tokio::test]
async fn two_stores_go_by_one_clock_if_that_is_said() {
    let clock = ManualClock::new();
    let (one, other) = (MemoryStore::with_clock(clock.clone()), MemoryStore::with_clock(clock.clone()));
    let (a, b) = (one.connect().await.unwrap(), other.connect().await.unwrap());
    let ttl = Duration::from_secs(1);
    let (first, second) =
        (a.lock("x").ttl(ttl).acquire().await.unwrap(), b.lock("x").ttl(ttl).acquire().await.unwrap());
    clock.advance(ttl);
    assert!(first.check().is_err() && second.check().is_err());
}
