//! The classic story, with real processes. A holds the lock and is stopped, for longer than its lease. B gets the lock, and writes. A
//! wakes up and writes what it was about to write.
//!
//! With the fence, A is refused and what B wrote stands. Without it, A overwrites what B wrote, while B holds the lock: the damage
//! that no lock can prevent by itself.

use tenure::fence::SqlFence;
use tenure_testkit::{MariaDb, Postgres, Redis};

use crate::LONG;
use crate::holder::{self, fence_of, is_stale};
use crate::http::{Service, request};

/// The ttl of A: short enough to be waited for.
const SHORT_MS: u64 = 1000;
/// The ttl of B: longer than the rest of the story.
const LONG_MS: u128 = LONG.as_millis();

/// Tells the story about a place in a storage, and returns what A was answered.
async fn told(name: &str, fence: &str, storage: &str, address: &str, place: &str) -> String {
    let write = |who: &str| format!("write {name} {who} {fence} {storage} {address} {place}");
    let (mut a, mut b) = (holder::start().await, holder::start().await);

    assert_eq!(a.ask(&format!("hold {name} {SHORT_MS}")).await, "held");
    a.stop();

    // It waits: A's lease ends by itself, as nobody renews it.
    assert_eq!(b.ask(&format!("hold {name} {LONG_MS}")).await, "held");
    assert_eq!(b.ask(&write("B")).await, "written");

    a.resume();
    let answer = a.ask(&write("A")).await;
    assert_eq!(a.ask(&format!("check {name}")).await, "lost", "A could have known, had it asked");
    assert_eq!(b.ask(&format!("check {name}")).await, "held", "B has held the lock all the time");
    answer
}

/// A table with one row, and the fence for it.
async fn on_postgres(table: &str) -> &'static Postgres {
    let server = Postgres::shared();
    let pool = sqlx::PgPool::connect(&server.url()).await.unwrap();
    let mut connection = pool.acquire().await.unwrap();
    SqlFence::in_table(fence_of(table)).create_table(&mut connection).await.unwrap();
    server.sql(&format!("CREATE TABLE {table} (value text); INSERT INTO {table} VALUES ('nothing')"));
    server
}

#[tokio::test]
async fn postgres_refuses_a_holder_that_comes_too_late() {
    let server = on_postgres("story_fenced").await;
    let answer = told("story/postgres", "fenced", "postgres", &server.url(), "story_fenced").await;
    assert!(is_stale(&answer), "{answer}");
    assert_eq!(server.sql("SELECT value FROM story_fenced"), "B");
}

#[tokio::test]
async fn without_the_fence_postgres_loses_what_the_holder_wrote() {
    let server = on_postgres("story_bare").await;
    let answer = told("story/postgres-bare", "bare", "postgres", &server.url(), "story_bare").await;
    assert_eq!(answer, "written");
    assert_eq!(server.sql("SELECT value FROM story_bare"), "A");
}

async fn on_mariadb(table: &str) -> &'static MariaDb {
    let server = MariaDb::shared();
    let pool = sqlx::MySqlPool::connect(&server.url()).await.unwrap();
    let mut connection = pool.acquire().await.unwrap();
    SqlFence::in_table(fence_of(table)).create_table(&mut connection).await.unwrap();
    server.sql(&format!("CREATE TABLE {table} (value text)"));
    server.sql(&format!("INSERT INTO {table} VALUES ('nothing')"));
    server
}

#[tokio::test]
async fn mariadb_refuses_a_holder_that_comes_too_late() {
    let server = on_mariadb("story_fenced").await;
    let answer = told("story/mariadb", "fenced", "mariadb", &server.url(), "story_fenced").await;
    assert!(is_stale(&answer), "{answer}");
    assert_eq!(server.sql("SELECT value FROM story_fenced"), "B");
}

#[tokio::test]
async fn without_the_fence_mariadb_loses_what_the_holder_wrote() {
    let server = on_mariadb("story_bare").await;
    let answer = told("story/mariadb-bare", "bare", "mariadb", &server.url(), "story_bare").await;
    assert_eq!(answer, "written");
    assert_eq!(server.sql("SELECT value FROM story_bare"), "A");
}

#[tokio::test]
async fn redis_refuses_a_holder_that_comes_too_late() {
    let server = Redis::shared();
    let answer = told("story/redis", "fenced", "redis", &server.url(), "data:fenced").await;
    assert!(is_stale(&answer), "{answer}");
    assert_eq!(server.command(&["GET", "data:fenced"]), "B");
}

#[tokio::test]
async fn without_the_fence_redis_loses_what_the_holder_wrote() {
    let server = Redis::shared();
    let answer = told("story/redis-bare", "bare", "redis", &server.url(), "data:bare").await;
    assert_eq!(answer, "written");
    assert_eq!(server.command(&["GET", "data:bare"]), "A");
}

#[tokio::test]
async fn an_http_service_refuses_a_holder_that_comes_too_late() {
    let service = Service::on_redis().await;
    let addr = service.addr.to_string();
    let answer = told("story/http", "fenced", "http", &addr, "/orders/1").await;
    assert!(answer.starts_with("refused 412 ") && is_stale(&answer), "{answer}");
    assert_eq!(request(service.addr, "GET", "/unfenced/orders/1", &[], "").await.body, "B");
}

#[tokio::test]
async fn without_the_fence_an_http_service_loses_what_the_holder_wrote() {
    let service = Service::on_redis().await;
    let addr = service.addr.to_string();
    let answer = told("story/http-bare", "bare", "http", &addr, "/orders/2").await;
    assert_eq!(answer, "written");
    assert_eq!(request(service.addr, "GET", "/unfenced/orders/2", &[], "").await.body, "A");
}
