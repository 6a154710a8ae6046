//! `etcd:` beside its recipe as it is written by hand with the same client crate: what etcd's own Go client does, with a key for each acquire.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use etcd_client::{
    Client, Compare, CompareOp, EventType, GetOptions, PutOptions, SortOrder, SortTarget, Txn, TxnOp,
    TxnOpResponse, WatchFilterType, WatchOptions,
};
use tenure_testkit::{Etcd, EtcdCluster};

use super::Lineup;
use super::tenure::Tenure;
use super::thread::Thread;
use crate::workload::{Contender, Held, LockClient, Pair};

/// How long the server keeps what is not released.
const TTL: i64 = 30;

pub(crate) async fn lineup(recipe: &str) -> Result<Lineup> {
    let (url, ground): (_, Box<dyn std::any::Any>) = if recipe == "three servers" {
        let servers = EtcdCluster::start();
        (servers.url(), Box::new(servers))
    } else {
        let server = Etcd::start();
        (server.url(), Box::new(server))
    };
    let hosts: Vec<_> = url.trim_start_matches("etcd://").split(',').map(str::to_owned).collect();
    let mut contenders: Vec<Box<dyn Contender>> = Vec::new();
    for thread in [Thread::Same, Thread::Another] {
        let (client, lease) = thread.open(Box::pin(connect(hosts.clone()))).await?;
        contenders.push(Box::new(Bare { client, lease, thread }));
    }
    contenders.push(Box::new(Tenure::connect("tenure", &format!("{url}?prefix=ours/")).await?));
    Ok(Lineup { contenders, _ground: ground })
}

/// A client with a lease, which is kept alive.
async fn connect(hosts: Vec<String>) -> Result<(Client, i64)> {
    let mut client = Client::connect(hosts, None).await?;
    let lease = client.lease_grant(TTL, None).await?.id();
    let (mut keeper, mut answers) = client.lease_keep_alive(lease).await?;
    tokio::spawn(async move {
        while keeper.keep_alive().await.is_ok() && answers.message().await.is_ok() {
            tokio::time::sleep(Duration::from_secs(10)).await;
        }
    });
    Ok((client, lease))
}

/// One connection and one lease, which all clients share.
#[derive(Clone)]
struct Bare {
    client: Client,
    lease: i64,
    thread: Thread,
}

impl Contender for Bare {
    fn name(&self) -> &'static str {
        match self.thread {
            Thread::Same => "bare key under a lease",
            Thread::Another => "bare key under a lease, on another thread",
        }
    }

    fn client(&self) -> Result<Box<dyn LockClient>> {
        Ok(Box::new(self.clone()))
    }
}

impl LockClient for Bare {
    fn pair<'a>(&'a mut self, key: &'a str, held: Held) -> Pair<'a> {
        Box::pin(async move {
            let prefix = format!("bare/{key}/");
            let mine = format!("{prefix}{:032x}", rand::random::<u128>());
            let first = GetOptions::new()
                .with_prefix()
                .with_sort(SortTarget::Create, SortOrder::Ascend)
                .with_limit(1);
            let put = PutOptions::new().with_lease(self.lease);
            let enter = Txn::new()
                .when([Compare::create_revision(mine.clone(), CompareOp::Equal, 0)])
                .and_then([TxnOp::put(mine.clone(), "", Some(put)), TxnOp::get(prefix.clone(), Some(first))]);
            let entered = self.client.txn(enter).await?;
            let revision = entered.header().context("an answer has a header")?.revision();
            let answers = entered.op_responses();
            let Some(TxnOpResponse::Get(owner)) = answers.get(1) else {
                anyhow::bail!("no answer to the range")
            };
            let is_first = owner.kvs().first().is_some_and(|owner| owner.create_revision() == revision);
            if !is_first {
                self.wait_behind(&prefix, revision).await?;
            }
            held.await;
            ensure!(self.client.delete(mine, None).await?.deleted() == 1, "{key} was lost while it was held");
            Ok(())
        })
    }
}

impl Bare {
    async fn wait_behind(&mut self, prefix: &str, revision: i64) -> Result<()> {
        loop {
            let nearest = GetOptions::new()
                .with_prefix()
                .with_sort(SortTarget::Create, SortOrder::Descend)
                .with_max_create_revision(revision - 1)
                .with_keys_only()
                .with_limit(1);
            let looked = self.client.get(prefix, Some(nearest)).await?;
            let Some(before) = looked.kvs().first() else { return Ok(()) };
            let seen = looked.header().context("an answer has a header")?.revision();
            let deleted =
                WatchOptions::new().with_start_revision(seen + 1).with_filters([WatchFilterType::NoPut]);
            let mut watch = self.client.watch(before.key(), Some(deleted)).await?;
            while let Some(message) = watch.message().await? {
                if message.events().iter().any(|event| event.event_type() == EventType::Delete) {
                    break;
                }
            }
        }
    }
}
