//! `zookeeper:` beside its recipes as they are written by hand with the same client crate, and beside that crate's own lock.

use anyhow::{Context, Result, ensure};
use tenure_testkit::{ZooKeeper, ZooKeeperCluster};
use zookeeper_client::{Acls, Client, CreateMode, CreateOptions, Error, LockPrefix};

use super::Lineup;
use super::tenure::Tenure;
use super::thread::Thread;
use crate::workload::{Contender, Held, LockClient, Pair, keys};

pub(crate) async fn lineup(recipe: &str) -> Result<Lineup> {
    let (recipe, on_three) = match recipe.strip_suffix(" on three servers") {
        Some(recipe) => (recipe, true),
        None => (recipe, false),
    };
    let (hosts, ground): (_, Box<dyn std::any::Any>) = if on_three {
        let servers = ZooKeeperCluster::start();
        (followers(&servers), Box::new(servers))
    } else {
        let server = ZooKeeper::start();
        (server.url(), Box::new(server))
    };
    let mut contenders: Vec<Box<dyn Contender>> = Vec::new();
    for thread in [Thread::Same, Thread::Another] {
        let at = hosts.trim_start_matches("zookeeper://").to_owned();
        let client = thread.open(async move { Ok(Client::connect(&at).await?) }).await?;
        for key in keys() {
            client.mkdir(&folder(&key), &LASTING).await?;
        }
        let hows: &[How] = match (recipe, thread) {
            ("simple", Thread::Same) => &[How::Simple],
            ("simple", Thread::Another) => &[How::Simple, How::SimpleAndLook],
            (_, Thread::Same) => &[How::Sequential, How::Crates],
            (_, Thread::Another) => &[How::Sequential],
        };
        for how in hows {
            contenders.push(Box::new(Bare { client: client.clone(), how: *how, thread }));
        }
    }
    let ours = format!("{hosts}/ours?recipe={recipe}&tick_ms=500");
    contenders.push(Box::new(Tenure::connect("tenure", &ours).await?));
    Ok(Lineup { contenders, _ground: ground })
}

/// The two of three that follow. Which one a client asks is left to chance, and it is another way to the leader: so all contenders have the same.
fn followers(servers: &ZooKeeperCluster) -> String {
    let leader = servers.leader();
    let addrs = servers.addrs().into_iter().enumerate().filter(|(index, _)| *index != leader);
    let addrs: Vec<_> = addrs.map(|(_, addr)| addr.to_string()).collect();
    format!("zookeeper://{}", addrs.join(","))
}

const LASTING: CreateOptions<'static> = CreateMode::Persistent.with_acls(Acls::anyone_all());
const ENTRY: CreateOptions<'static> = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
const ONE: CreateOptions<'static> = CreateMode::Ephemeral.with_acls(Acls::anyone_all());

fn folder(key: &str) -> String {
    format!("/bare/{key}")
}

#[derive(Clone, Copy)]
enum How {
    /// A queue of ephemeral nodes, each watching the one before it.
    Sequential,
    /// One ephemeral node, which all watch.
    Simple,
    /// The same, which also looks for those who came by a queue: as it must be if both are to exclude each other.
    SimpleAndLook,
    /// The lock that the client crate has.
    Crates,
}

/// One session, which all clients share.
#[derive(Clone)]
struct Bare {
    client: Client,
    how: How,
    thread: Thread,
}

impl Contender for Bare {
    fn name(&self) -> &'static str {
        match (self.how, self.thread) {
            (How::Sequential, Thread::Same) => "bare ephemeral sequential nodes",
            (How::Sequential, Thread::Another) => "bare ephemeral sequential nodes, on another thread",
            (How::Simple, Thread::Same) => "bare ephemeral node",
            (How::Simple, Thread::Another) => "bare ephemeral node, on another thread",
            (How::SimpleAndLook, _) => "bare ephemeral node, and a look at the queue, on another thread",
            (How::Crates, _) => "zookeeper-client's own lock",
        }
    }

    fn client(&self) -> Result<Box<dyn LockClient>> {
        Ok(Box::new(self.clone()))
    }
}

impl LockClient for Bare {
    fn pair<'a>(&'a mut self, key: &'a str, held: Held) -> Pair<'a> {
        let folder = folder(key);
        Box::pin(async move {
            match self.how {
                How::Sequential => self.sequential(&folder, held).await,
                How::Simple | How::SimpleAndLook => self.simple(&folder, held).await,
                How::Crates => {
                    let prefix = LockPrefix::new_curator(&folder, "latch-")?;
                    let lock = self.client.lock(prefix, b"", Acls::anyone_all()).await?;
                    held.await;
                    let path = lock.lock_path().to_owned();
                    // Dropping it would free it in the background, and not be measured.
                    self.client.delete(&path, None).await?;
                    Ok(())
                }
            }
        })
    }
}

impl Bare {
    async fn sequential(&self, folder: &str, held: Held) -> Result<()> {
        let entry = format!("{folder}/{:032x}__lock__", rand::random::<u128>());
        let (_, sequence) = self.client.create(&entry, b"", &ENTRY).await?;
        let mine = format!("{entry}{sequence}");
        loop {
            let children = self.client.list_children(folder).await?;
            let order = |child: &str| -> Option<i64> { child.rsplit_once("__lock__")?.1.parse().ok() };
            let mine = sequence.into_i64();
            let before = children.iter().filter(|child| order(child).is_some_and(|order| order < mine));
            let Some(nearest) = before.max_by_key(|child| order(child)) else { break };
            match self.client.get_and_watch_data(&format!("{folder}/{nearest}")).await {
                Ok((_, _, watcher)) => drop(watcher.changed().await),
                Err(Error::NoNode) => {}
                Err(error) => return Err(error.into()),
            }
        }
        held.await;
        self.client.delete(&mine, None).await.context("it was lost while it was held")
    }

    async fn simple(&self, folder: &str, held: Held) -> Result<()> {
        let path = format!("{folder}/lock");
        loop {
            match self.client.create(&path, b"", &ONE).await {
                Ok((stat, _)) => break ensure!(stat.czxid > 0, "no token"),
                Err(Error::NodeExists) => {}
                Err(error) => return Err(error.into()),
            }
            match self.client.get_and_watch_data(&path).await {
                Ok((_, _, watcher)) => drop(watcher.changed().await),
                Err(Error::NoNode) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if matches!(self.how, How::SimpleAndLook) {
            let children = self.client.list_children(folder).await?;
            ensure!(children == ["lock"], "there is a queue, which nobody here joins");
        }
        held.await;
        self.client.delete(&path, None).await.context("it was lost while it was held")
    }
}
