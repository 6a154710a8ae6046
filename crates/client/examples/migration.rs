//! A database migration at start-up: of five instances that start together, one migrates, and the others wait for it.
//!
//! `cargo run --example migration [URL]`; without a URL and without `TENURE_URL` it uses `memory:`.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::{Client, FencingToken, Wait};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Each statement takes the schema from one version to the next.
const MIGRATIONS: &[&str] = &[
    "CREATE TABLE orders (id bigint PRIMARY KEY)",
    "ALTER TABLE orders ADD COLUMN state text",
    "CREATE INDEX orders_by_state ON orders (state)",
];

/// Stands for the database. A real one applies a statement, its version and the fence in one transaction.
#[derive(Default)]
struct Database {
    /// The statements that were applied, and the largest token that came with one.
    applied: Mutex<(Vec<&'static str>, Option<FencingToken>)>,
}

impl Database {
    /// The version of the schema.
    fn version(&self) -> usize {
        self.applied.lock().expect("no other thread panics").0.len()
    }

    async fn apply(&self, version: usize, statement: &'static str, token: FencingToken) -> Result<(), Error> {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let mut applied = self.applied.lock().expect("no other thread panics");
        let (statements, newest) = &mut *applied;
        if newest.is_some_and(|newest| token < newest) {
            return Err(format!("token {token} is older than the newest").into());
        }
        if statements.len() != version {
            return Err(format!("the schema has version {}, not {version}", statements.len()).into());
        }
        statements.push(statement);
        *newest = Some(token);
        Ok(())
    }
}

/// Brings the schema up to date. Returns how many statements this instance applied.
async fn migrate(client: &Client, database: &Database) -> Result<usize, Error> {
    if database.version() >= MIGRATIONS.len() {
        return Ok(0); // most starts: the lock is not needed
    }
    let five_minutes = Wait::For(Duration::from_mins(5));
    let guard = client.lock("migration-example").wait(five_minutes).acquire().await?;
    let token = guard.fencing_token()?;
    // The version is read again under the lock: another instance may have migrated meanwhile.
    let first = database.version();
    for (version, statement) in MIGRATIONS.iter().enumerate().skip(first) {
        guard.run(database.apply(version, statement, token)).await??;
    }
    println!("{:?}", guard.release().await?);
    Ok(MIGRATIONS.len().saturating_sub(first))
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1).or_else(|| std::env::var("TENURE_URL").ok());
    let url = url.as_deref().unwrap_or("memory:migration");
    let database = Arc::new(Database::default());
    let mut instances = Vec::new();
    for number in 1..=5 {
        let (client, database) = (Client::connect(url).await?, database.clone());
        instances.push(tokio::spawn(async move {
            let applied = migrate(&client, &database).await?;
            println!("instance {number} applied {applied} statements, and serves");
            Ok::<_, Error>(applied)
        }));
    }
    let mut applied = Vec::new();
    for instance in instances {
        applied.push(instance.await??);
    }
    applied.sort_unstable();
    assert_eq!(applied, [0, 0, 0, 0, MIGRATIONS.len()], "one instance has applied all statements");
    Ok(())
}
