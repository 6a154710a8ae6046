//! A database that ends connections, as an administrator or a proxy makes it do.

use std::time::Duration;

use tenure::contract::within;
use tenure::{LostReason, OncePerError, Record, Release, Turn};
use tenure_testkit::eventually;
use tokio::task::JoinHandle;

use super::{Database, LONG, PATIENCE, connect, lines, session_recipes};

/// The connection for messages, which all who wait have in common.
pub(crate) async fn waiters_are_woken_by_a_new_connection_when_that_ends_on_which_they_were<D: Database>() {
    let server = D::start();
    let (holder, waiter) = (connect(&server.url()).await, connect(&server.url()).await);
    let held = holder.lock("a").ttl(LONG).acquire().await.unwrap();
    let turn = || {
        let request = waiter.lock("a").ttl(LONG);
        tokio::spawn(async move { request.acquire().await.unwrap().release().await.unwrap() })
    };
    let waiting: Vec<_> = (0..3).map(|_| turn()).collect();
    let called_by = || lines(&server.sql("SELECT client FROM tenure_lock_waiter"));
    // By the same, and by another one than before.
    let all_are_called_by_another = |before: &str| {
        eventually("all are called by a new connection", || {
            assert!(!waiting.iter().any(JoinHandle::is_finished), "one has given up");
            let all = called_by();
            let same = all.len() == 3 && all.iter().all(|one| *one == all[0]);
            (same && !all[0].is_empty() && all[0] != before).then(|| all[0].clone())
        })
    };
    let mut channel = all_are_called_by_another("");
    for _ in 0..3 {
        let ears = eventually("one listens", || Some(server.ears()).filter(|ears| !ears.is_empty()));
        for ear in &ears {
            server.end(ear);
        }
        channel = all_are_called_by_another(&channel);
        eventually("another one listens", || server.ears().iter().any(|ear| !ears.contains(ear)));
    }
    assert_eq!(held.release().await.unwrap(), Release::Released);
    for waiting in waiting {
        let _ = within(PATIENCE, "it is its turn", waiting).await.unwrap();
    }
}

pub(crate) async fn a_waiter_goes_on_waiting_when_its_connection_ends<D: Database>() {
    let server = D::start();
    for recipe in session_recipes::<D>() {
        let client = connect(&server.recipe(recipe, "&timeout_ms=3000")).await;
        let held = client.lock("a").ttl(LONG).acquire().await.unwrap();
        let waiting = tokio::spawn(client.lock("a").ttl(LONG).acquire());
        // For longer than a silence may last: to wait for a lock is none.
        let before = eventually("somebody waits for long", || {
            server.waiting().pop().filter(|waiter| server.waits_for_s(waiter) >= Some(4))
        });
        server.end(&before);
        eventually("it waits on another connection", || {
            assert!(!waiting.is_finished(), "{recipe}: it has given up");
            server.waiting().iter().any(|connection| *connection != before)
        });
        assert!(held.check().is_ok() && !waiting.is_finished(), "{recipe}");
        let token = held.token();
        assert_eq!(held.release().await.unwrap(), Release::Released, "{recipe}");
        let next = within(PATIENCE, "the waiter gets it", waiting).await.unwrap().unwrap();
        assert!(next.token() > token, "{recipe}: {next:?} after {token:?}");
    }
}

/// The limit is for a database that does not answer: this one does, each time.
pub(crate) async fn a_wait_lasts_while_its_connections_end_one_after_the_other<D: Database>() {
    let server = D::start();
    for recipe in session_recipes::<D>() {
        let client = connect(&server.recipe(recipe, "&timeout_ms=3000")).await;
        let held = client.lock("a").ttl(LONG).acquire().await.unwrap();
        let waiting = tokio::spawn(client.lock("a").ttl(LONG).acquire());
        let mut ended = Vec::new();
        for _ in 0..2 {
            let waiter = eventually("it waits for longer than the limit", || {
                assert!(!waiting.is_finished(), "{recipe}: the wait has ended");
                let waiter = server.waiting().into_iter().find(|one| !ended.contains(one))?;
                (server.waits_for_s(&waiter) >= Some(4)).then_some(waiter)
            });
            server.end(&waiter);
            ended.push(waiter);
        }
        assert_eq!(held.release().await.unwrap(), Release::Released, "{recipe}");
        drop(within(PATIENCE, "the waiter gets it", waiting).await.unwrap().unwrap());
    }
}

pub(crate) async fn a_release_on_an_ended_connection_says_that_the_lock_was_lost<D: Database>() {
    let server = D::start();
    for recipe in session_recipes::<D>() {
        let client = connect(&server.recipe(recipe, "")).await;
        let held = client.lock("a").ttl(LONG).acquire().await.unwrap();
        let before = server.connections();
        for connection in &before {
            server.end(connection);
        }
        eventually("they are gone", || !server.connections().iter().any(|one| before.contains(one)));
        let lost = Release::AlreadyLost(LostReason::Disconnected);
        assert_eq!(held.release().await.unwrap(), lost, "{recipe}");
    }
}

pub(crate) async fn a_holder_whose_connection_ended_records_no_start<D: Database>() {
    let server = D::start();
    for recipe in session_recipes::<D>() {
        let client = connect(&server.recipe(recipe, "")).await;
        let begin = || client.once_per("job", LONG).record(Record::AtSuccess).ttl(LONG).begin();
        let Turn::Yours(run) = begin().await.unwrap() else { panic!("{recipe}: nobody has run it") };
        let before = server.connections();
        for connection in &before {
            server.end(connection);
        }
        eventually("they are gone", || !server.connections().iter().any(|one| before.contains(one)));
        let answer = run.succeeded().await;
        assert!(matches!(answer, Err(OncePerError::Lost(_))), "{recipe}: {answer:?}");
        let Turn::Yours(run) = begin().await.unwrap() else {
            panic!("{recipe}: it is recorded all the same")
        };
        assert_eq!(run.succeeded().await.unwrap(), Release::Released, "{recipe}");
        let turn = begin().await.unwrap();
        assert!(matches!(turn, Turn::AlreadyRun { .. }), "{recipe}: {turn:?}");
    }
}

pub(crate) async fn a_session_lock_is_lost_with_its_connection_and_whoever_waits_gets_it<D: Database>() {
    let server = D::start();
    for recipe in session_recipes::<D>() {
        let holder = connect(&server.recipe(recipe, "")).await;
        let held = holder.lock("a").ttl(Duration::from_secs(6)).acquire().await.unwrap();
        let of_holder = server.connections();
        let waiter = connect(&server.recipe(recipe, "")).await;
        let waiting = tokio::spawn(waiter.lock("a").ttl(LONG).acquire());
        eventually("somebody waits", || server.waiting().len() == 1);
        for connection in &of_holder {
            server.end(connection);
        }
        let lost = within(PATIENCE, "the holder is told", held.lost()).await;
        assert_eq!(lost, LostReason::Disconnected, "{recipe}");
        let next = within(PATIENCE, "the waiter gets it", waiting).await.unwrap().unwrap();
        assert!(next.token() > held.token(), "{recipe}: {next:?} after {held:?}");
        assert_eq!(held.release().await.unwrap(), Release::AlreadyLost(LostReason::Disconnected));
        assert_eq!(next.release().await.unwrap(), Release::Released);
    }
}

pub(crate) async fn a_table_lock_does_not_notice_that_connections_end<D: Database>() {
    let server = D::start();
    let (holder, waiter) = (connect(&server.url()).await, connect(&server.url()).await);
    let held = holder.lock("a").ttl(Duration::from_secs(10)).acquire().await.unwrap();
    let waiting = tokio::spawn(waiter.lock("a").ttl(LONG).acquire());
    let seen = async || holder.inspect("a").await.unwrap().waiters.len() == 1;
    tenure::contract::eventually(PATIENCE, "the waiter is seen", seen).await;
    for _ in 0..3 {
        server.end_connections();
        let deadline = held.deadline();
        eventually("it is renewed", || held.deadline() > deadline);
    }
    assert!(held.check().is_ok() && !waiting.is_finished());
    server.end_connections();
    let token = held.token();
    assert_eq!(held.release().await.unwrap(), Release::Released);
    let next = within(PATIENCE, "the waiter gets it", waiting).await.unwrap().unwrap();
    assert!(next.token() > token);
}
