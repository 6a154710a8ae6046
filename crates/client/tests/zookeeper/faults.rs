//! What happens when servers die, move, or fall silent: each either works, or says what is wrong.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tempfile::TempDir;
use tenure::clock::BootTime;
use tenure::contract::Inside;
use tenure::{
    AcquireError, Client, ConnectError, EngineError, FencingToken, GuardState, LostReason, Mode, Release,
    ReleaseError, Wait,
};
use tenure_testkit::{Proxy, ZooKeeper, ZooKeeperCluster, free_port};
use tokio::task::JoinHandle;

use crate::tree::Tree;
use crate::{LONG, RECIPES, connect, eventually, in_full, is_busy, soon};

/// A URL of these servers. A request may take longer than an election does.
fn url(hosts: &impl ToString, rest: &str) -> String {
    format!("zookeeper://{}/faults{rest}&tick_ms=500&timeout_ms=30000", hosts.to_string())
}

fn hosts(cluster: &ZooKeeperCluster) -> String {
    cluster.addrs().iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

fn is_unreachable(error: &AcquireError) -> bool {
    matches!(error, AcquireError::Engine(EngineError::Unreachable { .. }))
}

/// A turn at the counter.
#[derive(Clone, Copy, Debug)]
struct Turn {
    of: usize,
    token: FencingToken,
    granted: BootTime,
}

/// Clients who increment a counter under a lock, until they are told to end.
struct Load {
    folder: TempDir,
    ends: Arc<AtomicBool>,
    turns: Arc<Mutex<Vec<Turn>>>,
    clients: Vec<JoinHandle<()>>,
}

impl Load {
    async fn start(url: &str, clients: usize) -> Self {
        let (folder, ends, turns) = (tempfile::tempdir().unwrap(), Arc::default(), Arc::default());
        let mut load = Self { folder, ends, turns, clients: Vec::new() };
        for of in 0..clients {
            let (client, inside) = (connect(url).await, Inside::new(load.folder.path()));
            let (ends, turns) = (load.ends.clone(), load.turns.clone());
            load.clients.push(tokio::spawn(async move {
                while !ends.load(Ordering::Relaxed) {
                    let guard = client.lock("counter").ttl(Duration::from_secs(20)).acquire().await.unwrap();
                    let granted = BootTime::now();
                    inside.increment(Duration::from_millis(1)).unwrap();
                    turns.lock().unwrap().push(Turn { of, token: guard.token().unwrap(), granted });
                    // Between the increment and this, the server may have died.
                    match guard.release().await {
                        Ok(_) | Err(ReleaseError::Engine(_)) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            }));
        }
        load
    }

    fn turns(&self) -> Vec<Turn> {
        self.turns.lock().unwrap().clone()
    }

    /// Each of them has had some more turns.
    async fn all_go_on(&self, what: &str) {
        let before = self.turns().len();
        eventually(what, async || {
            assert!(!self.clients.iter().any(JoinHandle::is_finished), "{what}: a client has given up");
            let turns = self.turns();
            (0..self.clients.len()).all(|of| turns[before..].iter().filter(|turn| turn.of == of).count() >= 3)
        })
        .await;
    }

    /// How long nobody was let in after this instant.
    fn pause_after(&self, instant: BootTime) -> Duration {
        let turns = self.turns();
        // Some may have been on their way when it happened.
        let pauses = turns.windows(2).filter(|pair| pair[1].granted > instant);
        let (_, until) = pauses
            .map(|pair| (pair[1].granted.since(pair[0].granted), pair[1].granted))
            .max()
            .expect("somebody was let in");
        until.since(instant)
    }

    async fn end(self, what: &str) {
        self.ends.store(true, Ordering::Relaxed);
        for client in self.clients {
            soon(what, client).await.unwrap();
        }
        let turns = self.turns.lock().unwrap();
        assert_eq!(Inside::new(self.folder.path()).count(), turns.len() as u64, "{what} lost an increment");
        let falls = turns.windows(2).find(|pair| pair[0].token >= pair[1].token);
        assert!(falls.is_none(), "{what}: the tokens do not rise: {falls:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_killed_under_load_loses_no_increment_and_no_waiter() {
    let mut cluster = ZooKeeperCluster::start();
    let mut loads = Vec::new();
    // One who is woken among many asks often: fewer of them ask enough.
    for (recipe, clients) in [("sequential", 8), ("simple", 4)] {
        let url = url(&hosts(&cluster), &format!("/{recipe}?recipe={recipe}"));
        loads.push((recipe, Load::start(&url, clients).await));
    }
    let mut dead = None;
    for _ in 0..2 {
        if let Some(dead) = dead {
            cluster.member_mut(dead).restart();
            cluster.wait_until_all_serve();
        }
        for (recipe, load) in &loads {
            load.all_go_on(recipe).await;
        }
        let leader = cluster.leader();
        cluster.member_mut(leader).kill();
        let killed = BootTime::now();
        for (recipe, load) in &loads {
            load.all_go_on(recipe).await;
        }
        for (recipe, load) in &loads {
            println!(
                "{recipe}: {:?} from the death of the leader to the next grant",
                load.pause_after(killed)
            );
        }
        dead = Some(leader);
    }
    for (recipe, load) in loads {
        load.end(recipe).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn after_an_expired_session_the_client_goes_on_with_a_new_one() {
    let server = ZooKeeper::shared();
    let (proxy, tree) = (Proxy::to(server.addr()), Tree::at(server.addr()).await);
    let direct = connect(&url(&server.addr(), "/expired?recipe=sequential")).await;
    let client = connect(&url(&proxy.addr(), "/expired?recipe=sequential")).await;
    let ttl = Duration::from_secs(4);
    let lock = |name: &str| client.lock(name).ttl(ttl);

    let held = lock("held").acquire().await.unwrap();
    let in_the_way = direct.lock("waited-for").ttl(LONG).acquire().await.unwrap();
    let waiting = tokio::spawn(lock("waited-for").acquire());
    let waits = async || direct.inspect("waited-for").await.unwrap().waiters.len() == 1;
    eventually("one waits", waits).await;
    let session = tree.session_of(&tree.only_child("/faults/expired/held").await).await;

    proxy.cut();
    let next = soon("the next one gets it", direct.lock("held").ttl(LONG).acquire()).await.unwrap();
    assert!(held.check().is_err(), "two believe: {:?}, and {:?}", held.token(), next.token());
    assert!(next.token() > held.token());
    assert_eq!(soon("it is told", held.lost()).await, LostReason::Expired);
    // Its place in the queue went, too.
    eventually("nobody waits", async || direct.inspect("waited-for").await.unwrap().waiters.is_empty()).await;
    assert!(!waiting.is_finished(), "a waiter is lost");

    proxy.heal();
    assert_eq!(held.release().await.unwrap(), Release::AlreadyLost(LostReason::Expired));
    assert!(is_busy(&direct, "held").await, "the late release freed the next one's lock");
    eventually("the client is back", async || client.inspect("held").await.is_ok()).await;
    let other = soon("another lock", lock("other").acquire()).await.unwrap();
    assert_ne!(tree.session_of(&tree.only_child("/faults/expired/other").await).await, session);
    eventually("the waiter is in the queue again", waits).await;
    let token = in_the_way.token();
    let _ = in_the_way.release().await.unwrap();
    let waited = soon("the waiter gets it", waiting).await.unwrap().unwrap();
    assert!(waited.token() > token);
    let deadlines = [other.deadline(), waited.deadline()];
    eventually("both are renewed", async || {
        other.deadline() > deadlines[0] && waited.deadline() > deadlines[1]
    })
    .await;
    assert!(next.check().is_ok());
}

/// The servers have ended the session, and the client has not heard of it: whoever asks for a lock before it does is none the worse for it.
#[tokio::test(flavor = "multi_thread")]
async fn the_first_lock_after_an_expired_session_is_got() {
    let server = ZooKeeper::shared();
    let proxy = Proxy::to(server.addr());
    let direct = connect(&url(&server.addr(), "/first?recipe=sequential")).await;
    let client = connect(&url(&proxy.addr(), "/first?recipe=sequential")).await;
    let _held = client.lock("held").ttl(Duration::from_secs(10)).acquire().await.unwrap();
    proxy.cut();
    // The client gives up a session later than the servers do.
    drop(soon("the session has ended", direct.lock("held").ttl(LONG).acquire()).await.unwrap());
    proxy.heal();
    let request = client.lock("other").ttl(Duration::from_secs(10));
    drop(soon("it is got", request.acquire()).await.unwrap());
}

/// Servers behind proxies, so that a test says which one a client is connected to.
struct Steered {
    cluster: ZooKeeperCluster,
    proxies: Vec<Proxy>,
}

impl Steered {
    fn start() -> Self {
        let cluster = ZooKeeperCluster::start();
        let proxies = cluster.addrs().into_iter().map(Proxy::to).collect();
        Self { cluster, proxies }
    }

    /// A client that is connected to this member, and may go to the others from then on.
    async fn client_of(&self, member: usize, rest: &str) -> Client {
        self.proxies.iter().for_each(|proxy| proxy.lead_new_ones_to(self.cluster.member(member).addr()));
        let hosts: Vec<_> = self.proxies.iter().map(|proxy| proxy.addr().to_string()).collect();
        connect(&url(&hosts.join(","), rest)).await
    }

    /// New connections lead to all members again.
    fn spread(&self) {
        for (proxy, addr) in self.proxies.iter().zip(self.cluster.addrs()) {
            proxy.lead_new_ones_to(addr);
        }
    }

    /// Which of the members that answer a session is connected to, if it is to one.
    fn serves(&self, session: i64, except: usize) -> Option<usize> {
        let sid = format!("sid=0x{session:x},");
        (0..3)
            .filter(|member| *member != except)
            .find(|member| self.cluster.member(*member).command("cons").contains(&sid))
    }

    /// Holds a lock at a member, which then goes away: the lock stays, by way of another one.
    async fn survives(&mut self, name: &str, member: usize, goes: impl FnOnce(&mut ZooKeeper)) {
        let client = self.client_of(member, "/moves?recipe=sequential").await;
        let guard = client.lock(name).ttl(Duration::from_secs(20)).acquire().await.unwrap();
        let (token, other) = (guard.token(), (member + 1) % 3);
        let tree = Tree::at(self.cluster.member(other).addr()).await;
        let session = tree.session_of(&tree.only_child(&format!("/faults/moves/{name}")).await).await;
        assert_eq!(self.serves(session, 3), Some(member), "{name}: it is not where the test wants it");
        self.spread();
        goes(self.cluster.member_mut(member));

        let moved = async || self.serves(session, member).is_some();
        eventually("it is served by another one", moved).await;
        let deadline = guard.deadline();
        eventually("it is renewed there", async || {
            assert!(!matches!(guard.state(), GuardState::Lost(_)), "{name}: {guard:?}");
            guard.deadline() > deadline && guard.state() == GuardState::Held
        })
        .await;
        assert_eq!(guard.token(), token);
        let another = connect(&url(&self.cluster.member(other).addr(), "/moves?recipe=sequential")).await;
        assert!(is_busy(&another, name).await, "{name}: two hold it");
        assert_eq!(guard.release().await.unwrap(), Release::Released);
        assert!(!is_busy(&another, name).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_whose_server_goes_away_moves_to_another_and_keeps_its_lock() {
    let mut servers = Steered::start();
    let leader = servers.cluster.leader();
    let follower = (leader + 1) % 3;
    servers.survives("killed-follower", follower, |server| server.kill()).await;
    servers.cluster.member_mut(follower).restart();
    servers.cluster.wait_until_all_serve();
    // Nobody tells the client: it hears nothing any more.
    servers.survives("silent-follower", follower, |server| server.pause()).await;
    servers.cluster.member_mut(follower).resume();
    servers.cluster.wait_until_all_serve();
    servers.survives("killed-leader", leader, |server| server.kill()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_majority_nothing_is_locked_and_it_is_said_why() {
    let mut cluster = ZooKeeperCluster::builder().property("readonlymode.enabled", "true").start();
    let url = format!("zookeeper://{}/faults?tick_ms=500&timeout_ms=3000", hosts(&cluster));
    let client = connect(&url).await;
    let held = client.lock("held").ttl(Duration::from_secs(4)).acquire().await.unwrap();
    let leader = cluster.leader();
    let dead = [leader, (leader + 1) % 3];
    for member in dead {
        cluster.member_mut(member).kill();
    }
    let left = cluster.member((leader + 2) % 3);
    eventually("the last one serves readers only", async || left.command("isro") == "ro").await;

    for wait in [Wait::Try, Wait::For(Duration::from_secs(3))] {
        let asked = client.lock("other").ttl(Duration::from_secs(4)).wait(wait).acquire();
        let error = soon("it is said", asked).await.unwrap_err();
        let text = in_full(&error);
        assert!(is_unreachable(&error) && text.contains("majority"), "{wait:?}: {text}");
    }
    let error = soon("it is said", Client::connect(&url)).await.unwrap_err();
    let text = in_full(&error);
    assert!(matches!(error, ConnectError::Engine(EngineError::Unreachable { .. })), "{error:?}");
    assert!(text.contains("majority") && text.contains(&left.addr().to_string()), "{text}");
    assert!(client.inspect("held").await.is_err(), "what is seen may be old");
    let lost = soon("the holder is told", held.lost()).await;
    assert_eq!(lost, LostReason::Expired);

    for member in dead {
        cluster.member_mut(member).restart();
    }
    cluster.wait_until_all_serve();
    let ttl = Duration::from_secs(4);
    let next = soon("it works again", client.lock("held").ttl(ttl).acquire()).await.unwrap();
    assert!(next.token() > held.token());
    drop(soon("for others, too", connect(&url).await.lock("other").acquire()).await.unwrap());
}

/// How long connecting may take if no server can answer: longer than any of these tests is patient.
const NEVER: &str = "timeout_ms=60000";

/// Fails if connecting does not end well before its time limit.
async fn refusal(hosts: &str) -> (EngineError, String) {
    let url = format!("zookeeper://{hosts}/faults?{NEVER}");
    let refused = tokio::time::timeout(Duration::from_secs(30), Client::connect(&url));
    match refused.await.expect("it is said before the time limit").expect_err(hosts) {
        ConnectError::Engine(error) => {
            let text = in_full(&error);
            (error, text)
        }
        error => panic!("{error:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_all_refuse_are_reported_at_once() {
    let [one, two] = [(); 2].map(|()| format!("127.0.0.1:{}", free_port()));
    for hosts in [one.clone(), format!("{one},{two}"), format!("nowhere.invalid,{two}")] {
        let (error, text) = refusal(&hosts).await;
        assert!(matches!(error, EngineError::Unreachable { .. }), "{error:?}");
        let refused = hosts.matches("127.0.0.1").count();
        assert_eq!(text.matches("onnection refused").count(), refused, "each reason once: {text}");
        assert!(hosts.split(',').all(|host| text.contains(host)), "{text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_does_not_exist_is_reported_at_once() {
    for hosts in ["nowhere.invalid", "nowhere.invalid,neither.invalid:2182"] {
        let (error, text) = refusal(hosts).await;
        assert!(matches!(error, EngineError::NotFound { .. }), "{error:?}");
        assert!(text.contains("`nowhere.invalid`") && text.contains("lookup"), "{text}");
    }
}

/// One server refuses and one is silent: it may answer yet, and it does.
#[tokio::test(flavor = "multi_thread")]
async fn a_silent_server_is_waited_for_though_others_refuse() {
    let proxy = Proxy::to(ZooKeeper::shared().addr());
    proxy.cut();
    let url = format!("zookeeper://127.0.0.1:{},{}/faults?tick_ms=500&{NEVER}", free_port(), proxy.addr());
    let mut connecting = tokio::spawn(async move { Client::connect(&url).await });
    let early = tokio::time::timeout(Duration::from_secs(1), &mut connecting).await;
    assert!(early.is_err(), "{early:?}");
    proxy.heal();
    soon("it connects", connecting).await.unwrap().unwrap();
}

/// Answers are lost and connections break again and again, while many lock: each entry is made once, and taken away.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_made_and_not_answered_is_found_again() {
    for recipe in RECIPES {
        let server = ZooKeeper::shared();
        let tree = Tree::at(server.addr()).await;
        let root = format!("/faults/storm-{recipe}");
        let proxy = Arc::new(Proxy::to(server.addr()));
        let client = connect(&url(&proxy.addr(), &format!("/storm-{recipe}?recipe={recipe}"))).await;
        let done = Arc::new(AtomicUsize::new(0));
        let storm = tokio::spawn(storm(proxy.clone(), done.clone()));
        let work = |worker| tokio::spawn(work(client.clone(), worker, done.clone()));
        let workers: Vec<_> = (0..8).map(work).collect();
        let mut kept = Vec::new();
        for worker in workers {
            kept.push(soon("a worker comes through", worker).await.unwrap());
        }
        storm.abort();
        let _ = storm.await;
        proxy.drop_answers(false);

        for (worker, guard) in kept.iter().enumerate() {
            let lock = format!("{root}/kept-{worker}");
            eventually("only what is held is there", async || tree.children(&lock).await.len() == 1).await;
            let entry = tree.data(&tree.only_child(&lock).await).await;
            assert!(entry.contains(&guard.grant().to_string()), "{recipe}: {entry} of {guard:?}");
            assert!(guard.check().is_ok(), "{recipe}: {guard:?}");
        }
        for name in ["shared", "contended"] {
            let empty = async || tree.children(&format!("{root}/{name}")).await.is_empty();
            eventually("nothing is left of what was given back", empty).await;
        }
        for guard in kept {
            let lock = format!("{root}/{}", guard.name());
            assert_eq!(guard.release().await.unwrap(), Release::Released);
            assert_eq!(tree.children(&lock).await, [""; 0], "{recipe}");
        }
    }
}

/// Breaks connections and loses answers, and lets something be done in between.
async fn storm(proxy: Arc<Proxy>, done: Arc<AtomicUsize>) {
    for round in 0_u64.. {
        let before = done.load(Ordering::Relaxed);
        let progress = async {
            while done.load(Ordering::Relaxed) < before + 4 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        // Not all of them go on while one waits.
        let _ = tokio::time::timeout(Duration::from_millis(100), progress).await;
        proxy.drop_answers(true);
        tokio::time::sleep(Duration::from_millis(round * 5 % 13)).await;
        proxy.drop_answers(false);
        if round % 3 == 0 {
            proxy.sever();
        }
    }
}

/// Locks in many ways, and gives all of it back but one.
async fn work(client: Client, worker: usize, done: Arc<AtomicUsize>) -> tenure::Guard {
    for turn in 0..10 {
        done.fetch_add(1, Ordering::Relaxed);
        let (name, mode) = if turn % 2 == 0 { ("contended", Mode::Ex) } else { ("shared", Mode::Pr) };
        let mode = if client.capabilities().modes.contains(mode) { mode } else { Mode::Ex };
        let wait = [Wait::Forever, Wait::Try, Wait::For(Duration::from_millis(200))][(worker + turn) % 3];
        let asking = client.lock(name).mode(mode).ttl(LONG).wait(wait).acquire();
        // Some do not wait for the answer.
        let patience = if turn % 5 == 4 { Duration::from_millis(5) } else { LONG };
        let Ok(answer) = tokio::time::timeout(patience, asking).await else { continue };
        match answer {
            Ok(guard) => drop(guard.release().await),
            Err(AcquireError::Busy { .. } | AcquireError::TimedOut { .. }) => {}
            Err(error) if is_unreachable(&error) => {}
            Err(error) => panic!("{}", in_full(&error)),
        }
    }
    loop {
        match client.lock(format!("kept-{worker}")).ttl(LONG).acquire().await {
            Ok(guard) => return guard,
            Err(error) => assert!(is_unreachable(&error), "{}", in_full(&error)),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ttl_that_is_too_short_for_the_servers_is_refused() {
    // Whose ticks are said to be of two seconds, unless told.
    let client = connect(&format!("{}/faults", ZooKeeper::shared().url())).await;
    let error = client.lock("short").ttl(Duration::from_secs(1)).acquire().await.unwrap_err();
    let text = in_full(&error);
    assert!(matches!(error, AcquireError::Engine(EngineError::Refused { .. })), "{error:?}");
    assert!(text.contains("ttl") && text.contains("tickTime") && text.contains("`?tick_ms=`"), "{text}");
    drop(client.lock("short").ttl(Duration::from_secs(10)).acquire().await.unwrap());
}
