//! Applications whose runtimes have no connections of their own, end, or stand still.

use std::time::Duration;

use tenure::contract::within;
use tenure::{Client, Release};
use tenure_testkit::Proxy;
use tokio::runtime::{Builder, Runtime};
use tokio::task::spawn_blocking;

use super::{Database, LONG, PATIENCE, connect, recipes};

fn bare() -> Builder {
    Builder::new_current_thread()
}

fn with_timers() -> Builder {
    let mut builder = bare();
    builder.enable_time();
    builder
}

fn with_all() -> Builder {
    let mut builder = bare();
    builder.enable_all();
    builder
}

/// Takes a lock, keeps another one from it, and hands it over to one who waits.
async fn lock_and_hand_over(client: &Client, name: &str) {
    let guard = client.lock(name).ttl(LONG).acquire().await.unwrap();
    assert!(client.lock(name).try_acquire().await.unwrap().is_none());
    assert_eq!(client.inspect(name).await.unwrap().holders.len(), 1);
    let waiting = tokio::spawn(client.lock(name).ttl(LONG).acquire());
    tokio::task::yield_now().await;
    let token = guard.token();
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    let next = waiting.await.unwrap().unwrap();
    assert!(next.token() > token);
    assert_eq!(next.release().await.unwrap(), Release::Released);
}

/// Without I/O, and without timers too, a runtime cannot have connections: the client's own has.
pub(crate) async fn a_runtime_without_drivers_can_lock<D: Database>() {
    let server = D::start();
    for recipe in recipes::<D>() {
        for mut runtime in [bare(), with_timers()] {
            let client = connect(&server.recipe(recipe, "")).await;
            let work = spawn_blocking(move || {
                runtime.build().unwrap().block_on(lock_and_hand_over(&client, "a"));
            });
            within(PATIENCE, recipe, work).await.unwrap();
        }
    }
}

/// What one runtime has opened is not in the way of the next one, also if there may be few connections; and its locks outlive it.
pub(crate) async fn a_client_goes_on_where_another_runtime_has_ended<D: Database>() {
    let server = D::start();
    for recipe in recipes::<D>() {
        let client = connect(&server.recipe(recipe, "&connections=4")).await;
        let work = spawn_blocking(move || {
            let first: Runtime = with_all().build().unwrap();
            let held = first.block_on(async {
                lock_and_hand_over(&client, "b").await;
                client.lock("a").ttl(LONG).acquire().await.unwrap()
            });
            drop(first);
            for mut next in [with_all(), with_timers(), with_all()] {
                next.build().unwrap().block_on(async {
                    assert!(client.lock("a").try_acquire().await.unwrap().is_none());
                    lock_and_hand_over(&client, "b").await;
                });
            }
            assert!(held.check().is_ok());
            with_all().build().unwrap().block_on(held.release()).unwrap()
        });
        let released = within(PATIENCE, recipe, work).await.unwrap();
        assert_eq!(released, Release::Released, "{recipe}");
        drop(connect(&server.recipe(recipe, "")).await.lock("a").acquire().await.unwrap());
    }
}

/// A runtime of one thread runs only inside `block_on`.
pub(crate) async fn a_runtime_that_stands_still_does_not_keep_the_connections_that_it_was_opening<
    D: Database,
>() {
    let server = D::start();
    let proxy = Proxy::to(server.addr());
    let url = server.recipe("table", "&connections=2&timeout_ms=20000");
    let client = connect(&url.replace(&server.addr().to_string(), &proxy.addr().to_string())).await;
    let work = spawn_blocking(move || {
        let still = with_all().build().unwrap();
        proxy.cut();
        let given_up = still.block_on(async {
            tokio::time::timeout(Duration::from_secs(1), client.lock("a").ttl(LONG).acquire()).await
        });
        assert!(given_up.is_err(), "it had a connection: {given_up:?}");
        proxy.heal();
        let held = with_all().build().unwrap().block_on(client.lock("b").ttl(LONG).try_acquire()).unwrap();
        assert!(held.is_some());
        drop(still);
    });
    within(PATIENCE, "another runtime gets a connection", work).await.unwrap();
}
