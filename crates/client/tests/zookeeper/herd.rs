//! Whom a release wakes, by the server's own counters: the watches that it fired, and the requests that came of it.

use tenure::Guard;
use tenure_testkit::ZooKeeper;
use tokio::sync::mpsc;

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
    async fn gather(recipe: &str, clients: i64) -> Self {
        let server = ZooKeeper::start();
        let url = format!("{}?recipe={recipe}&tick_ms=500&timeout_ms=60000", server.url());
        let held = connect(&url).await.lock("a").ttl(LONG).acquire().await.unwrap();
        let (send, got) = mpsc::unbounded_channel();
        for _ in 0..clients {
            let client = connect(&url).await;
            for _ in 0..WAITERS / clients {
                let (request, send) = (client.lock("a").ttl(LONG), send.clone());
                tokio::spawn(async move { send.send(request.acquire().await.unwrap()) });
            }
        }
        // A server has one watch for all of a session on the same node.
        let watches = if recipe == "simple" { clients } else { WAITERS };
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
        held.release().await.unwrap();
        self.held = soon("the next one gets it", self.got.recv()).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_wakes_one_of_a_thousand_who_queue() {
    const TURNS: i64 = 5;
    let mut few = Crowd::gather("sequential", FEW).await;
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
async fn a_release_wakes_all_of_a_thousand_who_watch_one_node() {
    let mut few = Crowd::gather("simple", FEW).await;
    let (fired, requests) = (few.fired(), few.requests());
    few.hand_on().await;
    eventually("all ask", async || few.requests() - requests >= WAITERS).await;
    tokio::time::sleep(A_WHILE).await;
    let (fired, requests) = (few.fired() - fired, few.requests() - requests);
    println!("simple, {WAITERS} waiters of {FEW} clients, a turn: {fired} watches, {requests} requests");
    assert_eq!(fired, FEW);
    drop(few);

    let mut many = Crowd::gather("simple", WAITERS).await;
    let fired = many.fired();
    many.hand_on().await;
    let fired = many.fired() - fired;
    println!("simple, {WAITERS} waiters of as many clients, a turn: {fired} watches");
    assert_eq!(fired, WAITERS);
    eventually("all wait again", async || many.counter("zk_watch_count") == WAITERS - 1).await;
}
