//! What lies in etcd is what docs/engines/etcd.md says, and no more.

use std::time::Duration;

use tenure::contract::eventually;
use tenure::{AcquireError, EngineError, Mode, Release, Turn};
use tenure_testkit::Etcd;

use crate::{LONG, PATIENCE, connect, waiters};

/// All keys.
fn keys(etcd: &Etcd) -> Vec<String> {
    let mut keys: Vec<_> = etcd
        .ctl(&["get", "", "--from-key", "--keys-only"])
        .lines()
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect();
    keys.sort();
    keys
}

#[tokio::test(flavor = "multi_thread")]
async fn each_who_holds_or_waits_has_a_key_and_values_stay() {
    let etcd = Etcd::start();
    let client = connect(&etcd.url()).await;
    let guard = client.lock("orders/42").ttl(LONG).acquire().await.unwrap();
    assert_eq!(keys(&etcd), [format!("orders/42/{}-EX", guard.grant())]);
    let waiting = tokio::spawn(client.lock("orders/42").shared().ttl(LONG).acquire());
    waiters(&client, "orders/42", 1).await;
    guard.set_value("kept").await.unwrap();
    assert_eq!(keys(&etcd).len(), 3);
    let _ = guard.release().await.unwrap();
    let reader = waiting.await.unwrap().unwrap();
    assert_eq!(reader.mode(), Mode::Pr);
    assert_eq!(
        keys(&etcd),
        [format!("orders/42/{}-PR", reader.grant()), "tenure:value:orders/42".to_owned()]
    );
    let Turn::Yours(run) = client.once_per("job", Duration::from_hours(1)).begin().await.unwrap() else {
        panic!("nobody has run it")
    };
    let _ = run.succeeded().await.unwrap();
    drop(reader);
    client.close().await.unwrap();
    assert_eq!(keys(&etcd), ["tenure:start:job", "tenure:value:orders/42"]);
    // Of the leases, that of the start is left.
    eventually(PATIENCE, "no other lease is left", async || {
        etcd.ctl(&["lease", "list"]).contains("found 1 leases")
    })
    .await;
    let client = connect(&etcd.url()).await;
    let guard = client.lock("orders/42").acquire().await.unwrap();
    guard.set_value("").await.unwrap();
    let _ = guard.release().await.unwrap();
    assert_eq!(keys(&etcd), ["tenure:start:job"], "an empty value is none");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_prefix_keeps_clients_apart() {
    let etcd = Etcd::start();
    let plain = connect(&etcd.url()).await;
    let [one, two] = ["one/", "two/"].map(|prefix| format!("{}?prefix={prefix}", etcd.url()));
    let (one, two) = (connect(&one).await, connect(&two).await);
    let mut guards = Vec::new();
    for client in [&plain, &one, &two] {
        let guard = client.lock("a").ttl(LONG).try_acquire().await.unwrap().expect("it is another lock");
        guard.set_value(client.engine().place()).await.unwrap();
        let infos = client.list("").await.unwrap();
        assert!(infos.iter().any(|info| info.name.as_str() == "a"));
        guards.push(guard);
    }
    assert_eq!(one.list("").await.unwrap().len(), 1, "of other prefixes, nothing is seen");
    let all: Vec<_> = plain.list("").await.unwrap().into_iter().map(|info| info.name.to_string()).collect();
    assert_eq!(all, ["a", "one/a", "two/a"], "who has none sees all");
    // It is nothing but what stands before the name.
    assert!(plain.lock("one/a").try_acquire().await.unwrap().is_none());
    for (client, guard) in [&plain, &one, &two].into_iter().zip(guards) {
        assert_eq!(guard.release().await.unwrap(), Release::Released);
        let found = client.lock("a").acquire().await.unwrap().value().bytes;
        assert_eq!(found, client.engine().place());
    }
    // What the engine keeps for a client with a prefix is nobody's lock.
    let Turn::Yours(run) = one.once_per("job", Duration::from_hours(1)).begin().await.unwrap() else {
        panic!("nobody has run it")
    };
    let _ = run.succeeded().await.unwrap();
    assert!(plain.lock("one").try_acquire().await.unwrap().is_some());
}

/// Keys below a name are not all its own: what lies deeper is another lock's, and what has no lease is no lock.
#[tokio::test(flavor = "multi_thread")]
async fn what_lies_below_a_name_need_not_be_its_own() {
    let etcd = Etcd::start();
    let client = connect(&etcd.url()).await;
    etcd.ctl(&["put", "a/data", "of another program"]);
    let inner: Vec<_> =
        (0..20).map(|number| client.lock(format!("a/{number}")).ttl(LONG).acquire()).collect();
    let inner = futures_util::future::try_join_all(inner).await.unwrap();
    let outer = client.lock("a").ttl(LONG).try_acquire().await.unwrap().expect("the others are other locks");
    assert!(client.lock("a").try_acquire().await.unwrap().is_none());
    let waiting = tokio::spawn(client.lock("a").ttl(LONG).acquire());
    waiters(&client, "a", 1).await;
    assert_eq!(client.inspect("a").await.unwrap().holders.len(), 1);
    assert_eq!(client.list("a").await.unwrap().len(), 21);
    drop(outer);
    drop(waiting.await.unwrap().unwrap());
    drop(inner);
    for name in ["a/", "a//", "/", "//a", "a/../b", " "] {
        let guard = client.lock(name).ttl(LONG).try_acquire().await.unwrap();
        let guard = guard.unwrap_or_else(|| panic!("`{name}` meets another name"));
        assert!(client.lock(name).try_acquire().await.unwrap().is_none());
        assert!(client.list("").await.unwrap().iter().any(|info| info.name.as_str() == name), "`{name}`");
        let _ = guard.release().await.unwrap();
    }
    let own = client.lock("tenure:value:a").acquire().await.unwrap_err();
    assert!(matches!(own, AcquireError::Engine(EngineError::Refused { .. })), "{own:?}");
}

/// What another program wrote where a value would be is not guessed at.
#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_nobody_of_ours_wrote_is_damage() {
    let etcd = Etcd::start();
    let client = connect(&etcd.url()).await;
    etcd.ctl(&["put", "tenure:value:a", "?"]);
    let error = client.lock("a").acquire().await.unwrap_err();
    assert!(matches!(error, AcquireError::Engine(EngineError::Damaged { .. })), "{error:?}");
    assert!(error.to_string().contains("tenure:value:a"), "{error}");
    assert_eq!(keys(&etcd), ["tenure:value:a"], "nobody waits");
}
