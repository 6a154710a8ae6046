//! The fence in front of an HTTP service: axum, over real connections; and a plain tower service.

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::{Ready, pending, ready};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::{Path, State};
use axum::routing::{any, get, put};
use axum::{Extension, Router};
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use serde_json::{Value, json};
use tenure::fence::{
    Accepted, FenceError, FenceLayer, FenceStore, MemoryStore, RedisFence, SqlFence, TableName,
};
use tenure::{FencingToken, LockName};
use tenure_testkit::{MariaDb, Postgres, Redis};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tower_layer::Layer;
use tower_service::Service as _;

use crate::LONG;

/// What a service answered.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: String,
}

impl Answer {
    fn json(&self) -> Value {
        assert!(self.head.to_lowercase().contains("content-type: application/json"), "{self:?}");
        serde_json::from_str(&self.body).unwrap()
    }
}

/// One request on a connection of its own, word for word.
pub(crate) async fn request(
    addr: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Answer {
    let headers = headers.iter().fold(String::new(), |all, (name, value)| all + name + ": " + value + "\r\n");
    let text = format!(
        "{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n{headers}Content-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut connection = TcpStream::connect(addr).await.unwrap();
    connection.write_all(text.as_bytes()).await.unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head: head.to_owned(), body: body.to_owned() }
}

/// A service that keeps a text for each path: at `/PATH` behind a fence, at `/unfenced/PATH` without.
pub(crate) struct Service {
    pub(crate) addr: SocketAddr,
    /// How many requests have come through the fence.
    calls: Arc<AtomicUsize>,
}

type Data = Arc<Mutex<HashMap<String, String>>>;

impl Service {
    async fn behind(layer: FenceLayer) -> Self {
        let (data, calls) = (Data::default(), Arc::new(AtomicUsize::new(0)));
        let counted = calls.clone();
        let write = async move |State(data): State<Data>, Path(path): Path<String>, body: String| {
            counted.fetch_add(1, Ordering::SeqCst);
            data.lock().unwrap().insert(path, body);
        };
        let unfenced = async |State(data): State<Data>, Path(path): Path<String>, body: String| {
            data.lock().unwrap().insert(path, body);
        };
        let read = async |State(data): State<Data>, Path(path): Path<String>| {
            data.lock().unwrap().get(&path).cloned().unwrap_or_default()
        };
        let app = Router::new()
            .route("/{*path}", put(write))
            .route_layer(layer)
            .route("/unfenced/{*path}", put(unfenced).get(read))
            .with_state(data);
        Self { addr: serve(app).await, calls }
    }

    pub(crate) async fn on_redis() -> Self {
        Self::behind(FenceLayer::new(RedisFence::new().store(redis_connection().await))).await
    }

    async fn put(&self, path: &str, token: &str) -> Answer {
        request(self.addr, "PUT", path, &[("Fencing-Token", token)], "x").await
    }

    fn calls(&self) -> usize {
        self.calls.load(Ordering::SeqCst)
    }
}

async fn serve(app: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    addr
}

async fn redis_connection() -> redis::aio::MultiplexedConnection {
    let client = redis::Client::open(Redis::shared().url()).unwrap();
    client.get_multiplexed_async_connection().await.unwrap()
}

#[tokio::test]
async fn a_stale_token_is_refused_with_412_and_the_reason() {
    let service = Service::behind(FenceLayer::new(MemoryStore::new())).await;
    assert_eq!(service.put("/orders/42", "7").await.status, 200);
    assert_eq!(service.put("/orders/42", "7").await.status, 200, "the same grant writes again");
    assert_eq!(service.put("/orders/43", "1").await.status, 200, "another resource, another fence");

    let late = service.put("/orders/42", "6").await;
    assert_eq!(late.status, 412);
    let body = late.json();
    assert_eq!(body["error"], "stale_token");
    assert_eq!((&body["resource"], &body["token"]), (&json!("/orders/42"), &json!(6)));
    assert_eq!(body["newest"], 7);
    assert!(body["message"].as_str().unwrap().contains("acquire the lock again"), "{body}");
    assert_eq!(service.calls(), 3, "the service has not seen the late one");
}

#[tokio::test]
async fn a_missing_token_is_refused_with_428_unless_it_may_be_missing() {
    let service = Service::behind(FenceLayer::new(MemoryStore::new())).await;
    let answer = request(service.addr, "PUT", "/orders/42", &[], "x").await;
    assert_eq!((answer.status, &answer.json()["error"]), (428, &json!("missing_token")));
    assert_eq!(service.calls(), 0);

    let lenient = Service::behind(FenceLayer::new(MemoryStore::new()).allow_missing()).await;
    assert_eq!(request(lenient.addr, "PUT", "/orders/42", &[], "x").await.status, 200);
    assert_eq!(lenient.put("/orders/42", "7").await.status, 200);
    assert_eq!(lenient.put("/orders/42", "6").await.status, 412, "who sends one is held to it");
    assert_eq!(lenient.put("/orders/42", "six").await.status, 400);
}

#[tokio::test]
async fn a_malformed_token_is_refused_with_400() {
    let service = Service::behind(FenceLayer::new(MemoryStore::new())).await;
    for malformed in ["", "seven", "+7", "-7", "7.0", "0x7", "7, 8", "18446744073709551616", "é"] {
        let answer = service.put("/orders/42", malformed).await;
        assert_eq!(answer.status, 400, "{malformed:?}");
        assert_eq!(answer.json()["error"], "malformed_token", "{malformed:?}");
    }
    let two = [("Fencing-Token", "7"), ("Fencing-Token", "7")];
    assert_eq!(request(service.addr, "PUT", "/orders/42", &two, "x").await.status, 400);
    assert_eq!(service.calls(), 0);
    assert_eq!(service.put("/orders/42", "18446744073709551615").await.status, 200);
}

#[tokio::test]
async fn a_path_is_one_resource_however_it_is_spelled() {
    let service = Service::behind(FenceLayer::new(MemoryStore::new())).await;
    assert_eq!(service.put("/orders/42?reason=new", "7").await.status, 200);
    assert_eq!(service.put("/orders/%34%32", "6").await.status, 412);

    let long = service.put(&format!("/{}", "x".repeat(512)), "7").await;
    assert_eq!((long.status, &long.json()["error"]), (400, &json!("malformed_resource")));
    assert_eq!(service.put("/orders/%0A", "7").await.status, 400);
}

#[tokio::test]
async fn the_resource_may_come_from_anything_in_the_request() {
    let by_tenant = FenceLayer::new(MemoryStore::new())
        .resource(|request| request.headers["tenant"].to_str().unwrap_or_default().to_owned());
    let service = Service::behind(by_tenant).await;
    let put = async |path: &str, tenant: &str, token: &str| {
        let headers = [("Tenant", tenant), ("Fencing-Token", token)];
        request(service.addr, "PUT", path, &headers, "x").await.status
    };
    assert_eq!(put("/a", "one", "7").await, 200);
    assert_eq!(put("/b", "one", "6").await, 412);
    assert_eq!(put("/b", "two", "6").await, 200);
}

#[tokio::test]
async fn the_service_finds_what_was_accepted() {
    let say =
        async |Extension(accepted): Extension<Accepted>| format!("{} {}", accepted.resource, accepted.token);
    let app = Router::new().route("/orders/{id}", any(say)).layer(FenceLayer::new(MemoryStore::new()));
    let addr = serve(app).await;
    let answer = request(addr, "POST", "/orders/42", &[("fencing-token", "7")], "").await;
    assert_eq!((answer.status, answer.body.as_str()), (200, "/orders/42 7"));
}

/// Accepts what comes, and never says so.
struct Silent;

impl FenceStore for Silent {
    fn accept<'a>(&'a self, _: &'a LockName, _: FencingToken) -> BoxFuture<'a, Result<(), FenceError>> {
        pending().boxed()
    }
}

#[tokio::test]
async fn without_an_answer_of_the_store_it_is_503_and_the_service_is_not_called() {
    let silent = FenceLayer::new(Silent).timeout(Duration::from_millis(10));
    let mut own = Redis::start();
    let client = redis::Client::open(own.url()).unwrap();
    let connection = client.get_multiplexed_async_connection().await.unwrap();
    let dead = FenceLayer::new(RedisFence::new().store(connection));
    own.kill();
    let closed = sqlx::PgPool::connect(&Postgres::shared().url()).await.unwrap();
    closed.close().await;
    let closed = FenceLayer::new(SqlFence::new().store(closed));
    let open = sqlx::PgPool::connect(&Postgres::shared().url()).await.unwrap();
    let no_such = TableName::parse("no_such_table").unwrap();
    let without_table = FenceLayer::new(SqlFence::in_table(no_such).store(open));

    for layer in [silent, dead, closed, without_table] {
        let service = Service::behind(layer).await;
        let answer = service.put("/orders/42", "7").await;
        assert_eq!((answer.status, &answer.json()["error"]), (503, &json!("store_unavailable")));
        assert!(!answer.body.contains("no_such_table"), "the inside is not shown: {answer:?}");
        assert_eq!(service.calls(), 0);
    }
}

/// Two services that share a store, and one that is started later: none accepts what another has refused.
async fn is_shared_and_stays(make: impl AsyncFn() -> FenceLayer, largest: u64, path: &str) {
    let (one, two) = (Service::behind(make().await).await, Service::behind(make().await).await);
    assert_eq!(one.put(path, "7").await.status, 200);
    assert_eq!(two.put(path, "6").await.status, 412);
    assert_eq!(two.put(path, "8").await.status, 200);
    drop((one, two));
    let later = Service::behind(make().await).await;
    let answer = later.put(path, "7").await;
    assert_eq!((answer.status, &answer.json()["newest"]), (412, &json!(8)));
    assert_eq!(later.put(path, &largest.to_string()).await.status, 200);
    assert_eq!(later.put(path, &(largest - 1).to_string()).await.status, 412);
    if let Some(larger) = largest.checked_add(1) {
        assert_eq!(later.put(path, &larger.to_string()).await.status, 400);
    }
}

#[tokio::test]
async fn postgres_is_a_store_that_all_services_share() {
    let layer = async || {
        let pool = sqlx::PgPool::connect(&Postgres::shared().url()).await.unwrap();
        let fence = SqlFence::in_table(TableName::parse("http_fence").unwrap());
        fence.create_table(&mut pool.acquire().await.unwrap()).await.unwrap();
        FenceLayer::new(fence.store(pool))
    };
    is_shared_and_stays(layer, i64::MAX.unsigned_abs(), "/shared").await;
}

#[tokio::test]
async fn mariadb_is_a_store_that_all_services_share() {
    let layer = async || {
        let pool = sqlx::MySqlPool::connect(&MariaDb::shared().url()).await.unwrap();
        let fence = SqlFence::in_table(TableName::parse("http_fence").unwrap());
        fence.create_table(&mut pool.acquire().await.unwrap()).await.unwrap();
        FenceLayer::new(fence.store(pool))
    };
    is_shared_and_stays(layer, u64::MAX, "/shared").await;
}

#[tokio::test]
async fn redis_is_a_store_that_all_services_share() {
    let layer = async || FenceLayer::new(RedisFence::new().store(redis_connection().await));
    is_shared_and_stays(layer, u64::MAX, "/shared").await;
}

/// Plain tower: no framework, and a body that is just a text. It may be called once after each time that it was found ready.
struct Echo {
    ready: bool,
}

impl Clone for Echo {
    fn clone(&self) -> Self {
        // As of many services, the clone of a ready one is not ready.
        Self { ready: false }
    }
}

impl tower_service::Service<::http::Request<String>> for Echo {
    type Response = ::http::Response<String>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: ::http::Request<String>) -> Self::Future {
        assert!(std::mem::take(&mut self.ready), "called without having been found ready");
        ready(Ok(::http::Response::new(request.into_body())))
    }
}

#[tokio::test]
async fn any_tower_service_can_stand_behind_the_fence() {
    let layer = FenceLayer::new(MemoryStore::new()).timeout(LONG);
    let mut service = layer.layer(Echo { ready: false });
    for (token, status) in [("7", 200), ("6", 412), ("8", 200)] {
        std::future::poll_fn(|context| service.poll_ready(context)).await.unwrap();
        let request = ::http::Request::put("/orders/42").header("fencing-token", token);
        let answer = service.call(request.body("hello".to_owned()).unwrap()).await.unwrap();
        assert_eq!(answer.status(), status);
        assert_eq!(answer.body() == "hello", status == 200);
    }
}

#[tokio::test]
async fn reading_needs_no_token_where_the_fence_is_around_what_writes() {
    let layer = FenceLayer::new(MemoryStore::new());
    let app = Router::new().route("/orders", get(async || "all").merge(put(async || "written").layer(layer)));
    let addr = serve(app).await;
    assert_eq!(request(addr, "GET", "/orders", &[], "").await.body, "all");
    assert_eq!(request(addr, "PUT", "/orders", &[], "").await.status, 428);
}

/// How a service checks once more.
#[derive(Clone, Copy)]
enum Again {
    No,
    InItsTransaction,
}

/// The layer accepts 6, and the service is held up before it writes. Meanwhile 7 is accepted and written. What 6 was answered, and what is
/// written in the end.
async fn held_up(table: &'static str, again: Again) -> (u16, String) {
    let server = Postgres::shared();
    let pool = sqlx::PgPool::connect(&server.url()).await.unwrap();
    let fence = SqlFence::in_table(TableName::parse(&format!("{table}_fence")).unwrap());
    fence.create_table(&mut pool.acquire().await.unwrap()).await.unwrap();
    server.sql(&format!("CREATE TABLE {table} (token bigint)"));
    server.sql(&format!("INSERT INTO {table} VALUES (0)"));

    let (inside, go_on) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let layer = FenceLayer::new(fence.clone().store(pool.clone()));
    let (is_inside, may_go_on) = (inside.clone(), go_on.clone());
    let write = async move |Extension(accepted): Extension<Accepted>| {
        if accepted.token.get() == 6 {
            is_inside.notify_one();
            may_go_on.notified().await;
        }
        let mut transaction = pool.begin().await.unwrap();
        if matches!(again, Again::InItsTransaction) {
            let checked = fence.guard(&mut transaction, &accepted).await;
            checked.map_err(|error| (::http::StatusCode::PRECONDITION_FAILED, error.to_string()))?;
        }
        let update = sqlx::AssertSqlSafe(format!("UPDATE {table} SET token = {}", accepted.token));
        sqlx::query(update).execute(&mut *transaction).await.unwrap();
        transaction.commit().await.unwrap();
        Ok::<_, (::http::StatusCode, String)>(())
    };
    let addr = serve(Router::new().route("/orders", put(write)).layer(layer)).await;

    let put = async |token| request(addr, "PUT", "/orders", &[("Fencing-Token", token)], "").await.status;
    let newer = async {
        inside.notified().await;
        assert_eq!(put("7").await, 200);
        go_on.notify_one();
    };
    let (older, ()) = tokio::join!(put("6"), newer);
    (older, server.sql(&format!("SELECT token FROM {table}")))
}

#[tokio::test]
async fn a_service_that_is_held_up_behind_the_fence_is_not_refused_by_it() {
    assert_eq!(held_up("held_up", Again::No).await, (200, "6".to_owned()), "as its documentation says");
}

#[tokio::test]
async fn a_service_that_is_held_up_is_refused_where_it_checks_again_with_its_data() {
    assert_eq!(held_up("held_up_again", Again::InItsTransaction).await, (412, "7".to_owned()));
}
