//! What a token is for: a holder that slept through the loss of its lock is refused by the storage.
//!
//! `cargo run --example fencing`

use std::time::Duration;

use tenure::{Client, FencingToken};

/// A storage that remembers the largest token it has seen, and refuses smaller ones.
#[derive(Default)]
struct Storage {
    newest: Option<FencingToken>,
    data: String,
}

impl Storage {
    fn write(&mut self, data: &str, token: FencingToken) -> Result<(), String> {
        if self.newest.is_some_and(|newest| token < newest) {
            return Err(format!("token {token} is older than {}", self.newest.expect("it was compared")));
        }
        self.newest = Some(token);
        data.clone_into(&mut self.data);
        Ok(())
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::connect("file:").await?;
    let mut storage = Storage::default();

    // A gets the lock for a moment only, and then does not look whether it still has it.
    let a = client.lock("fencing-example").max_hold(Duration::from_millis(50)).acquire().await?;
    let a_token = a.token().expect("file: has tokens");
    a.lost().await;

    // B is the next, with a larger token, and writes.
    let b = client.lock("fencing-example").acquire().await?;
    storage.write("B was here", b.token().expect("file: has tokens"))?;

    // A wakes up and writes, as if nothing had happened: refused, and B's data stands.
    let refused = storage.write("A was here", a_token).expect_err("an old token is refused");
    println!("A is refused: {refused}");
    assert_eq!(storage.data, "B was here");
    Ok(())
}
