//! A lock can be lost while one works. Three ways to notice: let `run` drop the work, wait for `lost`, or `check` before
//! each step.
//!
//! `cargo run --example lost_handling`

use std::time::Duration;

use tenure::{Break, Client, GuardState};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::connect("file:").await?;

    // 1. Work that is dropped when the lock is lost, here by a limit on how long it may be held.
    let guard = client.lock("lost-example").max_hold(Duration::from_millis(50)).acquire().await?;
    let work = async {
        tokio::time::sleep(Duration::from_mins(10)).await;
        "finished"
    };
    match guard.run(work).await {
        Ok(result) => println!("{result}"),
        Err(lost) => println!("dropped the work: {lost}"),
    }
    drop(guard);

    // 2. A task beside the work that is told, here because an operator breaks the lock.
    let guard = client.lock("lost-example").acquire().await?;
    client.break_lock("lost-example", Break::Ask).await?;
    println!("told: {}", guard.lost().await);

    // 3. A check before each step that must not be done without the lock. It asks nobody, so it costs next to nothing.
    for step in 1..=3 {
        if let Err(lost) = guard.check() {
            println!("stopped before step {step}: {lost}");
            break;
        }
    }
    assert!(matches!(guard.state(), GuardState::Lost(_)));
    println!("{:?}", guard.release().await?);
    Ok(())
}
