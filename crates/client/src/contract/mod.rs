//! The contract suite: tests of what every engine guarantees.
//!
//! One line in a test file runs it for an engine:
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
//! The suite tests what the engine's [`Capabilities`](crate::Capabilities) declare. Everything else must answer `Unsupported`. Cases that
//! need other processes run the test binary again, as a [helper](Helper).

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
pub mod lock_delay;
pub mod network;
pub mod notices;
pub mod observe;
pub mod once;
pub mod reentrance;
pub mod release;
pub mod runtime;
pub mod sessions;
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
    /// The number of processes in the cases that count increments.
    const PROCESSES: usize = 8;
    /// The number of increments of each process.
    const INCREMENTS: usize = 50;

    /// The shortest lease that the engine supports reliably, for cases that let it expire. All waits of the cases are derived from it.
    const TTL: Duration = Duration::from_secs(1);

    /// The longest wait for a condition, also on a slow machine.
    const PATIENCE: Duration = Duration::from_mins(3);

    /// Starts the engine, or finds a shared one. Every case uses different names.
    fn start() -> impl Future<Output = Self> + Send
    where
        Self: Sized;

    /// Returns the address for [`connect`](Subject::connect), valid in other processes too.
    fn address(&self) -> String;

    /// Returns addresses for [`connect`](Subject::connect) to the same engine with its other recipes, if there are any.
    fn other_recipes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns a network to the engine with failures under the test's control, if the subject has one.
    fn network(&self) -> Option<Box<dyn Network>> {
        None
    }

    /// Connects a new client to the engine at that address.
    fn connect(address: &str) -> impl Future<Output = Client> + Send;
}

/// A network between clients and an engine, with failures under the test's control. At first, everything passes.
pub trait Network: Send + Sync {
    /// Returns the address for [`connect`](Subject::connect) through this network.
    fn address(&self) -> String;

    /// Holds back everything in both directions. The connections stay open.
    fn cut(&self);

    /// Delivers what was held back.
    fn heal(&self);

    /// Closes all connections at once. New connections are accepted.
    fn sever(&self);

    /// Passes requests but drops the engine's answers. With `false`, ends this, and closes the connections that have lost an answer.
    fn lose_answers(&self, lost: bool);
}

/// Runs one case. `module` is the module path of the generated tests, which a helper process needs.
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

/// Tests an engine against the contract: `contract_suite!(module_name, SubjectType);` generates a module with one test for each case.
///
/// A third word selects the cases that run by default. The other cases are ignored, and run with `--include-ignored`:
///
/// | word | for | runs |
/// | --- | --- | --- |
/// | `whole`, or none | an engine by itself | every case |
/// | `recipe` | a recipe beside others of this workspace | all but the cases of the layer that all engines share |
/// | `variant` | a recipe with another flag, or on another number of servers | only the cases whose outcome depends on these |
#[macro_export]
macro_rules! contract_suite {
    ($module:ident, $subject:ty) => {
        $crate::contract_suite!($module, $subject, whole);
    };
    ($module:ident, $subject:ty, $part:ident) => {
        mod $module {
            use super::*;

            /// Not a case: the entry point of the test binary when a case runs it as another process.
            #[test]
            fn helper_process() {
                $crate::contract::run_helper::<$subject>();
            }

            // The word before each case names what its outcome depends on: the `servers` and flags, the `recipe`, or only the `layer` that
            // all engines share.
            $crate::contract_cases! { $part $subject;
                belief: recipe check_fails_from_the_deadline_on, recipe a_renewed_lock_outlives_its_ttl, layer max_hold_ends_it,
                    layer work_is_dropped_at_loss, layer a_lost_lock_is_free_when_its_release_returns,
                    servers a_stopped_process_does_not_believe_beyond_its_lease;
                breaking: recipe a_holder_that_is_asked_lets_go, recipe a_forced_break_frees_at_once, recipe a_free_lock_cannot_be_broken;
                capabilities: servers what_is_not_declared_is_unsupported, servers a_weaker_engine_is_refused,
                    servers fair_is_first_come_first_served, servers a_release_wakes_one, servers bad_input_is_told_from_a_busy_lock;
                conversion: recipe a_mode_goes_up_and_down, recipe a_conversion_waits_for_others,
                    recipe a_dropped_conversion_restores_the_mode;
                crash: servers a_killed_holder_frees_the_lock, servers a_killed_waiter_is_in_nobodys_way,
                    servers tokens_rise_across_crashes;
                deadlock: recipe two_who_wait_for_each_other_are_told, recipe no_deadlock_is_told_where_there_is_none;
                exclusion: servers tasks_lose_no_increment, servers processes_lose_no_increment,
                    servers killed_processes_lose_only_their_own_work, servers two_names_are_two_locks,
                    servers modes_stand_together_as_the_table_says, servers a_writer_waits_for_all_readers,
                    servers a_shared_owner_keeps_strangers_out, servers recipes_of_one_engine_exclude_each_other;
                leaks: recipe a_dropped_acquire_leaves_nothing, recipe a_dropped_try_leaves_nothing, recipe a_dropped_wait_leaves_nothing,
                    recipe a_wait_dropped_at_the_grant_leaves_nothing, recipe a_timed_out_wait_leaves_nothing,
                    recipe a_dropped_release_releases, recipe a_dropped_guard_releases;
                lock_delay: recipe an_expired_lock_is_kept_for_its_delay, recipe a_released_lock_has_no_delay,
                    recipe a_delay_is_seen_and_can_be_broken;
                network: servers belief_ends_before_one_who_is_cut_off_is_replaced, servers a_cut_that_is_mended_in_time_costs_nothing,
                    servers an_acquire_that_is_cut_off_leaves_nothing, servers an_acquire_whose_answer_is_lost_leaves_nothing,
                    servers a_release_that_is_cut_off_is_done_later, servers a_waiter_outlasts_its_connection,
                    servers a_wait_lasts_through_an_outage, servers a_runtime_that_ends_unanswered_leaves_nothing,
                    servers a_runtime_that_stands_still_unanswered_leaves_nothing;
                notices: recipe a_holder_is_told_that_another_waits, recipe the_next_holder_is_told_of_those_behind_it,
                    recipe a_notice_is_of_a_mode_that_conflicts;
                observe: recipe the_holders_are_seen_as_they_change, recipe the_end_of_a_lease_is_seen,
                    layer a_closed_client_ends_the_observation;
                once: servers what_is_not_remembered_is_unsupported, recipe a_second_start_within_the_window_is_told,
                    recipe one_of_many_runs_it, layer those_who_waited_do_not_run_it_again, recipe one_of_many_processes_runs_it,
                    recipe a_killed_run_counts_as_it_was_to_be_recorded, layer while_it_runs_others_are_told_at_once,
                    layer a_run_that_failed_is_tried_again, recipe after_the_window_it_runs_again, recipe a_lost_grant_records_nothing,
                    recipe a_value_and_a_start_leave_each_other_alone, layer an_owner_that_reenters_runs_it_once,
                    layer a_dropped_begin_leaves_nothing, layer the_blocking_api_runs_it_once;
                reentrance: layer the_same_owner_reenters, layer another_owner_does_not, layer what_is_not_covered_is_refused,
                    layer tasks_of_one_owner_share_a_grant, recipe an_owner_reenters_from_another_client,
                    recipe an_owner_reenters_from_another_process, recipe what_an_owner_dropped_is_not_in_its_own_way,
                    recipe a_wait_behind_a_joined_holder_ends;
                release: recipe a_late_release_cannot_free_the_next_holder, recipe a_late_renewal_cannot_revive_a_grant,
                    recipe the_same_request_twice_is_one_grant, recipe closing_releases_everything, layer a_closed_client_answers_closed,
                    servers tokens_rise_from_grant_to_grant, recipe an_expired_grant_touches_nothing, recipe a_lost_answer_can_be_undone;
                runtime: recipe a_dead_application_runtime_loses_no_lock, recipe an_acquire_on_a_dying_runtime_leaves_nothing,
                    recipe a_busy_runtime_loses_no_lock, layer the_blocking_api_does_the_same;
                sessions: recipe many_locks_are_kept_alive_together, recipe the_end_of_a_session_loses_all_its_locks;
                sets: layer all_or_nothing, layer opposite_orders_do_not_deadlock, recipe none_is_held_while_one_is_awaited,
                    layer a_dropped_set_leaves_nothing, recipe a_set_whose_answer_is_lost_is_got;
                sight: servers holders_and_waiters_are_seen, servers a_list_is_by_prefix;
                values: recipe the_next_holder_finds_the_value, recipe a_value_has_its_limits, recipe a_late_write_changes_nothing,
                    recipe a_dead_writer_leaves_the_value_in_doubt, recipe a_dropped_write_does_not_come_late;
            }
        }
    };
}

/// Generates a test for each named case.
#[doc(hidden)]
#[macro_export]
macro_rules! contract_cases {
    ($part:ident $subject:ty; $($area:ident: $($depends_on:ident $case:ident),+;)+) => {
        $(
            mod $area {
                use super::*;
                $( $crate::contract_case! { $part $depends_on $subject, $area::$case } )+
            }
        )+
    };
}

/// Generates a test. It is ignored by default if this part of the suite does not include it.
#[doc(hidden)]
#[macro_export]
macro_rules! contract_case {
    (recipe layer $subject:ty, $area:ident::$case:ident) => {
        $crate::contract_case! { ["of the layer that all engines share"] $subject, $area::$case }
    };
    (variant layer $subject:ty, $area:ident::$case:ident) => {
        $crate::contract_case! { ["of the layer that all engines share"] $subject, $area::$case }
    };
    (variant recipe $subject:ty, $area:ident::$case:ident) => {
        $crate::contract_case! { ["does not depend on what this variant changes"] $subject, $area::$case }
    };
    ($part:ident $depends_on:ident $subject:ty, $area:ident::$case:ident) => {
        $crate::contract_case! { [] $subject, $area::$case }
    };
    ([$($why_not:literal)?] $subject:ty, $area:ident::$case:ident) => {
        #[test]
        $(#[ignore = $why_not])?
        fn $case() {
            $crate::contract::check::<$subject, _, _>(module_path!(), $crate::contract::$area::$case);
        }
    };
}
