//! One at a time: run it twice at once, and the second waits for the first.
//!
//! `cargo run --example plain_lock`

use std::time::Duration;

use tenure::{AcquireError, Client, Wait};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // `file:` locks between the processes of this host, in the user's state directory.
    let client = Client::connect("file:").await?;

    let request = client.lock("nightly-report").label("the example").wait(Wait::For(Duration::from_secs(10)));
    let guard = match request.acquire().await {
        Ok(guard) => guard,
        Err(AcquireError::TimedOut { name, .. }) => {
            for holder in client.inspect(&name).await?.holders {
                eprintln!("{name} is held by process {:?} since {:?}", holder.pid, holder.since);
            }
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };

    println!("got {}, token {}", guard.name(), guard.token().expect("file: has tokens"));
    assert!(client.lock("nightly-report").try_acquire().await?.is_none(), "nobody else is in");

    // Dropping the guard would release it too; this way we hear how it went.
    println!("{:?}", guard.release().await?);
    client.close().await?;
    Ok(())
}
