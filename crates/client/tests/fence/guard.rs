//! A guard is fenced by its own name and token.

use redis::AsyncCommands;
use tenure::fence::{FenceError, RedisFence, SqlFence, TableName};
use tenure::{Client, Mode};
use tenure_testkit::{Postgres, Redis};

use crate::{LONG, stale};

#[tokio::test]
async fn a_guard_is_fenced_by_its_name_and_token() {
    let client = Client::connect(&Redis::shared().url()).await.unwrap();
    let mut redis =
        redis::Client::open(Redis::shared().url()).unwrap().get_multiplexed_async_connection().await.unwrap();
    let pool = sqlx::PgPool::connect(&Postgres::shared().url()).await.unwrap();
    let in_redis = RedisFence::with_prefix("guard:");
    let in_sql = SqlFence::in_table(TableName::parse("by_guard").unwrap());
    in_sql.create_table(&mut pool.acquire().await.unwrap()).await.unwrap();

    let first = client.lock("by/guard").ttl(LONG).acquire().await.unwrap();
    let token = first.token().unwrap();
    let mut transaction = pool.begin().await.unwrap();
    in_sql.guard(&mut transaction, &first).await.unwrap();
    let resource = sqlx::query_scalar("SELECT resource FROM by_guard").fetch_one(&mut *transaction);
    assert_eq!(resource.await.map(|name: String| name).unwrap(), "by/guard");
    transaction.commit().await.unwrap();
    in_redis.set(&mut redis, &first, "by:guard", "first").await.unwrap();
    assert_eq!(redis.get::<_, u64>("guard:by/guard").await.unwrap(), token.get());
    let _ = first.release().await.unwrap();

    let second = client.lock("by/guard").ttl(LONG).acquire().await.unwrap();
    let newest = second.token().unwrap().get();
    in_redis.guard(&mut redis, &second).await.unwrap();
    assert_eq!(stale(in_redis.set(&mut redis, ("by/guard", token), "by:guard", "late").await), newest);
}

#[tokio::test]
async fn a_guard_without_a_token_and_one_of_a_reader_are_refused() {
    let mut redis =
        redis::Client::open(Redis::shared().url()).unwrap().get_multiplexed_async_connection().await.unwrap();
    let fence = RedisFence::with_prefix("refused:");
    // Without `fencing=true`, its engine gives no tokens.
    let client = Client::connect(&Redis::shared().url().replace("redis:", "redlock:")).await.unwrap();
    let without = client.lock("no/token").ttl(LONG).acquire().await.unwrap();
    let answer = fence.set(&mut redis, &without, "no:token", "written").await;
    assert!(matches!(answer, Err(FenceError::NoToken { .. })), "{answer:?}");

    let client = Client::connect(&Redis::shared().url()).await.unwrap();
    let reader = client.lock("no/writer").mode(Mode::Pr).ttl(LONG).acquire().await.unwrap();
    let answer = fence.set(&mut redis, &reader, "no:writer", "written").await;
    assert!(matches!(answer, Err(FenceError::Mode { .. })), "{answer:?}");
    for key in ["no:token", "no:writer"] {
        assert!(!redis.exists::<_, bool>(key).await.unwrap(), "{key} was written");
    }
}
