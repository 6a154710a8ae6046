//! What an administrator may have made the default of every connection.

use tenure::contract::within;
use tenure::{Client, Mode, Release};

use super::{Database, LONG, PATIENCE, connect, recipes};

/// One holds, all others see it, and whoever waits is next.
async fn assert_locks_work(client: &Client, other: &Client, why: &str) {
    const LABEL: &str = r"it's \'me\\";
    let held = client.lock("a").ttl(LONG).label(LABEL).acquire().await.unwrap();
    assert!(other.lock("a").try_acquire().await.unwrap().is_none(), "{why}");
    let seen = other.inspect("a").await.unwrap();
    assert_eq!(seen.holders.len(), 1, "{why}");
    assert_eq!(
        (seen.holders[0].grant, seen.holders[0].label.as_deref()),
        (held.grant(), Some(LABEL)),
        "{why}"
    );
    let waiting = tokio::spawn(other.lock("a").ttl(LONG).acquire());
    drop(within(PATIENCE, why, other.lock("b").acquire()).await.unwrap());
    let token = held.token();
    assert_eq!(held.release().await.unwrap(), Release::Released, "{why}");
    let next = within(PATIENCE, why, waiting).await.unwrap().unwrap();
    assert!(next.token() > token, "{why}: {next:?} after {token:?}");
    assert_eq!(next.release().await.unwrap(), Release::Released, "{why}");
    if client.capabilities().modes.contains(Mode::Pr) {
        let readers = [client.lock("a").shared().acquire().await, other.lock("a").shared().acquire().await];
        assert!(client.lock("a").try_acquire().await.unwrap().is_none(), "{why}");
        for reader in readers {
            assert_eq!(reader.unwrap().release().await.unwrap(), Release::Released, "{why}");
        }
    }
    if client.capabilities().value {
        let value: &[u8] = b"it's \\x00 \\'\0\xff\\";
        let writer = client.lock("a").acquire().await.unwrap();
        writer.set_value(value).await.unwrap();
        let _ = writer.release().await.unwrap();
        assert_eq!(other.lock("a").acquire().await.unwrap().value().bytes, value, "{why}");
    }
}

pub(crate) async fn defaults_of_other_connections_are_not_ours<D: Database>() {
    let mut server = D::start();
    // Not its administrator, whom some defaults spare.
    server.add_user("locker", "pw");
    for recipe in recipes::<D>() {
        drop(connect(&server.recipe(recipe, "")).await);
    }
    server.let_use_tables("locker");
    let login = server.login("locker:pw", &server.database());
    for setting in D::DEFAULTS {
        server.sql(setting);
        for recipe in recipes::<D>() {
            let url = format!("{login}?recipe={recipe}");
            let (client, other) = (connect(&url).await, connect(&url).await);
            assert_locks_work(&client, &other, &format!("{recipe}, {setting}")).await;
            client.close().await.unwrap();
            other.close().await.unwrap();
        }
    }
}
