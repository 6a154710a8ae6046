//! One at a time: run it in two terminals at once, and the second says for whom it waits.
//!
//! `cargo run --example plain_lock`

use std::time::Duration;

use tenure::{Client, Wait};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // `file:` locks between the processes of this host, in the user's state directory.
    let client = Client::connect("file:").await?;
    let request = client.lock("nightly-report").label("the example");

    let guard = if let Some(guard) = request.clone().try_acquire().await? {
        guard
    } else {
        for holder in client.inspect("nightly-report").await?.present_holders() {
            println!("waiting for process {}", holder.pid.map_or("?".to_owned(), |pid| pid.to_string()));
        }
        request.wait(Wait::For(Duration::from_secs(30))).acquire().await?
    };

    println!("got {}, token {}", guard.name(), guard.token().expect("file: has tokens"));
    // The work. Nobody else is in meanwhile, and it is dropped if the lock is lost.
    guard.run(tokio::time::sleep(Duration::from_secs(2))).await?;

    // Dropping the guard would release it too; this way we hear how it went.
    println!("{:?}", guard.release().await?);
    client.close().await?;
    Ok(())
}
