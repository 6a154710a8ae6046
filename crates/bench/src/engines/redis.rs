//! `redis:` beside SET NX PX and a script that deletes, beside the same with what a token costs, one INCR in the same
//! script, beside the same with one message of three commands, as ours sends it, and beside the crate `rslock`.

use std::sync::LazyLock;
use std::time::Duration;

use anyhow::{Result, ensure};
use redis::aio::MultiplexedConnection;
use redis::{RedisResult, Script};
use tenure_testkit::Redis;

use super::Lineup;
use super::rslock::Rslock;
use super::tenure::Tenure;
use crate::workload::{Contender, Held, LockClient, Pair};

/// How long the servers keep what is not released: the same for all contenders that can be told.
pub(super) const TTL: Duration = Duration::from_secs(30);

pub(crate) async fn lineup() -> Result<Lineup> {
    let server = Redis::start();
    let url = server.url();
    let connection = connect(&url).await?;
    Ok(Lineup {
        contenders: vec![
            Box::new(Bare { connection: connection.clone(), first: First::Set }),
            Box::new(Bare { connection: connection.clone(), first: First::SetAndCount }),
            Box::new(Bare { connection, first: First::SetCountAndLook }),
            Box::new(Rslock::new(vec![url.clone()])),
            Box::new(Tenure::connect("tenure, `redis:`", &url).await?),
            Box::new(Tenure::connect("tenure, `redis:`, fair", &format!("{url}?fair=true")).await?),
            Box::new(Tenure::connect_several("tenure, `redis:`, 8 clients", &url, 8).await?),
        ],
        _ground: Box::new(server),
    })
}

/// One connection, which all clients share.
pub(super) async fn connect(url: &str) -> RedisResult<MultiplexedConnection> {
    redis::Client::open(url)?.get_multiplexed_async_connection().await
}

/// Nobody else has it, so nobody else can delete the key.
pub(super) fn value() -> [u8; 16] {
    rand::random()
}

/// SET NX PX: whether it was free.
pub(super) async fn set(
    connection: &mut MultiplexedConnection,
    key: &str,
    value: &[u8],
) -> RedisResult<bool> {
    let mut command = redis::cmd("SET");
    command.arg(key).arg(value).arg("NX").arg("PX").arg(TTL.as_millis());
    command.query_async(connection).await
}

/// SET NX PX, and if it was free, the next token.
async fn set_and_count(
    connection: &mut MultiplexedConnection,
    key: &str,
    value: &[u8],
) -> RedisResult<Option<u64>> {
    static SCRIPT: LazyLock<Script> = LazyLock::new(|| {
        Script::new(
            "if redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then
                return redis.call('INCR', KEYS[2])
            end
            return false",
        )
    });
    let mut script = SCRIPT.key(key);
    script.key("bench-tokens").arg(value).arg(TTL.as_millis());
    script.invoke_async(connection).await
}

/// SET NX PX, the next token, and whether there is more to the lock: those who wait, one whose turn it is, a value. Whether it was free.
async fn set_count_and_look(
    connection: &mut MultiplexedConnection,
    key: &str,
    value: &[u8],
) -> RedisResult<bool> {
    let mut commands = redis::pipe();
    commands.cmd("SET").arg(key).arg(value).arg("NX").arg("PX").arg(TTL.as_millis());
    commands.cmd("INCR").arg("bench-tokens");
    commands.cmd("EXISTS");
    for kind in ["bench-queue:", "bench-next:", "bench-value:"] {
        commands.arg([kind, key].concat());
    }
    let (free, _, _): (bool, u64, u64) = commands.query_async(connection).await?;
    Ok(free)
}

/// Deletes the key if it is still ours.
pub(super) async fn delete(
    connection: &mut MultiplexedConnection,
    key: &str,
    value: &[u8],
) -> RedisResult<bool> {
    static SCRIPT: LazyLock<Script> = LazyLock::new(|| {
        Script::new(
            "if redis.call('GET', KEYS[1]) == ARGV[1] then
                return redis.call('DEL', KEYS[1])
            end
            return 0",
        )
    });
    SCRIPT.key(key).arg(value).invoke_async(connection).await
}

/// The time from one look to the next while somebody else has the lock.
pub(super) async fn pause() {
    tokio::time::sleep(Duration::from_micros(rand::random_range(5_000..=50_000))).await;
}

/// The loop as it is written by hand.
#[derive(Clone)]
struct Bare {
    connection: MultiplexedConnection,
    first: First,
}

/// What it sends first.
#[derive(Clone, Copy)]
enum First {
    Set,
    SetAndCount,
    SetCountAndLook,
}

impl Contender for Bare {
    fn name(&self) -> &'static str {
        match self.first {
            First::Set => "bare SET NX PX + Lua delete",
            First::SetAndCount => "bare SET NX PX + token",
            First::SetCountAndLook => "bare SET NX PX + token + look",
        }
    }

    fn client(&self) -> Result<Box<dyn LockClient>> {
        Ok(Box::new(self.clone()))
    }
}

impl Bare {
    async fn is_mine(&mut self, key: &str, value: &[u8]) -> RedisResult<bool> {
        let connection = &mut self.connection;
        match self.first {
            First::Set => set(connection, key, value).await,
            First::SetAndCount => Ok(set_and_count(connection, key, value).await?.is_some()),
            First::SetCountAndLook => set_count_and_look(connection, key, value).await,
        }
    }
}

impl LockClient for Bare {
    fn pair<'a>(&'a mut self, key: &'a str, held: Held) -> Pair<'a> {
        Box::pin(async move {
            let value = value();
            while !self.is_mine(key, &value).await? {
                pause().await;
            }
            held.await;
            ensure!(delete(&mut self.connection, key, &value).await?, "{key} was lost while it was held");
            Ok(())
        })
    }
}
