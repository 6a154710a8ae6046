//! Disks, users and waiting.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use tenure_testkit::{Redis, SmallDisk, eventually, eventually_within, unprivileged};

const MEGABYTE: u64 = 1 << 20;

#[test]
fn a_filled_disk_refuses_data_and_takes_it_again_when_freed() {
    let disk = SmallDisk::new(MEGABYTE);
    write(&disk.path().join("before")).unwrap();
    disk.fill();
    let file = disk.path().join("after");
    assert_eq!(write(&file).unwrap_err().kind(), ErrorKind::StorageFull);
    disk.free_up();
    write(&file).unwrap();
}

#[test]
fn a_small_disk_is_as_small_as_it_says() {
    let disk = SmallDisk::new(MEGABYTE);
    disk.fill();
    let used: u64 =
        fs::read_dir(disk.path()).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum();
    assert_eq!(used, MEGABYTE);
}

#[test]
fn a_dropped_disk_is_unmounted_even_while_a_file_on_it_is_open() {
    let disk = SmallDisk::new(MEGABYTE);
    let path = disk.path().to_owned();
    let open = File::create(path.join("open")).unwrap();
    drop(disk);
    assert!(!path.exists());
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(path.to_str().unwrap()));
    drop(open);
}

#[test]
fn a_redis_whose_disk_is_full_refuses_to_write_and_recovers() {
    let disk = SmallDisk::new(MEGABYTE);
    let redis = Redis::builder()
        .args(["--dir", disk.path().to_str().unwrap()])
        .args(["--appendonly", "yes", "--appendfsync", "everysec"])
        .start();
    let value = "x".repeat(20_000);
    disk.fill();
    // With `everysec` a failed write is reported to the next client; with `always` Redis ends.
    eventually("Redis to notice", || {
        let mut connection = redis.connect().unwrap();
        connection.command(&["SET", "a", &value]).is_err_and(|error| error.to_string().starts_with("MISCONF"))
    });
    disk.free_up();
    eventually("Redis to recover", || redis.connect().unwrap().command(&["SET", "a", "1"]).is_ok());
}

#[test]
fn an_unprivileged_program_is_nobody_and_in_no_group() {
    let output = unprivileged("id").output().unwrap();
    let ids = String::from_utf8(output.stdout).unwrap();
    assert!(!ids.contains("uid=0") && !ids.contains("root"), "{ids}");
    if rustix::process::geteuid().is_root() {
        assert!(ids.contains("uid=65534") && ids.contains("gid=65534"), "{ids}");
        assert!(!ids.contains(','), "only one group: {ids}");
    }
}

#[test]
fn an_unprivileged_program_cannot_read_what_only_its_owner_may() {
    let folder = tempfile::tempdir().unwrap();
    let (file, root) = (folder.path().join("secret"), rustix::process::geteuid().is_root());
    fs::write(&file, "secret").unwrap();
    // For an ordinary user the owner is that user, so the right is taken from the owner too.
    let mode = if root { 0o600 } else { 0o000 };
    fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let output = unprivileged("cat").arg(&file).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8(output.stderr).unwrap().contains("Permission denied"));
}

#[test]
fn waiting_ends_with_what_was_found() {
    let mut looks = 0;
    let found = eventually("the third look", || {
        looks += 1;
        (looks == 3).then_some("it")
    });
    assert_eq!((found, looks), ("it", 3));
}

#[test]
#[should_panic(expected = "waited in vain for a sunny day, for 10ms")]
fn waiting_in_vain_says_for_what() {
    eventually_within(Duration::from_millis(10), "a sunny day", || false);
}

fn write(file: &Path) -> std::io::Result<()> {
    File::create(file)?.write_all(&vec![1; 100_000])
}
