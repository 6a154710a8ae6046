//! A client that is cut off from its servers as machines are: it runs in a network of its own, in which packets are lost, for less and for more
//! than its session lasts. It is another process, and all instants are of the one clock that they have in common.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, Stdio};
use std::time::Duration;

use tenure::clock::BootTime;
use tenure::contract::{eventually, within};
use tenure::{Client, Guard, GuardState, LockRequest};
use tenure_testkit::{Netns, Proxy};
use tokio::sync::{mpsc, oneshot};

/// How long anything may take on a slow machine.
const PATIENCE: Duration = Duration::from_mins(2);
/// What the process in there finds its servers by.
const URL: &str = "TENURE_PARTITION_URL";

/// Servers of an engine: where they are, and a URL with these hosts.
#[derive(Clone, Copy)]
pub(crate) struct Servers<'a> {
    pub(crate) addrs: &'a [SocketAddr],
    pub(crate) url: fn(&str) -> String,
}

impl Servers<'_> {
    fn url_of(&self, addrs: impl Iterator<Item = SocketAddr>) -> String {
        (self.url)(&addrs.map(|addr| addr.to_string()).collect::<Vec<_>>().join(","))
    }

    /// A client that nothing stands in the way of.
    async fn client(&self) -> Client {
        Client::connect(&self.url_of(self.addrs.iter().copied())).await.unwrap()
    }
}

/// What has happened to a lock in there.
#[derive(Clone, Debug)]
struct Event {
    name: String,
    what: String,
    /// The token of a grant; else until when the lock was believed to be held.
    figure: u128,
}

/// A client in a network of its own, as the test sees it. It is killed when this is dropped.
struct Island {
    child: Child,
    commands: ChildStdin,
    events: mpsc::UnboundedReceiver<Event>,
    /// What nobody has asked for yet.
    unheard: Vec<Event>,
    network: Netns,
    _bridges: Vec<Proxy>,
}

impl Island {
    fn start(servers: Servers<'_>) -> Self {
        let network = Netns::new();
        let bridge = |addr: &SocketAddr| Proxy::listening_on(network.host_addr(), *addr);
        let bridges: Vec<_> = servers.addrs.iter().map(bridge).collect();
        // `crate::partition`: tests are named without their crate.
        let (_, module) = module_path!().split_once("::").expect("this is a module of a test");
        let mut child = network
            .command(std::env::current_exe().expect("a test binary knows its own path"))
            .args([&format!("{module}::inhabitant"), "--exact", "--nocapture", "--test-threads=1"])
            .env(URL, servers.url_of(bridges.iter().map(Proxy::addr)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the test binary can be run again");
        let commands = child.stdin.take().expect("its input is piped");
        let output = BufReader::new(child.stdout.take().expect("its output is piped"));
        let (send, events) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                // The harness may have begun the line.
                if let Some((_, event)) = line.split_once('@') {
                    let _ = send.send(Event::parse(event));
                }
            }
        });
        Self { child, commands, events, unheard: Vec::new(), network, _bridges: bridges }
    }

    /// Asks for a lock, however long that takes.
    fn ask_for(&mut self, name: &str, ttl: Duration) {
        writeln!(self.commands, "acquire {name} {}", ttl.as_millis()).expect("it reads its commands");
    }

    fn release(&mut self, name: &str) {
        writeln!(self.commands, "release {name}").expect("it reads its commands");
    }

    /// The figure of the next such event.
    async fn says(&mut self, name: &str, what: &str) -> u128 {
        let hear = async {
            loop {
                let heard = self.unheard.iter().position(|event| event.name == name && event.what == what);
                if let Some(heard) = heard {
                    return self.unheard.remove(heard).figure;
                }
                let event = self.events.recv().await.expect("the process in there has ended");
                self.unheard.push(event);
            }
        };
        within(PATIENCE, &format!("{name} is {what}"), hear).await
    }

    /// All that was said, and not asked for.
    fn unheard(&mut self, name: &str) -> Vec<String> {
        while let Ok(event) = self.events.try_recv() {
            self.unheard.push(event);
        }
        self.unheard.iter().filter(|event| event.name == name).map(|event| event.what.clone()).collect()
    }
}

impl Drop for Island {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Event {
    fn say(name: &str, what: &str, figure: u128) {
        println!("@{name} {what} {figure}");
    }

    fn parse(text: &str) -> Self {
        let words: Vec<_> = text.split(' ').collect();
        let [name, what, figure] = words[..] else { panic!("not an event: {text}") };
        Self { name: name.to_owned(), what: what.to_owned(), figure: figure.parse().unwrap() }
    }
}

/// Not a test: what the test binary does when a test runs it in a network of its own.
#[test]
fn inhabitant() {
    let Ok(url) = std::env::var(URL) else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let client = runtime.block_on(Client::connect(&url)).unwrap();
    let mut asked = HashMap::new();
    println!();
    for command in std::io::stdin().lines().map_while(Result::ok) {
        match command.split(' ').collect::<Vec<_>>()[..] {
            ["acquire", name, ttl_ms] => {
                let (release, released) = oneshot::channel();
                asked.insert(name.to_owned(), release);
                let ttl = Duration::from_millis(ttl_ms.parse().unwrap());
                runtime.spawn(hold(client.lock(name).ttl(ttl), name.to_owned(), released));
            }
            ["release", name] => drop(asked.remove(name)),
            _ => panic!("no such command: {command}"),
        }
    }
    // The test is gone, or has no more commands.
    std::process::exit(0);
}

/// Holds a lock as soon as it gets it, and says what becomes of it, until it is lost or to be released.
async fn hold(request: LockRequest, name: String, mut release: oneshot::Receiver<()>) {
    let guard = request.acquire().await.unwrap();
    Event::say(&name, "granted", guard.token().map_or(0, |token| token.get().into()));
    let (mut believed, mut last) = (0, "held");
    while release.try_recv() != Err(oneshot::error::TryRecvError::Closed) {
        let now = guard.state();
        believed = guard.deadline().map_or(0, instant).max(believed);
        let state = match now {
            GuardState::Held => "held",
            GuardState::Jeopardy { .. } => "endangered",
            GuardState::Lost(_) => "lost",
            other => panic!("{other:?}"),
        };
        if state != last {
            Event::say(&name, state, believed);
            last = state;
        }
        if state == "lost" {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let _ = guard.release().await.unwrap();
    Event::say(&name, "released", believed);
}

fn instant(at: BootTime) -> u128 {
    at.since_boot().as_nanos()
}

async fn soon<F: Future>(what: &str, future: F) -> F::Output {
    within(PATIENCE, what, future).await
}

fn token(guard: &Guard) -> u128 {
    guard.token().map_or(0, |token| token.get().into())
}

/// A cut that is shorter than the session: the holder is in danger meanwhile and keeps its lock, its waiter keeps its place, and nobody else
/// gets in.
pub(crate) async fn a_short_cut_costs_nothing(servers: Servers<'_>) {
    const TTL: Duration = Duration::from_secs(30);
    let (mut island, outside) = (Island::start(servers), servers.client().await);
    let in_the_way = outside.lock("waited-for").ttl(TTL).acquire().await.unwrap();
    island.ask_for("held", TTL);
    let held = island.says("held", "granted").await;
    island.ask_for("waited-for", TTL);
    let places = async || {
        let waiters = outside.inspect("waited-for").await.unwrap().waiters;
        waiters.iter().map(|waiter| waiter.grant).collect::<Vec<_>>()
    };
    eventually(PATIENCE, "it waits", async || places().await.len() == 1).await;
    let place = places().await;
    let next = tokio::spawn(outside.lock("held").ttl(TTL).acquire());

    island.network.cut();
    island.says("held", "endangered").await;
    assert!(!next.is_finished(), "two hold");
    island.network.heal();
    island.says("held", "held").await;
    assert!(!next.is_finished() && island.unheard("held").is_empty(), "{:?}", island.unheard("held"));
    assert_eq!(places().await, place, "the waiter has lost its place");

    let behind = token(&in_the_way);
    let _ = in_the_way.release().await.unwrap();
    assert!(island.says("waited-for", "granted").await > behind);
    island.release("held");
    island.says("held", "released").await;
    let next = soon("the next one gets it", next).await.unwrap().unwrap();
    assert!(token(&next) > held);
}

/// A cut that is longer than the session: belief in there ends before the next one is let in, and the one who waits in there queues again
/// when it can.
pub(crate) async fn a_long_cut_ends_belief_before_the_next_is_let_in(servers: Servers<'_>) {
    const TTL: Duration = Duration::from_secs(4);
    const LONG: Duration = Duration::from_secs(50);
    let (mut island, outside) = (Island::start(servers), servers.client().await);
    for turn in 0..2 {
        let in_the_way = outside.lock("waited-for").ttl(LONG).acquire().await.unwrap();
        island.ask_for("held", TTL);
        let held = island.says("held", "granted").await;
        island.ask_for("waited-for", TTL);
        let waiters = async || outside.inspect("waited-for").await.unwrap().waiters.len();
        eventually(PATIENCE, "it waits", async || waiters().await == 1).await;

        island.network.cut();
        let next = soon("the next one is let in", outside.lock("held").ttl(LONG).acquire()).await.unwrap();
        let let_in = instant(BootTime::now());
        let believed = island.says("held", "lost").await;
        assert!(
            believed > 0 && believed <= let_in,
            "{turn}: believed until {believed}, and another let in at {let_in}"
        );
        assert!(token(&next) > held, "{turn}");
        eventually(PATIENCE, "its place in the queue is gone, too", async || waiters().await == 0).await;

        island.network.heal();
        // It comes back, and changes nothing of what is the next one's.
        eventually(PATIENCE, "it queues again", async || waiters().await == 1).await;
        assert!(
            next.check().is_ok() && outside.lock("held").try_acquire().await.unwrap().is_none(),
            "{turn}"
        );
        island.ask_for("held", TTL);
        eventually(PATIENCE, "it waits behind the next one", async || {
            outside.inspect("held").await.unwrap().waiters.len() == 1
        })
        .await;
        assert!(island.unheard("held").iter().all(|what| what != "granted"), "{turn}: two hold");

        let behind = token(&in_the_way);
        let _ = in_the_way.release().await.unwrap();
        assert!(island.says("waited-for", "granted").await > behind, "{turn}");
        let behind = token(&next);
        let _ = next.release().await.unwrap();
        assert!(island.says("held", "granted").await > behind, "{turn}");
        for name in ["held", "waited-for"] {
            island.release(name);
            island.says(name, "released").await;
        }
    }
}
