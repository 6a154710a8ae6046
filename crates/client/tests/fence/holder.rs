//! A holder of a lock that is a process of its own, and so can be stopped in its tracks. It writes when it is told to, with the token that it
//! got, and without asking itself whether it still holds: as code does that was past its last `check()`.

use std::collections::HashMap;
use std::time::Duration;

use redis::AsyncCommands;
use sqlx::{AssertSqlSafe, MySqlPool, PgPool};
use tenure::contract::Helper;
use tenure::fence::{FenceError, RedisFence, SqlFence, TableName};
use tenure::{Client, FencingToken, Guard};
use tenure_testkit::Redis;

use crate::http::request;

/// Where a helper finds what it was started with.
const ADDRESS: &str = "TENURE_CONTRACT_HELPER";

/// Starts one, with a client of the engine `redis:`.
pub(crate) async fn start() -> Helper {
    Helper::start(concat!(module_path!(), "::process"), &Redis::shared().url()).await
}

/// Not a test, but the holder: it returns at once in a process that is not one.
#[test]
fn helper_process() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let client = runtime.block_on(Client::connect(&address)).unwrap();
    let mut guards = HashMap::new();
    println!("\n@ready");
    for command in std::io::stdin().lines().map_while(Result::ok) {
        let words: Vec<&str> = command.split(' ').collect();
        let answer = runtime.block_on(obey(&client, &mut guards, &words));
        println!("@{}", answer.unwrap_or_else(|error| format!("error {error}")));
    }
    std::process::exit(0);
}

async fn obey(
    client: &Client,
    guards: &mut HashMap<String, Guard>,
    words: &[&str],
) -> Result<String, Box<dyn std::error::Error>> {
    match *words {
        ["hold", name, ttl_ms] => {
            let ttl = Duration::from_millis(ttl_ms.parse()?);
            let guard = client.lock(name).ttl(ttl).acquire().await?;
            guard.check()?;
            guards.insert(name.to_owned(), guard);
            Ok("held".to_owned())
        }
        ["check", name] => Ok(if guards[name].check().is_ok() { "held" } else { "lost" }.to_owned()),
        ["write", name, value, fence, storage, address, place] => {
            let token = guards[name].token().ok_or("a token comes with every grant")?;
            let write = Write { name, token, value, fenced: fence == "fenced", place };
            match write.to(storage, address).await {
                Ok(()) => Ok("written".to_owned()),
                Err(error) => Ok(format!("refused {error}")),
            }
        }
        _ => Err(format!("no such command: {words:?}").into()),
    }
}

/// A write of a holder.
struct Write<'a> {
    name: &'a str,
    token: FencingToken,
    value: &'a str,
    fenced: bool,
    /// A table with a column `value`, a key, or a path.
    place: &'a str,
}

impl Write<'_> {
    async fn to(&self, storage: &str, address: &str) -> Result<(), Box<dyn std::error::Error>> {
        match storage {
            "postgres" => self.to_postgres(address).await,
            "mariadb" => self.to_mariadb(address).await,
            "redis" => self.to_redis(address).await,
            "http" => self.to_http(address).await,
            _ => Err("no such storage".into()),
        }
    }

    /// The table of tokens beside a table of data.
    fn fence(&self) -> SqlFence {
        SqlFence::in_table(fence_of(self.place))
    }

    async fn to_postgres(&self, url: &str) -> Result<(), Box<dyn std::error::Error>> {
        let mut transaction = PgPool::connect(url).await?.begin().await?;
        if self.fenced {
            self.fence().guard(&mut transaction, (self.name, self.token)).await?;
        }
        let update = AssertSqlSafe(format!("UPDATE {} SET value = $1", self.place));
        sqlx::query(update).bind(self.value).execute(&mut *transaction).await?;
        Ok(transaction.commit().await?)
    }

    async fn to_mariadb(&self, url: &str) -> Result<(), Box<dyn std::error::Error>> {
        let mut transaction = MySqlPool::connect(url).await?.begin().await?;
        if self.fenced {
            self.fence().guard(&mut transaction, (self.name, self.token)).await?;
        }
        let update = AssertSqlSafe(format!("UPDATE {} SET value = ?", self.place));
        sqlx::query(update).bind(self.value).execute(&mut *transaction).await?;
        Ok(transaction.commit().await?)
    }

    async fn to_redis(&self, url: &str) -> Result<(), Box<dyn std::error::Error>> {
        let mut connection = redis::Client::open(url)?.get_multiplexed_async_connection().await?;
        if self.fenced {
            let fence = RedisFence::new();
            fence.set(&mut connection, (self.name, self.token), self.place, self.value).await?;
        } else {
            connection.set::<_, _, ()>(self.place, self.value).await?;
        }
        Ok(())
    }

    async fn to_http(&self, addr: &str) -> Result<(), Box<dyn std::error::Error>> {
        // The service has its data behind a fence at one path, and the same data without it at another.
        let path = if self.fenced { self.place.to_owned() } else { format!("/unfenced{}", self.place) };
        let token = self.token.to_string();
        let answer = request(addr.parse()?, "PUT", &path, &[("Fencing-Token", &token)], self.value).await;
        if answer.status == 200 { Ok(()) } else { Err(format!("{} {}", answer.status, answer.body).into()) }
    }
}

/// The table of tokens that goes with a table of data in these tests.
pub(crate) fn fence_of(table: &str) -> TableName {
    TableName::parse(&format!("{table}_fence")).unwrap()
}

/// What a write is refused with where the fence is asked directly.
pub(crate) fn is_stale(answer: &str) -> bool {
    // The text of `FenceError::Stale`, or the service's 412 with it.
    answer.starts_with("refused ") && answer.contains("is stale, since")
}

#[test]
fn a_refusal_is_known_by_its_text() {
    let resource = tenure::LockName::parse("orders").unwrap();
    let (token, newest) = (FencingToken::new(1), FencingToken::new(2));
    let error = FenceError::Stale { resource, token, newest };
    assert!(is_stale(&format!("refused {error}")), "{error}");
}
