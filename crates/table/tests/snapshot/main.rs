//! Snapshots: what is read is what was written, and damage is an error, never a panic and never a wrong table.

mod decode;

use bytes::Bytes;
use decode::{read, sealed};
use tenure_table::{
    Acquire, AcquireAll, Command, Effect, GrantId, Item, Limits, LockName, Mode, OwnerId, Request, SessionId,
    SnapshotError, Table, Wait,
};

/// Where the first block's records begin: behind the head of the file and that of the block.
const RECORDS: usize = 10 + 12;
/// The head of a block.
const HEAD: usize = 12;

fn name(text: &str) -> LockName {
    LockName::parse(text).unwrap()
}

fn session(number: u128) -> SessionId {
    SessionId::from_u128(number)
}

fn grant(number: u128) -> GrantId {
    GrantId::from_u128(number)
}

/// A table and its snapshot.
fn written(commands: Vec<Command>) -> (Table, Vec<u8>) {
    let mut table = Table::new(Limits::default(), 1);
    let mut effects = Vec::new();
    for command in commands {
        table.apply(command, &mut effects);
    }
    table.check().unwrap();
    let mut snapshot = Vec::new();
    table.write_snapshot(&mut snapshot).unwrap();
    (table, snapshot)
}

/// A small table that has one of everything: sessions, labels, answers of each kind, values in doubt, starts, delays, conversions,
/// waiters, a set, notices, a lock that is to be let go of, observers.
fn one_of_everything() -> Vec<Command> {
    let acquire = |number, of: &str, mode| Acquire::new(grant(number), name(of), mode);
    let mut commands = Vec::new();
    for (number, label) in [(1, None), (2, Some("worker".into())), (3, None)] {
        commands.push(Command::OpenSession { session: session(number), ttl_ms: 30_000, label });
    }
    commands.push(Command::AdvanceTime { to_ms: 5_000 });
    let mut numbers = [0_u64; 4];
    let mut ask = |of: usize, request| {
        numbers[of] += 1;
        commands.push(Command::request(session(of as u128), numbers[of], request));
    };
    let label = Some("nightly".into());
    ask(1, Request::Acquire(Acquire { label, notify: true, ..acquire(1, "a", Mode::Ex) }));
    ask(1, Request::SetValue { grant: grant(1), bytes: Bytes::from_static(b"checkpoint") });
    ask(1, Request::Remember { grant: grant(1), ago_ms: 7_000, window_ms: 60_000 });
    ask(2, Request::Acquire(acquire(2, "a", Mode::Pr)));
    ask(2, Request::Acquire(Acquire { wait: Wait::Try, ..acquire(3, "a", Mode::Pr) }));
    ask(3, Request::Acquire(Acquire { lock_delay_ms: 4_000, ..acquire(4, "b", Mode::Pw) }));
    ask(3, Request::SetValue { grant: grant(4), bytes: Bytes::from_static(b"half") });
    ask(1, Request::Acquire(acquire(5, "c", Mode::Cr)));
    ask(2, Request::Acquire(acquire(6, "c", Mode::Pr)));
    ask(1, Request::Convert { grant: grant(5), to: Mode::Ex, wait: Wait::Queue, value: None });
    let items =
        [("a", 7), ("c", 8)].map(|(of, id)| Item { grant: grant(id), name: name(of), mode: Mode::Cw });
    let (owner, items) = (OwnerId::from_u128(9), items.to_vec());
    let all = AcquireAll { owner, items, wait: Wait::Queue, label: None, lock_delay_ms: 0, notify: false };
    ask(2, Request::AcquireAll(all));
    ask(1, Request::Break { name: name("a"), how: tenure_table::Break::Ask });
    ask(1, Request::Observe { name: name("a") });
    ask(2, Request::Observe { name: name("a") });
    ask(2, Request::Observe { name: name("free") });
    commands.push(Command::ExpireSession { session: session(3), epoch: 1 });
    commands.push(Command::KeepSession { session: session(2) });
    commands
}

#[test]
fn what_is_read_is_what_was_written() {
    let (table, snapshot) = written(one_of_everything());
    let all = table.list("", None, usize::MAX);
    let has = |what: fn(&tenure_table::ResourceView) -> bool| assert!(all.iter().any(what));
    has(|resource| !resource.converters.is_empty());
    has(|resource| resource.waiters.iter().any(|waiter| waiter.together == 2));
    has(|resource| !resource.delays.is_empty() && resource.value.in_doubt);
    has(|resource| resource.started_ago_ms.is_some());
    has(|resource| resource.holders.iter().any(|holder| holder.let_go && holder.notify));
    let restored = read(&snapshot).unwrap();
    assert_eq!(restored.state_hash(), table.state_hash());
    assert_eq!(restored.list("", None, usize::MAX), all);
    assert_eq!((restored.sessions(), restored.delays()), (table.sessions(), table.delays()));
    let mut again = Vec::new();
    restored.write_snapshot(&mut again).unwrap();
    assert_eq!(again, snapshot, "the same state is the same bytes");
}

/// Both go on alike: answers are remembered, lines have kept their order, counters go on.
#[test]
fn a_restored_table_goes_on_as_the_first_one_does() {
    let commands = one_of_everything();
    let (mut table, snapshot) = written(commands.clone());
    let mut restored = read(&snapshot).unwrap();
    let mut more = commands;
    for number in 0_u64..30 {
        let request = Request::Release { grant: grant(u128::from(number % 10)), value: None };
        more.push(Command::request(session(u128::from(1 + number % 2)), 50 + number, request));
    }
    more.push(Command::EndDelay { grant: grant(4) });
    for command in more {
        let (mut one, mut other) = (Vec::<Effect>::new(), Vec::new());
        table.apply(command.clone(), &mut one);
        restored.apply(command, &mut other);
        assert_eq!(one, other);
        assert_eq!(table.state_hash(), restored.state_hash());
    }
}

#[test]
fn every_flipped_byte_is_found() {
    let (_, snapshot) = written(one_of_everything());
    for at in 0..snapshot.len() {
        for flip in [0x01, 0x10, 0x80, 0xff] {
            let mut damaged = snapshot.clone();
            damaged[at] ^= flip;
            assert!(read(&damaged).is_err(), "byte {at}, flipped by {flip:#x}, was not missed");
        }
    }
}

#[test]
fn every_missing_end_is_found_and_so_is_a_byte_too_many() {
    let (_, snapshot) = written(one_of_everything());
    for length in 0..snapshot.len() {
        assert!(read(&snapshot[..length]).is_err(), "nobody missed what is behind byte {length}");
    }
    let longer = [snapshot.as_slice(), &[0]].concat();
    assert!(matches!(read(&longer), Err(SnapshotError::Damaged { .. })));
}

/// Blocks that are whole in themselves, but stand in the wrong order, twice, or not at all.
#[test]
fn blocks_that_are_not_where_they_belong_are_found() {
    let acquire = |number: u64| {
        let acquire = Acquire::new(grant(number.into()), name(&format!("orders/{number}")), Mode::Ex);
        Command::Request { session: session(1), number, seen: number - 1, request: Request::Acquire(acquire) }
    };
    let open = Command::OpenSession { session: session(1), ttl_ms: 1, label: None };
    let (table, snapshot) = written(std::iter::once(open).chain((1..5_000).map(acquire)).collect());
    assert_eq!(read(&snapshot).unwrap().state_hash(), table.state_hash());

    let mut blocks = Vec::new();
    let mut at = 10;
    while at < snapshot.len() {
        let length = u32::from_le_bytes(snapshot[at..at + 4].try_into().unwrap()) as usize;
        blocks.push(&snapshot[at..at + HEAD + length]);
        at += HEAD + length;
    }
    assert!(blocks.len() >= 4, "it takes several blocks to mix them up");
    let with = |order: &[usize]| {
        let mut mixed = snapshot[..10].to_vec();
        for block in order {
            mixed.extend(blocks[*block]);
        }
        mixed
    };
    let whole: Vec<usize> = (0..blocks.len()).collect();
    assert_eq!(with(&whole), snapshot);
    let mut swapped = whole.clone();
    swapped.swap(1, 2);
    let twice = [&whole[..2], &whole[1..]].concat();
    let missing = [&whole[..1], &whole[2..]].concat();
    for order in [swapped, twice, missing] {
        assert!(matches!(read(&with(&order)), Err(SnapshotError::Damaged { .. })), "{order:?}");
    }
}

#[test]
fn what_is_something_else_is_told_from_what_is_damaged() {
    assert!(matches!(read(b"PNG or whatever else it may be"), Err(SnapshotError::NotASnapshot)));
    let (_, mut snapshot) = written(Vec::new());
    snapshot[8] = 1;
    assert!(matches!(read(&snapshot), Err(SnapshotError::Version { found: 1, known: 2 })));
}

/// Its replica would decide differently from the one that wrote it.
#[test]
fn a_snapshot_that_needs_unknown_rules_is_refused() {
    // Behind the kind of the record and eleven limits of one byte each.
    const RULES: usize = RECORDS + 12;
    let limits = Limits {
        sessions: 1,
        names: 1,
        locks_per_session: 1,
        waiters_per_resource: 1,
        observed_per_session: 1,
        observers_per_resource: 1,
        items_per_request: 1,
        answers_per_session: 1,
        name_bytes: 1,
        label_bytes: 1,
        value_bytes: 1,
    };
    let (table, mut snapshot) = written(vec![Command::SetLimits(limits)]);
    assert_eq!(u32::from(snapshot[RULES]), table.rules());
    snapshot[RULES] = 9;
    let newer = sealed(&snapshot[RECORDS..snapshot.len() - HEAD]);
    let known = Table::RULES;
    assert!(matches!(read(&newer), Err(SnapshotError::Rules { found: 9, known: k }) if k == known));
}

/// This one was written when the version was new.
#[test]
fn a_snapshot_of_version_2_can_be_read() {
    let kept = include_bytes!("version-2.snapshot");
    let (table, snapshot) = written(one_of_everything());
    assert_eq!(read(kept).unwrap().state_hash(), table.state_hash());
    assert_eq!(snapshot, kept, "the format has changed: it needs a new version");
}

/// Found by the fuzz target: two answers to one number, of which one says that it was forgotten.
#[test]
fn an_answer_that_is_never_kept_is_refused() {
    let found = include_bytes!("forgotten-answer.records");
    let refused = read(&sealed(found)).unwrap_err().to_string();
    assert!(refused.contains("an answer is kept that never is"), "{refused}");
}

/// The fuzz target, for a fixed number of inputs: records that were changed, cut and mixed at random, under checksums that are right.
#[test]
fn changed_records_under_right_checksums_give_an_error_or_a_table_that_is_right() {
    let rounds = std::env::var("TENURE_FUZZ_INPUTS").map_or(20_000, |number| number.parse().unwrap());
    let (_, snapshot) = written(one_of_everything());
    let records = &snapshot[RECORDS..snapshot.len() - HEAD];
    assert!(read(&sealed(records)).is_ok(), "unchanged, they are a snapshot");
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = |below: usize| {
        // xorshift64*: the same inputs in every run.
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % below
    };
    let mut right = 0;
    for _ in 0..rounds {
        let mut changed = records.to_vec();
        for _ in 0..=random(3) {
            let at = random(changed.len());
            match random(4) {
                0 => changed[at] = u8::try_from(random(256)).unwrap(),
                1 => changed[at] ^= 1 << random(8),
                2 => drop(changed.drain(at..(at + random(40)).min(changed.len()))),
                _ => {
                    let from = random(records.len());
                    let piece = &records[from..(from + random(60)).min(records.len())];
                    changed.splice(at..at, piece.iter().copied());
                }
            }
            if changed.is_empty() {
                changed.push(0);
            }
        }
        right += usize::from(read(&sealed(&changed)).is_ok());
    }
    // A change of a label or a time is still a table. If none were, the test would only ever see errors.
    assert!(right > 0 && right < rounds, "{right} of {rounds} were tables");
}
