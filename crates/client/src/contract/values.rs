//! The value remains with the resource, and only its holder writes it.

use super::{Subject, Trial, poll_times};
use crate::engine::AcquireRequest;
use crate::{LockName, Mode, Value, ValueError};

/// The next holder finds the last written value, in every mode and through every client.
pub async fn the_next_holder_finds_the_value<S: Subject>(trial: Trial<S>) {
    if !trial.capabilities().value {
        return;
    }
    let name = trial.name("next");
    let first = trial.holder(&name).await;
    assert_eq!(first.value(), Value::default());
    first.set_value("checkpoint 7").await.unwrap();
    assert_eq!(first.value().bytes, "checkpoint 7");
    let _ = first.release().await.unwrap();
    let other = trial.another_client().await;
    for mode in trial.capabilities().modes.iter() {
        let next = other.lock(&name).mode(mode).acquire().await.unwrap();
        assert_eq!(next.value(), Value { bytes: "checkpoint 7".into(), in_doubt: false }, "{mode}");
        let _ = next.release().await.unwrap();
    }
    let last = other.lock(&name).acquire().await.unwrap();
    last.set_value(Vec::new()).await.unwrap();
    let _ = last.release().await.unwrap();
    assert_eq!(trial.holder(&name).await.value(), Value::default());
}

/// A value has at most 1 KiB, and readers do not write it.
pub async fn a_value_has_its_limits<S: Subject>(trial: Trial<S>) {
    if !trial.capabilities().value {
        return;
    }
    let name = trial.name("limits");
    let guard = trial.holder(&name).await;
    let longest: Vec<u8> = (0..=u8::MAX).cycle().take(Value::MAX_BYTES).collect();
    guard.set_value(longest.clone()).await.unwrap();
    let longer = guard.set_value(vec![0; Value::MAX_BYTES + 1]).await;
    assert!(matches!(longer, Err(ValueError::TooLong { .. })), "{longer:?}");
    let _ = guard.release().await.unwrap();
    for mode in trial.capabilities().modes.iter().filter(|mode| !mode.may_write()) {
        let reader = trial.client().lock(&name).mode(mode).acquire().await.unwrap();
        let answer = reader.set_value("mine").await;
        assert!(matches!(answer, Err(ValueError::Mode { .. })), "{mode}: {answer:?}");
        assert_eq!(reader.value().bytes, longest);
        let _ = reader.release().await.unwrap();
    }
}

/// A grant that ended writes nothing.
pub async fn a_late_write_changes_nothing<S: Subject>(trial: Trial<S>) {
    if !trial.capabilities().value {
        return;
    }
    let name = trial.name("late");
    let engine = trial.client().engine().clone();
    let request = AcquireRequest::new(LockName::parse(&name).unwrap());
    let granted = engine.clone().acquire(request.clone()).await.unwrap();
    let grant = request.granted(granted.token);
    engine.clone().set_value(grant.clone(), "in time".into()).await.unwrap();
    engine.clone().release(grant.clone()).await.unwrap();
    let next = trial.holder(&name).await;
    let late = engine.set_value(grant, "too late".into()).await;
    assert!(matches!(late, Err(ValueError::Lost(_))), "{late:?}");
    let _ = next.release().await.unwrap();
    assert_eq!(trial.holder(&name).await.value().bytes, "in time");
}

/// After the death of a holder that may write, the last value is in doubt until the next write.
pub async fn a_dead_writer_leaves_the_value_in_doubt<S: Subject>(trial: Trial<S>) {
    if !trial.capabilities().value || !trial.reaches_processes() {
        return;
    }
    let name = trial.name("doubt");
    let ttl = trial.ttl_of_the_killed();
    let mut helper = trial.helper().await;
    let got = helper.ask(&format!("acquire {name} EX {}", ttl.as_millis())).await;
    assert!(got.starts_with("got"), "{got}");
    assert_eq!(helper.ask(&format!("value {name} half-done")).await, "written");
    helper.kill();
    let acquire = |mode| trial.client().lock(&name).mode(mode).acquire();
    let in_doubt = Value { bytes: "half-done".into(), in_doubt: true };
    // Also for the second holder: reading does not resolve the doubt.
    for _ in 0..2 {
        let next = trial.soon("the next one gets it", acquire(Mode::Ex)).await.unwrap();
        assert_eq!(next.value(), in_doubt);
        let _ = next.release().await.unwrap();
    }
    let next = acquire(Mode::Ex).await.unwrap();
    next.set_value("done").await.unwrap();
    let _ = next.release().await.unwrap();
    assert_eq!(acquire(Mode::Ex).await.unwrap().value(), Value { bytes: "done".into(), in_doubt: false });
}

/// A write whose caller dropped it is done before the release that follows it, or not at all.
pub async fn a_dropped_write_does_not_come_late<S: Subject>(trial: Trial<S>) {
    if !trial.capabilities().value {
        return;
    }
    for turn in 0..60 {
        let (name, polls) = (trial.name(format_args!("dropped-{turn}")), turn % 4);
        let client = trial.another_client().await;
        let guard = client.lock(&name).ttl(Trial::<S>::LONG).acquire().await.unwrap();
        let _ = poll_times(guard.set_value("late"), polls).await;
        let _ = guard.release().await.unwrap();
        let next = trial.holder(&name).await;
        let found = next.value();
        // All pending writes are done when this returns.
        client.close().await.unwrap();
        let _ = next.release().await.unwrap();
        assert_eq!(trial.holder(&name).await.value().bytes, found.bytes, "somebody wrote without the lock");
    }
}
