//! What is counted and what is logged. One test in a process of its own, since a recorder and a subscriber are for the whole process.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use tenure::{Client, Wait};
use tracing_subscriber::fmt::format::FmtSpan;

#[tokio::test]
async fn grants_waits_releases_and_losses_are_counted_and_logged() {
    let recorder = DebuggingRecorder::new();
    let snapshotter = recorder.snapshotter();
    recorder.install().unwrap();
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
        .with_span_events(FmtSpan::CLOSE)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .init();

    let dir = tempfile::tempdir().unwrap();
    let client = Client::connect(&format!("file:{}", dir.path().display())).await.unwrap();
    let guard = client.lock("job").acquire().await.unwrap();
    assert!(client.lock("job").try_acquire().await.unwrap().is_none());
    assert!(client.lock("job").wait(Wait::For(Duration::from_millis(1))).acquire().await.is_err());
    let _ = guard.release().await.unwrap();
    let lost = client.lock("job").max_hold(Duration::from_millis(1)).acquire().await.unwrap();
    lost.lost().await;
    drop(lost);
    for _ in 0..2 {
        drop(client.once_per("hourly", Duration::from_hours(1)).begin().await.unwrap());
    }
    assert!(client.once_per("hourly", Duration::ZERO).begin().await.is_err());
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
            "tenure_acquire_seconds{engine=file} 4 values",
            "tenure_acquires_total{engine=file,outcome=busy} 1",
            "tenure_acquires_total{engine=file,outcome=granted} 4",
            "tenure_acquires_total{engine=file,outcome=timed_out} 1",
            "tenure_locks_held{engine=file} 1",
            "tenure_losses_total{engine=file,reason=max_hold} 1",
            "tenure_turns_total{engine=file,outcome=already_run} 1",
            "tenure_turns_total{engine=file,outcome=failed} 1",
            "tenure_turns_total{engine=file,outcome=yours} 1",
        ]
    );

    let page = include_str!("../../../docs/observability.md");
    for line in &seen {
        let (name, _) = line.split_once('{').unwrap();
        assert!(page.contains(&format!("| `{name}` |")), "docs/observability.md does not list {name}");
    }

    let log = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let line = |words: &[&str]| log.lines().any(|line| words.iter().all(|word| line.contains(word)));
    for outcome in ["granted", "busy", "timed_out"] {
        let outcome = format!("outcome=\"{outcome}\"");
        let span = ["tenure.acquire", "lock=job", "mode=EX", "waited_ms=", "close", &outcome];
        assert!(line(&span), "a span for each acquire, with its {outcome}:\n{log}");
    }
    assert!(line(&["tenure.acquire", "outcome=\"granted\"", "token=", "close"]), "and its token:\n{log}");
    assert!(line(&["WARN", "lock lost", "lock=job", "max_hold"]), "a warning for each loss:\n{log}");
    assert!(line(&["DEBUG", "release", "lock=job", "released"]), "a line for each release:\n{log}");
}

/// Where the log goes.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
