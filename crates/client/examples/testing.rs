//! What does my program do when the lock is lost? A test can ask: it has a store of its own, moves its clock, cuts its network.
//!
//! `cargo run --example testing`

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tenure::clock::ManualClock;
use tenure::memory::MemoryStore;
use tenure::{AcquireError, Client, EngineError, Lost, LostReason};

const TTL: Duration = Duration::from_secs(30);

/// The program that is tested: counts up to ten, one step at a time, and stops where it has lost its lock.
async fn count(client: &Client, counted: &AtomicU32, step: impl AsyncFn(u32)) -> Result<(), Lost> {
    let guard = client.lock("counter").ttl(TTL).acquire().await.expect("the tests leave it free");
    for number in 1..=10 {
        guard.check()?;
        counted.store(number, Ordering::Relaxed);
        step(number).await;
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let clock = ManualClock::new();
    let store = MemoryStore::with_clock(clock.clone());
    let link = store.link();
    let (client, other) = (link.connect().await?, store.connect().await?);
    let counted = AtomicU32::new(0);

    // 1. Somebody takes the lock away.
    let result = count(&client, &counted, async |number| {
        if number == 3 {
            store.lose_now("counter");
        }
    });
    assert_eq!(result.await.map_err(|lost| lost.reason), Err(LostReason::Broken));
    println!("the lock was broken, and it stopped at {}", counted.load(Ordering::Relaxed));

    // 2. It is cut off for longer than its lease. Nobody tells it, and it stops all the same, before anybody else has the lock.
    let result = count(&client, &counted, async |number| {
        if number == 5 {
            link.cut();
            clock.advance(TTL);
        }
    });
    assert_eq!(result.await.map_err(|lost| lost.reason), Err(LostReason::Expired));
    println!("it was cut off, and stopped at {}", counted.load(Ordering::Relaxed));
    let next = other.lock("counter").ttl(TTL).acquire().await?;
    link.heal();
    next.check()?;

    // 3. The lock is granted, and the answer is lost: neither the program nor any other client has the lock. `acquire` would ask again until
    // its wait is over; `try_acquire` reports the outage. The link is a new one, with no late release of the first two parts on it.
    let link = store.link();
    let client = link.connect().await?;
    link.lose_answers(1);
    let asking = tokio::spawn(client.lock("other").try_acquire());
    while other.inspect("other").await?.holders.is_empty() {
        tokio::task::yield_now().await;
    }
    clock.advance(MemoryStore::REQUEST_LIMIT);
    let answer = asking.await?;
    assert!(matches!(answer, Err(AcquireError::Engine(EngineError::Unreachable { .. }))));
    assert!(other.lock("other").try_acquire().await?.is_some());
    println!("the answer was lost, and nothing stayed behind");
    Ok(())
}
