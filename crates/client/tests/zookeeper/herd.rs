//! Whom a release wakes, by the server's own counters: the watches that it fired, and the requests that came of it.

use tenure::{Client, Guard};
use tenure_testkit::ZooKeeper;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::{A_WHILE, LONG, connect, eventually, soon};

const WAITERS: i64 = 1000;
/// So many clients have all waiters: few, so that what keeps their sessions alive is little beside what is counted.
const FEW: i64 = 8;

/// A lock, and many who wait for it.
struct Crowd {
    server: ZooKeeper,
    held: Option<Guard>,
    got: mpsc::UnboundedReceiver<Guard>,
}

impl Crowd {
    /// Waiters in so many clients, each of which has a session of its own.
    async fn gather(recipe: &str, waiters: i64, clients: i64) -> Self {
        let server = ZooKeeper::start();
        let url = format!("{}?recipe={recipe}&tick_ms=500&timeout_ms=60000", server.url());
        let held = connect(&url).await.lock("a").ttl(LONG).acquire().await.unwrap();
        let (send, got) = mpsc::unbounded_channel();
        for _ in 0..clients {
            let client = connect(&url).await;
            for _ in 0..waiters / clients {
                let (request, send) = (client.lock("a").ttl(LONG), send.clone());
                tokio::spawn(async move { send.send(request.acquire().await.unwrap()) });
            }
        }
        // By `simple`, one of each client watches.
        let watches = if recipe == "simple" { clients } else { waiters };
        let crowd = Self { server, held: Some(held), got };
        eventually("all wait, each for another one if they queue", async || {
            crowd.counter("zk_watch_count") == watches
        })
        .await;
        tokio::time::sleep(A_WHILE).await;
        crowd
    }

    fn counter(&self, name: &str) -> i64 {
        self.server.counter(name)
    }

    /// How many watches were fired because a node was deleted.
    fn fired(&self) -> i64 {
        self.counter("zk_sum_node_deleted_watch_count")
    }

    fn requests(&self) -> i64 {
        self.counter("zk_packets_received")
    }

    /// Hands the lock on to the next one.
    async fn hand_on(&mut self) {
        let held = self.held.take().expect("somebody holds it");
        assert!(self.got.try_recv().is_err(), "two have it");
        let _ = held.release().await.unwrap();
        self.held = soon("the next one gets it", self.got.recv()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_wakes_one_of_a_thousand_who_queue() {
    const TURNS: i64 = 5;
    let mut few = Crowd::gather("sequential", WAITERS, FEW).await;
    let (fired, requests) = (few.fired(), few.requests());
    for _ in 0..TURNS {
        few.hand_on().await;
    }
    // Time for all to ask, if they were woken.
    tokio::time::sleep(A_WHILE).await;
    let (fired, requests) = (few.fired() - fired, few.requests() - requests);
    println!(
        "sequential, {WAITERS} waiters of {FEW} clients, {TURNS} turns: {fired} watches, {requests} requests"
    );
    assert_eq!(fired, TURNS);
    assert!(requests < TURNS * WAITERS / 10, "{requests} requests in {TURNS} turns");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_wakes_all_of_a_hundred_clients_that_watch_one_node() {
    a_release_wakes_all_of(100).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a thousand clients have a thousand threads, beside which no other test is on time"]
async fn a_release_wakes_all_of_a_thousand_clients_that_watch_one_node() {
    a_release_wakes_all_of(1000).await;
}

async fn a_release_wakes_all_of(clients: i64) {
    let mut many = Crowd::gather("simple", clients, clients).await;
    let (fired, requests) = (many.fired(), many.requests());
    many.hand_on().await;
    eventually("all ask", async || many.requests() - requests >= clients).await;
    let fired = many.fired() - fired;
    println!("simple, {clients} waiters of as many clients, a turn: {fired} watches");
    assert_eq!(fired, clients);
    eventually("all wait again", async || many.counter("zk_watch_count") == clients - 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn those_of_one_client_who_watch_one_node_are_woken_one_at_a_time() {
    const TURNS: i64 = 5;
    let mut few = Crowd::gather("simple", WAITERS, FEW).await;
    let (fired, requests) = (few.fired(), few.requests());
    for _ in 0..TURNS {
        eventually("one of each client watches", async || few.counter("zk_watch_count") == FEW).await;
        few.hand_on().await;
    }
    tokio::time::sleep(A_WHILE).await;
    let (fired, requests) = (few.fired() - fired, few.requests() - requests);
    println!(
        "simple, {WAITERS} waiters of {FEW} clients, {TURNS} turns: {fired} watches, {requests} requests"
    );
    assert_eq!(fired, TURNS * FEW);
    assert!(requests < TURNS * WAITERS / 10, "{requests} requests in {TURNS} turns");
}

/// Somebody of a client who waits for a lock, in its place by the time that this returns.
async fn waiter(client: &Client) -> JoinHandle<Guard> {
    let request = client.lock("a").ttl(LONG);
    let waiter = tokio::spawn(async move { request.acquire().await.unwrap() });
    // On this one thread it asks now, and hears that the lock is taken before the one who asks after it does.
    tokio::task::yield_now().await;
    let tried = client.lock("a").ttl(LONG).try_acquire().await;
    assert!(tried.unwrap().is_none(), "who does not wait needs no turn");
    // Both answers may have come together.
    tokio::task::yield_now().await;
    waiter
}

#[tokio::test]
async fn those_of_one_client_who_watch_one_node_are_served_in_the_order_in_which_they_came() {
    let server = ZooKeeper::start();
    let client = connect(&format!("{}?recipe=simple&tick_ms=500", server.url())).await;
    let held = client.lock("a").ttl(LONG).acquire().await.unwrap();
    let (first, second) = (waiter(&client).await, waiter(&client).await);
    // Who comes at the very moment of the release does not ask before those who wait.
    let request = client.lock("a").ttl(LONG);
    let third = tokio::spawn(async move { request.acquire().await.unwrap() });
    let _ = held.release().await.unwrap();
    let first = soon("the first has its turn", first).await.unwrap();
    assert!(!second.is_finished() && !third.is_finished());
    let _ = first.release().await.unwrap();
    let second = soon("the second has its turn", second).await.unwrap();
    assert!(!third.is_finished());
    let _ = second.release().await.unwrap();
    let _ = soon("the third has its turn", third).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn who_goes_away_when_it_is_its_turn_holds_up_none_of_its_client() {
    let server = ZooKeeper::start();
    let url = format!("{}?recipe=simple&tick_ms=500", server.url());
    let (other, client) = (connect(&url).await, connect(&url).await);
    let held = other.lock("a").ttl(LONG).acquire().await.unwrap();
    let (first, second) = (waiter(&client).await, waiter(&client).await);
    eventually("the first watches", async || server.counter("zk_watch_count") == 1).await;
    first.abort();
    assert!(soon("the first ends", first).await.is_err());
    let _ = held.release().await.unwrap();
    let _ = soon("the second has its turn", second).await.unwrap().release().await.unwrap();
}
