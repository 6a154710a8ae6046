//! Without async: threads, and no runtime of one's own.
//!
//! `cargo run --example blocking`

use std::time::Duration;

use tenure::Wait;
use tenure::blocking::Client;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::connect("file:")?;
    let workers: Vec<_> = (1..=3)
        .map(|worker| {
            let client = client.clone();
            std::thread::spawn(move || {
                let guard =
                    client.lock("blocking-example").wait(Wait::For(Duration::from_secs(30))).acquire()?;
                // The value stays with the lock: here, who was in before.
                println!("worker {worker} follows {:?}", String::from_utf8_lossy(&guard.value().bytes));
                guard.set_value(format!("worker {worker}"))?;
                guard.check()?;
                println!("worker {worker}: {:?}", guard.release()?);
                Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
            })
        })
        .collect();
    for worker in workers {
        worker.join().expect("no worker panics").map_err(|error| error.to_string())?;
    }
    client.close()?;
    Ok(())
}
