//! What PostgreSQL may do to those who lock with it.

use std::fs;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tenure::contract::within;
use tenure_testkit::{Certificates, Postgres, eventually};

use crate::databases::{Database, LONG, PATIENCE, ZONE, connect, fault_suite, lines, session_recipes};

fault_suite!(Postgres);

impl Database for Postgres {
    type Driver = sqlx::Postgres;

    const SESSION: &'static str = "advisory";
    const HELPER: &'static str = "postgres::contract::table::helper";

    const PAGE: &'static str = include_str!("../../../../docs/engines/postgres.md");

    const DEFAULTS: &'static [&'static str] = &[
        "ALTER DATABASE postgres SET standard_conforming_strings = off",
        "ALTER DATABASE postgres SET default_transaction_isolation = 'serializable'",
        "ALTER DATABASE postgres SET synchronous_commit = off",
        "ALTER DATABASE postgres SET statement_timeout = '1s'",
        "ALTER DATABASE postgres SET bytea_output = 'escape'",
    ];

    fn start() -> Self {
        Self::start()
    }

    fn start_small() -> Self {
        Self::builder().args(["-c", "max_connections=20"]).start()
    }

    fn start_with_clock() -> Self {
        Self::builder().faketime().arg("-c").arg(format!("timezone={ZONE}")).start()
    }

    fn start_with_tls(certificates: &Certificates) -> Self {
        Self::builder().tls(certificates).start()
    }

    fn same_table(&self) -> String {
        "&table=public.tenure_lock".to_owned()
    }

    fn url(&self) -> String {
        self.url()
    }

    fn sql(&self, statement: &str) -> String {
        self.sql(statement)
    }

    fn try_sql(&self, statement: &str) -> Result<String, String> {
        self.try_sql(statement)
    }

    fn clocks_s(&self) -> (i64, i64) {
        let seconds =
            |of: &str| self.sql(&format!("SELECT floor(extract(epoch FROM {of}))::bigint")).parse().unwrap();
        // Without its zone, a time is taken for one in UTC.
        (seconds("clock_timestamp()::timestamp"), seconds("clock_timestamp()"))
    }

    fn connections(&self) -> Vec<String> {
        lines(&self.sql("SELECT pid FROM pg_stat_activity WHERE application_name = 'tenure'"))
    }

    fn opened(&self) -> u64 {
        self.sql("SELECT sessions FROM pg_stat_database WHERE datname = current_database()").parse().unwrap()
    }

    fn waiting(&self) -> Vec<String> {
        lines(&self.sql("SELECT DISTINCT pid FROM pg_locks WHERE NOT granted"))
    }

    fn waits_for_s(&self, connection: &str) -> Option<u64> {
        let age = "floor(extract(epoch FROM clock_timestamp() - query_start))::bigint";
        self.sql(&format!("SELECT {age} FROM pg_stat_activity WHERE pid = {connection} AND state = 'active'"))
            .parse()
            .ok()
    }

    fn ears(&self) -> Vec<String> {
        // After a while without a message, it asks whether the server is still there.
        lines(&self.sql(
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'tenure' \
             AND (query LIKE 'LISTEN%' OR query = 'SELECT 1')",
        ))
    }

    fn end(&self, connection: &str) {
        self.sql(&format!("SELECT pg_terminate_backend({connection})"));
    }

    fn set_read_only(&self, read_only: bool) {
        self.sql(&format!("ALTER SYSTEM SET default_transaction_read_only = {read_only}"));
        self.sql("SELECT pg_reload_conf()");
        let set = if read_only { "on" } else { "off" };
        eventually("it to read its settings", || self.sql("SHOW default_transaction_read_only") == set);
    }

    fn add_user(&mut self, name: &str, password: &str) {
        self.sql(&format!("CREATE ROLE {name} LOGIN PASSWORD '{password}'"));
        let_in(self, "host all postgres 127.0.0.1/32 trust\nhost all all 127.0.0.1/32 scram-sha-256\n");
    }

    fn add_user_with_tls(&mut self, name: &str, shows_certificate: bool) {
        self.sql(&format!("CREATE ROLE {name} LOGIN"));
        let how = if shows_certificate { "cert" } else { "trust" };
        let_in(self, &format!("hostssl all {name} 127.0.0.1/32 {how}\nhost all {name} all reject\n"));
    }

    fn let_use_tables(&self, name: &str) {
        self.sql(&format!("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO {name}"));
        self.sql(&format!("GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO {name}"));
    }

    fn let_read_tables(&self, name: &str) {
        self.sql(&format!("GRANT SELECT ON ALL TABLES IN SCHEMA public TO {name}"));
    }

    fn assert_rows_locked(&self, table: &str, rows: usize) {
        self.sql("CREATE EXTENSION IF NOT EXISTS pgrowlocks");
        let locked = self.sql(&format!("SELECT modes FROM pgrowlocks('{table}')"));
        assert_eq!(locked.lines().collect::<Vec<_>>(), vec!["{\"For Update\"}"; rows]);
        let on_table = self.sql(&format!(
            "SELECT DISTINCT mode FROM pg_locks JOIN pg_stat_activity USING (pid) \
             WHERE relation = '{table}'::regclass AND application_name = 'tenure'"
        ));
        let weak = ["AccessShareLock", "RowShareLock", "RowExclusiveLock"];
        assert!(on_table.lines().all(|mode| weak.contains(&mode)), "{on_table}");
        assert_eq!(on_table.contains("RowShareLock"), rows > 0, "{on_table}");
    }
}

/// Rules of who is let in, before those that there are.
fn let_in(postgres: &mut Postgres, rules: &str) {
    let file = postgres.folder().join("data/pg_hba.conf");
    let others = fs::read_to_string(&file).unwrap();
    fs::write(&file, format!("{rules}{others}")).unwrap();
    postgres.restart();
}

/// A host that hangs does not close its connections: what is lost with it must not be in the way of other locks.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_hangs_gives_its_place_to_others() {
    let server = Postgres::start();
    let client = connect(&Database::recipe(&server, "advisory", "&connections=2&timeout_ms=3000")).await;
    let held = client.lock("a").ttl(Duration::from_secs(3)).acquire().await.unwrap();
    let session = server.sql("SELECT pid FROM pg_locks WHERE locktype = 'advisory'").parse().unwrap();
    let session = Pid::from_raw(session).unwrap();
    kill_process(session, Signal::STOP).unwrap();
    within(PATIENCE, "it is told", held.lost()).await;
    let other = async || matches!(client.lock("b").try_acquire().await, Ok(Some(_)));
    tenure::contract::eventually(PATIENCE, "another lock is to be had", other).await;
    kill_process(session, Signal::CONT).unwrap();
}

/// PostgreSQL cancels a statement that waits for one reader after the other, however short each of these waits is.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_whose_statement_is_cancelled_goes_on_in_the_same_session() {
    let server = Postgres::start();
    for recipe in session_recipes::<Postgres>() {
        let client = connect(&Database::recipe(&server, recipe, "")).await;
        let held = client.lock("a").ttl(LONG).acquire().await.unwrap();
        let waiting = tokio::spawn(client.lock("a").ttl(LONG).acquire());
        let session = eventually("somebody waits", || Database::waiting(&server).pop());
        for _ in 0..4 {
            let since = format!("SELECT query_start FROM pg_stat_activity WHERE pid = {session}");
            let before = server.sql(&since);
            server.sql(&format!("SELECT pg_cancel_backend({session})"));
            eventually("it waits again", || {
                assert!(!waiting.is_finished(), "{recipe}: it has given up");
                Database::waiting(&server) == [session.clone()] && server.sql(&since) != before
            });
        }
        let _ = held.release().await.unwrap();
        drop(within(PATIENCE, "the waiter gets it", waiting).await.unwrap().unwrap());
    }
}
