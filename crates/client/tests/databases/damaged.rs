//! Tables that say what `tenure` never wrote, or lack what it needs.

use tenure::{AcquireError, Client, EngineError, InspectError, Release, Wait};

use super::{Database, LONG, connect};

/// Fails unless whoever asks for the lock, by whatever way, is told of damage.
async fn assert_damaged(client: &Client, name: &str, why: &str) {
    let told = |error: &EngineError| match error {
        EngineError::Damaged { message, .. } => {
            assert!(message.contains("never written there"), "{why}: {message}");
        }
        other => panic!("{why}: {other:?}"),
    };
    for wait in [Wait::Try, Wait::For(LONG)] {
        match client.lock(name).wait(wait).acquire().await {
            Err(AcquireError::Engine(error)) => told(&error),
            other => panic!("{why}, {wait:?}: {other:?}"),
        }
    }
    match client.inspect(name).await {
        Err(InspectError::Engine(error)) => told(&error),
        other => panic!("{why}: {other:?}"),
    }
}

/// What somebody has written is told, and keeps nobody from other locks; when it is right again, all is well.
pub(crate) async fn what_was_never_written_is_told_as_damage<D: Database>() {
    let server = D::start();
    let (client, other) = (connect(&server.url()).await, connect(&server.url()).await);
    // One that is free, one that is held, and one with a value, whose holder is in a table of its own.
    let _ = client.lock("free").acquire().await.unwrap().release().await.unwrap();
    let held = client.lock("held").ttl(LONG).acquire().await.unwrap();
    let listed = client.lock("listed").ttl(LONG).acquire().await.unwrap();
    listed.set_value("kept").await.unwrap();
    for (name, table, column, wrong) in [
        ("free", "tenure_lock", "state", "7"),
        ("held", "tenure_lock", "state", "-1"),
        ("held", "tenure_lock", "mode", "'??'"),
        ("held", "tenure_lock", "mode", "NULL"),
        ("held", "tenure_lock", "holder", "NULL"),
        ("held", "tenure_lock", "owner", "NULL"),
        ("held", "tenure_lock", "details", "NULL"),
        ("listed", "tenure_lock_holder", "mode", "''"),
    ] {
        let (why, of) = (format!("{column} = {wrong} in {table}"), format!("name = '{name}'"));
        server.sql(&format!("CREATE TABLE saved AS SELECT {column} AS was FROM {table} WHERE {of}"));
        server.sql(&format!("UPDATE {table} SET {column} = {wrong} WHERE {of}"));
        assert_damaged(&other, name, &why).await;
        drop(other.lock("another").acquire().await.unwrap());
        server.sql(&format!("UPDATE {table} SET {column} = (SELECT was FROM saved) WHERE {of}"));
        server.sql("DROP TABLE saved");
        assert_eq!(other.lock(name).try_acquire().await.unwrap().is_some(), name == "free", "{why}");
    }
    assert_eq!(held.release().await.unwrap(), Release::Released);
    assert_eq!(listed.release().await.unwrap(), Release::Released);
    assert!(other.lock("listed").acquire().await.unwrap().value().bytes == "kept");
}

/// By what a holder tells of itself nothing is decided.
pub(crate) async fn details_that_nobody_understands_are_left_out<D: Database>() {
    let server = D::start();
    let client = connect(&server.url()).await;
    let held = client.lock("a").ttl(LONG).label("me").acquire().await.unwrap();
    assert_eq!(client.inspect("a").await.unwrap().holders[0].label.as_deref(), Some("me"));
    server.sql("UPDATE tenure_lock SET details = '{{'");
    let info = client.inspect("a").await.unwrap();
    assert_eq!((info.holders.len(), info.holders[0].grant), (1, held.grant()), "{info:?}");
    assert_eq!(info.holders[0].label, None);
    assert!(client.lock("a").try_acquire().await.unwrap().is_none());
    assert_eq!(held.release().await.unwrap(), Release::Released);
}

/// What is told to one who wants a lock that nobody ever had: when it connects, or when it locks.
async fn refusal_to_lock<D: Database>(server: &D, name: &str) -> String {
    match Client::connect(&server.url()).await {
        Ok(client) => client.lock(name).ttl(LONG).acquire().await.map(drop).unwrap_err().to_string(),
        Err(error) => error.to_string(),
    }
}

/// Somebody else's tables, or those of another version.
pub(crate) async fn a_table_that_lacks_a_column_is_told_with_what_to_do<D: Database>() {
    let server = D::start();
    drop(connect(&server.url()).await);
    for (table, column) in
        [("tenure_lock", "start_id"), ("tenure_lock_holder", "broken"), ("tenure_lock_waiter", "called")]
    {
        server.sql(&format!("ALTER TABLE {table} DROP COLUMN {column}"));
        let refused = refusal_to_lock(&server, column).await;
        assert!(refused.contains("tenure migrate"), "{column} of {table}: {refused}");
        server.sql("DROP TABLE tenure_lock, tenure_lock_holder, tenure_lock_waiter");
        drop(connect(&server.url()).await.lock("a").acquire().await.unwrap());
    }
    server.sql("DROP TABLE tenure_lock");
    server.sql("CREATE TABLE tenure_lock (id INT)");
    let refused = refusal_to_lock(&server, "b").await;
    assert!(refused.contains("tenure migrate"), "{refused}");
}
