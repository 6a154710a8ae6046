//! What happens when Redis is not as it should be: each either works, or says what is wrong.

use std::time::Duration;

use tenure::{AcquireError, Client, ConnectError, EngineError, Guard, GuardState, LostReason, Release, Wait};
use tenure_testkit::{Persistence, Proxy, Redis, eventually, free_port};

use crate::{LONG, connect, refusal};

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_with_its_data_costs_nothing() {
    let mut redis = Redis::builder().persistence(Persistence::AofAlways).start();
    let client = connect(&redis.url()).await;
    let guard = client.lock("a").ttl(Duration::from_secs(30)).acquire().await.unwrap();
    guard.set_value("kept").await.unwrap();
    let waiting = tokio::spawn(client.lock("a").ttl(LONG).acquire());
    eventually("the waiter is seen", || redis.command(&["EXISTS", "tenure:queue:a"]) == "1");
    redis.kill();
    redis.restart();
    assert!(guard.check().is_ok());
    assert!(!waiting.is_finished());
    let token = guard.token();
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    let next = waiting.await.unwrap().unwrap();
    assert!(next.token() > token);
    assert_eq!(next.value().bytes, "kept");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_without_its_data_is_told_to_the_holder_and_tokens_still_rise() {
    let mut redis = Redis::start();
    let client = connect(&redis.url()).await;
    let guard = client.lock("a").ttl(Duration::from_secs(6)).acquire().await.unwrap();
    redis.kill();
    redis.restart();
    assert_eq!(guard.lost().await, LostReason::Forgotten);
    let next = client.lock("a").acquire().await.unwrap();
    assert!(next.token() > guard.token(), "{:?} after {:?}", next.token(), guard.token());
    assert_eq!(guard.release().await.unwrap(), Release::AlreadyLost(LostReason::Forgotten));
    assert!(next.check().is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_is_gone_is_said_to_be() {
    let mut redis = Redis::start();
    let client = connect(&redis.url()).await;
    let guard = client.lock("a").ttl(Duration::from_secs(5)).acquire().await.unwrap();
    redis.kill();
    let error = client.lock("b").wait(Wait::Try).acquire().await.unwrap_err();
    assert!(matches!(error, AcquireError::Engine(EngineError::Unreachable { .. })), "{error:?}");
    assert!(error.to_string().contains(&redis.addr().to_string()), "where it looked: {error}");
    assert!(client.inspect("a").await.is_err());
    eventually("the holder is in danger", || {
        matches!(guard.state(), GuardState::Jeopardy { .. } | GuardState::Lost(_))
    });
    assert_eq!(guard.lost().await, LostReason::Expired);
    let connected = Client::connect(&redis.url()).await.unwrap_err();
    assert!(matches!(connected, ConnectError::Engine(EngineError::Unreachable { .. })), "{connected:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_outlasts_a_restart() {
    let mut redis = Redis::start();
    let client = connect(&redis.url()).await;
    let holder = connect(&redis.url()).await;
    let guard = holder.lock("a").ttl(LONG).acquire().await.unwrap();
    let waiting = tokio::spawn(client.lock("a").ttl(LONG).acquire());
    eventually("the waiter is seen", || redis.command(&["EXISTS", "tenure:queue:a"]) == "1");
    redis.kill();
    redis.restart();
    // It forgot the lock, so the waiter gets it: this is what a Redis without persistence is.
    let next = waiting.await.unwrap().unwrap();
    assert!(next.token() > guard.token());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_only_replica_is_refused_and_its_master_named() {
    let master = Redis::start();
    let replica = Redis::builder().args(["--replicaof", "127.0.0.1", &master.port().to_string()]).start();
    let refused = refusal(&replica.url()).await;
    assert!(
        refused.contains("read-only replica") && refused.contains(&master.port().to_string()),
        "{refused}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_master_that_becomes_a_replica_keeps_nobody_believing() {
    let (first, second) = (Redis::start(), Redis::start());
    let client = connect(&first.url()).await;
    let guard = client.lock("a").ttl(Duration::from_secs(4)).acquire().await.unwrap();
    first.command(&["REPLICAOF", "127.0.0.1", &second.port().to_string()]);
    let refused = client.lock("b").wait(Wait::Try).acquire().await.unwrap_err().to_string();
    assert!(refused.contains("read-only replica"), "{refused}");
    // Whether Redis still has the key depends on how far it has come: the holder is told in either case.
    let lost = guard.lost().await;
    assert!(matches!(lost, LostReason::Expired | LostReason::Forgotten), "{lost:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn out_of_memory_is_said_and_what_is_held_is_renewed_and_released() {
    let redis = Redis::start();
    let client = connect(&redis.url()).await;
    let guard = client.lock("a").ttl(Duration::from_secs(3)).acquire().await.unwrap();
    let reader = client.lock("read").shared().ttl(Duration::from_secs(3)).acquire().await.unwrap();
    let waited_for = client.lock("waited-for").ttl(LONG).acquire().await.unwrap();
    let waiting = tokio::spawn(client.lock("waited-for").ttl(LONG).acquire());
    eventually("the waiter is seen", || redis.command(&["EXISTS", "tenure:queue:waited-for"]) == "1");
    redis.command(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(waited_for.release().await.unwrap(), Release::Released);
    // Unless it has asked meanwhile, and was refused, it has got it.
    drop(waiting.await.unwrap());
    let refused = client.lock("b").acquire().await.unwrap_err();
    assert!(matches!(refused, AcquireError::Engine(EngineError::Refused { .. })), "{refused:?}");
    assert!(refused.to_string().contains("out of memory"), "{refused}");
    let (deadline, of_reader) = (guard.deadline(), reader.deadline());
    eventually("it is renewed all the same", || guard.deadline() > deadline);
    eventually("readers too", || reader.deadline() > of_reader);
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    client.break_lock("read", tenure::Break::Ask).await.unwrap();
    assert_eq!(reader.lost().await, LostReason::Broken);
    redis.command(&["CONFIG", "SET", "maxmemory", "0"]);
    drop(client.lock("b").acquire().await.unwrap());
}

/// What kind of error it is, what the server or the system said, and that this is said once.
#[tokio::test(flavor = "multi_thread")]
async fn an_error_says_once_what_was_said_and_keeps_its_cause() {
    let redis = Redis::start();
    redis.command(&["ACL", "SETUSER", "nobody", "on", ">pw"]);
    redis.command(&["ACL", "SETUSER", "default", "resetpass", ">s3cret"]);
    let (at, nowhere) = (redis.addr(), free_port());
    // A name that nobody has to be asked about.
    let host = "x".repeat(70);
    let kind = |error: &EngineError| match error {
        EngineError::Unreachable { .. } => "unreachable",
        EngineError::Denied { .. } => "denied",
        EngineError::NotFound { .. } => "not found",
        _ => "another",
    };
    for (url, expected, said) in [
        (format!("redis://127.0.0.1:{nowhere}"), "unreachable", "Connection refused"),
        (format!("redis://{host}"), "not found", "failed to lookup address information"),
        (format!("redis://:s3cret@{at}/99"), "not found", "DB index is out of range"),
        (format!("redis://{at}"), "denied", "NOAUTH"),
        (format!("redis://:wrong@{at}"), "denied", "rejected user or password"),
        (format!("redis://nobody:pw@{at}"), "denied", "NOPERM"),
    ] {
        let error = match Client::connect(&url).await {
            Err(ConnectError::Engine(error)) => error,
            Err(error) => panic!("{url}: {error}"),
            Ok(client) => match client.lock("a").acquire().await {
                Err(AcquireError::Engine(error)) => error,
                other => panic!("{url}: {other:?}"),
            },
        };
        let text = error.to_string();
        assert_eq!(kind(&error), expected, "{url}: {text}");
        assert_eq!(text.matches(said).count(), 1, "{url}: {text}");
        assert!(std::error::Error::source(&error).is_some(), "{url}: {text}");
    }
}

/// A connection that is still being opened when its client has ended, on a runtime that goes on.
#[test]
fn a_client_that_did_not_connect_in_time_leaves_no_task_behind() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}?timeout_ms=100", silent.local_addr().unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        Client::connect(&url).await.expect_err("nobody answers");
        tenure::contract::eventually(LONG, "no task is left", async || {
            tokio::runtime::Handle::current().metrics().num_alive_tasks() == 0
        })
        .await;
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_is_asked_for_checked_and_never_repeated() {
    let redis = Redis::start();
    redis.command(&["ACL", "SETUSER", "default", "resetpass", ">s3cret/@:"]);
    let at = redis.addr();
    let refused = refusal(&format!("redis://{at}")).await;
    assert!(refused.contains("password"), "{refused}");
    let refused = refusal(&format!("redis://:wr0ng@{at}")).await;
    assert!(refused.contains("password") && !refused.contains("wr0ng"), "{refused}");
    let client = connect(&format!("redis://:s3cret%2F%40%3A@{at}")).await;
    drop(client.lock("a").acquire().await.unwrap());
    assert!(!format!("{client:?} {:?}", client.engine()).contains("s3cret"));
    assert_eq!(client.engine().place(), format!("redis://{at}/0"));
}

/// The rights that docs/engines/redis.md names are enough, and what is missing is said.
#[tokio::test(flavor = "multi_thread")]
async fn a_user_with_few_rights_can_lock() {
    let redis = Redis::start();
    let rights =
        "~orders/* ~tenure:* &tenure:wake:* +@scripting +@pubsub +@read +@write +@connection +info +time";
    let mut words = vec!["ACL", "SETUSER", "locker", "on", ">pw"];
    words.extend(rights.split(' '));
    redis.command(&words);
    let client = connect(&format!("redis://locker:pw@{}", redis.addr())).await;
    let guard = client.lock("orders/1").ttl(LONG).acquire().await.unwrap();
    let waiting = tokio::spawn(client.lock("orders/1").acquire());
    eventually("the waiter is seen", || redis.command(&["EXISTS", "tenure:queue:orders/1"]) == "1");
    let _ = guard.release().await.unwrap();
    drop(waiting.await.unwrap().unwrap());
    let refused = client.lock("invoices/1").acquire().await.unwrap_err();
    assert!(matches!(refused, AcquireError::Engine(EngineError::Denied { .. })), "{refused:?}");
    assert!(refused.to_string().contains("NOPERM"), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sentinel_and_a_cluster_are_refused() {
    // Its second port, which would be the first one and 10,000, and may be somebody else's.
    let bus = free_port().to_string();
    let cluster = Redis::builder().args(["--cluster-enabled", "yes", "--cluster-port", &bus]).start();
    let refused = refusal(&cluster.url()).await;
    assert!(refused.contains("Redis Cluster") && refused.contains("redlock:"), "{refused}");
    let file = tempfile::NamedTempFile::new().unwrap();
    let sentinel = Redis::builder().sentinel(file.path()).start();
    let refused = refusal(&sentinel.url()).await;
    assert!(refused.contains("Sentinel") && refused.contains("master"), "{refused}");
}

/// The danger that a replica is no cure for: it never saw the lock. Two hold until the first one's renewal is refused; its token is the
/// smaller one.
#[tokio::test(flavor = "multi_thread")]
async fn a_failover_that_loses_a_lock_is_told_to_its_holder() {
    let mut master = Redis::start();
    let replication = Proxy::to(master.addr());
    let replica =
        Redis::builder().args(["--replicaof", "127.0.0.1", &replication.port().to_string()]).start();
    eventually("the replica is in step", || {
        replica.command(&["INFO", "replication"]).contains("master_link_status:up")
    });
    // The name under which the master is known.
    let name = Proxy::to(master.addr());
    let name_of_first = Proxy::to(master.addr());
    let first = connect(&format!("redis://{}", name_of_first.addr())).await;
    let second = connect(&format!("redis://{}", name.addr())).await;
    // Replication is asynchronous: what a master answered, its replica may not have heard.
    replication.cut();
    let held = first.lock("a").ttl(Duration::from_mins(1)).acquire().await.unwrap();
    // Its next renewal comes after all of this, however long that takes.
    name_of_first.cut();
    master.kill();
    replica.command(&["REPLICAOF", "NO", "ONE"]);
    name.lead_to(replica.addr());
    let next = second.lock("a").wait(Wait::For(LONG)).acquire().await.unwrap();
    // This is the damage: both guards are valid.
    let both = held.check().is_ok() && next.check().is_ok();
    assert!(both, "the failover did not lose the lock, or took longer than a lease");
    name_of_first.lead_to(replica.addr());
    name_of_first.heal();
    assert!(
        next.token() > held.token(),
        "storage that compares tokens refuses the first: {next:?}, {held:?}"
    );
    assert_eq!(held.lost().await, LostReason::Forgotten);
    assert!(next.check().is_ok());
    assert_eq!(held.release().await.unwrap(), Release::AlreadyLost(LostReason::Forgotten));
    assert!(
        second.lock("a").try_acquire().await.unwrap().is_none(),
        "the late release freed the next one's lock"
    );
}

/// A master becomes a replica of a server with older data, and then a master again. Its clients keep their connections.
#[tokio::test(flavor = "multi_thread")]
async fn tokens_rise_when_a_master_has_taken_over_older_data() {
    let mut older = Redis::builder().faketime().start();
    older.step_clock(-3600);
    let an_hour_ago = connect(&older.url()).await;
    let _ = an_hour_ago.lock("a").acquire().await.unwrap().release().await.unwrap();
    let redis = Redis::start();
    let client = connect(&redis.url()).await;
    let connections = || -> Vec<String> {
        let all = redis.command(&["CLIENT", "LIST", "TYPE", "normal"]);
        all.lines().filter_map(|line| line.split(' ').next().map(str::to_owned)).collect()
    };
    // Without a script, and with one.
    for wait in [Wait::Forever, Wait::Try] {
        let before = client.lock("a").wait(wait).acquire().await.unwrap();
        let (token, connected) = (before.token(), connections());
        let _ = before.release().await.unwrap();
        redis.command(&["REPLICAOF", "127.0.0.1", &older.port().to_string()]);
        eventually("it has the older data", || {
            redis.command(&["INFO", "replication"]).contains("master_link_status:up")
        });
        redis.command(&["REPLICAOF", "NO", "ONE"]);
        let after = client.lock("a").wait(wait).acquire().await.unwrap();
        assert!(after.token() > token, "{wait:?}: {:?} after {token:?}", after.token());
        assert!(connections().iter().any(|one| connected.contains(one)), "nobody has connected anew");
        let _ = after.release().await.unwrap();
    }
}

/// Leases are counted by Redis' wall clock. If it jumps ahead, they end at once, and two may hold until the first one asks again.
#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_jumps_ahead_ends_leases_and_tokens_still_rise() {
    let mut redis = Redis::builder().faketime().start();
    let client = connect(&redis.url()).await;
    let held = client.lock("a").ttl(Duration::from_mins(2)).acquire().await.unwrap();
    redis.step_clock(3600);
    let next = client.lock("a").ttl(Duration::from_mins(2)).wait(Wait::For(LONG)).acquire().await.unwrap();
    assert!(held.check().is_ok() && next.check().is_ok(), "this is the damage: both believe");
    assert!(next.token() > held.token());
    drop(held);
    // Back again: what was granted in between lives longer than it should, and nothing else.
    redis.step_clock(-3600);
    assert!(client.lock("a").try_acquire().await.unwrap().is_none());
    let token = next.token();
    let _ = next.release().await.unwrap();
    let after = client.lock("a").acquire().await.unwrap();
    assert!(after.token() > token, "{:?} after {token:?}", after.token());
}

/// Messages are lost with the connection that they come on; those who wait are not.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_subscription_is_opened_again() {
    let redis = Redis::start();
    let (holder, client) = (connect(&redis.url()).await, connect(&redis.url()).await);
    for turn in 0..3 {
        let guard = holder.lock("a").ttl(LONG).acquire().await.unwrap();
        let waiting = tokio::spawn(client.lock("a").ttl(LONG).acquire());
        eventually("the waiter is seen", || redis.command(&["EXISTS", "tenure:queue:a"]) == "1");
        redis.command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
        if turn > 0 {
            eventually("it is heard again", || {
                !redis.command(&["CLIENT", "LIST", "TYPE", "pubsub"]).trim().is_empty()
            });
        }
        let _ = guard.release().await.unwrap();
        drop(waiting.await.unwrap().unwrap());
    }
}

/// The answer is lost, the connection breaks, and the wait is over before there is a new one: what was granted is given back all the same.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_ends_unanswered_leaves_nothing() {
    let redis = Redis::start();
    let network = Proxy::to(redis.addr());
    let client = connect(&format!("redis://{}", network.addr())).await;
    let _ = client.lock("before").acquire().await.unwrap().release().await.unwrap();
    network.drop_answers(true);
    let waiting =
        tokio::spawn(client.lock("a").ttl(LONG).wait(Wait::For(Duration::from_millis(300))).acquire());
    eventually("it is granted", || redis.command(&["EXISTS", "a"]) == "1");
    network.sever();
    let answer = waiting.await.unwrap();
    assert!(answer.is_err(), "{answer:?}");
    network.drop_answers(false);
    eventually("it is given back", || redis.command(&["EXISTS", "a"]) == "0");
}

/// The release is done and its answer lost: that is no lost lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_whose_answer_is_lost_has_released() {
    let redis = Redis::start();
    let network = Proxy::to(redis.addr());
    let client = connect(&format!("redis://{}", network.addr())).await;
    // So that Redis knows the script.
    let _ = client.lock("before").acquire().await.unwrap().release().await.unwrap();
    let guard = client.lock("a").ttl(LONG).acquire().await.unwrap();
    network.drop_answers(true);
    let releasing = tokio::spawn(guard.release());
    eventually("it is freed", || redis.command(&["EXISTS", "a"]) == "0");
    network.drop_answers(false);
    assert_eq!(releasing.await.unwrap().unwrap(), Release::Released);
}

/// A success is recorded also if the server has closed the connection meanwhile, since nobody used it.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_that_was_closed_while_idle_costs_nothing() {
    let redis = Redis::start();
    let client = connect(&redis.url()).await;
    let hour = Duration::from_hours(1);
    let tenure::Turn::Yours(run) =
        client.once_per("job", hour).record(tenure::Record::AtSuccess).begin().await.unwrap()
    else {
        panic!("nobody has run it")
    };
    redis.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    assert_eq!(run.succeeded().await.unwrap(), Release::Released);
    let next = client.once_per("job", hour).begin().await.unwrap();
    assert!(matches!(next, tenure::Turn::AlreadyRun { .. }), "{next:?}");
    let guard = client.lock("a").ttl(LONG).acquire().await.unwrap();
    redis.command(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    assert_eq!(client.break_lock("a", tenure::Break::Force).await.unwrap()[0].grant, guard.grant());
}

/// A master is demoted and keeps its connections; its name leads to the new one. Whoever is refused by the old one finds it.
#[tokio::test(flavor = "multi_thread")]
async fn a_demoted_master_is_left_for_the_new_one() {
    let (old, new) = (Redis::start(), Redis::start());
    let name = Proxy::to(old.addr());
    let client = connect(&format!("redis://{}", name.addr())).await;
    let _ = client.lock("a").acquire().await.unwrap().release().await.unwrap();
    // Connections that stand still lead to the old one.
    name.lead_new_ones_to(new.addr());
    old.command(&["REPLICAOF", "127.0.0.1", &new.port().to_string()]);
    let guard = client.lock("a").ttl(LONG).acquire().await.unwrap();
    assert!(new.command(&["GET", "a"]).contains(&guard.grant().to_string()));
}

/// What Redis refused it has not done: there is nothing to undo, and nobody asks it to.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_refused_is_not_undone() {
    let redis = Redis::start();
    let client = connect(&redis.url()).await;
    redis.command(&["RPUSH", "list", "one"]);
    for _ in 0..20 {
        client.lock("list").acquire().await.unwrap_err();
    }
    redis.command(&["CONFIG", "RESETSTAT"]);
    client.clone().close().await.unwrap();
    assert_eq!(redis.calls("evalsha"), 0);
}

/// An acquire that nobody polls any more holds up no other on its runtime.
#[test]
fn an_acquire_that_is_not_polled_is_in_nobodys_way() {
    let redis = Redis::start();
    let client = tenure::blocking::Client::connect(&redis.url()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let mut first = Box::pin(client.as_async().lock("a").acquire());
        assert!(futures_util::poll!(&mut first).is_pending(), "it has to connect");
        drop(client.as_async().lock("b").wait(Wait::Try).acquire().await.unwrap());
        drop(first.await.unwrap());
    });
}

/// A runtime that has neither I/O nor timers has no connections of its own; the client's do.
#[test]
fn a_runtime_without_drivers_can_lock() {
    let redis = Redis::start();
    let client = tenure::blocking::Client::connect(&redis.url()).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let guard = client.as_async().lock("a").acquire().await.unwrap();
        assert!(client.as_async().lock("a").try_acquire().await.unwrap().is_none());
        let _ = guard.release().await.unwrap();
    });
}

/// The client's own connection may still lead to the master that was, which does not know the locks of the new one. Its "not held" is
/// not believed.
#[tokio::test(flavor = "multi_thread")]
async fn a_demoted_master_does_not_deny_what_the_new_one_has_granted() {
    let (old, new) = (Redis::start(), Redis::start());
    let network = Proxy::to(old.addr());
    let client = connect(&format!("redis://{}", network.addr())).await;
    let renewed = |guard: &Guard| {
        let deadline = guard.deadline();
        eventually("it is renewed", || {
            assert_eq!(guard.check(), Ok(()));
            guard.deadline() > deadline
        });
    };
    let ttl = Duration::from_secs(6);
    let before = client.lock("before").ttl(ttl).acquire().await.unwrap();
    // By then, the client's own connection is open as well as that of this runtime.
    renewed(&before);
    assert_eq!(before.release().await.unwrap(), Release::Released);
    network.lead_new_ones_to(new.addr());
    old.command(&["REPLICAOF", "127.0.0.1", &new.port().to_string()]);
    let guard = client.lock("a").ttl(ttl).acquire().await.unwrap();
    assert!(new.command(&["GET", "a"]).contains(&guard.grant().to_string()));
    renewed(&guard);
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    assert_eq!(new.command(&["EXISTS", "a"]), "0");
}
