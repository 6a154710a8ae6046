//! What PostgreSQL keeps when it crashes.

use tenure_testkit::Postgres;

use crate::databases::{LONG, connect};

/// Those who may lose what they have written last do not wait for the disk. A lock must not be among that.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_outlives_a_crash_also_where_others_do_not_wait_for_the_disk() {
    // What nobody waits for is then written as late as can be.
    let mut postgres = Postgres::builder().args(["-c", "wal_writer_delay=10s"]).start();
    postgres.sql("ALTER DATABASE postgres SET synchronous_commit = off");
    let client = connect(&format!("{}?timeout_ms=30000", postgres.url())).await;
    for name in ["a", "b"] {
        let _ = client.lock(name).acquire().await.unwrap().release().await.unwrap();
    }
    postgres.sql("CHECKPOINT");
    let first = client.lock("a").ttl(LONG).acquire().await.unwrap();
    let second = client.lock("b").shared().ttl(LONG).acquire().await.unwrap();
    postgres.kill();
    postgres.restart();
    for held in [first, second] {
        let seen = client.inspect(held.name()).await.unwrap();
        assert_eq!(seen.last_token, held.token(), "{seen:?}");
        assert!(client.lock(held.name()).try_acquire().await.unwrap().is_none());
    }
}
