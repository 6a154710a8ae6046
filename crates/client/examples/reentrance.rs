//! An owner re-enters what it holds: for code that locks and calls other code that locks.
//!
//! `cargo run --example reentrance`

use tenure::{AcquireError, Client, Owner, Release};

async fn post(owner: &Owner, account: &str) -> Result<(), Box<dyn std::error::Error>> {
    let guard = owner.lock(format!("accounts/{account}")).acquire().await?;
    println!("  posting to {account} under token {}", guard.token().expect("file: has tokens"));
    assert_eq!(guard.release().await?, Release::StillHeld, "the caller still holds it");
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::connect("file:").await?;
    let owner = client.owner();

    // All or nothing, in any order.
    let accounts = owner.lock_all(["accounts/bob", "accounts/alice"]).acquire().await?;
    println!("transferring");
    post(&owner, "alice").await?;
    post(&owner, "bob").await?;
    accounts.release().await?;

    // A reader does not become a writer by re-entering: two readers would wait for each other for ever.
    let reader = owner.lock("accounts/alice").shared().acquire().await?;
    match owner.lock("accounts/alice").acquire().await {
        Err(error @ AcquireError::NotCovered { .. }) => println!("refused: {error}"),
        other => panic!("a reader must not become a writer: {other:?}"),
    }
    assert_eq!(reader.release().await?, Release::Released);
    client.close().await?;
    Ok(())
}
