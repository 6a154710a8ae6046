//! What an ordinary user may not do, which only shows if the test does not run as root: the test binary is run again as
//! nobody, from a place where nobody may read it.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use tenure::{AcquireError, Client, EngineError};
use tenure_testkit::unprivileged;

const DIRECTORY: &str = "TENURE_TEST_NOBODYS_DIRECTORY";

/// Runs one of the tests below as nobody, with a directory that has these permissions.
fn as_nobody(test: &str, mode: u32) {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("locks");
    std::fs::create_dir(&directory).unwrap();
    let program = place.path().join("test");
    std::fs::copy(std::env::current_exe().unwrap(), &program).unwrap();
    let allow = |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    allow(place.path(), 0o755);
    allow(&program, 0o755);
    allow(&directory, mode);
    let output = unprivileged(&program)
        .args([&format!("nobody::{test}"), "--exact", "--nocapture"])
        .env(DIRECTORY, &directory)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    let ran = String::from_utf8_lossy(&output.stdout).contains("1 passed");
    assert!(ran, "no such test: {test}");
}

/// The directory's URL, if this is nobody's process.
fn url() -> Option<String> {
    std::env::var(DIRECTORY).ok().map(|directory| format!("file:{directory}"))
}

#[test]
fn a_directory_that_is_not_writable_is_a_clear_error() {
    as_nobody("acquires_in_vain", 0o755);
}

#[tokio::test]
async fn acquires_in_vain() {
    let Some(url) = url() else { return };
    let client = Client::connect(&url).await.unwrap();
    let error = client.lock("job").try_acquire().await.unwrap_err();
    let AcquireError::Engine(EngineError::Refused { message, .. }) = &error else { panic!("{error}") };
    assert!(message.contains("writable"), "says what to do: {message}");
    assert!(client.inspect("job").await.unwrap().holders.is_empty(), "looking is allowed");
    let below = Client::connect(&format!("{url}/below")).await.unwrap_err().to_string();
    assert!(below.contains("writable"), "{below}");
}

#[test]
fn without_inotify_waiters_poll_and_get_it() {
    as_nobody("waits_without_inotify", 0o777);
}

#[tokio::test]
async fn waits_without_inotify() {
    let Some(url) = url() else { return };
    // A user has so many instances; as nobody, these are not those of the tests that run beside.
    let mut taken = Vec::new();
    while let Ok(inotify) = inotify::Inotify::init() {
        taken.push(inotify);
        assert!(taken.len() < 100_000, "there is no limit on inotify instances");
    }
    let client = Client::connect(&url).await.unwrap();
    let guard = client.lock("job").acquire().await.unwrap();
    let waiting = tokio::spawn(client.lock("job").acquire());
    while client.inspect("job").await.unwrap().waiters.is_empty() {
        tokio::task::yield_now().await;
    }
    let _ = guard.release().await.unwrap();
    let next = tokio::time::timeout(Duration::from_mins(1), waiting).await.expect("the waiter polls");
    let _ = next.unwrap().unwrap().release().await.unwrap();
}
