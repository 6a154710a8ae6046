//! Everything goes wrong at once: nobody who gets a lock gets it while another believes, and nothing is left in the end.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::clock::{Clock, ManualClock};
use tenure::memory::MemoryStore;
use tenure::{Client, Guard, Wait};

use super::{soon, until};

/// Numbers that are the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn some(&mut self, end_ms: u64) -> Duration {
        Duration::from_millis(self.below(end_ms))
    }
}

/// Who holds, as far as each knows.
#[derive(Default)]
struct Witness {
    believers: Mutex<Vec<Arc<Guard>>>,
    grants: AtomicUsize,
}

impl Witness {
    /// Somebody has got it.
    fn got(&self, guard: &Arc<Guard>) {
        self.grants.fetch_add(1, Ordering::SeqCst);
        let mut believers = self.believers.lock().unwrap();
        believers.retain(|other| other.check().is_ok());
        // If it has lost it since, the others may have got it after that; if not, it had it while they believed.
        assert!(believers.is_empty() || guard.check().is_err(), "two believe");
        believers.push(guard.clone());
    }

    fn lets_go(&self, guard: &Arc<Guard>) {
        self.believers.lock().unwrap().retain(|other| !Arc::ptr_eq(other, guard));
    }
}

const GRANTS: usize = 100;

async fn take_turns(client: Client, witness: Arc<Witness>, mut dice: Dice) -> Client {
    let mut last = None;
    while witness.grants.load(Ordering::SeqCst) < GRANTS {
        let request = client.lock("a").ttl(Duration::from_millis(200) + dice.some(400));
        let Ok(guard) = request.wait(Wait::For(dice.some(2000))).acquire().await else { continue };
        let guard = Arc::new(guard);
        witness.got(&guard);
        assert!(guard.token() > last);
        last = guard.token();
        let clock = client.clock();
        clock.sleep_until(clock.now() + dice.some(400)).await;
        witness.lets_go(&guard);
        // Nobody else has it for longer than a look takes.
        if let Ok(guard) = Arc::try_unwrap(guard)
            && dice.below(2) == 0
        {
            let _ = guard.release().await;
        }
    }
    client
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_two_believe_and_nothing_is_left() {
    const CLIENTS: u64 = 5;
    let clock = ManualClock::new();
    let store = MemoryStore::with_clock(clock.clone());
    let (witness, calm, over) =
        (Arc::<Witness>::default(), Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let links: Vec<_> = (0..CLIENTS).map(|_| store.link()).collect();
    let mut tasks = Vec::new();
    for (link, seed) in links.iter().zip(0..) {
        let client = link.connect().await.unwrap();
        tasks.push(tokio::spawn(take_turns(client, witness.clone(), Dice(seed))));
    }
    // Ten times as fast as the system's, and sometimes faster than a client can renew.
    let time = tokio::spawn({
        let (clock, over) = (clock.clone(), over.clone());
        async move {
            while !over.load(Ordering::SeqCst) {
                clock.advance(Duration::from_millis(10));
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    });
    let weather = tokio::spawn({
        let (store, links, clock, calm) = (store.clone(), links.clone(), clock.clone(), calm.clone());
        async move {
            let mut dice = Dice(99);
            while !calm.load(Ordering::SeqCst) {
                let link = &links[usize::try_from(dice.below(CLIENTS)).unwrap()];
                match dice.below(8) {
                    0 | 1 => link.cut(),
                    2 => link.lose_answers(usize::try_from(dice.below(3)).unwrap()),
                    3 => {
                        store.pause();
                        clock.sleep_until(clock.now() + dice.some(300)).await;
                        store.resume();
                    }
                    _ => link.heal(),
                }
                clock.sleep_until(clock.now() + dice.some(100)).await;
            }
            for link in &links {
                link.lose_answers(0);
                link.heal();
            }
        }
    });
    until("there are enough grants", async || witness.grants.load(Ordering::SeqCst) >= GRANTS).await;
    calm.store(true, Ordering::SeqCst);
    weather.await.unwrap();
    let mut clients = Vec::new();
    for task in tasks {
        clients.push(soon("all end", task).await.unwrap());
    }
    let near = store.connect().await.unwrap();
    until("nothing is left", async || {
        let info = near.inspect("a").await.unwrap();
        info.holders.is_empty() && info.waiters.is_empty()
    })
    .await;
    over.store(true, Ordering::SeqCst);
    time.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_gets_what_another_loses_before_that_one_knows() {
    let store = MemoryStore::new();
    let (here, there) = (store.connect().await.unwrap(), store.connect().await.unwrap());
    for turn in 0..200 {
        let name = format!("a{turn}");
        let first = Arc::new(here.lock(&name).acquire().await.unwrap());
        let next = tokio::spawn({
            let (first, lock) = (first.clone(), there.lock(&name));
            async move {
                let guard = lock.acquire().await.unwrap();
                assert!(first.check().is_err(), "both believe");
                guard
            }
        });
        until("it waits", async || there.inspect(&name).await.unwrap().waiters.len() == 1).await;
        assert_eq!(store.lose_now(&name), 1);
        drop(soon("the next one gets it", next).await.unwrap());
    }
}
