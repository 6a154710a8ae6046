//! Everything at once, on the system's clock: whatever goes wrong, nobody who holds the lock believes beside another.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::memory::MemoryStore;
use tenure::{Guard, Wait};

use super::{soon, until};

/// Numbers that are the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_two_believe() {
    const CLIENTS: u64 = 5;
    const GRANTS: usize = 300;
    let store = MemoryStore::new();
    let grants = Arc::new(AtomicUsize::new(0));
    let calm = Arc::new(AtomicBool::new(false));
    let believers: Arc<Mutex<Vec<Arc<Guard>>>> = Arc::default();
    let mut tasks = Vec::new();
    let mut links = Vec::new();
    for seed in 0..CLIENTS {
        let link = store.link();
        let client = link.connect().await.unwrap();
        links.push(link);
        let (believers, grants, mut dice) = (believers.clone(), grants.clone(), Dice(seed));
        tasks.push(tokio::spawn(async move {
            let mut last = None;
            while grants.load(Ordering::SeqCst) < GRANTS {
                let request = client.lock("a").ttl(Duration::from_millis(100 + dice.below(200)));
                let wait = Wait::For(Duration::from_millis(dice.below(400)));
                let Ok(guard) = request.wait(wait).acquire().await else { continue };
                grants.fetch_add(1, Ordering::SeqCst);
                let guard = Arc::new(guard);
                {
                    let mut believers = believers.lock().unwrap();
                    // It may have been lost since; then the next one may be in, and it must not look.
                    believers.retain(|other| other.check().is_ok());
                    let others = believers.len();
                    believers.push(guard.clone());
                    assert!(
                        others == 0 || guard.check().is_err(),
                        "{others} believe beside the one who got it"
                    );
                }
                assert!(guard.token() > last);
                last = guard.token();
                tokio::time::sleep(Duration::from_millis(dice.below(30))).await;
                believers.lock().unwrap().retain(|other| !Arc::ptr_eq(other, &guard));
                if let Ok(guard) = Arc::try_unwrap(guard)
                    && dice.below(2) == 0
                {
                    let _ = guard.release().await;
                }
            }
            client
        }));
    }
    let weather = {
        let (store, links, calm) = (store.clone(), links.clone(), calm.clone());
        tokio::spawn(async move {
            let mut dice = Dice(99);
            while !calm.load(Ordering::SeqCst) {
                let link = &links[usize::try_from(dice.below(CLIENTS)).unwrap()];
                match dice.below(6) {
                    0 => link.cut(),
                    1 => link.lose_answers(usize::try_from(dice.below(3)).unwrap()),
                    2 => {
                        store.pause();
                        tokio::time::sleep(Duration::from_millis(dice.below(20))).await;
                        store.resume();
                    }
                    _ => link.heal(),
                }
                tokio::time::sleep(Duration::from_millis(dice.below(20))).await;
            }
            for link in &links {
                link.lose_answers(0);
                link.heal();
            }
        })
    };
    until("there are enough grants", async || grants.load(Ordering::SeqCst) >= GRANTS).await;
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
}
