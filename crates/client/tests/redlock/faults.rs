//! Servers that die, stop, forget, and whose clocks jump.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tenure::contract::within;
use tenure::{
    AcquireError, Client, ConnectError, EngineError, Guard, GuardState, OncePerError, Record, Release, Turn,
    Wait,
};
use tenure_testkit::{Persistence, Proxy, Redis, eventually};

/// How long anything may take on a slow machine.
const PATIENCE: Duration = Duration::from_mins(2);
/// Longer than any test waits: nothing that a test sees can be due to its end.
const LONG: Duration = Duration::from_mins(10);
const HOUR_S: i64 = 3600;

struct Five([Redis; 5]);

impl Five {
    fn start() -> Self {
        Self([(); 5].map(|()| Redis::start()))
    }

    /// On clocks of their own.
    fn with_clocks() -> Self {
        Self([(); 5].map(|()| Redis::builder().faketime().start()))
    }

    fn with_data() -> Self {
        Self([(); 5].map(|()| Redis::builder().persistence(Persistence::AofAlways).start()))
    }

    async fn client(&self, options: &str) -> Client {
        let hosts = self.0.each_ref().map(|redis| redis.addr().to_string()).join(",");
        Client::connect(&format!("redlock://{hosts}?{options}")).await.unwrap()
    }

    fn having(&self, key: &str) -> usize {
        self.0.iter().filter(|redis| redis.command(&["EXISTS", key]) == "1").count()
    }
}

async fn acquire(client: &Client, ttl: Duration) -> Guard {
    within(PATIENCE, "it is got", client.lock("a").ttl(ttl).acquire()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn with_two_of_five_dead_all_goes_on() {
    let mut five = Five::start();
    let client = five.client("fencing=true").await;
    let held = acquire(&client, Duration::from_secs(6)).await;
    five.0[1].kill();
    five.0[4].kill();
    let deadline = held.deadline();
    eventually("it is renewed by the other three", || held.deadline() > deadline);
    assert_eq!(held.state(), GuardState::Held);
    assert!(client.lock("a").try_acquire().await.unwrap().is_none());
    assert_eq!(client.inspect("a").await.unwrap().holders.len(), 1);
    let token = held.token();
    assert_eq!(held.release().await.unwrap(), Release::Released);
    let next = acquire(&five.client("fencing=true").await, LONG).await;
    assert!(next.token() > token);
    assert_eq!(next.release().await.unwrap(), Release::Released);
}

#[tokio::test(flavor = "multi_thread")]
async fn with_three_of_five_dead_it_says_so_in_time_and_leaves_nothing() {
    let mut five = Five::with_data();
    let client = five.client("").await;
    let _ = acquire(&client, LONG).await.release().await.unwrap();
    for dead in [0, 2, 3] {
        five.0[dead].kill();
    }
    let clock = client.clock();
    for wait in [Wait::Try, Wait::For(Duration::from_secs(1))] {
        let began = clock.now();
        let answer = within(PATIENCE, "it ends", client.lock("a").ttl(LONG).wait(wait).acquire()).await;
        let Err(error @ AcquireError::Engine(EngineError::Unreachable { .. })) = answer else {
            panic!("{answer:?}")
        };
        assert!(clock.now().since(began) < LONG / 10, "much less than the ttl");
        let text = error.to_string();
        assert!(text.contains("3 of 5 instances failed, and 3 must answer"), "{text}");
        assert!(text.contains(&five.0[2].addr().to_string()), "which: {text}");
    }
    let refused = Client::connect(&format!(
        "redlock://{}",
        five.0.each_ref().map(|redis| redis.addr().to_string()).join(",")
    ))
    .await;
    assert!(matches!(refused, Err(ConnectError::Engine(EngineError::Unreachable { .. }))), "{refused:?}");
    for dead in [0, 2, 3] {
        five.0[dead].restart();
    }
    eventually("nothing is left on any of them", || five.having("a") == 0);
    let _ = acquire(&client, LONG).await.release().await.unwrap();
}

/// A majority dies under a holder and comes back with its data in time: that was a danger, and no loss.
#[tokio::test(flavor = "multi_thread")]
async fn a_majority_that_comes_back_in_time_costs_nothing() {
    let mut five = Five::with_data();
    let client = five.client("").await;
    let held = acquire(&client, Duration::from_mins(1)).await;
    for dead in [0, 1, 2] {
        five.0[dead].kill();
    }
    eventually("the holder is told", || matches!(held.state(), GuardState::Jeopardy { .. }));
    for dead in [0, 1, 2] {
        five.0[dead].restart();
    }
    eventually("the danger is over", || held.state() == GuardState::Held);
    assert_eq!(held.release().await.unwrap(), Release::Released);
    eventually("nothing is left on any of them", || five.having("a") == 0);
}

/// One that is stopped keeps its connections, and answers nobody. It is not waited for, and what it does when it wakes up is undone.
#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_paused_slows_nobody_and_keeps_nothing() {
    let mut five = Five::start();
    let client = five.client("").await;
    let _ = acquire(&client, LONG).await.release().await.unwrap();
    five.0[3].pause();
    let clock = client.clock();
    let began = clock.now();
    for _ in 0..5 {
        let held = acquire(&client, LONG).await;
        assert!(client.lock("a").try_acquire().await.unwrap().is_none());
        let _ = held.release().await.unwrap();
    }
    // An instance has a second. Where its vote decides, since another one has not heard of the last release yet, it is waited for, and not
    // for longer.
    assert!(
        clock.now().since(began) < Duration::from_secs(45),
        "somebody waited for the one that is stopped"
    );
    five.0[3].resume();
    eventually("nothing is left on any of them", || five.having("a") == 0);
    let held = acquire(&client, LONG).await;
    eventually("the fifth takes part again", || five.having("a") == 5);
    let _ = held.release().await.unwrap();
}

/// Two votes are ours, two are another client's, and the fifth instance is silent: it is not waited for, although it could still decide.
#[tokio::test(flavor = "multi_thread")]
async fn a_split_vote_is_given_back_without_waiting_for_a_silent_instance() {
    let mut five = Five::start();
    // Nobody waits for a minute unless for the silent instance.
    let client = five.client("timeout_ms=60000").await;
    let _ = acquire(&client, LONG).await.release().await.unwrap();
    eventually("all instances have released it", || five.having("a") == 0);
    for redis in &five.0[..2] {
        redis.command(&["SET", "a", "another client", "PX", "600000"]);
    }
    five.0[4].pause();
    let busy =
        within(Duration::from_secs(45), "the vote is decided", client.lock("a").ttl(LONG).try_acquire())
            .await;
    assert!(busy.unwrap().is_none());
    let free = |redis: &Redis| redis.command(&["EXISTS", "a"]) == "0";
    eventually("our votes are given back", || five.0[2..4].iter().all(free));
    five.0[4].resume();
    eventually("the late vote is given back", || free(&five.0[4]));
    assert_eq!(five.having("a"), 2, "the votes of the other client stand");
}

/// Instances that are silent but keep their connections, as after a SIGSTOP, do not stop clients that contend for a lock.
#[tokio::test(flavor = "multi_thread")]
async fn contending_clients_get_the_lock_while_one_or_two_of_five_instances_are_silent() {
    const GRANTS: usize = 500;
    let mut five = Five::start();
    let clients = [five.client("").await, five.client("").await, five.client("").await];
    let is_held = AtomicBool::new(false);
    for silent in [4, 3] {
        five.0[silent].pause();
        let grants = AtomicUsize::new(0);
        let contend = async |client: &Client| {
            while grants.load(Ordering::Relaxed) < GRANTS {
                let held = acquire(client, Duration::from_secs(30)).await;
                assert!(!is_held.swap(true, Ordering::SeqCst), "two clients hold the lock");
                tokio::time::sleep(Duration::from_millis(2)).await;
                is_held.store(false, Ordering::SeqCst);
                let _ = held.release().await.unwrap();
                grants.fetch_add(1, Ordering::Relaxed);
            }
        };
        let contenders = join_all(clients.each_ref().map(contend));
        within(Duration::from_mins(1), "the lock is granted so many times", contenders).await;
    }
}

/// A client that is closed, and whose process may end, has written its releases to the connection of a silent instance: it reads them when it
/// goes on. That holds for locks that the instance has granted and for requests that it has not read yet, and for the first release ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_closed_client_leaves_nothing_on_an_instance_that_was_silent() {
    for is_silent_before in [false, true] {
        let mut five = Five::start();
        let client = five.client("").await;
        if is_silent_before {
            five.0[3].pause();
        }
        let mut guards = Vec::new();
        for nth in 0..20 {
            guards.push(client.lock(format!("a{nth}")).ttl(LONG).acquire().await.unwrap());
        }
        if !is_silent_before {
            eventually("all instances have granted it", || five.having("a19") == 5);
            five.0[3].pause();
        }
        drop(guards);
        within(PATIENCE, "the client is closed", client.close()).await.unwrap();
        five.0[3].resume();
        let left = || five.0.iter().map(|redis| redis.command(&["DBSIZE"])).collect::<Vec<_>>();
        eventually("nothing is left on any of them", || left() == ["0"; 5]);
    }
}

/// The way to one instance fails for those who asked it, and the lock is released by another one, which gets there first. What then arrives
/// late is undone all the same.
#[test]
fn a_release_that_overtakes_leaves_nothing() {
    let five = Five::start();
    let network = Proxy::to(five.0[3].addr());
    let hosts = [0, 1, 2, 4].map(|instance| five.0[instance].addr().to_string()).join(",");
    let url = format!("redlock://{hosts},{}?timeout_ms=1000", network.addr());
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let here = runtime();
    let client = here.block_on(Client::connect(&url)).unwrap();
    let _ = here.block_on(async { acquire(&client, LONG).await.release().await.unwrap() });
    network.cut_present();
    let held = here.block_on(acquire(&client, LONG));
    let (elsewhere, before) = (runtime(), five.0[3].calls("eval"));
    let _ = elsewhere.block_on(held.release()).unwrap();
    eventually("it is asked to release first", || five.0[3].calls("eval") > before);
    let before = five.0[3].calls("set");
    network.heal();
    eventually("it arrives", || five.0[3].calls("set") > before);
    eventually("nothing is left on any of them", || five.having("a") == 0);
}

/// An instance has forgotten the script of the vote, and reads the vote and the release at once, late. It has nothing to release, and votes
/// when the script is sent again. That vote is given back.
#[tokio::test(flavor = "multi_thread")]
async fn a_vote_that_must_be_sent_again_leaves_nothing() {
    let five = Five::start();
    let network = Proxy::to(five.0[3].addr());
    let hosts = [0, 1, 2, 4].map(|instance| five.0[instance].addr().to_string()).join(",");
    let url = format!("redlock://{hosts},{}?fencing=true&timeout_ms=60000", network.addr());
    let client = Client::connect(&url).await.unwrap();
    let _ = acquire(&client, LONG).await.release().await.unwrap();
    eventually("all have heard of it", || five.having("a") == 0);
    five.0[3].command(&["SCRIPT", "FLUSH"]);
    network.cut();
    let _ = acquire(&client, LONG).await.release().await.unwrap();
    let before = five.0[3].calls("set");
    network.heal();
    eventually("it arrives", || five.0[3].calls("set") > before);
    eventually("nothing is left on any of them", || five.having("a") == 0);
}

/// What is still under way of a try that failed does not touch what a later try of the same request got.
#[tokio::test(flavor = "multi_thread")]
async fn a_late_release_of_an_earlier_try_frees_nothing() {
    let mut three = [(); 3].map(|()| Redis::start());
    let hosts = three.each_ref().map(|redis| redis.addr().to_string()).join(",");
    let client = Client::connect(&format!("redlock://{hosts}?timeout_ms=1000")).await.unwrap();
    let _ = acquire(&client, LONG).await.release().await.unwrap();
    three[0].command(&["SET", "a", "somebody", "PX", "600000"]);
    three[2].pause();
    // One is somebody else's and one does not answer: no majority, again and again.
    let waiting = tokio::spawn(client.lock("a").ttl(LONG).acquire());
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!waiting.is_finished());
    three[0].command(&["DEL", "a"]);
    let held = within(PATIENCE, "it is got from the two", waiting).await.unwrap().unwrap();
    three[2].resume();
    // That nothing comes is seen only by giving it the time to come.
    tokio::time::sleep(Duration::from_secs(6)).await;
    let standing = three.iter().filter(|redis| redis.command(&["EXISTS", "a"]) == "1").count();
    assert!(standing >= 2, "{standing} of 3 have it");
    assert!(held.check().is_ok());
    let _ = held.release().await.unwrap();
    eventually("nothing is left", || three.iter().all(|redis| redis.command(&["EXISTS", "a"]) == "0"));
}

/// Others hold a majority, or one and one: what was got of the rest is given back at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_try_that_fails_gives_back_what_it_got() {
    let five = Five::start();
    let client = five.client("fencing=true").await;
    for redis in &five.0[..3] {
        redis.command(&["SET", "a", "somebody", "PX", "600000"]);
    }
    assert!(client.lock("a").try_acquire().await.unwrap().is_none());
    eventually("the other two are free", || five.having("a") == 3);
    assert_eq!(client.inspect("a").await.unwrap().holders.len(), 1, "somebody else holds a majority");
    five.0[0].command(&["DEL", "a"]);
    assert!(client.inspect("a").await.unwrap().holders.is_empty(), "nobody holds a majority");
    let _ = acquire(&client, LONG).await.release().await.unwrap();
    eventually("theirs is left alone", || five.having("a") == 2);
}

/// The clock of a minority jumps by an hour, ahead or back: nobody else gets in.
#[tokio::test(flavor = "multi_thread")]
async fn a_minority_whose_clock_jumps_does_no_harm() {
    for by_s in [HOUR_S, -HOUR_S] {
        let mut five = Five::with_clocks();
        let client = five.client("fencing=true").await;
        let held = acquire(&client, LONG).await;
        eventually("all five have it", || five.having("a") == 5);
        five.0[0].step_clock(by_s);
        five.0[1].step_clock(by_s);
        assert!(client.lock("a").try_acquire().await.unwrap().is_none(), "two hold, after {by_s} s");
        let token = held.token();
        assert_eq!(held.release().await.unwrap(), Release::Released);
        let next = acquire(&client, LONG).await;
        assert!(next.token() > token);
    }
}

/// The clock of a majority jumps ahead: their keys expire, and **two hold**, both within what they may believe. That is what Redlock assumes
/// away, and what the token is for: it still rises.
#[tokio::test(flavor = "multi_thread")]
async fn a_majority_whose_clock_jumps_lets_two_in_and_tokens_still_rise() {
    let mut five = Five::with_clocks();
    let client = five.client("fencing=true").await;
    let first = acquire(&client, LONG).await;
    eventually("all five have it", || five.having("a") == 5);
    for redis in &mut five.0[..3] {
        redis.step_clock(HOUR_S);
    }
    let second = acquire(&client, LONG).await;
    assert!(first.check().is_ok() && second.check().is_ok(), "this is the damage: both believe");
    assert!(second.token() > first.token(), "{:?} after {:?}", second.token(), first.token());
    // And back again: what they count as an hour from now is kept for an hour, and no token goes back.
    for redis in &mut five.0[..3] {
        redis.step_clock(-HOUR_S);
    }
    let token = second.token();
    drop(first);
    let _ = second.release().await.unwrap();
    let third = acquire(&client, LONG).await;
    assert!(third.token() > token, "{:?} after {token:?}", third.token());
}

/// Instances are stopped and started again, with their data and without: each grant has a larger token than all before it.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_rise_over_restarts_with_and_without_data() {
    for mut five in [Five::with_data(), Five::start()] {
        let client = five.client("fencing=true").await;
        let mut last = None;
        for turn in 0..10 {
            let guard = acquire(&client, LONG).await;
            assert!(guard.token() > last, "turn {turn}: {:?} after {last:?}", guard.token());
            last = guard.token();
            let _ = guard.release().await.unwrap();
            five.0[turn % 5].kill();
            if turn % 2 == 0 {
                // Two are dead for one grant.
                five.0[(turn + 1) % 5].kill();
                let guard = acquire(&client, LONG).await;
                assert!(guard.token() > last, "turn {turn}: {:?} after {last:?}", guard.token());
                last = guard.token();
                let _ = guard.release().await.unwrap();
                five.0[(turn + 1) % 5].restart();
            }
            five.0[turn % 5].restart();
        }
    }
}

/// What the token rests on: a majority that has forgotten it, *and* whose clocks went back, does not know better.
#[tokio::test(flavor = "multi_thread")]
async fn a_majority_that_forgot_and_whose_clocks_went_back_gives_smaller_tokens() {
    let mut five = Five::with_clocks();
    let client = five.client("fencing=true").await;
    let first = acquire(&client, LONG).await;
    let token = first.token();
    let _ = first.release().await.unwrap();
    for redis in &mut five.0[..3] {
        redis.step_clock(-HOUR_S);
        redis.kill();
        redis.restart();
    }
    // Those who know it are not there.
    five.0[3].kill();
    five.0[4].kill();
    let second = acquire(&client, LONG).await;
    assert!(second.token() < token, "it is not as bad as the documentation says");
}

/// Three of five have it, whichever three that are.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_is_known_for_as_long_as_every_majority_has_one_that_knows_it() {
    let mut five = Five::start();
    let client = five.client("").await;
    let begin = || client.once_per("a", LONG).begin();
    let Turn::Yours(run) = begin().await.unwrap() else { panic!("nobody has run it") };
    assert_eq!(run.succeeded().await.unwrap(), Release::Released);
    eventually("the last two record it, too", || five.having("tenure:start:a") == 5);
    // They forget it.
    for forgetful in [0, 1] {
        five.0[forgetful].kill();
        five.0[forgetful].restart();
    }
    assert!(matches!(begin().await.unwrap(), Turn::AlreadyRun { .. }));
    // Each majority has one of the three that know it.
    for dead in [3, 4] {
        five.0[dead].kill();
    }
    assert!(matches!(begin().await.unwrap(), Turn::AlreadyRun { .. }));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_too_few_record_is_in_doubt_and_nothing_runs_again() {
    let five = Five::start();
    let client = five.client("").await;
    let begin = || client.once_per("a", LONG).ttl(LONG).record(Record::AtSuccess).begin();
    for lost in [3, 5] {
        let Turn::Yours(run) = begin().await.unwrap() else { panic!("nobody has run it") };
        eventually("all have its key", || five.having("a") == 5);
        for redis in &five.0[..lost] {
            redis.command(&["DEL", "a"]);
        }
        let answer = run.succeeded().await;
        if lost == 5 {
            assert!(matches!(answer, Err(OncePerError::Lost(_))), "{answer:?}");
            break;
        }
        assert!(matches!(answer, Err(OncePerError::SuccessInDoubt { .. })), "{answer:?}");
        assert_eq!(five.having("tenure:start:a"), 2);
        assert!(matches!(begin().await.unwrap(), Turn::AlreadyRun { .. }), "two of five show it");
        for redis in &five.0 {
            redis.command(&["DEL", "tenure:start:a"]);
        }
    }
    assert_eq!(five.having("tenure:start:a"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_even_number_and_the_same_server_twice_are_refused() {
    let servers = [Redis::start(), Redis::start()];
    let [first, second] = servers.each_ref().map(|redis| redis.port());
    let refusal = async |url: String| Client::connect(&url).await.expect_err("it is refused").to_string();
    let even = refusal(format!("redlock://localhost:{first},localhost:{second}")).await;
    assert!(even.contains("even number") && even.contains("3 or 5"), "{even}");
    let twice = refusal(format!("redlock://localhost:{first},localhost:{second},LOCALHOST:{first}")).await;
    assert!(twice.contains("twice") || twice.contains("same server"), "{twice}");
    let same = refusal(format!("redlock://localhost:{first},127.0.0.1:{first},localhost:{second}")).await;
    assert!(same.contains("are the same server"), "{same}");
    let replica = Redis::builder().args(["--replicaof", "127.0.0.1", &first.to_string()]).start();
    let replica =
        refusal(format!("redlock://localhost:{first},localhost:{second},localhost:{}", replica.port())).await;
    assert!(replica.contains("read-only replica"), "{replica}");
}

/// The name service may fail for one host as its server may.
#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_host_counts_as_an_instance_that_is_down() {
    let servers = [Redis::start(), Redis::start()];
    let [first, second] = servers.each_ref().map(|redis| redis.addr());
    let client = Client::connect(&format!("redlock://{first},{second},no-such-host.invalid")).await.unwrap();
    let _ = acquire(&client, LONG).await.release().await.unwrap();
}

/// Where a majority has forgotten a grant, its release says so, although some still had it.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_of_what_a_majority_forgot_is_no_release() {
    let five = Five::start();
    let client = five.client("").await;
    let held = acquire(&client, LONG).await;
    eventually("all five have it", || five.having("a") == 5);
    for redis in &five.0[..3] {
        redis.command(&["DEL", "a"]);
    }
    assert_eq!(held.release().await.unwrap(), Release::AlreadyLost(tenure::LostReason::Forgotten));
    eventually("nothing is left", || five.having("a") == 0);
}

/// One has forgotten it and another does not answer: those who are silent may have it yet, so it is in danger and not lost. And it is seen.
#[tokio::test(flavor = "multi_thread")]
async fn silence_is_not_a_no() {
    let mut three = [(); 3].map(|()| Redis::start());
    let hosts = three.each_ref().map(|redis| redis.addr().to_string()).join(",");
    let client = Client::connect(&format!("redlock://{hosts}")).await.unwrap();
    let held = acquire(&client, Duration::from_secs(40)).await;
    eventually("all have it", || three.iter().all(|redis| redis.command(&["EXISTS", "a"]) == "1"));
    three[0].command(&["DEL", "a"]);
    three[1].pause();
    eventually("it is in danger", || matches!(held.state(), GuardState::Jeopardy { .. }));
    assert_eq!(client.inspect("a").await.unwrap().holders.len(), 1, "the silent one may have it too");
    three[1].resume();
    eventually("the danger is over", || held.state() == GuardState::Held);
    let _ = held.release().await.unwrap();
}

/// However many locks come and go while an instance is down, one task cleans up there, and other locks are renewed.
#[tokio::test(flavor = "multi_thread")]
async fn many_locks_while_one_is_down_cost_no_other_lock() {
    let mut three = [(); 3].map(|()| Redis::start());
    let hosts = three.each_ref().map(|redis| redis.addr().to_string()).join(",");
    let client = Client::connect(&format!("redlock://{hosts}")).await.unwrap();
    let other = client.lock("other").ttl(Duration::from_secs(5)).acquire().await.unwrap();
    three[2].pause();
    for _ in 0..2000 {
        let _ = acquire(&client, LONG).await.release().await.unwrap();
    }
    assert!(other.check().is_ok());
    three[2].resume();
    eventually("nothing is left there", || three[2].command(&["EXISTS", "a"]) == "0");
    assert_eq!(other.release().await.unwrap(), Release::Released);
}
