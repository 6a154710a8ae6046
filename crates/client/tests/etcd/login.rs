//! Users, passwords, and logins that etcd does not know any more.

use std::time::Duration;

use tenure::contract::{eventually, within};
use tenure::{AcquireError, Client, ConnectError, EngineError, Release};
use tenure_testkit::{Etcd, EtcdBuilder};

use crate::{LONG, PATIENCE, connect, refusal, waiters};

/// An etcd with a user `locker` who may use the keys that begin with `app/`.
fn with_users(builder: EtcdBuilder) -> Etcd {
    let etcd = builder.start();
    for words in [
        "user add root:r00t",
        "user grant-role root root",
        "role add locks",
        "role grant-permission locks --prefix=true readwrite app/",
        "user add locker:s3cret/@:",
        "user grant-role locker locks",
        "auth enable",
    ] {
        // Some of these answer that it is there already.
        let _ = etcd.try_ctl(&words.split(' ').collect::<Vec<_>>());
    }
    etcd
}

fn url(etcd: &Etcd) -> String {
    format!("etcd://locker:s3cret%2F%40%3A@{}?prefix=app/", etcd.addr())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_password_is_asked_for_checked_and_never_repeated() {
    let etcd = with_users(Etcd::builder());
    let at = etcd.addr();
    // Each with etcd's own words, once, and what to do.
    for (url, words, advice) in [
        (format!("etcd://{at}"), "user name is empty", "asks for a login"),
        (format!("etcd://locker:wr0ng@{at}?prefix=app/"), "authentication failed", "password is wrong"),
        (format!("etcd://locker:s3cret%2F%40%3A@{at}?prefix=other/"), "permission denied", "`readwrite`"),
    ] {
        let error = Client::connect(&url).await.unwrap_err();
        assert!(matches!(error, ConnectError::Engine(EngineError::Denied { .. })), "{error:?}");
        let text = error.to_string();
        assert_eq!(text.matches(words).count(), 1, "{text}");
        assert_eq!(refusal(&url).await, text, "no cause repeats it");
        assert!(text.contains(advice), "{text}");
        assert!(!text.contains("wr0ng") && !text.contains("s3cret"), "{text}");
    }
    let client = connect(&url(&etcd)).await;
    let guard = client.lock("a").ttl(LONG).acquire().await.unwrap();
    let waiting = tokio::spawn(client.lock("a").acquire());
    waiters(&client, "a", 1).await;
    assert_eq!(client.list("").await.unwrap().len(), 1);
    guard.set_value("x").await.unwrap();
    let _ = guard.release().await.unwrap();
    drop(within(PATIENCE, "the waiter gets it", waiting).await.unwrap().unwrap());
    assert!(!format!("{client:?} {:?}", client.engine()).contains("s3cret"));
    assert_eq!(client.engine().place(), format!("etcd://{at}?prefix=app%2F"));
    // And where nobody is known, a login is not ignored.
    let open = Etcd::start();
    let refused = refusal(&format!("etcd://locker:s3cret@{}", open.addr())).await;
    assert!(refused.contains("not enabled") && !refused.contains("s3cret"), "{refused}");
}

/// A login ends while somebody holds and somebody waits: both go on, and the wait ends with the lock.
#[tokio::test(flavor = "multi_thread")]
async fn a_login_that_runs_out_is_renewed() {
    let etcd = with_users(Etcd::builder().args(["--auth-token-ttl=1"]));
    let (holder, client) = (connect(&url(&etcd)).await, connect(&url(&etcd)).await);
    let guard = holder.lock("a").ttl(Duration::from_secs(30)).acquire().await.unwrap();
    let waiting = tokio::spawn(client.lock("a").ttl(LONG).acquire());
    waiters(&holder, "a", 1).await;
    for _ in 0..2 {
        // Nobody uses it for as long as it lives.
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert!(guard.check().is_ok() && !waiting.is_finished());
        // A second one waits, by a watch that is asked for on the stream of the first.
        let second = tokio::spawn(client.lock("a").ttl(LONG).acquire());
        waiters(&holder, "a", 2).await;
        second.abort();
        waiters(&holder, "a", 1).await;
    }
    assert_eq!(guard.release().await.unwrap(), Release::Released);
    drop(within(PATIENCE, "the waiter gets it", waiting).await.unwrap().unwrap());
}

/// An etcd that was restarted has forgotten all logins.
#[tokio::test(flavor = "multi_thread")]
async fn a_login_that_etcd_forgot_is_renewed() {
    let mut etcd = with_users(Etcd::builder());
    let url = format!("{}&timeout_ms=60000", url(&etcd));
    let (holder, client) = (connect(&url).await, connect(&url).await);
    let guard = holder.lock("a").ttl(Duration::from_mins(1)).acquire().await.unwrap();
    let waiting = tokio::spawn(client.lock("a").ttl(LONG).acquire());
    waiters(&holder, "a", 1).await;
    etcd.kill();
    etcd.restart();
    let deadline = guard.deadline();
    eventually(PATIENCE, "it is renewed", async || guard.deadline() > deadline).await;
    assert!(!waiting.is_finished());
    let _ = guard.release().await.unwrap();
    drop(within(PATIENCE, "the waiter gets it", waiting).await.unwrap().unwrap());
    drop(client.lock("b").acquire().await.unwrap());
}

/// Rights are changed while somebody is logged in: that costs nothing; and one who loses its rights is told so.
#[tokio::test(flavor = "multi_thread")]
async fn rights_that_change_are_heeded() {
    let etcd = with_users(Etcd::builder());
    let client = connect(&url(&etcd)).await;
    let guard = client.lock("a").ttl(LONG).acquire().await.unwrap();
    let root = |words: &str| {
        let mut args = vec!["--user=root:r00t"];
        args.extend(words.split(' '));
        etcd.ctl(&args)
    };
    root("role grant-permission locks --prefix=true readwrite more/");
    guard.set_value("x").await.unwrap();
    let _ = guard.release().await.unwrap();
    root("user revoke-role locker locks");
    let refused = client.lock("a").acquire().await.unwrap_err();
    assert!(matches!(refused, AcquireError::Engine(EngineError::Denied { .. })), "{refused:?}");
    assert!(refused.to_string().contains("permission denied"), "{refused}");
    root("user grant-role locker locks");
    drop(client.lock("a").acquire().await.unwrap());
}
