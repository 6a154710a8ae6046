//! Damage at rest: a refusal that names file and offset, and never a guess.

use tenure_log::simulated::SimulatedDisk;
use tenure_log::{Batch, Identity, Log, LogError, Options, SECTOR};

const OURS: Identity = Identity([7; 32]);
const OPTIONS: Options = Options { segment_bytes: 8 * SECTOR as u64, memory_bytes: 0 };

fn open(disk: &SimulatedDisk) -> Result<Log<SimulatedDisk>, LogError> {
    Log::open(disk.clone(), OURS, OPTIONS)
}

fn log_of_three_segments() -> SimulatedDisk {
    let disk = SimulatedDisk::new();
    let mut log = open(&disk).unwrap();
    for number in 0..9 {
        log.write(Batch::new().entry(vec![number; 900]).hard_state(vec![number])).unwrap();
    }
    assert!(disk.files().len() >= 3);
    disk
}

#[test]
fn every_flipped_bit_is_refused_with_its_place() {
    let disk = log_of_three_segments();
    for (name, length) in disk.files() {
        // Each byte of the header of each sector, and some of the rest.
        for at in (0..length).filter(|at| at % SECTOR < 20 || at % 37 == 0) {
            let bit = at * 8 + at % 8;
            disk.flip(&name, bit);
            match open(&disk) {
                Err(LogError::Damaged { file, offset, .. }) => {
                    assert_eq!(file, name);
                    assert_eq!(usize::try_from(offset).unwrap() / SECTOR, at / SECTOR, "{name}, byte {at}");
                }
                other => panic!("{name}, byte {at}: {:?}", other.map(|log| log.next())),
            }
            disk.flip(&name, bit);
        }
    }
    assert_eq!(open(&disk).unwrap().next(), 10, "nothing was changed");
}

#[test]
fn a_bit_that_flips_under_a_running_log_is_found_when_it_is_read() {
    let disk = log_of_three_segments();
    let log = open(&disk).unwrap();
    disk.flip("00000000000000000001.log", SECTOR * 8 + 300);
    let read = log.read(1, 10, usize::MAX);
    assert!(matches!(read, Err(LogError::Damaged { .. })), "{read:?}");
}

#[test]
fn the_log_of_another_replica_is_refused() {
    let disk = log_of_three_segments();
    let other = Log::open(disk, Identity([8; 32]), OPTIONS);
    assert!(matches!(other, Err(LogError::Foreign { .. })), "{other:?}");
}

#[test]
fn a_segment_that_is_missing_is_refused() {
    use tenure_log::Disk;
    for missing in ["00000000000000000002.log", "00000000000000000001.log"] {
        let disk = log_of_three_segments();
        disk.remove(missing).unwrap();
        let opened = open(&disk);
        if missing.ends_with("2.log") {
            assert!(matches!(&opened, Err(LogError::Damaged { file, .. }) if file == missing), "{opened:?}");
        } else {
            // As after a purge: the entries of the segment are gone, and it is known which are left.
            assert!(opened.unwrap().first() > 1);
        }
    }
}

#[test]
fn what_was_purged_is_said_to_be() {
    let disk = log_of_three_segments();
    let mut log = open(&disk).unwrap();
    let before = log.bytes_on_disk();
    log.purge_before(8).unwrap();
    assert!(log.bytes_on_disk() < before);
    assert!(matches!(log.read(7, 9, 0), Err(LogError::Purged { index: 7, first: 8 })));
    let truncated = log.write(Batch::new().truncate_from(5));
    assert!(matches!(truncated, Err(LogError::Purged { .. })), "{truncated:?}");
    assert_eq!(log.read(8, 100, 1).unwrap(), [vec![7; 900]], "one, however long");
    drop(log);
    let log = open(&disk).unwrap();
    assert!(log.first() <= 8 && log.next() == 10);
    assert_eq!(**log.hard_state(), [8]);
}

#[test]
fn a_batch_that_no_segment_has_room_for_is_refused() {
    let disk = SimulatedDisk::new();
    let mut log = open(&disk).unwrap();
    let refused = log.write(Batch::new().entry(vec![1; 8 * SECTOR]));
    assert!(matches!(refused, Err(LogError::TooLong { .. })), "{refused:?}");
    log.write(Batch::new().entry(&b"short"[..])).unwrap();
    assert_eq!(log.read(1, 2, 0).unwrap(), ["short"]);
}

#[test]
fn it_does_the_same_on_a_file_system() {
    let folder = tempfile::tempdir().unwrap();
    let open =
        || Log::open(tenure_log::Folder::open(folder.path().join("log")).unwrap(), OURS, OPTIONS).unwrap();
    let mut log = open();
    for number in 0..20_u8 {
        if log.wants_segment() {
            log.preparer().prepare().unwrap();
        }
        log.write(Batch::new().entry(vec![number; 900])).unwrap();
    }
    log.write(Batch::new().truncate_from(15).hard_state(&b"vote"[..])).unwrap();
    drop(log);
    let mut log = open();
    assert_eq!((log.first(), log.next(), &**log.hard_state()), (1, 15, &b"vote"[..]));
    assert_eq!(log.read(14, 15, 0).unwrap(), [vec![13; 900]]);
    log.purge_before(14).unwrap();
    assert_eq!(open().next(), 15);
}
