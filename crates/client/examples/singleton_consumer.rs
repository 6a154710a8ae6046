//! A singleton consumer: of three processes, one consumes the messages, in order. The lock's value keeps the position, and the next
//! holder resumes there.
//!
//! `cargo run --example singleton_consumer [URL]`; without a URL and without `TENURE_URL` it uses `memory:`.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::{Capability, Client, FencingToken};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Stands for a log of messages, and for what they lead to.
struct Log {
    messages: Vec<u32>,
    handled: Mutex<Vec<u32>>,
}

impl Log {
    async fn handle(&self, message: u32, token: FencingToken) {
        tokio::time::sleep(Duration::from_millis(10)).await;
        println!("message {message} is handled under token {token}");
        self.handled.lock().expect("no other thread panics").push(message);
    }
}

/// Consumes until there is nothing left, or until this consumer stops after `most` messages, as at a new deployment.
async fn consume(client: Client, lock: String, log: Arc<Log>, most: usize) -> Result<(), Error> {
    // An engine without values is refused here.
    let guard = client.lock(lock).require(Capability::Value).acquire().await?;
    let token = guard.fencing_token()?;
    let mut position = match &guard.value().bytes[..] {
        [] => 0,
        text => str::from_utf8(text)?.parse()?,
    };
    for message in log.messages.iter().skip(position).take(most) {
        guard.run(log.handle(*message, token)).await?;
        position += 1;
        // Durable when this returns. A crash before this line makes the next holder handle the message again.
        guard.set_value(position.to_string()).await?;
    }
    println!("stopped at position {position}: {:?}", guard.release().await?);
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1).or_else(|| std::env::var("TENURE_URL").ok());
    let url = url.as_deref().unwrap_or("memory:singleton-consumer");
    // Each run of this example has a lock of its own: the position of the last run is at the end.
    let lock = format!("singleton-consumer-example/{}", std::process::id());
    let log = Arc::new(Log { messages: (0..10).collect(), handled: Mutex::default() });
    let mut consumers = Vec::new();
    for _ in 0..3 {
        let client = Client::connect(url).await?;
        consumers.push(tokio::spawn(consume(client, lock.clone(), log.clone(), 4)));
    }
    for consumer in consumers {
        consumer.await??;
    }
    assert_eq!(*log.handled.lock().expect("no other thread panics"), log.messages, "each once, in order");
    Ok(())
}
