//! Servers and clients that die without a word.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tempfile::TempDir;
use tenure::contract::{Helper, Inside, within};
use tenure::{FencingToken, LostReason, Release, ReleaseError};
use tenure_testkit::eventually;
use tokio::task::JoinHandle;

use super::{Database, LONG, PATIENCE, connect, recipes, session_recipes};

/// Longer than a server takes to start again.
const TIMEOUT: &str = "&timeout_ms=30000";

/// Clients who increment a counter under a lock, until they are told to end.
struct Load {
    folder: TempDir,
    ends: Arc<AtomicBool>,
    tokens: Arc<Mutex<Vec<FencingToken>>>,
    clients: Vec<JoinHandle<()>>,
}

impl Load {
    async fn start(url: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (ends, tokens) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Vec::new())));
        let mut clients = Vec::new();
        for _ in 0..3 {
            let (client, inside) = (connect(url).await, Inside::new(folder.path()));
            let (ends, tokens) = (ends.clone(), tokens.clone());
            clients.push(tokio::spawn(async move {
                while !ends.load(Ordering::Relaxed) {
                    let guard = client.lock("counter").ttl(Duration::from_secs(10)).acquire().await.unwrap();
                    inside.increment(Duration::from_millis(1)).unwrap();
                    tokens.lock().unwrap().push(guard.token().unwrap());
                    // Between the increment and this, the server may have died.
                    match guard.release().await {
                        Ok(_) | Err(ReleaseError::Engine(_)) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            }));
        }
        Self { folder, ends, tokens, clients }
    }

    fn count(&self) -> u64 {
        Inside::new(self.folder.path()).count()
    }

    /// All who increment still do.
    fn goes_on(&self, what: &str) {
        let before = self.count();
        eventually(what, || {
            assert!(!self.clients.iter().any(JoinHandle::is_finished), "{what}: a client has given up");
            self.count() >= before + 20
        });
    }

    async fn end(self, what: &str) {
        self.ends.store(true, Ordering::Relaxed);
        for client in self.clients {
            within(PATIENCE, what, client).await.unwrap();
        }
        let tokens = self.tokens.lock().unwrap();
        assert_eq!(Inside::new(self.folder.path()).count(), tokens.len() as u64, "{what} lost an increment");
        let falls = tokens.windows(2).find(|pair| pair[0] >= pair[1]);
        assert!(falls.is_none(), "{what}: the tokens do not rise: {falls:?}");
    }
}

pub(crate) async fn a_server_that_is_killed_under_load_loses_no_increment<D: Database>() {
    let mut server = D::start();
    let mut loads = Vec::new();
    for recipe in recipes::<D>() {
        loads.push((recipe, Load::start(&server.recipe(recipe, TIMEOUT)).await));
    }
    for restarts in 0..=3 {
        if restarts > 0 {
            server.kill();
            server.restart();
        }
        for (recipe, load) in &loads {
            load.goes_on(recipe);
        }
    }
    for (recipe, load) in loads {
        load.end(recipe).await;
    }
}

pub(crate) async fn a_restart_leaves_table_locks_and_is_told_to_those_who_held_by_a_session<D: Database>() {
    let mut server = D::start();
    let table = connect(&server.recipe("table", TIMEOUT)).await;
    let written = table.lock("a").ttl(LONG).acquire().await.unwrap();
    written.set_value("kept").await.unwrap();
    let waiting = tokio::spawn(table.lock("a").ttl(LONG).acquire());
    let seen = async || table.inspect("a").await.unwrap().waiters.len() == 1;
    tenure::contract::eventually(PATIENCE, "the waiter is seen", seen).await;
    let mut held = Vec::new();
    for recipe in session_recipes::<D>() {
        let client = connect(&server.recipe(recipe, TIMEOUT)).await;
        let guard = client.lock("a").ttl(Duration::from_secs(6)).acquire().await.unwrap();
        held.push((client, guard));
    }
    server.kill();
    server.restart();

    assert!(written.check().is_ok() && !waiting.is_finished());
    let token = written.token();
    assert_eq!(written.release().await.unwrap(), Release::Released);
    let next = within(PATIENCE, "the waiter gets it", waiting).await.unwrap().unwrap();
    assert!(next.token() > token && next.value().bytes == "kept", "{next:?} after {token:?}");

    for (client, guard) in held {
        let lost = within(PATIENCE, "the holder is told", guard.lost()).await;
        assert_eq!(lost, LostReason::Disconnected);
        let next = within(PATIENCE, "the next one gets it", client.lock("a").acquire()).await.unwrap();
        assert!(next.token() > guard.token(), "{next:?} after {guard:?}");
        assert_eq!(guard.release().await.unwrap(), Release::AlreadyLost(LostReason::Disconnected));
        assert!(next.check().is_ok(), "the late release freed the next one's lock");
    }
}

pub(crate) async fn a_killed_process_frees_its_locks<D: Database>() {
    let server = D::start();
    let token = |got: String| -> u64 { got.strip_prefix("got ").expect(&got).parse().unwrap() };
    for recipe in session_recipes::<D>() {
        let url = server.recipe(recipe, "");
        let (client, mut process) = (connect(&url).await, Helper::start(D::HELPER, &url).await);
        let before = token(process.ask(&format!("acquire a EX {}", LONG.as_millis())).await);
        assert!(client.lock("a").try_acquire().await.unwrap().is_none());
        process.kill();
        let next = within(PATIENCE, "free long before its ttl", client.lock("a").acquire()).await.unwrap();
        assert!(next.token().unwrap().get() > before, "{recipe}: {next:?} after {before}");
    }

    let url = server.recipe("table", "");
    let (client, mut process) = (connect(&url).await, Helper::start(D::HELPER, &url).await);
    let before = token(process.ask("acquire short EX 3000").await);
    token(process.ask(&format!("acquire long EX {}", LONG.as_millis())).await);
    process.kill();
    let next = within(PATIENCE, "free after its ttl", client.lock("short").acquire()).await.unwrap();
    assert!(next.token().unwrap().get() > before, "{next:?} after {before}");
    assert!(client.lock("long").try_acquire().await.unwrap().is_none(), "and not before");
}
