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
    let refused = refusal(&format!("{login}?table=others")).await.to_string();
    assert!(refused.contains("read-only"), "{refused}");
    server.set_read_only(false);
    for (recipe, client, held) in clients {
        let guard = within(PATIENCE, "it can be written to", client.lock("a").acquire()).await;
        drop(guard.unwrap_or_else(|error| panic!("{recipe}: {error}")));
        let _ = held.release().await.unwrap();
    }
}

pub(crate) async fn a_wrong_login_is_said_and_no_password_repeated<D: Database>() {
    let mut server = D::start();
    server.add_user("locker", "s3cret/@:");
    let (database, host) =
        (server.database(), server.url().rsplit_once('/').map(|(host, _)| host.to_owned()).unwrap());
    for recipe in recipes::<D>() {
        for login in ["locker:wr0ng", "locker", "nobody:wr0ng"] {
            let refused = refusal(&format!("{}?recipe={recipe}", server.login(login, &database))).await;
            assert!(matches!(refused, EngineError::Denied { .. }), "{login}, {recipe}: {refused:?}");
            let (refused, user) = (refused.to_string(), login.split(':').next().unwrap());
            let said = refused.split_once(" refused the login: ").map(|(_, said)| said);
            assert!(said.is_some_and(|said| said.matches(user).count() == 1), "{login}: {refused}");
            assert!(refused.contains(" at 127.0.0.1:"), "{refused}");
            assert!(!refused.contains("wr0ng") && !refused.contains("s3cret"), "{refused}");
        }
        let missing = refusal(&format!("{host}/no_such_database?recipe={recipe}")).await;
        assert!(matches!(missing, EngineError::NotFound { .. }), "{recipe}: {missing:?}");
        assert_eq!(missing.to_string().matches("no_such_database").count(), 1, "{missing}");
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
        assert!(matches!(refused, EngineError::Denied { .. }), "{recipe}: {refused:?}");
        let refused = refused.to_string().to_lowercase();
        assert!(refused.contains("denied") && refused.contains("`tenure migrate --print`"), "{refused}");
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
        let _ = guard.release().await.unwrap();
        let next = within(PATIENCE, "the waiter gets it", waiting).await.unwrap().unwrap();
        let _ = next.release().await.unwrap();
    }
}
