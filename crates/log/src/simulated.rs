//! A disk in memory that simulates failures.
//!
//! - A [crash](SimulatedDisk::crash) may lose what is not synced: each sector separately, and each change of a name.
//! - The disk can crash at any step, refuse a sync, be full, and flip bits.

use std::collections::{BTreeMap, HashMap};
use std::io::{Error, ErrorKind, Result};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::disk::{Disk, DiskFile};
use crate::sector::SECTOR;

/// A simulated disk. Clones share its state.
#[derive(Clone, Debug, Default)]
pub struct SimulatedDisk(Arc<Mutex<State>>);

/// A file on a simulated disk.
#[derive(Clone, Debug)]
pub struct SimulatedFile {
    disk: SimulatedDisk,
    id: usize,
}

#[derive(Debug, Default)]
struct State {
    files: Vec<Contents>,
    names: BTreeMap<String, usize>,
    durable_names: BTreeMap<String, usize>,
    unsynced_names: Vec<NameChange>,
    /// The number of steps so far: writes, syncs, and changes of names.
    steps: usize,
    crash_at: Option<usize>,
    has_crashed: bool,
    failing_sync: Option<usize>,
    free_bytes: Option<u64>,
}

#[derive(Debug, Default)]
struct Contents {
    durable: Vec<u8>,
    current: Vec<u8>,
    /// The sectors written since the last sync, in the order of the writes.
    unsynced: Vec<(usize, Vec<u8>)>,
}

#[derive(Clone, Debug)]
enum NameChange {
    Create(String, usize),
    Rename(String, String),
    Remove(String),
}

/// The result of a crash for a change that was not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The change reached the disk.
    Kept,
    /// The change is lost.
    Lost,
}

impl SimulatedDisk {
    /// Creates an empty disk.
    pub fn new() -> Self {
        Self::default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of steps so far.
    pub fn steps(&self) -> usize {
        self.state().steps
    }

    /// Makes the machine crash at this step: the step and all later ones fail.
    pub fn crash_at(&self, step: usize) {
        self.state().crash_at = Some(step);
    }

    /// Returns how many sectors and names a crash could lose now.
    pub fn at_stake(&self) -> usize {
        let state = self.state();
        state.files.iter().map(|file| file.unsynced.len()).sum::<usize>() + state.unsynced_names.len()
    }

    /// Restarts the machine after a crash. `fate` decides for each sector, and for each change of a name, whether it reached the disk. If a
    /// change of a name is lost, all later ones are lost too.
    pub fn crash(&self, mut fate: impl FnMut() -> Fate) {
        let mut state = self.state();
        for file in &mut state.files {
            for (sector, bytes) in std::mem::take(&mut file.unsynced) {
                if fate() == Fate::Kept {
                    file.durable[sector * SECTOR..][..bytes.len()].copy_from_slice(&bytes);
                }
            }
            file.current = file.durable.clone();
        }
        let changes = std::mem::take(&mut state.unsynced_names);
        let kept: Vec<_> = changes.into_iter().take_while(|_| fate() == Fate::Kept).collect();
        for change in kept {
            change.apply(&mut state.durable_names);
        }
        state.names = state.durable_names.clone();
        (state.crash_at, state.has_crashed, state.failing_sync) = (None, false, None);
    }

    /// Makes one sync fail, after this many that succeed. Its data is lost, as with a kernel that drops pages it could not write.
    pub fn fail_sync_after(&self, syncs: usize) {
        self.state().failing_sync = Some(syncs);
    }

    /// Sets how many bytes are free for new files. `None` means no limit.
    pub fn set_free_bytes(&self, bytes: Option<u64>) {
        self.state().free_bytes = bytes;
    }

    /// Returns the names and lengths of all files.
    pub fn files(&self) -> Vec<(String, usize)> {
        let state = self.state();
        state.names.iter().map(|(name, id)| (name.clone(), state.files[*id].current.len())).collect()
    }

    /// Flips a bit of a file, also on the disk.
    pub fn flip(&self, name: &str, bit: usize) {
        let mut state = self.state();
        let Some(id) = state.names.get(name).copied() else { return };
        let file = &mut state.files[id];
        for bytes in [&mut file.current, &mut file.durable] {
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<String, usize>) {
        match self {
            Self::Create(name, id) => drop(names.insert(name.clone(), *id)),
            Self::Rename(from, to) => {
                if let Some(id) = names.remove(from) {
                    names.insert(to.clone(), id);
                }
            }
            Self::Remove(name) => drop(names.remove(name)),
        }
    }
}

impl State {
    /// Counts a step, and fails if the machine has crashed.
    fn step(&mut self) -> Result<()> {
        if self.has_crashed || self.crash_at == Some(self.steps) {
            self.has_crashed = true;
            return Err(Error::other("the machine has crashed"));
        }
        self.steps += 1;
        Ok(())
    }

    fn change(&mut self, change: NameChange) -> Result<()> {
        self.step()?;
        change.apply(&mut self.names);
        self.unsynced_names.push(change);
        Ok(())
    }
}

impl Disk for SimulatedDisk {
    type File = SimulatedFile;

    fn list(&self) -> Result<Vec<String>> {
        Ok(self.state().names.keys().cloned().collect())
    }

    fn create(&self, name: &str, length: u64) -> Result<SimulatedFile> {
        let mut state = self.state();
        if state.names.contains_key(name) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        if state.free_bytes.is_some_and(|free| free < length) {
            return Err(ErrorKind::StorageFull.into());
        }
        let id = state.files.len();
        let zeros = vec![0; usize::try_from(length).expect("a file fits into memory")];
        state.change(NameChange::Create(name.to_owned(), id))?;
        state.free_bytes = state.free_bytes.map(|free| free - length);
        state.files.push(Contents { durable: zeros.clone(), current: zeros, unsynced: Vec::new() });
        drop(state);
        Ok(SimulatedFile { disk: self.clone(), id })
    }

    fn open(&self, name: &str) -> Result<SimulatedFile> {
        let id = self.state().names.get(name).copied().ok_or(ErrorKind::NotFound)?;
        Ok(SimulatedFile { disk: self.clone(), id })
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.state().change(NameChange::Rename(from.to_owned(), to.to_owned()))
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.state().change(NameChange::Remove(name.to_owned()))
    }

    fn sync_folder(&self) -> Result<()> {
        let mut state = self.state();
        state.step()?;
        let changes = std::mem::take(&mut state.unsynced_names);
        for change in changes {
            change.apply(&mut state.durable_names);
        }
        Ok(())
    }
}

impl DiskFile for SimulatedFile {
    fn length(&self) -> Result<u64> {
        Ok(self.disk.state().files[self.id].current.len() as u64)
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let state = self.disk.state();
        let offset = usize::try_from(offset).expect("a file fits into memory");
        let bytes = state.files[self.id].current.get(offset..offset + into.len());
        into.copy_from_slice(bytes.ok_or(ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let mut state = self.disk.state();
        let offset = usize::try_from(offset).expect("a file fits into memory");
        assert!(
            offset.is_multiple_of(SECTOR) && bytes.len().is_multiple_of(SECTOR),
            "whole sectors are written"
        );
        let result = state.step();
        // A write during the crash may be kept or lost too.
        let file = &mut state.files[self.id];
        file.current[offset..offset + bytes.len()].copy_from_slice(bytes);
        for (number, sector) in bytes.chunks(SECTOR).enumerate() {
            file.unsynced.push((offset / SECTOR + number, sector.to_vec()));
        }
        result
    }

    fn sync(&self) -> Result<()> {
        let mut state = self.disk.state();
        state.step()?;
        let fails = match &mut state.failing_sync {
            Some(0) => true,
            Some(left) => {
                *left -= 1;
                false
            }
            None => false,
        };
        let file = &mut state.files[self.id];
        if fails {
            file.unsynced.clear();
            state.failing_sync = None;
            return Err(Error::other("the disk does not take it"));
        }
        // If a sector was written several times, the last write counts.
        let unsynced: HashMap<_, _> = file.unsynced.drain(..).collect();
        for (sector, bytes) in unsynced {
            file.durable[sector * SECTOR..][..bytes.len()].copy_from_slice(&bytes);
        }
        Ok(())
    }
}
