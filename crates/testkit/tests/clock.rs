//! A server whose wall clock jumps.

use tenure_testkit::{MariaDb, Persistence, Postgres, Redis};

const HOUR_S: i64 = 3600;
/// More than a slow machine takes between two looks, and less than any step here.
const SLACK_S: i64 = 600;

#[test]
fn a_step_of_the_clock_shows_in_what_redis_says_the_time_is() {
    let mut stepped = Redis::builder().faketime().start();
    let honest = Redis::start();
    assert_ahead(&stepped, &honest, 0);
    stepped.step_clock(HOUR_S);
    assert_ahead(&stepped, &honest, HOUR_S);
    stepped.step_clock(-2 * HOUR_S);
    assert_ahead(&stepped, &honest, -HOUR_S);
}

#[test]
fn a_key_expires_when_the_clock_steps_over_its_end_and_not_before() {
    let mut redis = Redis::builder().faketime().start();
    redis.command(&["SET", "lease", "mine", "PX", "1800000"]);
    redis.step_clock(-HOUR_S);
    assert_eq!(redis.command(&["GET", "lease"]), "mine");
    redis.step_clock(2 * HOUR_S);
    assert_eq!(redis.command(&["GET", "lease"]), "(nil)");
}

#[test]
fn a_stepped_clock_stays_stepped_over_a_restart() {
    let mut stepped = Redis::builder().faketime().persistence(Persistence::AofAlways).start();
    let honest = Redis::start();
    stepped.command(&["SET", "kept", "yes"]);
    stepped.step_clock(HOUR_S);
    stepped.kill();
    stepped.restart();
    assert_ahead(&stepped, &honest, HOUR_S);
    assert_eq!(stepped.command(&["GET", "kept"]), "yes");
}

#[test]
#[should_panic(expected = "start it by `builder().faketime()`")]
fn a_redis_on_the_machines_clock_cannot_be_stepped() {
    Redis::start().step_clock(HOUR_S);
}

#[test]
fn a_step_of_the_clock_shows_in_a_postgresql_and_stays_over_a_restart() {
    let mut stepped = Postgres::builder().faketime().start();
    let honest = Redis::start();
    let ahead_s = |stepped: &Postgres| {
        let time_of_postgres = stepped.sql("SELECT floor(extract(epoch FROM clock_timestamp()))::bigint");
        time_of_postgres.parse::<i64>().expect("a number") - time_s(&honest)
    };
    assert_near(ahead_s(&stepped), 0);
    stepped.step_clock(HOUR_S);
    assert_near(ahead_s(&stepped), HOUR_S);
    stepped.step_clock(-2 * HOUR_S);
    assert_near(ahead_s(&stepped), -HOUR_S);
    stepped.kill();
    stepped.restart();
    assert_near(ahead_s(&stepped), -HOUR_S);
}

#[test]
fn a_step_of_the_clock_shows_in_a_mariadb_and_stays_over_a_restart() {
    let mut stepped = MariaDb::builder().faketime().start();
    let honest = Redis::start();
    let ahead_s = |stepped: &MariaDb| {
        let time_of_mariadb = stepped.sql("SELECT UNIX_TIMESTAMP()");
        time_of_mariadb.parse::<i64>().expect("a number") - time_s(&honest)
    };
    assert_near(ahead_s(&stepped), 0);
    stepped.step_clock(HOUR_S);
    assert_near(ahead_s(&stepped), HOUR_S);
    stepped.step_clock(-2 * HOUR_S);
    assert_near(ahead_s(&stepped), -HOUR_S);
    stepped.kill();
    stepped.restart();
    assert_near(ahead_s(&stepped), -HOUR_S);
}

fn assert_ahead(stepped: &Redis, honest: &Redis, by_s: i64) {
    assert_near(time_s(stepped) - time_s(honest), by_s);
}

fn assert_near(ahead_s: i64, by_s: i64) {
    assert!((ahead_s - by_s).abs() < SLACK_S, "{ahead_s} s ahead, and not {by_s}");
}

fn time_s(redis: &Redis) -> i64 {
    let time = redis.command(&["TIME"]);
    time.lines().next().expect("seconds, then microseconds").parse().expect("a number")
}
