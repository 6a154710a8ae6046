//! A database whose clock is wrong. Leases of the recipe `table` are counted by it.

use std::time::Duration;

use sqlx::Pool;
use tenure::contract::within;
use tenure::fence::{FenceError, SqlFence};
use tenure::{FencingToken, Release, Wait};
use tenure_testkit::eventually;

use super::{Database, LONG, PATIENCE, SET_BACK_AT_S, connect};

const TTL: Duration = Duration::from_mins(2);
const HOUR_S: i64 = 3600;

/// What somebody does before it writes with this token.
async fn pass_the_fence<D: Database>(
    fence: &SqlFence,
    pool: &Pool<D::Driver>,
    token: Option<FencingToken>,
) -> Result<(), FenceError> {
    let mut transaction = pool.begin().await.unwrap();
    fence.guard(&mut transaction, ("a", token.unwrap())).await?;
    transaction.commit().await.unwrap();
    Ok(())
}

/// This is the damage, and the cure: both believe, and only one can write.
pub(crate) async fn a_clock_that_jumps_ahead_lets_a_second_one_in_and_the_fence_refuses_the_first<
    D: Database,
>() {
    let mut server = D::start_with_clock();
    let (client, other) = (connect(&server.url()).await, connect(&server.url()).await);
    let (pool, fence) = (Pool::<D::Driver>::connect(&server.url()).await.unwrap(), SqlFence::new());
    fence.create_table(&mut pool.acquire().await.unwrap()).await.unwrap();
    let held = client.lock("a").ttl(TTL).acquire().await.unwrap();
    pass_the_fence::<D>(&fence, &pool, held.token()).await.unwrap();
    server.step_clock(HOUR_S);
    let next = other.lock("a").ttl(TTL).wait(Wait::For(LONG)).acquire();
    let next = within(PATIENCE, "the second one gets in", next).await.unwrap();
    assert!(held.check().is_ok() && next.check().is_ok(), "the first one has noticed");
    assert!(next.token() > held.token(), "{next:?} after {held:?}");
    pass_the_fence::<D>(&fence, &pool, next.token()).await.unwrap();
    let refused = pass_the_fence::<D>(&fence, &pool, held.token()).await;
    assert!(matches!(refused, Err(FenceError::Stale { .. })), "{refused:?}");
    assert!(matches!(held.release().await.unwrap(), Release::AlreadyLost(_)));
    assert!(other.lock("a").try_acquire().await.unwrap().is_none(), "the late release freed the next one's");
    let token = next.token();
    assert_eq!(next.release().await.unwrap(), Release::Released);
    assert!(client.lock("a").acquire().await.unwrap().token() > token);
}

pub(crate) async fn a_clock_that_is_set_back_lets_nobody_in<D: Database>() {
    let mut server = D::start_with_clock();
    let client = connect(&server.url()).await;
    let held = client.lock("a").ttl(Duration::from_secs(6)).acquire().await.unwrap();
    let waiting = tokio::spawn(client.lock("a").ttl(TTL).acquire());
    let seen = async || client.inspect("a").await.unwrap().waiters.len() == 1;
    tenure::contract::eventually(PATIENCE, "the waiter is seen", seen).await;
    server.step_clock(-HOUR_S);
    assert!(client.lock("a").try_acquire().await.unwrap().is_none());
    for _ in 0..2 {
        let deadline = held.deadline();
        eventually("it is renewed", || held.deadline() > deadline);
    }
    assert!(held.check().is_ok() && !waiting.is_finished());
    let token = held.token();
    assert_eq!(held.release().await.unwrap(), Release::Released);
    let next = within(PATIENCE, "the waiter gets it", waiting).await.unwrap().unwrap();
    assert!(next.token() > token, "{next:?} after {token:?}");
}

/// When summer ends, the clock on the wall shows the same hour twice. Who counts by it thinks that no time has passed.
pub(crate) async fn an_hour_that_a_zone_has_twice_is_two_hours<D: Database>() {
    let mut server = D::start_with_clock();
    let (_, utc) = server.clocks_s();
    server.step_clock(SET_BACK_AT_S - HOUR_S / 2 - utc);
    let (in_summer, _) = server.clocks_s();
    let client = connect(&server.url()).await;
    let held = client.lock("a").ttl(TTL).acquire().await.unwrap();
    assert!(client.lock("a").try_acquire().await.unwrap().is_none());
    server.step_clock(HOUR_S);
    let (in_winter, _) = server.clocks_s();
    assert!(
        (in_winter - in_summer).abs() < HOUR_S / 2,
        "{in_winter} after {in_summer}: it is in another zone"
    );
    let next = within(PATIENCE, "its ttl is over", client.lock("a").ttl(TTL).acquire()).await.unwrap();
    assert!(next.token() > held.token(), "{next:?} after {held:?}");
    assert!(client.lock("a").try_acquire().await.unwrap().is_none());
}
