//! A segment: one file of constant length, written from its beginning.

use std::io::ErrorKind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::disk::{Disk, DiskFile};
use crate::error::LogError;
use crate::sector::SECTOR;

/// The name of a file that is being prepared. Recovery deletes such a file after a crash.
const UNFINISHED: &str = "next.tmp";

pub(crate) fn name(number: u64) -> String {
    format!("{number:020}.log")
}

/// Returns the number of a segment from its file name, or `None` for another file.
pub(crate) fn number(name: &str) -> Option<u64> {
    let number = name.strip_suffix(".log")?.parse().ok()?;
    (self::name(number) == name).then_some(number)
}

pub(crate) fn is_unfinished(name: &str) -> bool {
    name == UNFINISHED
}

/// A segment that is ready to be written to.
#[derive(Debug)]
pub(crate) struct Prepared<F> {
    pub(crate) number: u64,
    pub(crate) file: F,
}

/// Prepares segments, one at a time. It may run on another thread, so that the log does not wait for a segment.
#[derive(Debug)]
pub struct Preparer<D: Disk> {
    disk: Arc<D>,
    length: u64,
    next: Mutex<Next<D::File>>,
}

#[derive(Debug)]
struct Next<F> {
    number: u64,
    ready: Option<Prepared<F>>,
}

impl<D: Disk> Preparer<D> {
    pub(crate) fn new(disk: Arc<D>, length: u64, number: u64, ready: Option<Prepared<D::File>>) -> Self {
        Self { disk, length, next: Mutex::new(Next { number, ready }) }
    }

    fn next(&self) -> MutexGuard<'_, Next<D::File>> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the next segment is ready.
    pub(crate) fn is_ready(&self) -> bool {
        self.next().ready.is_some()
    }

    /// Prepares the next segment, if it is not ready.
    pub fn prepare(&self) -> Result<(), LogError> {
        let mut next = self.next();
        if next.ready.is_none() {
            next.ready = Some(prepare(&*self.disk, next.number, self.length)?);
        }
        Ok(())
    }

    pub(crate) fn take(&self) -> Result<Prepared<D::File>, LogError> {
        let mut next = self.next();
        let prepared = match next.ready.take() {
            Some(prepared) => prepared,
            None => prepare(&*self.disk, next.number, self.length)?,
        };
        next.number = prepared.number + 1;
        Ok(prepared)
    }
}

/// Creates a segment of zeros under its name.
fn prepare<D: Disk>(disk: &D, number: u64, length: u64) -> Result<Prepared<D::File>, LogError> {
    let failed = |error: std::io::Error| match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => LogError::Full { bytes: length },
        _ => LogError::disk(format!("preparing the segment {}", name(number)), error),
    };
    let file = disk.create(UNFINISHED, length).or_else(|error| match error.kind() {
        // An earlier attempt has left the file.
        ErrorKind::AlreadyExists => {
            disk.remove(UNFINISHED)?;
            disk.create(UNFINISHED, length)
        }
        _ => Err(error),
    });
    let file = file.map_err(|error| {
        // A partial file would take up the missing room.
        let _ = disk.remove(UNFINISHED);
        failed(error)
    })?;
    disk.rename(UNFINISHED, &name(number)).and_then(|()| disk.sync_folder()).map_err(failed)?;
    Ok(Prepared { number, file })
}

/// A segment that is or was written to.
#[derive(Debug)]
pub(crate) struct Segment<F> {
    pub(crate) number: u64,
    pub(crate) file: F,
    /// How many sectors are written.
    pub(crate) used: u64,
    pub(crate) sectors: u64,
    /// The highest index of an entry in it, or 0.
    pub(crate) highest: u64,
}

impl<F: DiskFile> Segment<F> {
    pub(crate) fn new(prepared: Prepared<F>) -> Result<Self, LogError> {
        let Prepared { number, file } = prepared;
        let length =
            file.length().map_err(|error| LogError::disk(format!("reading {}", name(number)), error))?;
        Ok(Self { number, file, used: 0, sectors: length / SECTOR as u64, highest: 0 })
    }

    pub(crate) const fn free(&self) -> u64 {
        self.sectors - self.used
    }

    pub(crate) fn damaged(&self, sector: u64, what: impl Into<String>) -> LogError {
        LogError::Damaged { file: name(self.number), offset: sector * SECTOR as u64, what: what.into() }
    }
}
