//! What goes wrong with directories and disks: a clear error or a `Lost`, and never a token that goes back.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tenure::contract::{Helper, Subject, eventually, within};
use tenure::{AcquireError, Client, EngineError, Guard, LostReason, Presence, Release, Wait};
use tenure_testkit::SmallDisk;

use crate::contract::File;

/// Longer than any test waits: nothing that a test sees is due to a renewal that comes round.
const LONG: Duration = Duration::from_hours(1);

async fn client(directory: &Path) -> Client {
    Client::connect(&format!("file:{}", directory.display())).await.unwrap()
}

async fn hold(client: &Client, name: &str) -> Guard {
    client.lock(name).ttl(LONG).acquire().await.unwrap()
}

async fn helper(file: &File) -> Helper {
    Helper::start("file::contract::file::of_another_test", &file.address()).await
}

/// The one folder that is in the directory.
fn folder(directory: &Path) -> PathBuf {
    fs::read_dir(directory).unwrap().next().unwrap().unwrap().path()
}

async fn within_a_minute<F: Future>(what: &str, future: F) -> F::Output {
    within(Duration::from_mins(1), what, future).await
}

async fn until(what: &str, holds: impl AsyncFnMut() -> bool) {
    eventually(Duration::from_mins(1), what, holds).await;
}

#[tokio::test]
async fn a_killed_holder_is_shown_as_gone_and_its_lock_is_free_at_once() {
    let file = File::start().await;
    let client = client(file.0.path()).await;
    let mut helper = helper(&file).await;
    assert!(helper.ask("acquire job EX 3600000").await.starts_with("got"));
    let pid = helper.pid();
    let seen = async || {
        let info = client.inspect("job").await.unwrap();
        let [holder] = info.holders.as_slice() else { panic!("{info:?}") };
        assert_eq!((holder.pid, holder.label.as_deref()), (Some(pid), Some("helper")));
        assert!(holder.host.is_some() && holder.since.is_some() && holder.token.is_some());
        holder.presence
    };
    assert_eq!(seen().await, Presence::Present);
    helper.kill();
    assert_eq!(seen().await, Presence::Gone);
    let next = client.lock("job").try_acquire().await.unwrap().expect("free at once");
    assert_eq!(client.inspect("job").await.unwrap().holders.len(), 1, "its traces go with the next grant");
    drop(next);
}

#[tokio::test]
async fn a_lock_file_that_is_deleted_costs_its_holder_the_lock_and_lets_nobody_else_in_before() {
    let file = File::start().await;
    let client = client(file.0.path()).await;
    let mut helper = helper(&file).await;
    let got = helper.ask("acquire job EX 3600000").await;
    let token: u64 = got.strip_prefix("got ").unwrap().parse().unwrap();
    // Stopped, it cannot notice; and who comes now finds a lock file that nobody has locked.
    helper.stop();
    fs::remove_file(folder(file.0.path()).join("lock")).unwrap();
    for _ in 0..3 {
        assert!(client.lock("job").try_acquire().await.unwrap().is_none(), "two are in");
    }
    helper.resume();
    until("the holder is told", async || helper.ask("check job").await == "lost Forgotten").await;
    let next = within_a_minute("the next one gets it", client.lock("job").acquire()).await.unwrap();
    assert!(next.token().unwrap().get() > token);
    assert_eq!(helper.ask("release job").await, "AlreadyLost(Forgotten)");
    assert!(next.check().is_ok());
}

#[tokio::test]
async fn a_folder_that_is_deleted_is_noticed_at_once_and_the_token_does_not_go_back() {
    let file = File::start().await;
    let client = client(file.0.path()).await;
    let guard = hold(&client, "job").await;
    let waiting = tokio::spawn(client.lock("job").ttl(LONG).acquire());
    until("it waits", async || client.inspect("job").await.unwrap().waiters.len() == 1).await;
    fs::remove_dir_all(folder(file.0.path())).unwrap();
    assert_eq!(within_a_minute("the holder is told", guard.lost()).await, LostReason::Forgotten);
    let next = within_a_minute("the waiter gets it", waiting).await.unwrap().unwrap();
    assert!(next.token() > guard.token());
    assert_eq!(guard.release().await.unwrap(), Release::AlreadyLost(LostReason::Forgotten));
    assert_eq!(next.release().await.unwrap(), Release::Released);
}

#[tokio::test]
async fn a_damaged_state_is_an_error_that_says_where_and_holds_nothing() {
    let file = File::start().await;
    let client = client(file.0.path()).await;
    let guard = hold(&client, "job").await;
    let last = guard.token();
    guard.set_value("precious").await.unwrap();
    let _ = guard.release().await.unwrap();
    let state = folder(file.0.path()).join("state");
    let good = fs::read(&state).unwrap();
    for damage in [Vec::new(), b"garbage".to_vec(), vec![0; 8192], vec![0xff; 8192]] {
        fs::write(&state, damage).unwrap();
        let error = client.lock("job").try_acquire().await.unwrap_err();
        let AcquireError::Engine(EngineError::Damaged { message, .. }) = &error else { panic!("{error}") };
        assert!(message.contains(&*folder(file.0.path()).to_string_lossy()), "{message}");
        assert!(message.contains("restore") && message.contains("delete"), "says what to do: {message}");
        assert!(client.inspect("job").await.is_err(), "nothing is made up");
    }
    fs::write(&state, good).unwrap();
    let next = hold(&client, "job").await;
    assert!(next.token() > last);
    assert_eq!(next.value().bytes, "precious");
    let _ = next.release().await.unwrap();
    // The other way out that the error names.
    fs::remove_dir_all(folder(file.0.path())).unwrap();
    assert!(hold(&client, "job").await.token() > last);
}

#[tokio::test]
async fn one_torn_slot_costs_nothing_but_a_number() {
    let file = File::start().await;
    let client = client(file.0.path()).await;
    let state = || folder(file.0.path()).join("state");
    let mut last = None;
    for slot in [0, 1, 0, 1] {
        let guard = hold(&client, "job").await;
        assert!(guard.token() > last);
        last = guard.token();
        let _ = guard.release().await.unwrap();
        let mut bytes = fs::read(state()).unwrap();
        bytes[slot * 4096 + 50..slot * 4096 + 3000].fill(0x5a);
        fs::write(state(), bytes).unwrap();
    }
    assert!(hold(&client, "job").await.token() > last);
}

#[tokio::test]
async fn a_moved_folder_is_not_taken_for_another_lock() {
    let file = File::start().await;
    let client = client(file.0.path()).await;
    let _ = hold(&client, "first").await.release().await.unwrap();
    let first = folder(file.0.path());
    let _ = hold(&client, "second").await.release().await.unwrap();
    let second = fs::read_dir(file.0.path())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| *path != first)
        .unwrap();
    fs::copy(first.join("state"), second.join("state")).unwrap();
    let error = client.lock("second").try_acquire().await.unwrap_err();
    assert!(matches!(error, AcquireError::Engine(EngineError::Damaged { .. })), "{error}");
    assert!(client.inspect("second").await.is_err());
}

#[tokio::test]
async fn a_full_disk_is_a_clear_error_and_costs_no_lock_that_is_held() {
    let disk = SmallDisk::new(1 << 20);
    let client = client(disk.path()).await;
    let held = hold(&client, "held").await;
    let _ = hold(&client, "free").await.release().await.unwrap();
    disk.fill();
    for name in ["free", "new"] {
        let error = client.lock(name).try_acquire().await.unwrap_err();
        let AcquireError::Engine(EngineError::Refused { message, .. }) = &error else {
            panic!("{name}: {error}")
        };
        assert!(message.contains("space"), "{message}");
    }
    // What was there before needs no space: the value is written in place.
    assert!(held.check().is_ok());
    held.set_value("on a full disk").await.unwrap();
    let token = held.token();
    let _ = held.release().await.unwrap();
    disk.free_up();
    let next = hold(&client, "held").await;
    assert!(next.token() > token);
    assert_eq!(next.value().bytes, "on a full disk");
    drop(client.lock("free").try_acquire().await.unwrap().expect("nothing stayed behind"));
}

#[tokio::test]
async fn a_path_that_is_no_directory_is_a_clear_error() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let error = Client::connect(&format!("file:{}", file.display())).await.unwrap_err().to_string();
    assert!(error.contains("name a directory"), "{error}");
    let error = Client::connect("fiel:/tmp").await.unwrap_err().to_string();
    assert!(error.contains("fiel") && error.contains("file:"), "{error}");
}

/// A waiter is served although the one ahead of it is stopped.
#[tokio::test]
async fn a_stopped_waiter_holds_nobody_up() {
    let file = File::start().await;
    let client = client(file.0.path()).await;
    let guard = hold(&client, "job").await;
    let mut first = helper(&file).await;
    first.tell("acquire job EX 3600000");
    until("the first waits", async || client.inspect("job").await.unwrap().waiters.len() == 1).await;
    first.stop();
    let second = tokio::spawn(client.lock("job").wait(Wait::Forever).acquire());
    until("the second waits", async || client.inspect("job").await.unwrap().waiters.len() == 2).await;
    let _ = guard.release().await.unwrap();
    let _ = within_a_minute("the second gets it", second).await.unwrap().unwrap().release().await.unwrap();
    first.resume();
    assert!(first.answer().await.starts_with("got"));
}

#[tokio::test]
async fn a_reader_that_outlives_its_owners_writer_leaves_no_doubt() {
    let file = File::start().await;
    let (here, there) = (client(file.0.path()).await, client(file.0.path()).await);
    let owner = here.owner();
    let writer = owner.lock("job").ttl(LONG).acquire().await.unwrap();
    let reader = there.owner_with_id(owner.id()).lock("job").shared().ttl(LONG).acquire().await.unwrap();
    writer.set_value("done").await.unwrap();
    let _ = writer.release().await.unwrap();
    let _ = reader.release().await.unwrap();
    assert!(!hold(&here, "job").await.value().in_doubt, "nobody died");
}

#[tokio::test]
async fn a_writer_that_died_beside_another_of_its_owner_leaves_a_doubt() {
    let file = File::start().await;
    let client = client(file.0.path()).await;
    let owner = client.owner();
    let guard = owner.lock("job").ttl(LONG).acquire().await.unwrap();
    let mut helper = helper(&file).await;
    assert!(helper.ask(&format!("reenter job {} {}", owner.id(), LONG.as_millis())).await.starts_with("got"));
    helper.kill();
    assert!(client.inspect("job").await.unwrap().value.in_doubt, "one of them died");
    let _ = guard.release().await.unwrap();
    assert!(client.inspect("job").await.unwrap().value.in_doubt);
    let next = hold(&client, "job").await;
    assert!(next.value().in_doubt);
    next.set_value("repaired").await.unwrap();
    assert!(!client.inspect("job").await.unwrap().value.in_doubt);
}

#[tokio::test]
async fn a_planted_link_is_not_followed() {
    let file = File::start().await;
    let client = client(file.0.path()).await;
    let _ = hold(&client, "job").await.release().await.unwrap();
    let folder = folder(file.0.path());
    let victim = file.0.path().join("victim");
    fs::write(&victim, "precious").unwrap();
    for planted in ["lock", "state", "state.new"] {
        fs::remove_dir_all(&folder).unwrap();
        fs::create_dir(&folder).unwrap();
        std::os::unix::fs::symlink(&victim, folder.join(planted)).unwrap();
        let answer = client.lock("job").try_acquire().await;
        assert!(answer.is_err() || planted == "state.new", "{planted}: {answer:?}");
        assert_eq!(fs::read(&victim).unwrap(), b"precious", "{planted}");
    }
    fs::remove_dir_all(&folder).unwrap();
    let elsewhere = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(elsewhere.path(), &folder).unwrap();
    assert!(client.lock("job").try_acquire().await.is_err());
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn a_writer_that_waits_behind_a_joined_reader_is_in_no_readers_way() {
    let file = File::start().await;
    let (here, there) = (client(file.0.path()).await, client(file.0.path()).await);
    let owner = here.owner();
    let first = owner.lock("job").shared().ttl(LONG).acquire().await.unwrap();
    let joined = there.owner_with_id(owner.id()).lock("job").shared().ttl(LONG).acquire().await.unwrap();
    // Nobody has the kernel's lock now, and still the writer must stay out.
    let _ = first.release().await.unwrap();
    let writer = tokio::spawn(here.lock("job").ttl(LONG).acquire());
    until("it waits", async || here.inspect("job").await.unwrap().waiters.len() == 1).await;
    for turn in 0..200 {
        let reader = there.lock("job").shared().try_acquire().await.unwrap();
        assert!(reader.is_some(), "reader {turn} finds it taken");
        let _ = reader.unwrap().release().await.unwrap();
    }
    let _ = joined.release().await.unwrap();
    let _ = within_a_minute("the writer gets it", writer).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn no_name_leads_out_of_the_directory_or_is_too_long_for_it() {
    let place = tempfile::tempdir().unwrap();
    let locks = place.path().join("locks");
    let client = client(&locks).await;
    let longest = "é".repeat(256);
    assert_eq!(longest.len(), tenure::LockName::MAX_BYTES);
    let mut guards = Vec::new();
    for name in ["..", ".", "/", "../../escape", "/etc/passwd", "Job", "job", &longest] {
        let guard = client.lock(name).ttl(LONG).try_acquire().await.unwrap();
        guards.push(guard.unwrap_or_else(|| panic!("{name} meets another name")));
    }
    let listed: Vec<_> =
        client.list("").await.unwrap().into_iter().map(|info| info.name.to_string()).collect();
    assert_eq!(listed.len(), guards.len());
    assert!(listed.contains(&longest) && listed.contains(&"..".to_owned()));
    let beside: Vec<_> = fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(beside, [locks], "something was made outside of the directory");
}

/// Whoever writes may have to wait, for the disk or for somebody who is stopped. The client's other locks do not.
#[tokio::test]
async fn a_write_that_takes_long_holds_up_no_other_lock_of_the_client() {
    let file = File::start().await;
    let client = client(file.0.path()).await;
    let slow = hold(&client, "slow").await;
    let stopped = fs::File::open(folder(file.0.path())).unwrap();
    rustix::fs::flock(&stopped, rustix::fs::FlockOperation::NonBlockingLockExclusive).unwrap();
    // Begun before the lock is watched, and under way when that begins.
    let mut writing = Box::pin(slow.set_value("late"));
    assert!(futures_util::poll!(&mut writing).is_pending());
    let other = client.lock("other").max_hold(Duration::from_millis(500)).acquire().await.unwrap();
    within_a_minute("the other one is told in time", other.lost()).await;
    assert!(futures_util::poll!(&mut writing).is_pending(), "it was told while the write still waited");
    drop(stopped);
    within_a_minute("the write", writing).await.unwrap();
}
