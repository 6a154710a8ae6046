//! The rebuild of a cache that is mostly read: readers share the lock. One of them rebuilds a stale cache, and the others wait for it.
//!
//! `cargo run --example cache_rebuild [URL]`; without a URL and without `TENURE_URL` it uses `file:` in a temporary directory.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tenure::{Client, Release};

type Error = Box<dyn std::error::Error + Send + Sync>;

const LOCK: &str = "cache-rebuild-example";

/// A cache in a file: its first line is the version of the data.
struct Cache {
    path: PathBuf,
    rebuilds: AtomicU32,
}

impl Cache {
    /// The content, if it is of this version or newer.
    fn get(&self, version: u32) -> Option<String> {
        let content = std::fs::read_to_string(&self.path).ok()?;
        let cached: u32 = content.lines().next()?.parse().ok()?;
        (cached >= version).then_some(content)
    }

    /// The expensive part.
    async fn rebuild(&self, version: u32) -> Result<(), std::io::Error> {
        self.rebuilds.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(100)).await;
        // The new file replaces the old one in one step, so that a rebuild that is dropped half-way changes nothing.
        let new = self.path.with_extension("new");
        std::fs::write(&new, format!("{version}\nthe result of an expensive query\n"))?;
        std::fs::rename(new, &self.path)
    }
}

/// Reads the cache. If it is older than `version`, one reader rebuilds it.
async fn read(client: &Client, cache: &Cache, version: u32) -> Result<String, Error> {
    loop {
        // Many readers hold the lock together. No reader holds it during a rebuild.
        let reading = client.lock(LOCK).shared().acquire().await?;
        let content = cache.get(version);
        let released = reading.release().await?;
        if let (Some(content), Release::Released) = (content, released) {
            return Ok(content);
        }
        let rebuilding = client.lock(LOCK).acquire().await?;
        // Another reader may have rebuilt the cache while this one waited.
        if cache.get(version).is_none() {
            rebuilding.run(cache.rebuild(version)).await??;
        }
        let _ = rebuilding.release().await?;
    }
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let folder = tempfile::tempdir()?;
    let url = std::env::args().nth(1).or_else(|| std::env::var("TENURE_URL").ok());
    let url = url.unwrap_or_else(|| format!("file:{}", folder.path().join("locks").display()));
    let client = Client::connect(&url).await?;
    let cache = Arc::new(Cache { path: folder.path().join("cache"), rebuilds: AtomicU32::new(0) });

    for version in 1..=2 {
        let readers: Vec<_> = (0..8)
            .map(|_| {
                let (client, cache) = (client.clone(), cache.clone());
                tokio::spawn(async move { read(&client, &cache, version).await })
            })
            .collect();
        for reader in readers {
            assert_eq!(reader.await??, format!("{version}\nthe result of an expensive query\n"));
        }
        println!(
            "8 readers of version {version}, {} rebuilds so far",
            cache.rebuilds.load(Ordering::Relaxed)
        );
    }
    assert_eq!(cache.rebuilds.load(Ordering::Relaxed), 2);
    client.close().await?;
    Ok(())
}
