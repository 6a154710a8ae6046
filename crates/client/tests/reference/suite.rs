//! The suite is held to an engine that is right, and to engines that are wrong in one way each: every one of these is caught.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::engine::{ReferenceEngine, Store};
use crate::fault::Fault;
use tenure::Client;
use tenure::contract::{self, Subject};

struct Right(String);

/// An address that no other subject of this process has.
fn unique() -> String {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed).to_string()
}

impl Subject for Right {
    async fn start() -> Self {
        Self(unique())
    }

    fn address(&self) -> String {
        self.0.clone()
    }

    fn other_recipes(&self) -> Vec<String> {
        vec![format!("{}?recipe=other", self.0)]
    }

    async fn connect(address: &str) -> Client {
        client(address, Fault::None)
    }
}

fn client(address: &str, fault: Fault) -> Client {
    // Its recipes differ in name alone, and share one table.
    let table = if fault == Fault::RecipesAreStrangers {
        address
    } else {
        address.split('?').next().unwrap_or(address)
    };
    let store = Store::at(table, fault);
    Client::with_engine(|context| Ok(ReferenceEngine::open(store, &context))).unwrap()
}

tenure::contract_suite!(reference_engine, Right);

/// A fault, and the case that must catch it.
macro_rules! caught {
    ($($test:ident: $fault:ident by $area:ident::$case:ident;)+) => {
        $(
            #[test]
            fn $test() {
                struct Wrong(String);

                impl Subject for Wrong {
                    const PATIENCE: Duration = Duration::from_secs(3);

                    async fn start() -> Self {
                        Self(unique())
                    }

                    fn address(&self) -> String {
                        self.0.clone()
                    }

                    fn other_recipes(&self) -> Vec<String> {
                        vec![format!("{}?recipe=other", self.0)]
                    }

                    async fn connect(address: &str) -> Client {
                        client(address, Fault::$fault)
                    }
                }

                let case = || contract::check::<Wrong, _, _>(module_path!(), contract::$area::$case);
                assert!(catch_unwind(AssertUnwindSafe(case)).is_err(), "an engine with {:?} passes", Fault::$fault);
            }
        )+
    };
}

caught! {
    a_release_by_name_is_caught: ReleasesByName by release::a_late_release_cannot_free_the_next_holder;
    a_renewal_of_the_dead_is_caught: RenewsTheDead by release::a_late_renewal_cannot_revive_a_grant;
    a_token_that_stands_still_is_caught: SameToken by release::tokens_rise_from_grant_to_grant;
    no_exclusion_is_caught_by_a_counter: LetsEverybodyIn by exclusion::tasks_lose_no_increment;
    no_exclusion_is_caught_by_the_table_of_modes: LetsEverybodyIn by exclusion::modes_stand_together_as_the_table_says;
    a_request_that_counts_twice_is_caught: CountsTwice by release::the_same_request_twice_is_one_grant;
    a_lease_that_ends_early_is_caught: EndsEarly by belief::check_fails_from_the_deadline_on;
    a_late_write_is_caught: AnybodyWrites by values::a_late_write_changes_nothing;
    a_stranger_that_reenters_is_caught: AnybodyReenters by reentrance::another_owner_does_not;
    an_unfair_queue_is_caught: LastComeFirst by capabilities::fair_is_first_come_first_served;
    a_waiter_that_stays_is_caught: KeepsWaiters by leaks::a_timed_out_wait_leaves_nothing;
    a_withdrawal_that_is_forgotten_is_caught: ForgetsWithdrawals by leaks::a_timed_out_wait_leaves_nothing;
    a_withdrawal_that_is_forgotten_is_caught_by_a_drop: ForgetsWithdrawals by leaks::a_dropped_wait_leaves_nothing;
    a_dropped_wait_that_goes_on_is_caught: IgnoresCancel by leaks::a_dropped_wait_leaves_nothing;
    a_deadlock_that_is_none_is_caught: CriesDeadlock by deadlock::no_deadlock_is_told_where_there_is_none;
    a_release_that_needs_the_token_is_caught: ReleasesByToken by release::a_lost_answer_can_be_undone;
    a_herd_that_is_hidden_is_caught: HidesItsHerd by capabilities::a_release_wakes_one;
    recipes_that_do_not_exclude_each_other_are_caught: RecipesAreStrangers by exclusion::recipes_of_one_engine_exclude_each_other;
    a_conversion_over_others_is_caught: ConvertsOverOthers by conversion::a_conversion_waits_for_others;
    a_start_that_is_forgotten_is_caught: ForgetsStarts by once::a_second_start_within_the_window_is_told;
    a_start_that_is_forgotten_is_caught_by_many: ForgetsStarts by once::one_of_many_runs_it;
    a_start_by_a_lost_grant_is_caught: AnybodyStarts by once::a_lost_grant_records_nothing;
    a_start_over_another_is_caught: StartsOverOthers by once::a_lost_grant_records_nothing;
    a_start_over_another_is_caught_by_those_who_waited: StartsOverOthers by once::those_who_waited_do_not_run_it_again;
    a_start_that_counts_from_the_end_is_caught: StartsAtTheEnd by once::a_run_that_failed_is_tried_again;
    a_start_that_stands_for_ever_is_caught: StartsForEver by once::after_the_window_it_runs_again;
    a_start_of_another_name_is_caught: StartsEverything by once::a_second_start_within_the_window_is_told;
    a_start_that_costs_the_value_is_caught: StartsOverTheValue by once::a_value_and_a_start_leave_each_other_alone;
    a_notice_that_is_lost_is_caught: LosesNotices by notices::a_holder_is_told_that_another_waits;
    a_notice_that_is_lost_at_the_grant_is_caught: LosesNotices by notices::the_next_holder_is_told_of_those_behind_it;
    a_change_that_is_lost_is_caught: LosesChanges by observe::the_holders_are_seen_as_they_change;
    a_lock_delay_that_is_forgotten_is_caught: ForgetsLockDelays by lock_delay::an_expired_lock_is_kept_for_its_delay;
}
