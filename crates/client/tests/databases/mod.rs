//! What a database may do to those who lock with it: one suite, on real servers of both.

pub(crate) mod clock;
pub(crate) mod crash;
pub(crate) mod crowd;
pub(crate) mod damaged;
pub(crate) mod late;
pub(crate) mod names;
pub(crate) mod pool;
pub(crate) mod refusals;
pub(crate) mod rights;
pub(crate) mod rows;
pub(crate) mod runtimes;
pub(crate) mod sessions;
pub(crate) mod settings;
pub(crate) mod severed;
pub(crate) mod tls;

use std::ops::DerefMut;
use std::time::Duration;

use tenure::fence::SqlDatabase;
use tenure::{Client, ConnectError, EngineError};
use tenure_testkit::{Certificates, Server};

/// Holds one recipe to the contract: `subject!(Row, row, Postgres, "postgres://postgres@{}/postgres")`.
macro_rules! subject {
    ($(#[$doc:meta])* $name:ident, $recipe:ident, $server:ident, $url:literal) => {
        $(#[$doc])*
        struct $name;

        impl tenure::contract::Subject for $name {
            async fn start() -> Self {
                Self
            }

            fn address(&self) -> String {
                let host = $server::shared().addr();
                format!(concat!($url, "?recipe=", stringify!($recipe)), host)
            }

            fn network(&self) -> Option<Box<dyn tenure::contract::Network>> {
                let url = |host: &str| format!(concat!($url, "?timeout_ms=3000&recipe=", stringify!($recipe)), host);
                Some(Box::new(crate::proxies::Proxies::before([$server::shared().addr()], url)))
            }

            async fn connect(address: &str) -> tenure::Client {
                tenure::Client::connect(address).await.unwrap()
            }
        }

        tenure::contract_suite!($recipe, $name, recipe);
    };
}
pub(crate) use subject;

/// Longer than any test waits: nothing that a test sees can be due to its end.
pub(crate) const LONG: Duration = Duration::from_mins(10);

/// How long something may take on a slow machine.
pub(crate) const PATIENCE: Duration = Duration::from_mins(3);

/// The time zone of those servers that have one, and when it is set back from 3 to 2 o'clock: then it has an hour twice.
pub(crate) const ZONE: &str = "Europe/Berlin";
pub(crate) const SET_BACK_AT_S: i64 = 1_950_742_800;

/// A server, and what is different about its sort.
pub(crate) trait Database: DerefMut<Target = Server> + Send + Sync + Sized + 'static {
    type Driver: SqlDatabase;

    /// The recipe of locks that a session holds.
    const SESSION: &'static str;

    /// A module of the contract's suite, whose helper process can be started.
    const HELPER: &'static str;

    /// The engine's page in the documentation.
    const PAGE: &'static str;

    /// What gives new connections other defaults, each statement another one.
    const DEFAULTS: &'static [&'static str];

    fn start() -> Self;

    /// With 20 connections at the most.
    fn start_small() -> Self;

    /// On a clock of its own, and in [`ZONE`].
    fn start_with_clock() -> Self;

    /// As one that speaks TLS.
    fn start_with_tls(certificates: &Certificates) -> Self;

    fn url(&self) -> String;

    /// Its answer, with a line for each row.
    fn sql(&self, statement: &str) -> String;

    /// The same, on a server that may have no connection left.
    fn try_sql(&self, statement: &str) -> Result<String, String>;

    /// What its wall clock shows, in its own zone and in UTC: seconds since 1970.
    fn clocks_s(&self) -> (i64, i64);

    /// The numbers of Tenure's connections.
    fn connections(&self) -> Vec<String>;

    /// How many connections were opened since it started, by its own count.
    fn opened(&self) -> u64;

    /// The numbers of those that wait for a lock of the database.
    fn waiting(&self) -> Vec<String>;

    /// How long a connection has waited in its statement.
    fn waits_for_s(&self, connection: &str) -> Option<u64>;

    /// The numbers of those on which it is heard who is woken, with the recipe `table`.
    fn ears(&self) -> Vec<String>;

    fn end(&self, connection: &str);

    /// Whether it can be written to by those who are not its administrators.
    fn set_read_only(&self, read_only: bool);

    /// A user who has to show a password, and may do nothing but log in.
    fn add_user(&mut self, name: &str, password: &str);

    /// A user who is let in by TLS alone, and without a password; only if it shows a certificate of its name, if told so.
    fn add_user_with_tls(&mut self, name: &str, shows_certificate: bool);

    /// Lets a user read and write all tables that there are.
    fn let_use_tables(&self, name: &str);

    /// Lets a user read all tables that there are, and not write to them.
    fn let_read_tables(&self, name: &str);

    /// Fails unless so many rows of this table are locked, each for itself, and nothing of it that is larger.
    fn assert_rows_locked(&self, table: &str, rows: usize);

    /// The option that names the tables as they are named by default, with their schema.
    fn same_table(&self) -> String;

    /// The URL of a recipe, with other options after it.
    fn recipe(&self, recipe: &str, options: &str) -> String {
        format!("{}?recipe={recipe}{options}", self.url())
    }

    /// The same, for another user and another database.
    fn login(&self, login: &str, database: &str) -> String {
        let url = self.url();
        let (scheme, rest) = url.split_once("://").unwrap();
        let host = rest.split_once('@').unwrap().1.split_once('/').unwrap().0;
        format!("{scheme}://{login}@{host}/{database}")
    }

    fn end_connections(&self) {
        for connection in &self.connections() {
            self.end(connection);
        }
    }

    fn database(&self) -> String {
        self.url().rsplit('/').next().unwrap().to_owned()
    }
}

pub(crate) fn recipes<D: Database>() -> [&'static str; 3] {
    ["table", "row", D::SESSION]
}

/// Those whose locks end with a connection.
pub(crate) fn session_recipes<D: Database>() -> [&'static str; 2] {
    ["row", D::SESSION]
}

pub(crate) fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

pub(crate) async fn connect(url: &str) -> Client {
    Client::connect(url).await.unwrap_or_else(|error| panic!("{url}: {error}"))
}

/// Why there is no client of this URL.
pub(crate) async fn refusal(url: &str) -> EngineError {
    match Client::connect(url).await {
        Err(ConnectError::Engine(error)) => error,
        other => panic!("{url}: {other:?}"),
    }
}

/// Holds a database to the suite.
macro_rules! fault_suite {
    ($database:ty) => {
        $crate::databases::fault_suite! { $database;
            clock: a_clock_that_jumps_ahead_lets_a_second_one_in_and_the_fence_refuses_the_first,
                a_clock_that_is_set_back_lets_nobody_in,
                an_hour_that_a_zone_has_twice_is_two_hours;
            crash: a_server_that_is_killed_under_load_loses_no_increment,
                a_restart_leaves_table_locks_and_is_told_to_those_who_held_by_a_session,
                a_killed_process_frees_its_locks;
            crowd: two_hundred_get_their_turn_on_a_server_with_twenty_connections,
                a_server_without_a_connection_left_is_said_to_be,
                clients_that_fill_a_server_make_room_for_messages,
                a_holder_is_renewed_while_others_have_all_connections;
            damaged: what_was_never_written_is_told_as_damage,
                details_that_nobody_understands_are_left_out,
                a_table_that_lacks_a_column_is_told_with_what_to_do;
            late: a_request_that_arrives_after_the_release_holds_nothing,
                a_request_that_arrives_after_its_client_gave_up_holds_nothing;
            names: names_are_compared_byte_by_byte;
            pool: dropped_guards_reuse_connections,
                waits_that_are_dropped_stay_within_the_bound;
            refusals: a_read_only_server_is_said_to_be_and_leaves_nothing_locked,
                a_wrong_login_is_said_and_no_password_repeated,
                who_may_not_create_tables_is_told_how_and_can_lock_afterwards;
            rights: the_rights_that_the_page_names_are_enough,
                who_only_looks_needs_to_read_and_nothing_else;
            rows: a_row_is_locked_and_nothing_else;
            runtimes: a_runtime_without_drivers_can_lock,
                a_client_goes_on_where_another_runtime_has_ended,
                a_runtime_that_stands_still_does_not_keep_the_connections_that_it_was_opening;
            settings: defaults_of_other_connections_are_not_ours;
            severed: waiters_are_woken_by_a_new_connection_when_that_ends_on_which_they_were,
                a_waiter_goes_on_waiting_when_its_connection_ends,
                a_wait_lasts_while_its_connections_end_one_after_the_other,
                a_release_on_an_ended_connection_says_that_the_lock_was_lost,
                a_holder_whose_connection_ended_records_no_start,
                a_session_lock_is_lost_with_its_connection_and_whoever_waits_gets_it,
                a_table_lock_does_not_notice_that_connections_end;
            sessions: a_row_whose_session_ended_before_its_token_was_counted_is_not_granted,
                tables_may_be_named_with_their_schema;
            tls: a_certificate_is_checked_by_its_authority_and_its_host,
                without_verification_no_certificate_is_looked_at,
                a_file_that_is_missing_is_named,
                a_client_shows_its_own_certificate,
                who_asks_for_tls_is_not_served_without;
        }
    };
    ($database:ty; $($module:ident: $($case:ident),+;)+) => {
        $(mod $module {
            use super::*;
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $case() {
                    $crate::databases::$module::$case::<$database>().await;
                }
            )+
        })+
    };
}
pub(crate) use fault_suite;
