//! The rights that the engine's page names are all that it takes.

use std::time::Duration;

use tenure::capabilities::Breaking;
use tenure::contract::within;
use tenure::{Break, Client, Release, Turn};

use super::{Database, LONG, PATIENCE, connect, recipes};

/// Each thing that a client can do.
async fn do_everything(client: &Client, why: &str) {
    let can = client.capabilities();
    for mode in can.modes.iter() {
        let guard = client.lock("a").mode(mode).ttl(LONG).acquire().await.unwrap();
        assert_eq!(client.inspect("a").await.unwrap().holders.len(), 1, "{why}, {mode}");
        assert_eq!(client.list("").await.unwrap().len(), 1, "{why}, {mode}");
        assert_eq!(guard.release().await.unwrap(), Release::Released, "{why}, {mode}");
    }
    // The renewal has to log in first, and a slow machine takes seconds to compute what shows the password.
    let held = client.lock("a").ttl(Duration::from_secs(15)).acquire().await.unwrap();
    let waiting = tokio::spawn(client.lock("a").ttl(LONG).acquire());
    let deadline = held.deadline();
    tenure_testkit::eventually("it is renewed", || {
        assert_eq!(held.check(), Ok(()), "{why}");
        held.deadline() > deadline
    });
    assert_eq!(held.release().await.unwrap(), Release::Released, "{why}");
    let next = within(PATIENCE, why, waiting).await.unwrap().unwrap();
    let owner = client.owner();
    if can.value {
        next.set_value("kept").await.unwrap();
    }
    assert_eq!(next.release().await.unwrap(), Release::Released, "{why}");
    let outer = owner.lock("a").ttl(LONG).acquire().await.unwrap();
    let inner = owner.lock("a").ttl(LONG).acquire().await.unwrap();
    assert_eq!(outer.token(), inner.token(), "{why}");
    let _ = inner.release().await.unwrap();
    let _ = outer.release().await.unwrap();
    if can.remembers {
        let Turn::Yours(run) = client.once_per("job", LONG).begin().await.unwrap() else { panic!("{why}") };
        let _ = run.succeeded().await.unwrap();
        let again = client.once_per("job", LONG).begin().await.unwrap();
        assert!(!matches!(again, Turn::Yours(_)), "{why}: {again:?}");
    }
    if can.breaking == Breaking::Force {
        for how in [Break::Ask, Break::Force] {
            let guard = client.lock("a").ttl(Duration::from_secs(3)).acquire().await.unwrap();
            assert_eq!(client.break_lock("a", how).await.unwrap().len(), 1, "{why}, {how:?}");
            within(PATIENCE, why, guard.lost()).await;
            drop(within(PATIENCE, why, client.lock("a").acquire()).await.unwrap());
        }
    }
}

/// The tables are somebody else's, made by the statements that `tenure migrate --print` shows.
pub(crate) async fn the_rights_that_the_page_names_are_enough<D: Database>() {
    for_recipes::<D>(&recipes::<D>()).await;
}

async fn for_recipes<D: Database>(recipes: &[&str]) {
    let mut server = D::start();
    server.add_user("app", "pw");
    let app = server.login("app:pw", &server.database());
    for recipe in super::recipes::<D>() {
        for statement in tenure::migration(&server.recipe(recipe, "")).unwrap() {
            server.sql(&statement);
        }
    }
    let grants: Vec<_> = D::PAGE.lines().filter(|line| line.starts_with("GRANT ")).collect();
    assert!(grants.len() >= 4, "the page names few rights: {grants:?}");
    for grant in grants {
        assert!(grant.ends_with(" TO app;"), "{grant}");
        server.sql(&grant.replace(" shop.", &format!(" {}.", server.database())));
    }
    for recipe in recipes {
        let client = connect(&format!("{app}?recipe={recipe}")).await;
        do_everything(&client, recipe).await;
        client.close().await.unwrap();
    }
}

/// `ls` and `who` are for one who may read and nothing else.
pub(crate) async fn who_only_looks_needs_to_read_and_nothing_else<D: Database>() {
    let mut server = D::start();
    server.add_user("looker", "pw");
    let looker = server.login("looker:pw", &server.database());
    for recipe in recipes::<D>() {
        let holder = connect(&server.recipe(recipe, "")).await;
        let _held = holder.lock("a").ttl(LONG).acquire().await.unwrap();
        server.let_read_tables("looker");
        let client = connect(&format!("{looker}?recipe={recipe}")).await;
        let (seen, listed) = (client.inspect("a").await.unwrap(), client.list("").await.unwrap());
        // Whether a session lives is told to nobody but its user.
        if recipe == "table" {
            assert_eq!((seen.holders.len(), listed.len()), (1, 1), "{seen:?}, {listed:?}");
        }
        client.lock("b").try_acquire().await.map(drop).unwrap_err();
    }
}
