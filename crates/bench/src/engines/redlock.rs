//! `redlock:` beside the algorithm written by hand, and beside the crate `rslock`, all on five servers.

use anyhow::Result;
use futures_util::future::try_join_all;
use redis::RedisResult;
use redis::aio::MultiplexedConnection;
use tenure::clock::BootTime;
use tenure_testkit::Redis;

use super::Lineup;
use super::redis::{TTL, connect, delete, pause, set, value};
use super::rslock::Rslock;
use super::tenure::Tenure;
use crate::workload::{Contender, Held, LockClient, Pair};

const SERVERS: usize = 5;

pub(crate) async fn lineup() -> Result<Lineup> {
    let servers: Vec<Redis> = (0..SERVERS).map(|_| Redis::start()).collect();
    let urls: Vec<String> = servers.iter().map(Redis::url).collect();
    let connections = try_join_all(urls.iter().map(|url| connect(url))).await?;
    let addresses: Vec<String> = servers.iter().map(|server| server.addr().to_string()).collect();
    let url = format!("redlock://{}", addresses.join(","));
    Ok(Lineup {
        contenders: vec![
            Box::new(Bare { connections }),
            Box::new(Rslock::new(urls)),
            Box::new(Tenure::connect("tenure, `redlock:`", &url).await?),
            Box::new(Tenure::connect("tenure, `redlock:`, fencing", &format!("{url}?fencing=true")).await?),
        ],
        _ground: Box::new(servers),
    })
}

/// SET NX PX on all servers at once; a majority has it, and has it in time.
#[derive(Clone)]
struct Bare {
    connections: Vec<MultiplexedConnection>,
}

impl Contender for Bare {
    fn name(&self) -> &'static str {
        "bare redlock"
    }

    fn client(&self) -> Result<Box<dyn LockClient>> {
        Ok(Box::new(self.clone()))
    }
}

impl Bare {
    // A server that fails would be a vote less. Here none does, and if one did, the figures would be worth nothing.
    async fn is_mine(&mut self, key: &str, value: &[u8]) -> RedisResult<bool> {
        let sent = BootTime::now();
        let votes = try_join_all(self.connections.iter_mut().map(|server| set(server, key, value))).await?;
        // What the clocks of the servers may run faster than ours.
        let drift = TTL / 100;
        let in_time = BootTime::now().since(sent) + drift < TTL;
        Ok(in_time && votes.into_iter().filter(|vote| *vote).count() > SERVERS / 2)
    }

    async fn delete(&mut self, key: &str, value: &[u8]) -> RedisResult<()> {
        try_join_all(self.connections.iter_mut().map(|server| delete(server, key, value))).await?;
        Ok(())
    }
}

impl LockClient for Bare {
    fn pair<'a>(&'a mut self, key: &'a str, held: Held) -> Pair<'a> {
        Box::pin(async move {
            let value = value();
            while !self.is_mine(key, &value).await? {
                self.delete(key, &value).await?;
                pause().await;
            }
            held.await;
            Ok(self.delete(key, &value).await?)
        })
    }
}
