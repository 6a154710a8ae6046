//! Who may touch which nodes: ZooKeeper's logins by digest.

use tenure::{AcquireError, Break, BreakError, Client, ConnectError, EngineError, InspectError};
use tenure_testkit::ZooKeeper;

use crate::tree::Tree;
use crate::{LONG, connect, in_full, is_busy};

const PASSWORD: &str = "s3cret/@:";

fn url(login: &str, root: &str) -> String {
    format!("zookeeper://{login}{}/{root}?tick_ms=500", ZooKeeper::shared().addr())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_user_locks_is_that_users_only() {
    let client = connect(&url("al:s3cret%2F%40%3A@", "login")).await;
    let held = client.lock("a/b").ttl(LONG).acquire().await.unwrap();
    held.set_value("mine").await.unwrap();
    let tree = Tree::logged_in(ZooKeeper::shared().addr(), Some(&format!("al:{PASSWORD}"))).await;
    for path in ["/login", "/login/a", "/login/a/b", "/login/a/b/~%value"] {
        let acl = tree.acl_of(path).await;
        assert_eq!(acl.len(), 1, "{path}: {acl:?}");
        assert!(acl[0].scheme() == "digest" && acl[0].id().starts_with("al:"), "{path}: {acl:?}");
    }
    let entries = tree.children("/login/a/b").await;
    let entry = entries.iter().find(|child| child.contains("__lock__")).expect("somebody holds it");
    assert!(tree.acl_of(&format!("/login/a/b/{entry}")).await[0].id().starts_with("al:"));

    for login in ["", "al:wr0ng@", "bo:s3cret%2F%40%3A@"] {
        let stranger = connect(&url(login, "login")).await;
        let refusals = [
            stranger.lock("a/b").try_acquire().await.map(drop).unwrap_err(),
            stranger.lock("a/b").acquire().await.map(drop).unwrap_err(),
            stranger.lock("another").acquire().await.map(drop).unwrap_err(),
        ];
        for error in refusals {
            assert!(matches!(error, AcquireError::Engine(EngineError::Denied { .. })), "{login}: {error:?}");
            says_what_to_do(&in_full(&error));
        }
        let error = stranger.inspect("a/b").await.unwrap_err();
        assert!(matches!(error, InspectError::Engine(EngineError::Denied { .. })), "{login}: {error:?}");
        says_what_to_do(&in_full(&error));
        assert_eq!(stranger.list("").await.unwrap(), [], "{login}: what is not its own is not seen");
        let error = stranger.break_lock("a/b", Break::Force).await.unwrap_err();
        assert!(matches!(error, BreakError::Engine(EngineError::Denied { .. })), "{login}: {error:?}");
        says_what_to_do(&in_full(&error));
        let shown = format!("{stranger:?} {:?} {}", stranger.engine(), stranger.engine().place());
        assert!(!shown.contains("wr0ng") && !shown.contains("s3cret"), "{shown}");
        // Where nobody was before, it may.
        let own = connect(&url(login, &format!("login-{}", login.len()))).await;
        drop(own.lock("a/b").acquire().await.unwrap());
    }
    assert!(
        held.check().is_ok() && is_busy(&connect(&url("al:s3cret%2F%40%3A@", "login")).await, "a/b").await
    );
}

fn says_what_to_do(text: &str) {
    assert!(text.contains("log in as the user who made them"), "{text}");
    assert_eq!(text.matches("not authorized").count(), 1, "the answer of the server: {text}");
    assert!(!text.contains("s3cret") && !text.contains("wr0ng"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_wants_a_login_says_so() {
    let server = ZooKeeper::builder()
        .property("zookeeper.enforce.auth.enabled", "true")
        .property("zookeeper.enforce.auth.schemes", "digest")
        .start();
    let error = Client::connect(&server.url()).await.unwrap_err();
    let text = in_full(&error);
    assert!(matches!(error, ConnectError::Engine(EngineError::Denied { .. })), "{error:?}");
    assert!(text.contains("user and password in the URL"), "{text}");
    assert_eq!(text.matches("authentication failed").count(), 1, "the answer of the server: {text}");
    let client = connect(&format!("zookeeper://al:{}@{}", "s3cret", server.addr())).await;
    drop(client.lock("a").acquire().await.unwrap());
}
