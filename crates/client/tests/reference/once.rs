//! `once_per` on a clock that the test moves: windows to the nanosecond, lost answers, bad input.

use std::time::Duration;

use tenure::contract::within;
use tenure::engine::{AcquireRequest, Start};
use tenure::{
    AcquireError, Capability, Guard, Mode, OncePerError, OncePerRequest, Record, Release, Turn, Wait,
};

use crate::layer::{Still, TTL, until};

const MINUTE: Duration = Duration::from_mins(1);

impl Still {
    async fn begin(&self, record: Record) -> Turn {
        self.client.once_per("job", MINUTE).record(record).begin().await.unwrap()
    }
}

fn ago(turn: &Turn) -> Option<Duration> {
    match turn {
        Turn::Yours(_) => None,
        Turn::AlreadyRun { ago } => Some(*ago),
    }
}

#[tokio::test]
async fn a_start_stands_for_the_period_less_a_tenth_or_less_the_spread() {
    let still = Still::new();
    assert_eq!(ago(&still.begin(Record::AtStart).await), None);
    let last = MINUTE.mul_f64(0.9).saturating_sub(Duration::from_nanos(1));
    still.clock.advance(last);
    assert_eq!(ago(&still.begin(Record::AtStart).await), Some(last));
    let wider = still.client.once_per("job", MINUTE).spread(MINUTE / 2).begin().await.unwrap();
    assert_eq!(ago(&wider), None);
    still.clock.advance(last + Duration::from_nanos(1));
    assert_eq!(ago(&still.begin(Record::AtStart).await), None);
}

#[tokio::test]
async fn a_success_counts_from_its_start_on_the_clients_clock() {
    let still = Still::new();
    let Turn::Yours(run) = still.begin(Record::AtSuccess).await else { panic!("nobody ran it") };
    still.clock.advance(TTL / 4);
    assert_eq!(run.succeeded().await.unwrap(), Release::Released);
    assert_eq!(ago(&still.begin(Record::AtSuccess).await), Some(TTL / 4));
    assert_eq!(ago(&still.begin(Record::AtStart).await), Some(TTL / 4));
}

#[tokio::test]
async fn who_did_not_get_the_lock_looks_once_more_for_a_start() {
    let still = Still::new();
    let other = still.hold("job").await;
    let tried = still.client.once_per("job", MINUTE).wait(Wait::Try).begin().await;
    assert!(matches!(tried, Err(OncePerError::Acquire(AcquireError::Busy { .. }))), "{tried:?}");
    let waits = |record| {
        let request = still.client.once_per("job", MINUTE).record(record).wait(Wait::For(TTL / 4));
        tokio::spawn(request.begin())
    };
    let waiting = waits(Record::AtSuccess);
    until("it waits", async || still.client.inspect("job").await.unwrap().waiters.len() == 1).await;
    still.clock.advance(TTL / 4);
    let waited = waiting.await.unwrap();
    assert!(matches!(waited, Err(OncePerError::Acquire(AcquireError::TimedOut { .. }))), "{waited:?}");
    let waiting = waits(Record::AtSuccess);
    until("it waits", async || still.client.inspect("job").await.unwrap().waiters.len() == 1).await;
    remember(&still, &other).await;
    still.clock.advance(TTL / 4);
    assert_eq!(ago(&waiting.await.unwrap().unwrap()), Some(TTL / 4));
}

/// Has the engine note down a start of what the guard protects, as a job does that begins.
async fn remember(still: &Still, guard: &Guard) {
    let mut grant = AcquireRequest::new(guard.name().clone()).granted(guard.token());
    (grant.id, grant.owner) = (guard.grant(), guard.owner());
    let start = Start::new(Duration::ZERO, MINUTE);
    still.client.engine().clone().remember(grant, start).await.unwrap();
}

#[tokio::test]
async fn what_has_begun_is_told_without_waiting() {
    let still = Still::new();
    let run = still.begin(Record::AtStart).await;
    assert_eq!(ago(&run), None);
    // No time passes, so whoever waits for anything waits for ever.
    let told = within(MINUTE, "it is told", still.begin(Record::AtStart)).await;
    assert_eq!(ago(&told), Some(Duration::ZERO));
    let told = within(MINUTE, "it is told", still.begin(Record::AtSuccess)).await;
    assert_eq!(ago(&told), Some(Duration::ZERO));
    drop(run);
}

#[tokio::test]
async fn who_waits_for_the_lock_is_told_of_a_start_that_is_recorded_meanwhile() {
    let still = Still::new();
    let other = still.hold("job").await;
    let waiting = tokio::spawn(still.client.once_per("job", MINUTE).begin());
    until("it waits", async || still.client.inspect("job").await.unwrap().waiters.len() == 1).await;
    remember(&still, &other).await;
    until("it is told", async || {
        still.clock.advance(Duration::from_millis(10));
        waiting.is_finished()
    })
    .await;
    assert!(ago(&waiting.await.unwrap().unwrap()).is_some());
    until("it waits no more", async || still.client.inspect("job").await.unwrap().waiters.is_empty()).await;
    assert!(other.check().is_ok());
}

#[tokio::test]
async fn what_is_in_doubt_is_not_run() {
    let still = Still::new();
    still.store.lose_answers_to_starts();
    let begun = still.client.once_per("job", MINUTE).begin().await;
    assert!(matches!(begun, Err(OncePerError::StartInDoubt { .. })), "{begun:?}");
    until("the lock is free", async || still.is_free("job").await).await;
    assert!(ago(&still.begin(Record::AtStart).await).is_some(), "it was recorded, and the answer was lost");
    let success = still.client.once_per("other", MINUTE).record(Record::AtSuccess);
    let Turn::Yours(run) = success.begin().await.unwrap() else { panic!("nobody ran it") };
    let ended = run.succeeded().await;
    assert!(matches!(ended, Err(OncePerError::SuccessInDoubt { .. })), "{ended:?}");
    until("the lock is free", async || still.is_free("other").await).await;
}

#[tokio::test]
async fn a_run_that_lost_its_lock_is_no_success() {
    let still = Still::new();
    let Turn::Yours(run) = still.begin(Record::AtSuccess).await else { panic!("nobody ran it") };
    still.clock.advance(Duration::from_hours(1));
    let ended = run.succeeded().await;
    assert!(matches!(ended, Err(OncePerError::Lost(_))), "{ended:?}");
    assert_eq!(ago(&still.begin(Record::AtSuccess).await), None);
}

#[tokio::test]
async fn a_turn_that_can_never_be_right_is_refused_with_a_text_that_says_what_to_do() {
    let still = Still::new();
    let refused = async |request: OncePerRequest, says: &str| {
        let error = request.begin().await.unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
        error
    };
    let job = |period| still.client.once_per("job", period);
    // Also if it was run already: a mistake is not to be found a period later.
    drop(still.begin(Record::AtStart).await);
    let error = refused(job(Duration::ZERO), "longer than zero").await;
    assert!(matches!(error, OncePerError::Period { .. }));
    for spread in [MINUTE, MINUTE * 2] {
        let error = refused(job(MINUTE).spread(spread), "shorter than its period").await;
        assert!(matches!(error, OncePerError::Spread { .. }));
    }
    for mode in Mode::ALL.into_iter().filter(|mode| !mode.may_write()) {
        let error = refused(job(MINUTE).mode(mode), "EX or PW").await;
        assert!(matches!(error, OncePerError::Mode { .. }));
    }
    assert!(ago(&job(MINUTE).mode(Mode::Pw).begin().await.unwrap()).is_some());
    refused(job(MINUTE).require(Capability::Network), "between hosts").await;
    refused(job(MINUTE).ttl(Duration::ZERO), "ttl").await;
    refused(still.client.once_per("", MINUTE), "name").await;
}
