//! The three workloads, which are the same for every engine.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::Result;
use tenure::clock::BootTime;
use tokio::runtime::Runtime;

/// A way to lock, ours or bare.
pub(crate) trait Contender: Send + Sync {
    /// What it is called in the table.
    fn name(&self) -> &'static str;

    /// Whether it is ours. The others are compared with the first of ours.
    fn is_ours(&self) -> bool {
        false
    }

    /// A client. Each has its own; they are used by tasks of one thread.
    fn client(&self) -> Result<Box<dyn LockClient>>;
}

/// One client's way to a lock.
pub(crate) trait LockClient: Send {
    /// Gets the lock, awaits `held` with it, and releases.
    fn pair<'a>(&'a mut self, key: &'a str, held: Held) -> Pair<'a>;
}

/// What is done with the lock: next to nothing, but others get their turn meanwhile, and contend for it.
pub(crate) type Held = std::pin::Pin<Box<dyn Future<Output = ()> + Send>>;
pub(crate) type Pair<'a> = std::pin::Pin<Box<dyn Future<Output = Result<()>> + Send + 'a>>;

/// How many clients contend.
const CLIENTS: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Workload {
    /// W1: one client, one lock.
    Alone,
    /// W2: 64 clients, each with a lock of its own.
    Apart,
    /// W3: 64 clients, one lock.
    Together,
}

pub(crate) const ALL: [Workload; 3] = [Workload::Alone, Workload::Apart, Workload::Together];

impl Workload {
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Alone => "W1: one client, uncontended",
            Self::Apart => "W2: 64 clients, each with its own lock",
            Self::Together => "W3: 64 clients, one lock",
        }
    }

    pub(crate) fn name(self) -> &'static str {
        self.title().split(':').next().unwrap_or_default()
    }

    const fn clients(self) -> usize {
        match self {
            Self::Alone => 1,
            Self::Apart | Self::Together => CLIENTS,
        }
    }

    fn key(self, client: usize) -> String {
        match self {
            Self::Alone | Self::Together => "bench/one".to_owned(),
            Self::Apart => format!("bench/{client}"),
        }
    }
}

/// The names of all locks, for those who make them beforehand.
pub(crate) fn keys() -> impl Iterator<Item = String> {
    std::iter::once(Workload::Together.key(0)).chain((0..CLIENTS).map(|client| Workload::Apart.key(client)))
}

/// What one round of one contender came to.
#[derive(Clone, Debug)]
pub(crate) struct Round {
    /// Acquire and release, together.
    pub(crate) pairs_per_s: f64,
    /// Grants that went to another client than the one before.
    pub(crate) hand_offs_per_s: f64,
    pub(crate) p50: Duration,
    pub(crate) p99: Duration,
    /// Grants of the client with the most, and of the one with the least.
    pub(crate) most: usize,
    pub(crate) least: usize,
}

/// All rounds of a contender.
pub(crate) struct Measured {
    pub(crate) contender: &'static str,
    pub(crate) is_ours: bool,
    pub(crate) rounds: Vec<Round>,
}

/// Runs the contenders in turns, each round beginning with another one, so that what else the machine does hits all of them alike.
pub(crate) fn measure(
    runtime: &Runtime,
    workload: Workload,
    contenders: &[Box<dyn Contender>],
    rounds: usize,
    length: Duration,
) -> Result<Vec<Measured>> {
    let mut all: Vec<_> = contenders
        .iter()
        .map(|contender| Measured {
            contender: contender.name(),
            is_ours: contender.is_ours(),
            rounds: Vec::new(),
        })
        .collect();
    for contender in contenders {
        // Not measured: files are made, connections open, caches fill.
        round(runtime, workload, &**contender, Duration::from_millis(200))?;
    }
    for first in 0..rounds {
        for at in 0..contenders.len() {
            let at = (first + at) % contenders.len();
            all[at].rounds.push(round(runtime, workload, &*contenders[at], length)?);
        }
    }
    Ok(all)
}

/// Who was granted the lock last, and how often that was another one than before.
#[derive(Default)]
struct Log {
    last: Option<usize>,
    hand_offs: usize,
}

impl Log {
    fn granted_to(&mut self, client: usize) {
        if self.last.replace(client).is_some_and(|last| last != client) {
            self.hand_offs += 1;
        }
    }
}

fn round(
    runtime: &Runtime,
    workload: Workload,
    contender: &dyn Contender,
    length: Duration,
) -> Result<Round> {
    let stop = Arc::new(AtomicBool::new(false));
    let log = Arc::new(Mutex::new(Log::default()));
    let clients = (0..workload.clients()).map(|_| contender.client()).collect::<Result<Vec<_>>>()?;
    let began = BootTime::now();
    let took: Vec<Vec<Duration>> = runtime.block_on(async {
        let tasks: Vec<_> = clients
            .into_iter()
            .enumerate()
            .map(|(number, mut client)| {
                let (stop, log, key) = (stop.clone(), log.clone(), workload.key(number));
                tokio::spawn(async move {
                    let mut took = Vec::new();
                    while !stop.load(Ordering::Relaxed) {
                        let (before, log) = (BootTime::now(), log.clone());
                        let held = Box::pin(async move {
                            log.lock().expect("nobody panics with it").granted_to(number);
                            tokio::task::yield_now().await;
                        });
                        client.pair(&key, held).await?;
                        took.push(BootTime::now().since(before));
                    }
                    Ok::<_, anyhow::Error>(took)
                })
            })
            .collect();
        tokio::time::sleep(length).await;
        stop.store(true, Ordering::Relaxed);
        let mut took = Vec::new();
        for task in tasks {
            took.push(task.await??);
        }
        Ok::<_, anyhow::Error>(took)
    })?;
    let seconds = BootTime::now().since(began).as_secs_f64();
    let counts: Vec<usize> = took.iter().map(Vec::len).collect();
    let mut all: Vec<Duration> = took.into_iter().flatten().collect();
    all.sort_unstable();
    let at = |percent: usize| all.get(all.len() * percent / 100).copied().unwrap_or_default();
    let hand_offs = log.lock().expect("nobody panics with it").hand_offs;
    #[expect(clippy::cast_precision_loss, reason = "counts of a benchmark are far below 2^52")]
    Ok(Round {
        pairs_per_s: all.len() as f64 / seconds,
        hand_offs_per_s: hand_offs as f64 / seconds,
        p50: at(50),
        p99: at(99),
        most: counts.iter().copied().max().unwrap_or(0),
        least: counts.iter().copied().min().unwrap_or(0),
    })
}
