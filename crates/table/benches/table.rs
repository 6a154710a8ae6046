//! What the table costs: `cargo bench -p tenure-table`. The figures, with the machine's load, are in `docs/performance/measurements.md`.
//!
//! Commands are made outside of what is measured, since a server gets them from its log. Effects go to a buffer that is used again.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::fs;
use std::hint::black_box;
use std::time::Duration;

use criterion::measurement::{Measurement, WallTime};
use criterion::{BatchSize, BenchmarkId, Criterion, Throughput};
use foldhash::fast::FixedState;
use tenure_table::{
    Acquire, Command, Effect, GrantId, Limits, LockName, Mode, OwnerId, Request, SessionId, Table,
};

fn main() {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    println!("load before the run: {}", load.trim());
    memory();
    let mut criterion = Criterion::default().configure_from_args();
    uncontended(&mut criterion);
    hot_resource(&mut criterion);
    expiry(&mut criterion);
    chains(&mut criterion);
    snapshots(&mut criterion);
    criterion.final_summary();
}

/// A table, and the numbers of the requests that it was sent.
struct Driver {
    table: Table,
    effects: Vec<Effect>,
    number: u64,
}

const SESSION: SessionId = SessionId::from_u128(1);

impl Driver {
    fn new() -> Self {
        let limits = Limits { locks_per_session: u32::MAX, ..Limits::default() };
        let mut driver = Self { table: Table::new(limits, 1), effects: Vec::new(), number: 0 };
        driver.apply(Command::OpenSession { session: SESSION, ttl_ms: 30_000, label: None });
        driver
    }

    fn apply(&mut self, command: Command) {
        self.table.apply(command, &mut self.effects);
        black_box(&self.effects);
        self.effects.clear();
    }

    /// A request that acknowledges all before it, as a client that waits for its answers sends it.
    fn command(&mut self, request: Request) -> Command {
        self.number += 1;
        Command::Request { session: SESSION, number: self.number, seen: self.number - 1, request }
    }

    fn request(&mut self, request: Request) {
        let command = self.command(request);
        self.apply(command);
    }

    fn acquire(&mut self, grant: u64, name: &LockName) {
        self.request(acquire(grant, name));
    }
}

/// Ids are drawn at random by clients, so that neighbours are nothing to each other. This is the same in every run.
fn id(number: u64) -> u128 {
    let spread = u128::from(number).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    spread ^ (spread >> 64)
}

fn grant(number: u64) -> GrantId {
    GrantId::from_u128(id(number))
}

fn name(number: u64) -> LockName {
    LockName::parse(format!("orders/{number}")).expect("a short name without control characters")
}

fn acquire(number: u64, name: &LockName) -> Request {
    Request::Acquire(Acquire::new(grant(number), name.clone(), Mode::Ex))
}

fn release(number: u64) -> Request {
    Request::Release { grant: grant(number), value: None }
}

/// A table with so many locks that are held, each by an owner of its own.
fn holding(locks: u64) -> Driver {
    let mut driver = Driver::new();
    for number in 0..locks {
        driver.acquire(number, &name(number));
    }
    driver
}

/// What a million held locks take, by the process's resident memory: what an operator sees.
fn memory() {
    const LOCKS: usize = 1_000_000;
    let before = resident();
    let driver = holding(LOCKS as u64);
    let bytes = (resident() - before) / LOCKS;
    println!("a million held locks, each with a name and an owner of its own: {bytes} bytes each");
    let mut snapshot = Count(0);
    driver.table.write_snapshot(&mut snapshot).expect("a counter takes all");
    let more = (resident() - before) / LOCKS - bytes;
    println!("their snapshot: {} bytes each; written with {more} bytes of memory each", snapshot.0 / LOCKS);
}

fn resident() -> usize {
    let statm = fs::read_to_string("/proc/self/statm").expect("Linux says what a process takes");
    let pages = statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.expect("the second number is the resident pages") * 4096
}

/// Takes bytes and keeps their number.
struct Count(usize);

impl std::io::Write for Count {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Locks that nobody else wants, and a map of the same names, each beside so many others.
struct Uncontended {
    numbers: Vec<u64>,
    names: Vec<LockName>,
    map: HashMap<LockName, GrantId, FixedState>,
    driver: Driver,
}

impl Uncontended {
    const PAIRS: u64 = 256;

    fn new(beside: u64) -> Self {
        // Other names than those that are held.
        let numbers: Vec<u64> = (beside..beside + Self::PAIRS).collect();
        let names = numbers.iter().map(|number| name(*number)).collect();
        let mut map: HashMap<LockName, GrantId, FixedState> = HashMap::default();
        map.extend((0..beside).map(|number| (name(number), grant(number))));
        Self { numbers, names, map, driver: holding(beside) }
    }

    /// An insert and a remove of each name.
    fn map_round(&mut self, keys: &mut Vec<LockName>) {
        for ((key, number), name) in keys.drain(..).zip(&self.numbers).zip(&self.names) {
            self.map.insert(key, grant(*number));
            black_box(self.map.remove(name));
        }
    }

    fn commands(&mut self) -> Vec<Command> {
        let mut commands = Vec::with_capacity(2 * self.names.len());
        for (name, number) in self.names.iter().zip(&self.numbers) {
            commands.push(self.driver.command(acquire(*number, name)));
            commands.push(self.driver.command(release(*number)));
        }
        commands
    }

    /// An acquire and a release of each name.
    fn table_round(&mut self, commands: &mut Vec<Command>) {
        for command in commands.drain(..) {
            self.driver.apply(command);
        }
    }

    /// How many times as long as the map the table takes: the median of short turns, since a shared machine's speed changes from
    /// one second to the next, and what is compared must meet the same one.
    fn ratio(&mut self) -> f64 {
        const TURNS: usize = 301;
        const ROUNDS: usize = 8;
        let mut ratios: Vec<f64> = Vec::with_capacity(TURNS);
        for _ in 0..TURNS {
            let (mut map, mut table) = (Duration::ZERO, Duration::ZERO);
            for _ in 0..ROUNDS {
                let mut keys = self.names.clone();
                let begin = WallTime.start();
                self.map_round(&mut keys);
                map += WallTime.end(begin);
            }
            for _ in 0..ROUNDS {
                let mut commands = self.commands();
                let begin = WallTime.start();
                self.table_round(&mut commands);
                table += WallTime.end(begin);
            }
            ratios.push(table.as_secs_f64() / map.as_secs_f64());
        }
        ratios.sort_unstable_by(f64::total_cmp);
        ratios[TURNS / 2]
    }
}

/// Acquire and release of a lock that nobody else wants, beside an insert and a remove of the same key.
fn uncontended(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("uncontended");
    group.throughput(Throughput::Elements(Uncontended::PAIRS));
    for beside in [0, 1_000_000] {
        let mut both = Uncontended::new(beside);
        println!("uncontended, {beside} others held: {:.2} times the map, by turns", both.ratio());
        let both = RefCell::new(both);
        group.bench_function(BenchmarkId::new("a hash map's insert and remove", beside), |bencher| {
            bencher.iter_batched_ref(
                || both.borrow().names.clone(),
                |keys| both.borrow_mut().map_round(keys),
                BatchSize::SmallInput,
            );
        });
        group.bench_function(BenchmarkId::new("the table's acquire and release", beside), |bencher| {
            bencher.iter_batched_ref(
                || both.borrow_mut().commands(),
                |commands| both.borrow_mut().table_round(commands),
                BatchSize::PerIteration,
            );
        });
    }
    group.finish();
}

/// One lock that so many wait for: its holder lets go, the next one gets it and says that it has heard so, and the former holder
/// stands in line again.
fn hot_resource(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("hot resource, release, grant, acknowledge and queue");
    group.throughput(Throughput::Elements(1));
    for waiters in [100_u64, 1_000, 10_000] {
        let name = name(0);
        let mut driver = Driver::new();
        for number in 0..=waiters {
            driver.acquire(number, &name);
        }
        // The holder, and who is behind it, each with the number of its request.
        let mut line: VecDeque<(u64, u64)> = (0..=waiters).map(|number| (number, number + 1)).collect();
        group.bench_function(BenchmarkId::from_parameter(waiters), |bencher| {
            bencher.iter(|| {
                let (holder, _) = line.pop_front().expect("somebody holds it");
                driver.request(release(holder));
                driver.apply(Command::Acknowledge { session: SESSION, number: line[0].1 });
                driver.acquire(holder, &name);
                line.push_back((holder, driver.number));
            });
        });
        let seen = driver.table.inspect(&name).expect("it is held");
        assert_eq!(seen.waiters.len() as u64, waiters, "each release has granted one");
        assert_eq!(seen.holders[0].grant, grant(line[0].0), "and that was the next one");
    }
    group.finish();
}

/// The end of a session that holds so many locks.
fn expiry(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("expiry of a session, for each lock");
    for locks in [100_u64, 1_000, 10_000] {
        group.throughput(Throughput::Elements(locks));
        group.bench_function(BenchmarkId::from_parameter(locks), |bencher| {
            bencher.iter_batched_ref(
                || holding(locks),
                |driver| driver.apply(Command::ExpireSession { session: SESSION, epoch: 1 }),
                BatchSize::LargeInput,
            );
        });
    }
    group.finish();
}

/// So many owners, each of which holds one lock and waits for the next one's: the search for a cycle must not follow the whole
/// chain again and again, from whichever end it grows.
fn chains(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("a chain of owners, for each that joins");
    group.sample_size(10);
    for (way, backwards) in [("at its head", true), ("at its tail", false)] {
        for owners in [100_u64, 1_000, 10_000] {
            group.throughput(Throughput::Elements(owners));
            group.bench_function(BenchmarkId::new(way, owners), |bencher| {
                bencher.iter_batched_ref(
                    || {
                        let mut driver = Driver::new();
                        let as_owner = |number, of: u64, owner: u64| {
                            let owner = OwnerId::from_u128(id(owner));
                            Request::Acquire(Acquire {
                                owner,
                                ..Acquire::new(grant(number), name(of), Mode::Ex)
                            })
                        };
                        for owner in 0..=owners {
                            driver.request(as_owner(owner, owner, owner));
                        }
                        let mut joins: Vec<u64> = (0..owners).collect();
                        if backwards {
                            joins.reverse();
                        }
                        let joins = joins.into_iter();
                        let joins = joins.map(|owner| as_owner(owners + 1 + owner, owner + 1, owner));
                        let commands: Vec<_> = joins.map(|request| driver.command(request)).collect();
                        (driver, commands)
                    },
                    |(driver, commands)| {
                        for command in commands.drain(..) {
                            driver.apply(command);
                        }
                    },
                    BatchSize::LargeInput,
                );
            });
        }
    }
    group.finish();
}

/// Writing, reading and hashing a table of a hundred thousand locks.
fn snapshots(criterion: &mut Criterion) {
    const LOCKS: u64 = 100_000;
    let mut group = criterion.benchmark_group("snapshot, for each lock");
    group.sample_size(10).throughput(Throughput::Elements(LOCKS));
    let table = holding(LOCKS).table;
    let mut bytes = Vec::new();
    table.write_snapshot(&mut bytes).expect("memory takes all");
    group.bench_function("write", |bencher| {
        bencher.iter(|| table.write_snapshot(std::io::sink()).expect("a sink takes all"));
    });
    group.bench_function("read", |bencher| {
        bencher.iter(|| Table::read_snapshot(bytes.as_slice(), 1).expect("it was just written"));
    });
    group.bench_function("hash", |bencher| bencher.iter(|| table.state_hash()));
    group.finish();
}
