//! Requests that are under way for so long that nobody waits for them any more.

use std::time::Duration;

use futures_util::future::join_all;
use tenure::contract::eventually;
use tenure::{AcquireError, Client, EngineError, FencingToken, Release, Wait};
use tenure_testkit::Proxy;

use super::{Database, PATIENCE, connect, recipes};

/// A lock that was granted to nobody would be held for as long.
const TTL: Duration = Duration::from_hours(1);

/// A way to a database on which something can get stuck, and a second one beside it.
struct Ways<'a, D> {
    server: &'a D,
    stuck: Proxy,
    first: Proxy,
}

impl<'a, D: Database> Ways<'a, D> {
    fn to(server: &'a D) -> Self {
        let stuck = Proxy::to(server.addr());
        let first = Proxy::to(stuck.addr());
        Self { server, stuck, first }
    }

    /// A client that has locked and released, so that its next request is one message on a connection that it has.
    async fn client(&self, recipe: &str) -> Client {
        let url = self.server.recipe(recipe, "&timeout_ms=3000");
        let client =
            connect(&url.replace(&self.server.addr().to_string(), &self.first.addr().to_string())).await;
        for _ in 0..2 {
            let _ = client.lock("a").acquire().await.unwrap().release().await.unwrap();
        }
        client
    }

    /// New connections come through, while what was sent on old ones is still under way.
    fn open_the_second(&self) {
        self.first.lead_new_ones_to(self.server.addr());
    }
}

/// The lock was granted once more, to the request that came late, and is free long before its ttl ends.
async fn assert_granted_late_and_freed(other: &Client, before: Option<FencingToken>) {
    let granted = async || other.inspect("a").await.unwrap().last_token > before;
    eventually(PATIENCE, "the late request arrives", granted).await;
    assert_freed(other).await;
}

async fn assert_freed(other: &Client) {
    let free = async || other.lock("a").try_acquire().await.unwrap().is_some();
    eventually(PATIENCE, "it is given back", free).await;
}

/// The first request got stuck, the second one was granted and has been released since. Then the first one arrives.
pub(crate) async fn a_request_that_arrives_after_the_release_holds_nothing<D: Database>() {
    let server = D::start();
    let ways = Ways::to(&server);
    let (client, other) = (ways.client("table").await, connect(&server.url()).await);
    ways.stuck.cut();
    ways.open_the_second();
    let held = client.lock("a").ttl(TTL).acquire().await.unwrap();
    assert!(other.lock("a").try_acquire().await.unwrap().is_none());
    let token = held.token();
    assert_eq!(held.release().await.unwrap(), Release::Released);
    ways.stuck.heal();
    assert_granted_late_and_freed(&other, token).await;
}

/// The client has given up and has said so to the database, before its request arrives there.
pub(crate) async fn a_request_that_arrives_after_its_client_gave_up_holds_nothing<D: Database>() {
    let server = D::start();
    join_all(recipes::<D>().map(|recipe| give_up(&server, recipe))).await;
}

async fn give_up<D: Database>(server: &D, recipe: &str) {
    let ways = Ways::to(server);
    let (client, other) = (ways.client(recipe).await, connect(&server.recipe(recipe, "")).await);
    let before = other.inspect("a").await.unwrap().last_token;
    ways.stuck.cut();
    let answer = client.lock("a").ttl(TTL).wait(Wait::Try).acquire().await;
    assert!(matches!(answer, Err(AcquireError::Engine(EngineError::Unreachable { .. }))), "{answer:?}");
    ways.open_the_second();
    let again = async || client.lock("b").try_acquire().await.is_ok();
    eventually(PATIENCE, "it is connected again", again).await;
    ways.stuck.heal();
    if recipe == "table" {
        assert_granted_late_and_freed(&other, before).await;
    } else {
        assert_freed(&other).await;
    }
}
