//! Plain Redis locks of other languages: they and ours exclude each other on the same key. The programs in the folder
//! `peers` lock with their own libraries, in the way of those libraries' users, and know nothing of Tenure.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tenure::contract::{Helper, Inside, Subject, run_helper, within};
use tenure::{Client, Guard, Release};
use tenure_testkit::{Redis, find_program};
use tokio::task::JoinHandle;

use crate::peer::{Peer, installed};

/// How long anything may take on a slow machine: some of it is waiting for one's turn among many.
const PATIENCE: Duration = Duration::from_mins(5);
/// Longer than any test waits: nothing that a test sees can be due to its end.
const LONG: Duration = Duration::from_mins(20);
/// Time enough for those who look now and then to look, so that their not coming says something.
const A_WHILE: Duration = Duration::from_millis(600);

const KEY: &str = "orders/ä";

struct Ours(Redis);

impl Subject for Ours {
    async fn start() -> Self {
        Self(Redis::start())
    }

    fn address(&self) -> String {
        self.0.url()
    }

    async fn connect(address: &str) -> Client {
        Client::connect(address).await.unwrap()
    }
}

/// Not a test: what the test binary does when a test runs it as another process.
#[test]
fn helper_process() {
    run_helper::<Ours>();
}

impl Ours {
    async fn client(&self) -> Client {
        Self::connect(&self.address()).await
    }

    async fn helper(&self) -> Helper {
        Helper::start(concat!(module_path!(), "::ours"), &self.address()).await
    }

    fn peer(&self, language: Language, words: &[&str]) -> Peer {
        language.start(&[&[&*self.address(), KEY], words].concat())
    }

    /// A peer that holds the lock as soon as it gets it, and has begun to try.
    async fn holder(&self, language: Language, ttl: Duration) -> Peer {
        let mut peer = self.peer(language, &["hold", &ttl.as_millis().to_string()]);
        assert_eq!(peer.says().await, "ready", "{language:?}");
        peer
    }

    /// What a peer finds that tries the lock: `got` or `busy`.
    async fn tries(&self, language: Language) -> String {
        self.peer(language, &["try"]).says().await
    }
}

#[derive(Clone, Copy, Debug)]
enum Language {
    Python,
    JavaScript,
}

impl Language {
    const ALL: [Self; 2] = [Self::Python, Self::JavaScript];

    /// Starts its program.
    fn start(self, words: &[&str]) -> Peer {
        match self {
            Self::Python => {
                Peer::start(&installed("python").join("bin/python"), "redis/peers/increment.py", words)
            }
            Self::JavaScript => {
                installed("node");
                Peer::start(&find_program("node").unwrap(), "redis/peers/increment.mjs", words)
            }
        }
    }
}

async fn is_busy(client: &Client) -> bool {
    client.lock(KEY).try_acquire().await.unwrap().is_none()
}

async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    within(PATIENCE, what, future).await
}

async fn hold(client: &Client) -> Guard {
    soon("ours gets the lock", client.lock(KEY).ttl(LONG).acquire()).await.unwrap()
}

#[tokio::test]
async fn processes_of_three_languages_lose_no_increment() {
    const OF_EACH: usize = 3;
    const TIMES: usize = 40;
    let redis = Ours::start().await;
    let files = tempfile::tempdir().unwrap();
    let (inside, folder) = (Inside::new(files.path()), files.path().to_str().unwrap());
    // Held until all are there, so that none is done before the others begin.
    let client = redis.client().await;
    let gate = hold(&client).await;

    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..OF_EACH {
        ours.push(redis.helper().await);
        for language in Language::ALL {
            let peer = redis.peer(language, &["increment", folder, &TIMES.to_string()]);
            theirs.push((language, peer));
        }
    }
    for (language, peer) in &mut theirs {
        assert_eq!(peer.says().await, "ready", "{language:?}");
    }
    // Theirs look some times in a second, and ours are told: they stay for long enough to be met.
    let stay_ms = 10;
    for helper in &mut ours {
        helper.tell(&format!("increment {KEY} {folder} {TIMES} {stay_ms} 20000"));
    }
    assert_eq!(inside.count(), 0, "somebody was in while ours held the lock");
    let _ = gate.release().await.unwrap();

    for helper in &mut ours {
        for done in 1..=TIMES {
            assert_eq!(helper.answer().await, format!("done {done}"));
        }
        assert_eq!(helper.answer().await, "finished");
    }
    for (language, peer) in &mut theirs {
        assert_eq!(peer.says().await, "finished", "{language:?}");
    }
    assert_eq!(inside.count(), (TIMES * (ours.len() + theirs.len())) as u64);
    assert!(!is_busy(&client).await, "nobody is left, and the lock is held");
}

/// Two tasks of one client that hand the lock to each other, without a pause, until they are told to stop.
struct Contention {
    stop: Arc<AtomicBool>,
    turns: Arc<AtomicUsize>,
    tasks: Vec<JoinHandle<()>>,
}

impl Contention {
    async fn start(client: &Client, inside: &Arc<Inside>) -> Self {
        let (stop, turns) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let task = |_| {
            let (client, inside, stop, turns) = (client.clone(), inside.clone(), stop.clone(), turns.clone());
            tokio::spawn(async move {
                while !stop.load(Ordering::Relaxed) {
                    let guard = hold(&client).await;
                    inside.increment(Duration::from_millis(2)).unwrap();
                    turns.fetch_add(1, Ordering::Relaxed);
                    let _ = guard.release().await.unwrap();
                }
            })
        };
        let tasks = (0..2).map(task).collect();
        let contention = Self { stop, turns, tasks };
        // Both have had turns, so each waits while the other one holds the lock.
        while contention.turns.load(Ordering::Relaxed) < 20 {
            tokio::task::yield_now().await;
        }
        contention
    }

    /// How many turns they had.
    async fn stop(self) -> usize {
        self.stop.store(true, Ordering::Relaxed);
        for task in self.tasks {
            soon("each gets its last turn", task).await.unwrap();
        }
        self.turns.load(Ordering::Relaxed)
    }
}

/// A release with a waiter hands the lock over, and a program that only polls never finds it free: so it is offered from time to time.
#[tokio::test(flavor = "multi_thread")]
async fn theirs_get_turns_while_ours_hand_the_lock_to_each_other() {
    const TIMES: usize = 20;
    for (language, fair) in
        [(Language::Python, ""), (Language::JavaScript, ""), (Language::Python, "?fair=true")]
    {
        let redis = Ours::start().await;
        let files = tempfile::tempdir().unwrap();
        let inside = Arc::new(Inside::new(files.path()));
        let client = Ours::connect(&format!("{}{fair}", redis.address())).await;
        let ours = Contention::start(&client, &inside).await;
        let folder = files.path().to_str().unwrap();
        let mut peer = redis.peer(language, &["increment", folder, &TIMES.to_string()]);
        assert_eq!(peer.says().await, "ready", "{language:?}");
        let before = ours.turns.load(Ordering::Relaxed);
        assert_eq!(soon("theirs gets its turns", peer.says()).await, "finished", "{language:?}");
        let beside = ours.turns.load(Ordering::Relaxed) - before;
        println!("{language:?}{fair}: {beside} turns of ours beside {TIMES} of theirs");
        assert!(beside > 0, "{language:?}: ours got none");
        let turns = ours.stop().await;
        assert_eq!(inside.count(), (turns + TIMES) as u64, "{language:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_do_not_wait_get_turns_while_others_hand_the_lock_to_each_other() {
    const TIMES: usize = 10;
    let redis = Ours::start().await;
    let files = tempfile::tempdir().unwrap();
    let inside = Arc::new(Inside::new(files.path()));
    let (client, other) = (redis.client().await, redis.client().await);
    let ours = Contention::start(&client, &inside).await;
    let mut got = 0;
    let trying = async {
        while got < TIMES {
            if let Some(guard) = other.lock(KEY).ttl(LONG).try_acquire().await.unwrap() {
                inside.increment(Duration::ZERO).unwrap();
                got += 1;
                let _ = guard.release().await.unwrap();
            }
        }
    };
    soon("they get turns", trying).await;
    let turns = ours.stop().await;
    assert_eq!(inside.count(), (turns + TIMES) as u64);
}

#[tokio::test]
async fn a_foreign_lock_is_seen_respected_and_waited_for() {
    for language in Language::ALL {
        let redis = Ours::start().await;
        let client = redis.client().await;
        let mut peer = redis.holder(language, LONG).await;
        assert_eq!(peer.says().await, "held", "{language:?}");
        assert!(is_busy(&client).await, "{language:?} holds it, and ours gets it");
        let info = client.inspect(KEY).await.unwrap();
        assert_eq!(info.present_holders().count(), 1, "{language:?}: {info:?}");

        let mut waiting = tokio::spawn(client.lock(KEY).ttl(LONG).acquire());
        let early = tokio::time::timeout(A_WHILE, &mut waiting).await;
        assert!(early.is_err(), "{language:?} holds it, and ours has it: {early:?}");
        assert_eq!(peer.releases().await, "released", "{language:?}");
        let guard = soon("ours gets what was released", waiting).await.unwrap().unwrap();
        assert_eq!(redis.tries(language).await, "busy", "{language:?}");
        assert_eq!(guard.release().await.unwrap(), Release::Released);
        assert_eq!(client.inspect(KEY).await.unwrap().present_holders().count(), 0, "{language:?}");
    }
}

#[tokio::test]
async fn a_lock_of_ours_is_respected_and_waited_for() {
    for language in Language::ALL {
        let redis = Ours::start().await;
        let client = redis.client().await;
        assert_eq!(redis.tries(language).await, "got", "{language:?}");
        let guard = hold(&client).await;
        assert_eq!(redis.tries(language).await, "busy", "{language:?}");

        let mut peer = redis.holder(language, LONG).await;
        let early = tokio::time::timeout(A_WHILE, peer.says()).await;
        assert!(early.is_err(), "ours holds it, and {language:?} has it: {early:?}");
        assert_eq!(guard.release().await.unwrap(), Release::Released);
        assert_eq!(peer.says().await, "held", "{language:?}");
        assert!(is_busy(&client).await, "{language:?} holds it, and ours gets it");
        assert_eq!(peer.releases().await, "released", "{language:?}");
        assert!(!is_busy(&client).await, "{language:?} has released it");
    }
}

#[tokio::test]
async fn what_ours_held_when_it_was_killed_expires_for_theirs() {
    for language in Language::ALL {
        let redis = Ours::start().await;
        let mut helper = redis.helper().await;
        assert!(helper.ask(&format!("acquire {KEY} EX 2000")).await.starts_with("got"));
        let mut peer = redis.holder(language, LONG).await;
        helper.kill();
        assert_eq!(peer.says().await, "held", "{language:?}");
        assert!(is_busy(&redis.client().await).await, "{language:?} holds it, and ours gets it");
        assert_eq!(peer.releases().await, "released", "{language:?}");
    }
}

#[tokio::test]
async fn their_late_release_does_not_free_ours() {
    for language in Language::ALL {
        let redis = Ours::start().await;
        let client = redis.client().await;
        let mut peer = redis.holder(language, Duration::from_secs(1)).await;
        assert_eq!(peer.says().await, "held", "{language:?}");
        // Got when theirs has expired: nobody has released it.
        let guard = hold(&client).await;
        assert_eq!(peer.releases().await, "lost", "{language:?}");
        assert!(guard.check().is_ok(), "{language:?}");
        assert!(is_busy(&redis.client().await).await, "the late release of {language:?} has freed ours");
        for another in Language::ALL {
            assert_eq!(redis.tries(another).await, "busy", "{another:?}, after {language:?}");
        }
        assert_eq!(guard.release().await.unwrap(), Release::Released, "{language:?}");
    }
}
