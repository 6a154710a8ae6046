//! Servers that do not do what they are asked to: each says what is wrong, and what to do.

use tenure::contract::within;
use tenure::{AcquireError, EngineError};

use super::{Database, LONG, PATIENCE, connect, recipes, refusal};

pub(crate) async fn a_read_only_server_is_said_to_be_and_leaves_nothing_locked<D: Database>() {
    let mut server = D::start();
    server.add_user("locker", "pw");
    let login = server.login("locker:pw", &server.database());
    // Its administrator makes the tables.
    for recipe in recipes::<D>() {
        drop(connect(&server.recipe(recipe, "")).await.lock("a").acquire().await.unwrap());
    }
    server.let_use_tables("locker");
    let mut clients = Vec::new();
    for recipe in recipes::<D>() {
        let client = connect(&format!("{login}?recipe={recipe}")).await;
        let held = client.lock("held").ttl(LONG).acquire().await.unwrap();
        clients.push((recipe, client, held));
    }
    server.set_read_only(true);
    for (recipe, client, held) in &clients {
        let error = client.lock("a").acquire().await.unwrap_err();
        let AcquireError::Engine(EngineError::Refused { message, .. }) = &error else {
            panic!("{recipe}: {error:?}")
        };
        assert!(message.contains("read-only") && message.contains("replica"), "{recipe}: {message}");
        assert!(held.check().is_ok(), "{recipe}");
    }
    let refused = refusal(&format!("{login}?table=others")).await;
    assert!(refused.contains("read-only"), "{refused}");
    server.set_read_only(false);
    for (recipe, client, held) in clients {
        let guard = within(PATIENCE, "it can be written to", client.lock("a").acquire()).await;
        drop(guard.unwrap_or_else(|error| panic!("{recipe}: {error}")));
        held.release().await.unwrap();
    }
}

pub(crate) async fn a_wrong_login_is_said_and_no_password_repeated<D: Database>() {
    const ADVICE: &str = "user, password or database is wrong: correct the URL";
    let mut server = D::start();
    server.add_user("locker", "s3cret/@:");
    let database = server.database();
    for (login, database) in [
        ("locker:wr0ng", &*database),
        ("locker", &*database),
        ("nobody:wr0ng", &*database),
        ("locker:s3cret%2F%40%3A", "no_such_database"),
    ] {
        for recipe in recipes::<D>() {
            let refused = refusal(&format!("{}?recipe={recipe}", server.login(login, database))).await;
            assert!(refused.contains(ADVICE), "{login} at {database}, {recipe}: {refused}");
            assert!(!refused.contains("wr0ng") && !refused.contains("s3cret"), "{refused}");
        }
    }
    drop(connect(&server.url()).await);
    server.let_use_tables("locker");
    let client = connect(&server.login("locker:s3cret%2F%40%3A", &database)).await;
    drop(client.lock("a").acquire().await.unwrap());
    assert!(!format!("{client:?} {:?} {}", client.engine(), client.engine().place()).contains("s3cret"));
}

pub(crate) async fn who_may_not_create_tables_is_told_how_and_can_lock_afterwards<D: Database>() {
    let mut server = D::start();
    server.add_user("locker", "pw");
    let login = server.login("locker:pw", &server.database());
    server.sql("CREATE TABLE others (a INT)");
    server.let_use_tables("locker");
    for recipe in recipes::<D>() {
        let refused = refusal(&format!("{login}?recipe={recipe}")).await;
        assert!(refused.contains("may not") && refused.contains("`tenure migrate --print`"), "{refused}");
    }
    for recipe in recipes::<D>() {
        drop(connect(&server.recipe(recipe, "")).await);
    }
    server.let_use_tables("locker");
    for recipe in recipes::<D>() {
        let client = connect(&format!("{login}?recipe={recipe}")).await;
        let guard = client.lock("a").ttl(LONG).acquire().await.unwrap();
        let waiting = tokio::spawn(client.lock("a").ttl(LONG).acquire());
        let seen =
            async || server.waiting().len() == 1 || client.inspect("a").await.unwrap().waiters.len() == 1;
        tenure::contract::eventually(PATIENCE, "the waiter is seen", seen).await;
        assert_eq!(client.inspect("a").await.unwrap().holders.len(), 1, "{recipe}");
        guard.release().await.unwrap();
        let next = within(PATIENCE, "the waiter gets it", waiting).await.unwrap().unwrap();
        next.release().await.unwrap();
    }
}
