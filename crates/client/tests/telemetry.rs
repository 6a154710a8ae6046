//! What is counted. One test in a process of its own, since a recorder is for the whole process.

use std::time::Duration;

use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use tenure::{Client, Wait};

#[tokio::test]
async fn grants_waits_releases_and_losses_are_counted() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    recorder.install().unwrap();

    let dir = tempfile::tempdir().unwrap();
    let client = Client::connect(&format!("file:{}", dir.path().display())).await.unwrap();
    let guard = client.lock("job").acquire().await.unwrap();
    assert!(client.lock("job").try_acquire().await.unwrap().is_none());
    assert!(client.lock("job").wait(Wait::For(Duration::from_millis(1))).acquire().await.is_err());
    guard.release().await.unwrap();
    let lost = client.lock("job").max_hold(Duration::from_millis(1)).acquire().await.unwrap();
    lost.lost().await;
    drop(lost);
    let _held = client.lock("held").acquire().await.unwrap();

    let mut seen: Vec<String> = snapshotter
        .snapshot()
        .into_vec()
        .into_iter()
        .map(|(key, _, _, value)| {
            let labels: Vec<_> =
                key.key().labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
            let value = match value {
                DebugValue::Counter(count) => count.to_string(),
                DebugValue::Gauge(value) => value.to_string(),
                DebugValue::Histogram(values) => format!("{} values", values.len()),
            };
            format!("{}{{{}}} {value}", key.key().name(), labels.join(","))
        })
        // How many releases there were by now is the background's affair.
        .filter(|line| !line.starts_with("tenure_releases_total"))
        .collect();
    seen.sort();
    assert_eq!(
        seen,
        [
            "tenure_acquire_seconds{engine=file} 3 values",
            "tenure_acquires_total{engine=file,outcome=busy} 1",
            "tenure_acquires_total{engine=file,outcome=granted} 3",
            "tenure_acquires_total{engine=file,outcome=timed_out} 1",
            "tenure_locks_held{engine=file} 1",
            "tenure_losses_total{engine=file,reason=max_hold} 1",
        ]
    );
}
