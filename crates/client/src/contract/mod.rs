//! The contract suite: what every engine owes every caller, as tests.
//!
//! An engine is held to it by one line, in a test file of its own:
//!
//! ```
//! use tenure::contract::Subject;
//!
//! struct Mine(tempfile::TempDir);
//!
//! impl Subject for Mine {
//!     async fn start() -> Self {
//!         Self(tempfile::tempdir().unwrap())
//!     }
//!
//!     fn address(&self) -> String {
//!         format!("file:{}", self.0.path().display())
//!     }
//!
//!     async fn connect(address: &str) -> tenure::Client {
//!         tenure::Client::connect(address).await.unwrap()
//!     }
//! }
//!
//! tenure::contract_suite!(my_engine, Mine);
//! ```
//!
//! What the engine's [`Capabilities`](crate::Capabilities) declare is run; what they do not declare must
//! answer `Unsupported`. Cases that need other processes run the test binary again, as a [helper](Helper).

mod helper;
mod inside;
mod proc;
mod trial;

pub mod belief;
pub mod breaking;
pub mod capabilities;
pub mod conversion;
pub mod crash;
pub mod deadlock;
pub mod exclusion;
pub mod leaks;
pub mod network;
pub mod once;
pub mod reentrance;
pub mod release;
pub mod runtime;
pub mod sets;
pub mod sight;
pub mod values;

use std::future::Future;
use std::time::Duration;

pub use helper::{Helper, run_helper};
pub use inside::Inside;
pub use trial::{Trial, eventually, poll_times, within};

use crate::Client;

/// An engine under test.
pub trait Subject: Send + Sync + 'static {
    /// How many processes contend in the cases that count increments.
    const PROCESSES: usize = 8;
    /// How often each of them increments.
    const INCREMENTS: usize = 50;

    /// How long something may take to come true on a slow machine.
    const PATIENCE: Duration = Duration::from_mins(1);

    /// Starts the engine, or finds one that is shared. Every case asks for names of its own.
    fn start() -> impl Future<Output = Self> + Send
    where
        Self: Sized;

    /// What [`connect`](Subject::connect) needs to reach it, also from another process.
    fn address(&self) -> String;

    /// What [`connect`](Subject::connect) needs to use the same engine by other recipes, if it has any.
    fn other_recipes(&self) -> Vec<String> {
        Vec::new()
    }

    /// A network to the engine that can be made to fail, if the subject has one.
    fn network(&self) -> Option<Box<dyn Network>> {
        None
    }

    /// A new client of the engine at that address.
    fn connect(address: &str) -> impl Future<Output = Client> + Send;
}

/// A network between clients and an engine that can be made to fail. Everything flows until told otherwise.
pub trait Network: Send + Sync {
    /// What [`connect`](Subject::connect) needs to reach the engine through it.
    fn address(&self) -> String;

    /// Nothing passes any more, in either direction, and nobody is told.
    fn cut(&self);

    /// What was held back arrives.
    fn heal(&self);

    /// All connections are closed at once. New ones are welcome.
    fn sever(&self);

    /// Requests pass, and what the engine answers vanishes; or no longer, and connections that have lost an answer are closed.
    fn lose_answers(&self, lost: bool);
}

/// Runs one case. `module` is the module path of the generated tests, by which a helper process finds its way.
pub fn check<S, C, F>(module: &'static str, case: C)
where
    S: Subject,
    C: FnOnce(Trial<S>) -> F,
    F: Future<Output = ()>,
{
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime for the test can be built");
    runtime.block_on(async { case(Trial::new(S::start().await, module).await).await });
}

/// Holds an engine to the contract: `contract_suite!(module_name, SubjectType);` makes a module of tests.
#[macro_export]
macro_rules! contract_suite {
    ($module:ident, $subject:ty) => {
        mod $module {
            use super::*;

            /// Not a case: what the test binary does when a case runs it as another process.
            #[test]
            fn helper_process() {
                $crate::contract::run_helper::<$subject>();
            }

            $crate::contract_cases! { $subject;
                belief: check_fails_from_the_deadline_on, a_renewed_lock_outlives_its_ttl, max_hold_ends_it,
                    work_is_dropped_at_loss, a_lost_lock_is_free_when_its_release_returns, a_stopped_process_does_not_believe_beyond_its_lease;
                breaking: a_holder_that_is_asked_lets_go, a_forced_break_frees_at_once, a_free_lock_cannot_be_broken;
                capabilities: what_is_not_declared_is_unsupported, a_weaker_engine_is_refused, fair_is_first_come_first_served, a_release_wakes_one,
                    bad_input_is_told_from_a_busy_lock;
                conversion: a_mode_goes_up_and_down, a_conversion_waits_for_others, a_dropped_conversion_restores_the_mode;
                crash: a_killed_holder_frees_the_lock, a_killed_waiter_is_in_nobodys_way, tokens_rise_across_crashes;
                deadlock: two_who_wait_for_each_other_are_told, no_deadlock_is_told_where_there_is_none;
                exclusion: tasks_lose_no_increment, processes_lose_no_increment, killed_processes_lose_only_their_own_work,
                    two_names_are_two_locks, modes_stand_together_as_the_table_says, a_writer_waits_for_all_readers,
                    a_shared_owner_keeps_strangers_out, recipes_of_one_engine_exclude_each_other;
                leaks: a_dropped_acquire_leaves_nothing, a_dropped_wait_leaves_nothing, a_wait_dropped_at_the_grant_leaves_nothing,
                    a_timed_out_wait_leaves_nothing, a_dropped_release_releases, a_dropped_guard_releases;
                network: belief_ends_before_one_who_is_cut_off_is_replaced, a_cut_that_is_mended_in_time_costs_nothing,
                    an_acquire_that_is_cut_off_leaves_nothing, an_acquire_whose_answer_is_lost_leaves_nothing,
                    a_release_that_is_cut_off_is_done_later, a_waiter_outlasts_its_connection, a_wait_lasts_through_an_outage,
                    a_runtime_that_ends_unanswered_leaves_nothing, a_runtime_that_stands_still_unanswered_leaves_nothing;
                once: what_is_not_remembered_is_unsupported, a_second_start_within_the_window_is_told, one_of_many_runs_it,
                    those_who_waited_do_not_run_it_again, one_of_many_processes_runs_it, a_killed_run_counts_as_it_was_to_be_recorded,
                    while_it_runs_others_are_told_at_once, a_run_that_failed_is_tried_again, after_the_window_it_runs_again,
                    a_lost_grant_records_nothing, a_value_and_a_start_leave_each_other_alone, an_owner_that_reenters_runs_it_once,
                    a_dropped_begin_leaves_nothing, the_blocking_api_runs_it_once;
                reentrance: the_same_owner_reenters, another_owner_does_not, what_is_not_covered_is_refused,
                    tasks_of_one_owner_share_a_grant, an_owner_reenters_from_another_client, an_owner_reenters_from_another_process,
                    what_an_owner_dropped_is_not_in_its_own_way, a_wait_behind_a_joined_holder_ends;
                release: a_late_release_cannot_free_the_next_holder, a_late_renewal_cannot_revive_a_grant,
                    the_same_request_twice_is_one_grant, closing_releases_everything, a_closed_client_answers_closed, tokens_rise_from_grant_to_grant,
                    an_expired_grant_touches_nothing, a_lost_answer_can_be_undone;
                runtime: a_dead_application_runtime_loses_no_lock, an_acquire_on_a_dying_runtime_leaves_nothing,
                    a_busy_runtime_loses_no_lock, the_blocking_api_does_the_same;
                sets: all_or_nothing, opposite_orders_do_not_deadlock;
                sight: holders_and_waiters_are_seen, a_list_is_by_prefix;
                values: the_next_holder_finds_the_value, a_value_has_its_limits, a_late_write_changes_nothing,
                    a_dead_writer_leaves_the_value_in_doubt, a_dropped_write_does_not_come_late;
            }
        }
    };
}

/// One test for each case that is named.
#[doc(hidden)]
#[macro_export]
macro_rules! contract_cases {
    ($subject:ty; $($area:ident: $($case:ident),+;)+) => {
        $(
            mod $area {
                use super::*;
                $(
                    #[test]
                    fn $case() {
                        $crate::contract::check::<$subject, _, _>(module_path!(), $crate::contract::$area::$case);
                    }
                )+
            }
        )+
    };
}
