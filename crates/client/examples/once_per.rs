//! A job that a whole fleet starts runs once: eight servers, one text message.
//!
//! ```sh
//! cargo run --example once_per
//! ```

use std::time::Duration;

use tenure::{Client, Turn};

/// What every server does when its cron says so.
async fn nightly(server: u32, job: String) -> Result<bool, Box<dyn std::error::Error + Send + Sync>> {
    let client = Client::connect("file:").await?;
    match client.once_per(job, Duration::from_mins(1)).begin().await? {
        Turn::Yours(run) => {
            println!("server {server}: sends the message, with {:?}", run.guard().token());
            println!("{:?}", run.succeeded().await?);
            Ok(true)
        }
        Turn::AlreadyRun { ago } => {
            println!("server {server}: it was begun {ago:?} ago");
            Ok(false)
        }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    // A name of its own for each run of this example: else the second one within a minute would have nothing to do.
    let job = format!("text-messages/{}", std::process::id());
    let servers: Vec<_> = (1..=8).map(|server| tokio::spawn(nightly(server, job.clone()))).collect();
    let mut messages = 0;
    for server in servers {
        messages += u32::from(server.await??);
    }
    println!("{messages} message");
    assert_eq!(messages, 1);
    Ok(())
}
