//! ZooKeeper locks of other languages: Python's kazoo, Java's Curator and ours exclude each other on the same path. The programs in the
//! folder `peers` lock with these libraries' own recipes, in the way of their users, and know nothing of Tenure.

use std::path::Path;

use tenure::contract::{Helper, Inside, Subject, run_helper};
use tenure::{Break, BreakError, Client, Guard, Mode, Release};
use tenure_testkit::{ZooKeeper, find_program};

use crate::peer::{Peer, installed};
use crate::{A_WHILE, connect, eventually, soon};

/// A lock, by its name here and by its path there.
const NAME: &str = "orders/ä";

/// A library of another language.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Library {
    Kazoo,
    Curator,
}

/// A part of the tree for one test, with the options of our URL, and the library that locks beside ours.
struct Ours {
    root: String,
    options: &'static str,
    library: Library,
}

impl Subject for Ours {
    async fn start() -> Self {
        unreachable!("a test says which part of the tree is its own")
    }

    fn address(&self) -> String {
        format!("{}{}?{}&tick_ms=500", ZooKeeper::shared().url(), self.root, self.options)
    }

    async fn connect(address: &str) -> Client {
        connect(address).await
    }
}

/// Not a test: what the test binary does when a test runs it as another process.
#[test]
fn helper_process() {
    run_helper::<Ours>();
}

impl Ours {
    fn root(root: &str) -> Self {
        Self { root: format!("/peers/{root}"), options: "recipe=sequential", library: Library::Kazoo }
    }

    /// Both recipes, beside each library.
    fn roots(root: &str) -> [Self; 4] {
        let ours =
            |which: &str, options, library| Self { root: format!("/peers/{root}-{which}"), options, library };
        [
            ours("sequential-kazoo", "recipe=sequential", Library::Kazoo),
            ours("simple-kazoo", "recipe=simple", Library::Kazoo),
            ours("sequential-curator", "recipe=sequential&names=curator", Library::Curator),
            ours("simple-curator", "recipe=simple", Library::Curator),
        ]
    }

    async fn client(&self) -> Client {
        connect(&self.address()).await
    }

    async fn helper(&self) -> Helper {
        Helper::start(concat!(module_path!(), "::ours"), &self.address()).await
    }

    fn peer(&self, words: &[&str]) -> Peer {
        let lock = [ZooKeeper::shared().addr().to_string(), format!("{}/{NAME}", self.root)];
        let words = lock.iter().map(String::as_str).chain(words.iter().copied()).collect::<Vec<_>>();
        match self.library {
            Library::Kazoo => {
                let python = installed("python").join("bin/python");
                Peer::start(&python, "zookeeper/peers/increment.py", &words)
            }
            Library::Curator => {
                let jar = Path::new("/usr/share/java/curator-recipes.jar");
                assert!(jar.exists(), "Curator is missing: run `cargo xtask test --only packages`");
                Peer::start(&find_program("sh").unwrap(), "zookeeper/peers/curator.sh", &words)
            }
        }
    }

    /// A peer that holds the lock as soon as it gets it, and has begun to try. A recipe is one of kazoo's.
    async fn holder(&self, recipe: &str) -> Peer {
        let mut peer = self.peer(&["hold", recipe]);
        assert_eq!(peer.says().await, "ready", "{recipe}");
        peer
    }

    /// What a peer finds that tries the lock: `got` or `busy`.
    async fn tries(&self, recipe: &str) -> String {
        self.peer(&["try", recipe]).says().await
    }
}

/// Fails if a peer says something, for which it is given the time.
async fn says_nothing(peer: &mut Peer, why: &str) {
    let early = tokio::time::timeout(A_WHILE, peer.says()).await;
    assert!(early.is_err(), "{why}: {early:?}");
}

async fn is_busy(client: &Client, mode: Mode) -> bool {
    client.lock(NAME).mode(mode).try_acquire().await.unwrap().is_none()
}

async fn hold(client: &Client, mode: Mode) -> Guard {
    soon("ours gets the lock", client.lock(NAME).mode(mode).acquire()).await.unwrap()
}

/// One of ours that waits, and does not get the lock yet.
async fn waiting(client: &Client, mode: Mode) -> tokio::task::JoinHandle<Guard> {
    let request = client.lock(NAME).mode(mode);
    let mut waiting = tokio::spawn(async move { request.acquire().await.unwrap() });
    let early = tokio::time::timeout(A_WHILE, &mut waiting).await;
    assert!(early.is_err(), "it is held, and ours has it: {early:?}");
    waiting
}

#[tokio::test]
async fn processes_of_both_lose_no_increment() {
    for ours in Ours::roots("counter") {
        take_turns(ours).await;
    }
}

async fn take_turns(ours: Ours) {
    const OF_EACH: usize = 4;
    const TIMES: usize = 50;
    let files = tempfile::tempdir().unwrap();
    let (inside, folder) = (Inside::new(files.path()), files.path().to_str().unwrap());
    // Held until all are there, so that none is done before the others begin.
    let client = ours.client().await;
    let gate = hold(&client, Mode::Ex).await;

    let (mut helpers, mut peers) = (Vec::new(), Vec::new());
    for _ in 0..OF_EACH {
        helpers.push(ours.helper().await);
        peers.push(ours.peer(&["increment", folder, &TIMES.to_string()]));
    }
    for peer in &mut peers {
        assert_eq!(peer.says().await, "ready");
    }
    for helper in &mut helpers {
        helper.tell(&format!("increment {NAME} {folder} {TIMES} 2 20000"));
    }
    assert_eq!(inside.count(), 0, "somebody was in while ours held the lock");
    let _ = gate.release().await.unwrap();

    for helper in &mut helpers {
        for done in 1..=TIMES {
            assert_eq!(helper.answer().await, format!("done {done}"));
        }
        assert_eq!(helper.answer().await, "finished");
    }
    for peer in &mut peers {
        assert_eq!(peer.says().await, "finished");
    }
    assert_eq!(inside.count(), (2 * OF_EACH * TIMES) as u64);
    assert!(!is_busy(&client, Mode::Ex).await, "nobody is left, and the lock is held");
}

#[tokio::test]
async fn a_foreign_lock_is_seen_respected_and_waited_for() {
    for ours in Ours::roots("theirs") {
        respect_theirs(ours).await;
    }
}

async fn respect_theirs(ours: Ours) {
    let client = ours.client().await;
    let mut peer = ours.holder("Lock").await;
    assert_eq!(peer.says().await, "held");
    assert!(is_busy(&client, Mode::Ex).await, "ours gets what theirs has");
    let info = client.inspect(NAME).await.unwrap();
    let [holder] = info.present_holders().collect::<Vec<_>>()[..] else { panic!("one holds it: {info:?}") };
    let says_who = |label: &str| ours.library != Library::Kazoo || label.contains("kazoo");
    assert!(holder.label.as_deref().is_some_and(says_who), "{info:?}");
    assert_eq!((holder.mode, info.last_token), (Mode::Ex, holder.token));
    let asked = client.break_lock(NAME, Break::Ask).await;
    assert!(matches!(asked, Err(BreakError::HolderKeepsIt { .. })), "it does not listen to us: {asked:?}");

    let waiting = waiting(&client, Mode::Ex).await;
    if client.capabilities().visible_waiters {
        assert_eq!(client.inspect(NAME).await.unwrap().waiters.len(), 1);
    }
    assert_eq!(peer.releases().await, "released");
    let guard = soon("ours gets what was released", waiting).await.unwrap();
    assert!(guard.token() > info.last_token, "{guard:?} after {info:?}");
    assert_eq!(ours.tries("Lock").await, "busy");
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    assert_eq!(client.inspect(NAME).await.unwrap().holders, []);
}

#[tokio::test]
async fn a_lock_of_ours_is_respected_and_waited_for() {
    for ours in Ours::roots("ours") {
        respect_ours(ours).await;
    }
}

async fn respect_ours(ours: Ours) {
    let client = ours.client().await;
    assert_eq!(ours.tries("Lock").await, "got");
    let guard = hold(&client, Mode::Ex).await;
    assert_eq!(ours.tries("Lock").await, "busy");

    let mut peer = ours.holder("Lock").await;
    says_nothing(&mut peer, "ours holds it, and theirs has it").await;
    // A node that stays below the lock and is no holder.
    guard.set_value("x").await.unwrap();
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    assert_eq!(peer.says().await, "held");
    assert!(is_busy(&client, Mode::Ex).await, "theirs holds it, and ours gets it");
    assert_eq!(peer.releases().await, "released");
    assert!(!is_busy(&client, Mode::Ex).await, "theirs has released it");
}

#[tokio::test]
async fn whoever_waits_behind_another_is_served_in_turn() {
    let ours = Ours::root("turns");
    let client = ours.client().await;
    let first = hold(&client, Mode::Ex).await;
    let mut second = ours.holder("Lock").await;
    let in_line = async |count: usize| {
        let seen = async || client.inspect(NAME).await.unwrap().waiters.len() == count;
        eventually("the waiter is seen", seen).await;
    };
    in_line(1).await;
    let third = waiting(&client, Mode::Ex).await;
    let mut fourth = ours.holder("Lock").await;
    in_line(3).await;
    let _ = first.release().await.unwrap();
    assert_eq!(second.says().await, "held");
    assert!(!third.is_finished());
    assert_eq!(second.releases().await, "released");
    let third = soon("ours behind theirs", third).await.unwrap();
    says_nothing(&mut fourth, "ours holds it, and theirs has it").await;
    let _ = third.release().await.unwrap();
    assert_eq!(fourth.says().await, "held");
}

#[tokio::test]
async fn what_either_held_when_it_was_killed_goes_to_the_other() {
    let ours = Ours::root("killed");
    let mut helper = ours.helper().await;
    assert!(helper.ask(&format!("acquire {NAME} EX 4000")).await.starts_with("got"));
    let mut peer = ours.holder("Lock").await;
    says_nothing(&mut peer, "ours holds it, and theirs has it").await;
    helper.kill();
    assert_eq!(peer.says().await, "held");
    let waiting = waiting(&ours.client().await, Mode::Ex).await;
    drop(peer);
    let _ = soon("ours gets what a dead one held", waiting).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_lock_that_is_broken_by_force_is_theirs_no_more() {
    let ours = Ours::root("broken");
    let client = ours.client().await;
    let mut peer = ours.holder("Lock").await;
    assert_eq!(peer.says().await, "held");
    let broken = client.break_lock(NAME, Break::Force).await.unwrap();
    assert_eq!(broken.len(), 1, "{broken:?}");
    let guard = hold(&client, Mode::Ex).await;
    // It does not notice, and what it releases is not ours.
    assert_eq!(peer.releases().await, "released");
    assert_eq!(ours.tries("Lock").await, "busy");
    assert!(guard.check().is_ok());
    assert_eq!(guard.release().await.unwrap(), Release::Released);
}

/// Their readers stand beside ours; behind one of ours they wait, since to them it looks like a writer.
#[tokio::test]
async fn readers_and_writers_of_both_exclude_each_other() {
    let ours = Ours::root("readers");
    let client = ours.client().await;

    let mut reader = ours.holder("ReadLock").await;
    assert_eq!(reader.says().await, "held");
    assert_eq!(ours.tries("WriteLock").await, "busy");
    let beside = hold(&client, Mode::Pr).await;
    let info = client.inspect(NAME).await.unwrap();
    assert_eq!(info.holders.iter().map(|holder| holder.mode).collect::<Vec<_>>(), [Mode::Pr; 2], "{info:?}");
    assert_eq!((ours.tries("ReadLock").await, ours.tries("WriteLock").await), ("busy".into(), "busy".into()));
    let _ = beside.release().await.unwrap();
    assert!(is_busy(&client, Mode::Ex).await, "theirs reads, and ours writes");
    let waiting = waiting(&client, Mode::Ex).await;
    assert_eq!(reader.releases().await, "released");
    let writer = soon("ours writes when theirs has read", waiting).await.unwrap();

    assert_eq!((ours.tries("ReadLock").await, ours.tries("WriteLock").await), ("busy".into(), "busy".into()));
    let mut reader = ours.holder("ReadLock").await;
    says_nothing(&mut reader, "ours writes, and theirs reads").await;
    let _ = writer.release().await.unwrap();
    assert_eq!(reader.says().await, "held");
    assert_eq!(reader.releases().await, "released");

    let mut writer = ours.holder("WriteLock").await;
    assert_eq!(writer.says().await, "held");
    assert!(is_busy(&client, Mode::Pr).await && is_busy(&client, Mode::Ex).await, "theirs writes");
    assert_eq!(writer.releases().await, "released");
    let reader = hold(&client, Mode::Pr).await;
    let mut writer = ours.holder("WriteLock").await;
    says_nothing(&mut writer, "ours reads, and theirs writes").await;
    let _ = reader.release().await.unwrap();
    assert_eq!(writer.says().await, "held");
}
