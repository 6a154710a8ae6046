//! The state of a resource: the token counter, the value and the last start, which must outlive every crash.
//!
//! The file has two slots of 4 KiB. Generation `g` is written to slot `g % 2` and synced before the grant is returned, so a write that a
//! power failure tears hits only the older slot. It is written in place, because that costs one sync where replacing a file costs three,
//! needs no space on a full disk, and leaves nothing behind.
//!
//! The token never decreases:
//! - an unreadable slot may have recorded one more grant than the other, so the counter skips one;
//! - without any state, the counter starts at the date in microseconds, which is greater than any token of a deleted state.
//!
//! A confirmed start is not lost: it is written to both slots before the response. An unreadable slot therefore loses at most an
//! unconfirmed start, for which no job ran. The content of the readable slot counts.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::SystemTime;

use bytes::Bytes;
use rustix::io::Errno;
use tenure_table::{LockName, Value};

use super::moment::Moment;
use super::resource::for_writing;

/// One slot: the unit in which disks tear.
const SLOT: usize = 4096;
const MAGIC: [u8; 4] = *b"TNRS";
const VERSION: u8 = 1;
const HEADER: usize = 28;
const CRC_AT: usize = SLOT - 4;
const START_AT: usize = CRC_AT - Moment::BYTES;

const FLAG_OPEN: u8 = 1;
const FLAG_IN_DOUBT: u8 = 2;

/// The state of a resource, apart from its holders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct State {
    generation: u64,
    /// The last token that was granted.
    pub(super) token: u64,
    /// Whether that grant allowed writing. It is not over unless the lock file records that it ended well.
    pub(super) open: bool,
    pub(super) value: Value,
    /// The last recorded start of the work that the lock protects.
    pub(super) start: Option<Moment>,
}

/// A state, and the lock name that it belongs to.
type Named = (String, State);

/// The reason why no state can be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum StateError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("{0}")]
    Damaged(String),
}

impl StateError {
    pub(super) fn of_another(name: &LockName, found: &str) -> Self {
        Self::Damaged(format!(
            "the folder of `{name}` has the state of `{found}`: it was moved or copied there"
        ))
    }
}

impl State {
    /// Returns the state of a resource that has none yet.
    pub(super) fn first(now: SystemTime) -> Self {
        let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let token = u64::try_from(since.as_micros()).unwrap_or(0);
        Self { generation: 1, token, open: false, value: Value::default(), start: None }
    }

    /// Creates the file, whole and synced, with this as its content.
    pub(super) fn create(&self, folder: &Path, name: &LockName) -> io::Result<File> {
        let new = folder.join("state.new");
        // A leftover of a process that died here is not opened, since it may be anything.
        match std::fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let file = for_writing().create_new(true).open(&new)?;
        file.write_all_at(&Self { generation: 0, ..self.clone() }.encode(name), 0)?;
        file.write_all_at(&self.encode(name), SLOT as u64)?;
        file.sync_all()?;
        std::fs::rename(&new, folder.join("state"))?;
        // The folder and its name must exist after a crash, too.
        File::open(folder)?.sync_all()?;
        if let Some(directory) = folder.parent() {
            File::open(directory)?.sync_all()?;
        }
        Ok(file)
    }

    /// Reads the newer slot.
    pub(super) fn read(file: &File, name: &LockName) -> Result<Self, StateError> {
        let (found, state) = Self::newer(read_slot(file, 0)?, read_slot(file, 1)?)?;
        if found != name.as_str() {
            return Err(StateError::of_another(name, &found));
        }
        Ok(state)
    }

    /// Returns the newer of two slots, and the name in it.
    fn newer(first: Option<Named>, second: Option<Named>) -> Result<Named, StateError> {
        match (first, second) {
            (Some(a), Some(b)) => Ok(if a.1.generation > b.1.generation { a } else { b }),
            (Some((name, mut only)), None) | (None, Some((name, mut only))) => {
                // The other slot may have been the newer one: it recorded at most one more grant, and perhaps a value.
                only.token += 1;
                only.value.in_doubt = true;
                Ok((name, only))
            }
            (None, None) => Err(StateError::Damaged("both slots of the state are damaged".into())),
        }
    }

    /// Reads the newer slot without the short lock, for inspection: another process may be writing a slot.
    pub(super) fn read_unlocked(file: &File) -> Result<(String, Self), StateError> {
        const LOOKS: usize = 5;
        let mut slots = (None, None);
        for _ in 0..LOOKS {
            slots = (read_slot(file, 0)?, read_slot(file, 1)?);
            if slots.0.is_some() && slots.1.is_some() {
                break;
            }
            std::thread::yield_now();
        }
        Self::newer(slots.0, slots.1)
    }

    /// Writes the successor of `self`, and syncs it. It is durable when this returns.
    pub(super) fn write_next(
        &self,
        file: &File,
        name: &LockName,
        change: impl FnOnce(&mut Self),
    ) -> io::Result<Self> {
        let mut next = self.clone();
        change(&mut next);
        next.generation = self.generation + 1;
        let slot = next.generation % 2 * SLOT as u64;
        let written = file.write_all_at(&next.encode(name), slot).and_then(|()| file.sync_data());
        if let Err(error) = written {
            // A state that is not on the disk must not be read back from memory either: the next write would then go to the other slot,
            // which has the last durable state.
            let _ = file.write_all_at(&[0; SLOT], slot);
            return Err(error);
        }
        Ok(next)
    }

    /// Writes the successor with a new start to both slots. If the second write fails, the start remains recorded and is not confirmed.
    pub(super) fn write_start(&self, file: &File, name: &LockName, start: Moment) -> io::Result<()> {
        let recorded = self.write_next(file, name, |state| state.start = Some(start))?;
        recorded.write_next(file, name, |_| {})?;
        Ok(())
    }

    /// | bytes | content |
    /// | --- | --- |
    /// | 0..4 | `TNRS` |
    /// | 4 | version, 1 |
    /// | 5 | flags: 1 open, 2 in doubt |
    /// | 6..8 | length of the name |
    /// | 8..10 | length of the value |
    /// | 10..12 | zero |
    /// | 12..20 | generation |
    /// | 20..28 | token |
    /// | 28.. | the name, then the value, then zeros |
    /// | 4060..4076 | the last start: the id of its boot; all of it is zero without a start |
    /// | 4076..4084 | nanoseconds since that boot |
    /// | 4084..4092 | nanoseconds since 1970 |
    /// | 4092..4096 | CRC-32 of all before |
    ///
    /// Numbers are little-endian.
    fn encode(&self, name: &LockName) -> [u8; SLOT] {
        let (name, value) = (name.as_str().as_bytes(), &self.value.bytes);
        let length = |bytes: &[u8]| {
            u16::try_from(bytes.len()).expect("names and values are far shorter").to_le_bytes()
        };
        let mut slot = [0; SLOT];
        slot[0..4].copy_from_slice(&MAGIC);
        slot[4] = VERSION;
        slot[5] = if self.open { FLAG_OPEN } else { 0 } | if self.value.in_doubt { FLAG_IN_DOUBT } else { 0 };
        slot[6..8].copy_from_slice(&length(name));
        slot[8..10].copy_from_slice(&length(value));
        slot[12..20].copy_from_slice(&self.generation.to_le_bytes());
        slot[20..28].copy_from_slice(&self.token.to_le_bytes());
        slot[HEADER..HEADER + name.len()].copy_from_slice(name);
        slot[HEADER + name.len()..HEADER + name.len() + value.len()].copy_from_slice(value);
        if let Some(start) = self.start {
            slot[START_AT..CRC_AT].copy_from_slice(&start.encode());
        }
        let crc = crc32fast::hash(&slot[..CRC_AT]);
        slot[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        slot
    }
}

/// Reads one slot. Returns `None` if it is damaged, or if the disk cannot read it.
fn read_slot(file: &File, slot: u64) -> Result<Option<Named>, StateError> {
    let mut bytes = [0; SLOT];
    match file.read_exact_at(&mut bytes, slot * SLOT as u64) {
        Ok(()) => Ok(decode(&bytes)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            Err(StateError::Damaged("the state is too short".into()))
        }
        Err(error) if Errno::from_io_error(&error) == Some(Errno::IO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn decode(slot: &[u8]) -> Option<Named> {
    let u16_at = |at: usize| Some(usize::from(u16::from_le_bytes(slot.get(at..at + 2)?.try_into().ok()?)));
    let u64_at = |at: usize| Some(u64::from_le_bytes(slot.get(at..at + 8)?.try_into().ok()?));
    let crc = u32::from_le_bytes(slot.get(CRC_AT..SLOT)?.try_into().ok()?);
    if slot[0..4] != MAGIC || slot[4] != VERSION || crc32fast::hash(&slot[..CRC_AT]) != crc {
        return None;
    }
    let (name_len, value_len) = (u16_at(6)?, u16_at(8)?);
    let text = slot[..START_AT].get(HEADER..HEADER + name_len + value_len)?;
    let (name, value) = text.split_at(name_len);
    let state = State {
        generation: u64_at(12)?,
        token: u64_at(20)?,
        open: slot[5] & FLAG_OPEN != 0,
        value: Value { bytes: Bytes::copy_from_slice(value), in_doubt: slot[5] & FLAG_IN_DOUBT != 0 },
        start: Moment::decode(slot[START_AT..CRC_AT].try_into().ok()?),
    };
    Some((std::str::from_utf8(name).ok()?.to_owned(), state))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::moment::BootId;
    use super::*;
    use crate::clock::BootTime;

    fn name() -> LockName {
        LockName::parse("orders/42").unwrap()
    }

    fn state_with(token: u64, value: &'static [u8]) -> State {
        State {
            generation: 1,
            token,
            open: true,
            value: Value { bytes: Bytes::from_static(value), in_doubt: false },
            start: None,
        }
    }

    /// Returns the moment that many seconds after a boot.
    fn started(seconds: u64) -> Moment {
        let boot = BootId::of_this_boot().expect("the kernel says which boot it is");
        Moment::new(boot, BootTime::from_boot(Duration::from_secs(seconds)), SystemTime::UNIX_EPOCH)
    }

    fn next(state: &State, file: &File) -> State {
        state.write_next(file, &name(), |state| state.token += 1).unwrap()
    }

    #[test]
    fn what_was_written_last_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let mut state = state_with(7, b"checkpoint");
        let file = state.create(dir.path(), &name()).unwrap();
        assert_eq!(State::read(&file, &name()).unwrap(), state);
        for _ in 0..5 {
            state = next(&state, &file);
            assert_eq!(State::read(&file, &name()).unwrap(), state);
        }
    }

    #[test]
    fn the_longest_name_and_value_fit() {
        let dir = tempfile::tempdir().unwrap();
        let name = LockName::parse("n".repeat(LockName::MAX_BYTES)).unwrap();
        let value = Value { bytes: vec![0xff; Value::MAX_BYTES].into(), in_doubt: true };
        let state = State { value, start: Some(started(7)), ..state_with(u64::MAX - 1, b"") };
        let file = state.create(dir.path(), &name).unwrap();
        assert_eq!(State::read(&file, &name).unwrap(), state);
    }

    /// Damage to any single byte of the file does not lower the token below the last one that was granted.
    #[test]
    fn no_damage_to_one_byte_takes_the_token_back() {
        let dir = tempfile::tempdir().unwrap();
        let file = state_with(7, b"v").create(dir.path(), &name()).unwrap();
        let last = next(&next(&State::read(&file, &name()).unwrap(), &file), &file);
        let mut whole = [0; 2 * SLOT];
        file.read_exact_at(&mut whole, 0).unwrap();
        for (at, byte) in whole.into_iter().enumerate() {
            file.write_all_at(&[byte ^ 0x41], at as u64).unwrap();
            let read = State::read(&file, &name()).unwrap();
            assert!(read.token >= last.token, "byte {at}: {read:?}");
            file.write_all_at(&[byte], at as u64).unwrap();
        }
    }

    /// Damage to any single byte of the file loses no confirmed start, also after later writes.
    #[test]
    fn no_damage_to_one_byte_loses_a_start() {
        let dir = tempfile::tempdir().unwrap();
        let file = state_with(7, b"v").create(dir.path(), &name()).unwrap();
        for later_writes in 0..3 {
            let start = started(later_writes);
            State::read(&file, &name()).unwrap().write_start(&file, &name(), start).unwrap();
            for _ in 0..later_writes {
                next(&State::read(&file, &name()).unwrap(), &file);
            }
            let mut whole = [0; 2 * SLOT];
            file.read_exact_at(&mut whole, 0).unwrap();
            for (at, byte) in whole.into_iter().enumerate() {
                file.write_all_at(&[byte ^ 0x41], at as u64).unwrap();
                let read = State::read(&file, &name()).unwrap();
                assert_eq!(read.start, Some(start), "byte {at}, {later_writes} writes later");
                file.write_all_at(&[byte], at as u64).unwrap();
            }
        }
    }

    /// An unconfirmed start may be lost with its slot, and the one before it then counts again.
    #[test]
    fn a_torn_start_leaves_the_one_before() {
        let dir = tempfile::tempdir().unwrap();
        let state = state_with(7, b"v");
        let file = state.create(dir.path(), &name()).unwrap();
        state.write_start(&file, &name(), started(1)).unwrap();
        let before = State::read(&file, &name()).unwrap();
        let torn = before.write_next(&file, &name(), |state| state.start = Some(started(2))).unwrap();
        let slot = torn.generation % 2 * SLOT as u64;
        file.write_all_at(&[0; SLOT / 2], slot).unwrap();
        let read = State::read(&file, &name()).unwrap();
        assert_eq!((read.start, read.value.in_doubt), (Some(started(1)), true));
        // The next write repairs the slot, and keeps the current state.
        next(&read, &file);
        assert_eq!(State::read(&file, &name()).unwrap().start, Some(started(1)));
    }

    #[test]
    fn a_start_lies_where_the_table_says() {
        let start = started(7);
        let slot = State { start: Some(start), ..state_with(7, b"v") }.encode(&name());
        assert_eq!(slot[4060..4092], start.encode());
        assert_eq!(state_with(7, b"v").encode(&name())[4060..4092], [0; 32]);
    }

    #[test]
    fn damage_to_both_slots_and_a_short_file_are_errors() {
        let dir = tempfile::tempdir().unwrap();
        let file = state_with(7, b"v").create(dir.path(), &name()).unwrap();
        file.write_all_at(b"x", 100).unwrap();
        file.write_all_at(b"x", SLOT as u64 + 100).unwrap();
        assert!(matches!(State::read(&file, &name()), Err(StateError::Damaged(_))));
        file.set_len(10).unwrap();
        assert!(matches!(State::read(&file, &name()), Err(StateError::Damaged(_))));
    }

    #[test]
    fn the_state_of_another_name_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = state_with(7, b"v").create(dir.path(), &name()).unwrap();
        let other = LockName::parse("orders/43").unwrap();
        assert!(matches!(State::read(&file, &other), Err(StateError::Damaged(_))));
    }
}
