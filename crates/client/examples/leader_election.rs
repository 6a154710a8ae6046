//! Leader election: one of three nodes leads. When the leader loses the lock, a candidate is granted it.
//!
//! `cargo run --example leader_election [URL]`; without a URL and without `TENURE_URL` it uses `memory:`.

use std::time::Duration;

use tenure::{Break, Client, FencingToken, GrantId, Member};
use tokio::task::JoinSet;

type Error = Box<dyn std::error::Error + Send + Sync>;

const LOCK: &str = "leader-election-example";

/// The work of the leader. It sends the token with every write, and the storage refuses a former leader.
async fn lead(node: u32, token: FencingToken) {
    println!("node {node} leads with token {token}");
    loop {
        // One unit of work. The lock is checked before each unit.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// A node is a candidate until the lock is granted, the leader until the lock is lost, and then a candidate again.
async fn node(client: Client, number: u32) -> Result<(), Error> {
    loop {
        // A crashed leader is replaced after the TTL. The label tells other processes the address of the leader.
        let request =
            client.lock(LOCK).ttl(Duration::from_secs(10)).label(format!("http://node-{number}:8080"));
        let guard = request.acquire().await?;
        let token = guard.fencing_token()?;
        match guard.run(lead(number, token)).await {
            Ok(()) => {
                println!("node {number} resigns: {:?}", guard.release().await?);
                return Ok(());
            }
            Err(lost) => println!("node {number} stops leading: {lost}"),
        }
    }
}

/// The leader, as every client can look it up, once it is not the former one.
async fn next_leader(client: &Client, former: Option<GrantId>) -> Result<Member, Error> {
    loop {
        let info = client.inspect(LOCK).await?;
        let mut holders = info.present_holders();
        if let Some(leader) = holders.find(|holder| Some(holder.grant) != former) {
            return Ok(leader.clone());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1).or_else(|| std::env::var("TENURE_URL").ok());
    let url = url.as_deref().unwrap_or("memory:leader-election");
    let operator = Client::connect(url).await?;
    let mut nodes = JoinSet::new();
    for number in 1..=3 {
        nodes.spawn(node(Client::connect(url).await?, number));
    }

    // An operator breaks the lock of each leader. A leader that crashes is replaced in the same way when its lease expires.
    let mut former = None;
    for _ in 0..3 {
        let leader = tokio::select! {
            leader = next_leader(&operator, former) => leader?,
            Some(ended) = nodes.join_next() => return ended?,
        };
        println!("the leader is {}", leader.label.as_deref().unwrap_or("unknown"));
        operator.break_lock(LOCK, Break::Ask).await?;
        former = Some(leader.grant);
    }
    nodes.shutdown().await;
    operator.close().await?;
    Ok(())
}
