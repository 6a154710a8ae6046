//! Where many of one client wait, a lock goes from one to the next without Redis: in the queue's order, with rising tokens, and with nothing lost
//! or left behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tenure::contract::{Inside, eventually as soon, poll_times, within};
use tenure::engine::{AcquireRequest, WaitUntil};
use tenure::error::RenewError;
use tenure::{
    AcquireError, Break, Client, FencingToken, Guard, GuardState, LockName, LockRequest, Lost, LostReason,
    Release, ReleaseError, Ttl, Turn, ValueError, Wait,
};
use tenure_testkit::{Proxy, Redis, eventually};
use tokio::task::JoinHandle;

use crate::{LONG, connect};

/// How long anything may take on a slow machine.
const PATIENCE: Duration = Duration::from_mins(2);

/// Enough for a lock to be passed on to several.
const MANY: usize = 40;

type Waiting = JoinHandle<Result<Guard, AcquireError>>;

/// One who waits, when it does so.
fn wait(redis: &Redis, request: LockRequest) -> Waiting {
    let before: usize = redis.command(&["LLEN", "tenure:queue:a"]).parse().unwrap();
    let waiting = tokio::spawn(request.acquire());
    eventually("it waits", || redis.command(&["LLEN", "tenure:queue:a"]) == (before + 1).to_string());
    waiting
}

/// Somebody who holds the lock, and many who wait for it, in this order.
async fn queue(redis: &Redis, client: &Client) -> (Guard, Vec<Waiting>) {
    let held = client.lock("a").ttl(LONG).acquire().await.unwrap();
    let one = |number: usize| wait(redis, client.lock("a").ttl(LONG).label(number.to_string()));
    (held, (0..MANY).map(one).collect())
}

async fn got(waiting: Waiting) -> Guard {
    within(PATIENCE, "it gets the lock", waiting).await.unwrap().unwrap()
}

async fn let_go(guard: Guard) {
    assert_eq!(guard.release().await.unwrap(), Release::Released);
}

/// The one in front gets the lock by Redis, and passes it on to the next.
async fn passed_on(held: Guard, waiting: &mut Vec<Waiting>) -> Guard {
    let_go(held).await;
    let_go(got(waiting.remove(0)).await).await;
    got(waiting.remove(0)).await
}

/// All others get it too, and then nothing is left.
async fn finish(redis: &Redis, held: Guard, waiting: Vec<Waiting>) {
    let_go(held).await;
    for one in waiting {
        let_go(got(one).await).await;
    }
    nothing_is_left(redis);
}

async fn let_go_in_any_order(waiting: Vec<Waiting>) {
    let each = |one| tokio::spawn(async { let_go(got(one).await).await });
    for one in waiting.into_iter().map(each).collect::<Vec<_>>() {
        one.await.unwrap();
    }
}

fn nothing_is_left(redis: &Redis) {
    let keys = ["EXISTS", "a", "tenure:queue:a", "tenure:waiters:a", "tenure:next:a"];
    eventually("nothing is left", || redis.command(&keys) == "0");
}

fn text(redis: &Redis) -> String {
    redis.command(&["GET", "a"])
}

fn is_known(redis: &Redis, guard: &Guard) -> bool {
    text(redis).contains(&format!(" {} EX ", guard.token().unwrap()))
}

#[tokio::test(flavor = "multi_thread")]
async fn each_gets_it_in_the_order_of_the_queue_and_redis_is_asked_less_often() {
    let redis = Redis::start();
    let client = connect(&redis.url()).await;
    let asked = || redis.calls("incr") + redis.calls("incrby");
    // On a machine that stands still at the wrong moments, it is never passed on; but not always.
    for _ in 0..20 {
        let (held, waiting) = queue(&redis, &client).await;
        let (mut token, before) = (held.token(), asked());
        let_go(held).await;
        for one in waiting {
            let guard = got(one).await;
            assert!(guard.check().is_ok());
            assert!(guard.token() > token, "{:?} after {token:?}", guard.token());
            token = guard.token();
            let_go(guard).await;
        }
        nothing_is_left(&redis);
        if asked() - before < MANY {
            // What was drawn beforehand is not drawn again.
            assert!(client.lock("a").acquire().await.unwrap().token() > token);
            return;
        }
    }
    panic!("each was given it by Redis");
}

/// Those of other clients have their places in the same queue.
#[tokio::test(flavor = "multi_thread")]
async fn those_of_other_clients_come_in_their_turn() {
    let redis = Redis::start();
    let (client, other) = (connect(&redis.url()).await, connect(&redis.url()).await);
    let held = client.lock("a").ttl(LONG).acquire().await.unwrap();
    let waiting: Vec<_> = (0..MANY)
        .map(|number| {
            let client = if number % 5 == 3 { &other } else { &client };
            wait(&redis, client.lock("a").ttl(LONG))
        })
        .collect();
    // The next one has it before the one after it: else this would wait for one who does not let go.
    finish(&redis, held, waiting).await;
}

/// Many of two clients, others of a third that is fair, and a program that knows nothing of us.
#[tokio::test(flavor = "multi_thread")]
async fn never_are_two_inside() {
    const TASKS: usize = 30;
    const TIMES: usize = 20;
    let redis = Redis::start();
    let folder = tempfile::tempdir().unwrap();
    let inside = Arc::new(Inside::new(folder.path()));
    let mut tasks = Vec::new();
    for url in [redis.url(), redis.url(), format!("{}?fair=true", redis.url())] {
        let client = connect(&url).await;
        for _ in 0..TASKS {
            let (client, inside) = (client.clone(), inside.clone());
            tasks.push(tokio::spawn(async move {
                let mut last: Option<FencingToken> = None;
                for time in 0..TIMES {
                    let guard = client.lock("a").ttl(LONG).acquire().await.unwrap();
                    assert!(guard.token() > last);
                    last = guard.token();
                    inside.increment(Duration::ZERO).unwrap();
                    // Some do not wait for the answer.
                    if time % 3 == 0 { drop(guard) } else { let_go(guard).await }
                }
            }));
        }
    }
    let done = AtomicBool::new(false);
    let foreign = std::thread::scope(|scope| {
        let foreign = scope.spawn(|| {
            let mut times = 0;
            while !done.load(Ordering::Relaxed) {
                if redis.command(&["SET", "a", "another program's", "NX", "PX", "600000"]) == "OK" {
                    inside.increment(Duration::ZERO).unwrap();
                    times += 1;
                    redis.command(&["DEL", "a"]);
                }
            }
            times
        });
        tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(async {
                for task in tasks {
                    within(PATIENCE, "each gets its turns", task).await.unwrap();
                }
            });
        });
        done.store(true, Ordering::Relaxed);
        foreign.join().unwrap()
    });
    assert_eq!(inside.count(), (3 * TASKS * TIMES) as u64 + foreign);
    nothing_is_left(&redis);
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_it_for_longer_is_seen_and_keeps_it() {
    let redis = Redis::start();
    let client = connect(&redis.url()).await;
    let (held, mut waiting) = queue(&redis, &client).await;
    let second = passed_on(held, &mut waiting).await;
    soon(PATIENCE, "it is seen", async || {
        let info = client.inspect("a").await.unwrap();
        let holder = info.holders.first().unwrap();
        holder.token == second.token() && holder.label.as_deref() == Some("1")
    })
    .await;
    assert!(is_known(&redis, &second));
    let left: u128 = redis.command(&["PTTL", "a"]).parse().unwrap();
    assert!(left > LONG.as_millis() / 2, "it has its whole ttl: {left}");
    let waiters = client.inspect("a").await.unwrap().waiters;
    assert_eq!(waiters.first().unwrap().label.as_deref(), Some("2"), "those who had it do not wait any more");
    assert_eq!(waiters.len(), MANY - 2);
    assert_eq!(second.state(), GuardState::Held);
    finish(&redis, second, waiting).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_writes_the_next_one_reads() {
    let redis = Redis::start();
    let client = connect(&redis.url()).await;
    let (held, mut waiting) = queue(&redis, &client).await;
    let_go(held).await;
    let first = got(waiting.remove(0)).await;
    first.set_value("by the first").await.unwrap();
    let_go(first).await;
    let second = got(waiting.remove(0)).await;
    assert_eq!(second.value().bytes, "by the first");
    second.set_value("").await.unwrap();
    // From now on there is none, and the lock is passed on.
    let fourth = passed_on(second, &mut waiting).await;
    assert_eq!(fourth.value().bytes, "");
    fourth.set_value("by one to whom it was passed on").await.unwrap();
    assert!(is_known(&redis, &fourth));
    let_go(fourth).await;
    let fifth = got(waiting.remove(0)).await;
    assert_eq!(fifth.value().bytes, "by one to whom it was passed on");
    assert!(!fifth.value().in_doubt);
    finish(&redis, fifth, waiting).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_to_which_it_is_passed_on_runs_once() {
    let redis = Redis::start();
    let client = connect(&redis.url()).await;
    let (held, mut waiting) = queue(&redis, &client).await;
    for one in waiting.drain(1..) {
        one.abort();
    }
    eventually("they have gone", || redis.command(&["LLEN", "tenure:queue:a"]) == "1");
    let mut jobs: Vec<_> =
        (1..MANY).map(|_| tokio::spawn(client.once_per("a", Duration::from_hours(1)).begin())).collect();
    eventually("all wait", || redis.command(&["LLEN", "tenure:queue:a"]) == MANY.to_string());
    let_go(held).await;
    let_go(got(waiting.remove(0)).await).await;
    let mut runs = 0;
    for job in jobs.drain(..) {
        match within(PATIENCE, "it is decided", job).await.unwrap().unwrap() {
            Turn::Yours(run) => {
                runs += 1;
                run.succeeded().await.unwrap();
            }
            Turn::AlreadyRun { .. } => {}
        }
    }
    assert_eq!(runs, 1);
    nothing_is_left(&redis);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_reaches_whoever_has_it() {
    for how in [Break::Ask, Break::Force] {
        let redis = Redis::start();
        let client = connect(&redis.url()).await;
        let (held, mut waiting) = queue(&redis, &client).await;
        let second = passed_on(held, &mut waiting).await;
        // Whether Redis knows it by then or not.
        connect(&redis.url()).await.break_lock("a", how).await.unwrap();
        let reason = within(PATIENCE, "it is told", second.lost()).await;
        assert_eq!(reason, LostReason::Broken, "{how:?}");
        drop(second);
        for one in waiting {
            let_go(got(one).await).await;
        }
        nothing_is_left(&redis);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn if_redis_forgets_it_whoever_has_it_is_told() {
    let redis = Redis::start();
    let client = connect(&redis.url()).await;
    let (held, mut waiting) = queue(&redis, &client).await;
    let second = passed_on(held, &mut waiting).await;
    redis.command(&["DEL", "a"]);
    assert_eq!(within(PATIENCE, "it is told", second.lost()).await, LostReason::Forgotten);
    drop(second);
    // Whoever looks first gets it.
    let_go_in_any_order(waiting).await;
    nothing_is_left(&redis);
}

/// Their request is not one for which Redis hands it over, or others of their owner may come: they are served by Redis, and in their turn.
#[tokio::test(flavor = "multi_thread")]
async fn those_to_whom_it_is_not_passed_on_get_it_all_the_same() {
    let redis = Redis::start();
    let (client, other) = (connect(&redis.url()).await, connect(&redis.url()).await);
    let owner = client.owner();
    let held = client.lock("a").ttl(LONG).acquire().await.unwrap();
    let mut waiting = vec![
        wait(&redis, client.lock("a").ttl(LONG)),
        wait(&redis, client.lock("a").ttl(LONG)),
        wait(&redis, owner.lock("a").ttl(LONG)),
        wait(&redis, client.lock("a").ttl(LONG)),
        wait(&redis, client.lock("a").ttl(LONG).shared()),
        wait(&redis, client.lock("a").ttl(LONG)),
        wait(&redis, client.lock("a").ttl(LONG).renew(false)),
    ];
    waiting.extend((0..MANY).map(|_| wait(&redis, client.lock("a").ttl(LONG))));
    let second = passed_on(held, &mut waiting).await;
    let_go(second).await;
    let named = got(waiting.remove(0)).await;
    assert!(is_known(&redis, &named));
    let again = other.owner_with_id(owner.id()).lock("a").ttl(LONG).wait(Wait::Try).acquire().await;
    let_go(again.expect("it is the same owner")).await;
    let_go(named).await;
    let_go(got(waiting.remove(0)).await).await;
    let_go(got(waiting.remove(0)).await).await;
    let_go(got(waiting.remove(0)).await).await;
    let fixed = got(waiting.remove(0)).await;
    let left: u128 = redis.command(&["PTTL", "a"]).parse().unwrap();
    assert!(left > LONG.as_millis() / 2, "nobody renews it: {left}");
    finish(&redis, fixed, waiting).await;
}

/// Redis may know it by one who has passed it on. For that one, it is over all the same.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_asked_for_twice_is_done_once() {
    let redis = Redis::start();
    let client = connect(&redis.url()).await;
    let engine = client.engine().clone();
    let held = client.lock("a").ttl(LONG).acquire().await.unwrap();
    let ask = || {
        let mut request = AcquireRequest::new(LockName::parse("a").unwrap());
        (request.renews, request.wait, request.ttl) = (true, WaitUntil::Forever, Ttl::new(LONG).unwrap());
        let queue = || redis.command(&["LLEN", "tenure:queue:a"]).parse::<usize>().unwrap();
        let before = queue();
        let waiting = tokio::spawn(engine.clone().acquire(request.clone()));
        eventually("it waits", || queue() == before + 1);
        (request, waiting)
    };
    let [(first, waiting_first), (second, waiting_second)] = [ask(), ask()];
    let others: Vec<_> = (0..MANY).map(|_| wait(&redis, client.lock("a").ttl(LONG))).collect();
    let_go(held).await;
    let first = first.granted(waiting_first.await.unwrap().unwrap().token);
    engine.clone().release(first.clone()).await.unwrap();
    let token = waiting_second.await.unwrap().unwrap().token;
    let is_lost = |lost: &Lost| lost.reason == LostReason::Forgotten;
    let written = engine.clone().set_value(first.clone(), "late".into()).await;
    assert!(matches!(written, Err(ValueError::Lost(lost)) if is_lost(&lost)));
    let released = engine.clone().release(first.clone()).await;
    assert!(matches!(released, Err(ReleaseError::NotHeld(_))), "{released:?}");
    let renewed = engine.clone().renew(first).await;
    assert!(matches!(renewed, Err(RenewError::Lost(_))), "{renewed:?}");
    let again = engine.clone().acquire(second.clone()).await.unwrap();
    assert_eq!(again.token, token, "it is the same grant");
    assert_eq!(again.value.bytes, "");
    assert!(client.lock("a").try_acquire().await.unwrap().is_none(), "it has the lock");
    engine.clone().release(second.granted(token)).await.unwrap();
    let released = engine.clone().release(second.granted(token)).await;
    assert!(matches!(released, Err(ReleaseError::NotHeld(_))), "{released:?}");
    for one in others {
        let_go(got(one).await).await;
    }
    nothing_is_left(&redis);
}

/// Somebody has deleted the queue, and with it what Redis knew of those in it.
#[tokio::test(flavor = "multi_thread")]
async fn who_has_it_keeps_it_without_the_queue() {
    let redis = Redis::start();
    let client = connect(&redis.url()).await;
    let (held, mut waiting) = queue(&redis, &client).await;
    let second = passed_on(held, &mut waiting).await;
    redis.command(&["DEL", "tenure:queue:a", "tenure:waiters:a"]);
    second.set_value("written").await.unwrap();
    assert!(is_known(&redis, &second));
    let_go(second).await;
    // Whoever looks first gets it.
    let_go_in_any_order(waiting).await;
}

/// Whenever it goes: in the queue, when the lock is on its way to it, or when it has it.
#[tokio::test(flavor = "multi_thread")]
async fn who_goes_away_is_passed_over_and_leaves_nothing() {
    const TASKS: usize = 40;
    const TIMES: usize = 25;
    let redis = Redis::start();
    let client = connect(&redis.url()).await;
    let mut tasks = Vec::new();
    for task in 0..TASKS {
        let client = client.clone();
        tasks.push(tokio::spawn(async move {
            for time in 0..TIMES {
                match (task + time) % 5 {
                    0 => drop(poll_times(client.lock("a").ttl(LONG).acquire(), time % 7 + 1).await),
                    1 => {
                        let moment = Duration::from_micros(((task * 7 + time) * 97 % 4000) as u64);
                        let short = client.lock("a").ttl(LONG).wait(Wait::For(moment)).acquire().await;
                        assert!(matches!(short, Ok(_) | Err(AcquireError::TimedOut { .. })), "{short:?}");
                    }
                    _ => {
                        let guard = client.lock("a").ttl(LONG).acquire().await.unwrap();
                        assert!(guard.check().is_ok());
                        let_go(guard).await;
                    }
                }
            }
        }));
    }
    for task in tasks {
        within(PATIENCE, "each gets its turns", task).await.unwrap();
    }
    client.close().await.unwrap();
    nothing_is_left(&redis);
    assert!(redis.command(&["INFO", "stats"]).contains("expired_keys:0\r"), "a lock was left to its lease");
}

/// It is passed on while nothing is heard of Redis, for a moment; and belief in it ends before anybody else gets it.
#[tokio::test(flavor = "multi_thread")]
async fn belief_ends_in_time_for_whoever_has_it() {
    let redis = Redis::start();
    let network = Proxy::to(redis.addr());
    let (client, other) =
        (connect(&format!("redis://{}", network.addr())).await, connect(&redis.url()).await);
    let (held, mut waiting) = queue(&redis, &client).await;
    let_go(held).await;
    let mut holder = Some(got(waiting.remove(0)).await);
    network.cut();
    for next in waiting.drain(..3) {
        // On a slow machine it may be too late for that, and then nobody has it.
        if let Some(before) = holder.take() {
            holder = tokio::join!(before.release(), next).1.unwrap().ok();
        }
    }
    let next = within(PATIENCE, "another client gets it", other.lock("a").ttl(LONG).acquire()).await.unwrap();
    assert!(next.check().is_ok());
    assert!(holder.is_none_or(|holder| holder.check().is_err()), "two believe");
    network.heal();
    let_go(next).await;
    for one in waiting {
        // Some have given up by now.
        drop(within(PATIENCE, "it is told", one).await.unwrap());
    }
    nothing_is_left(&redis);
}

/// The last one to have it lets go while Redis does not answer. It is free as soon as that is heard.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_released_in_an_outage_is_free_after_it() {
    let redis = Redis::start();
    let network = Proxy::to(redis.addr());
    let url = format!("redis://{}?timeout_ms=1000", network.addr());
    let (client, other) = (connect(&url).await, connect(&redis.url()).await);
    let (held, mut waiting) = queue(&redis, &client).await;
    let second = passed_on(held, &mut waiting).await;
    // It has its whole ttl, and Redis knows it.
    eventually("it is written down", || is_known(&redis, &second));
    for one in waiting.drain(..) {
        one.abort();
    }
    eventually("they have gone", || redis.command(&["LLEN", "tenure:queue:a"]) == "0");
    network.cut();
    drop(second);
    network.sever();
    network.heal();
    let next = within(PATIENCE, "another client gets it", other.lock("a").ttl(LONG).acquire()).await.unwrap();
    let_go(next).await;
    nothing_is_left(&redis);
}
