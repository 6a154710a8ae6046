//! The log: entries with an index, and a hard state.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::disk::{Disk, DiskFile};
use crate::error::LogError;
use crate::record::{ENTRY_HEADER, Record};
use crate::sector::{self, PAYLOAD, SECTOR, Sector};
use crate::segment::{self, Prepared, Preparer, Segment};

/// The identity of a log. Each segment contains it, so that files of another log are refused.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Identity(pub [u8; 32]);

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identity")
    }
}

/// The sizes of a log.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The length of a segment in bytes, rounded down to whole sectors. A longer segment takes more time to prepare and to recover. A
    /// shorter one needs more changes of segment.
    pub segment_bytes: u64,
    /// How many bytes of the newest entries are kept in memory.
    pub memory_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { segment_bytes: 16 << 20, memory_bytes: 16 << 20 }
    }
}

/// Changes that become durable together.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    truncate_from: Option<u64>,
    hard_state: Option<Bytes>,
    entries: Vec<Bytes>,
}

impl Batch {
    /// Creates a batch that changes nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Removes the entries from this index on, before the batch's entries are appended.
    #[must_use]
    pub fn truncate_from(self, index: u64) -> Self {
        Self { truncate_from: Some(index), ..self }
    }

    /// Replaces the hard state.
    #[must_use]
    pub fn hard_state(self, bytes: impl Into<Bytes>) -> Self {
        Self { hard_state: Some(bytes.into()), ..self }
    }

    /// Appends an entry.
    #[must_use]
    pub fn entry(mut self, bytes: impl Into<Bytes>) -> Self {
        self.entries.push(bytes.into());
        self
    }

    /// Appends entries.
    #[must_use]
    pub fn entries(mut self, entries: impl IntoIterator<Item = Bytes>) -> Self {
        self.entries.extend(entries);
        self
    }
}

/// The position of an entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Location {
    pub(crate) segment: u64,
    /// The first sector of its batch.
    pub(crate) sector: u64,
    /// The offset of its bytes in the batch.
    pub(crate) offset: usize,
    pub(crate) length: usize,
}

/// The contents of the log: as recovery found them, and as each later batch has changed them.
#[derive(Debug)]
pub(crate) struct Contents {
    /// The index of the first kept entry, or of the next entry if the log is empty.
    pub(crate) first: u64,
    pub(crate) entries: VecDeque<Location>,
    pub(crate) hard_state: Bytes,
    /// The number of the last batch.
    pub(crate) batch: u64,
}

impl Contents {
    pub(crate) fn next(&self) -> u64 {
        self.first + self.entries.len() as u64
    }

    pub(crate) fn truncate_from(&mut self, index: u64) {
        self.entries.truncate(usize::try_from(index.saturating_sub(self.first)).unwrap_or(usize::MAX));
    }

    pub(crate) fn reset(&mut self, next: u64) {
        self.entries.clear();
        self.first = next;
    }
}

/// The newest entries, in memory.
#[derive(Debug, Default)]
struct Tail {
    /// The index of its first entry.
    first: u64,
    entries: VecDeque<Bytes>,
    bytes: usize,
}

impl Tail {
    fn push(&mut self, index: u64, bytes: Bytes, most: usize) {
        if self.entries.is_empty() {
            self.first = index;
        }
        self.bytes += bytes.len();
        self.entries.push_back(bytes);
        while self.bytes > most
            && let Some(oldest) = self.entries.pop_front()
        {
            self.bytes -= oldest.len();
            self.first += 1;
        }
    }

    fn truncate_from(&mut self, index: u64) {
        while self.first + self.entries.len() as u64 > index
            && let Some(last) = self.entries.pop_back()
        {
            self.bytes -= last.len();
        }
    }

    fn get(&self, index: u64) -> Option<&Bytes> {
        self.entries.get(usize::try_from(index.checked_sub(self.first)?).ok()?)
    }
}

/// A log on a disk.
#[derive(Debug)]
pub struct Log<D: Disk> {
    disk: Arc<D>,
    options: Options,
    identity: Identity,
    /// Sorted by age. The last one is written to.
    segments: VecDeque<Segment<D::File>>,
    preparer: Arc<Preparer<D>>,
    contents: Contents,
    tail: Tail,
    failed: Option<String>,
}

impl<D: Disk> Log<D> {
    pub(crate) fn recovered(
        disk: Arc<D>,
        options: Options,
        identity: Identity,
        segments: VecDeque<Segment<D::File>>,
        spare: Option<Prepared<D::File>>,
        contents: Contents,
    ) -> Self {
        let next = segments.back().map_or(1, |newest| newest.number + 1);
        let preparer = Arc::new(Preparer::new(disk.clone(), options.length(), next, spare));
        Self { disk, options, identity, segments, preparer, contents, tail: Tail::default(), failed: None }
    }

    /// Returns the index of the first kept entry, or of the next entry if the log is empty.
    pub fn first(&self) -> u64 {
        self.contents.first
    }

    /// Returns the index of the next entry. The first entry of a new log has index 1.
    pub fn next(&self) -> u64 {
        self.contents.next()
    }

    /// Returns the hard state. It is empty in a new log.
    pub fn hard_state(&self) -> &Bytes {
        &self.contents.hard_state
    }

    /// Returns how many bytes the segments use on the disk.
    pub fn bytes_on_disk(&self) -> u64 {
        let count = self.segments.len() + usize::from(self.preparer.is_ready());
        count as u64 * self.options.length()
    }

    /// Writes a batch and syncs it. The batch is durable when this returns. After [`LogError::Full`], [`LogError::TooLong`] or
    /// [`LogError::Purged`], nothing was written and the log remains usable. Every other error is final.
    pub fn write(&mut self, batch: Batch) -> Result<(), LogError> {
        self.check()?;
        let first = self.contents.first;
        if let Some(index) = batch.truncate_from.filter(|index| *index < first) {
            return Err(LogError::Purged { index, first });
        }
        let truncate_from = batch.truncate_from.filter(|from| *from < self.next());
        let mut body = Vec::new();
        if let Some(from) = truncate_from {
            Record::Truncate { from }.encode(&mut body);
        }
        if let Some(bytes) = &batch.hard_state {
            Record::HardState(bytes.clone()).encode(&mut body);
        }
        let mut entries = Vec::with_capacity(batch.entries.len());
        for (index, bytes) in (truncate_from.unwrap_or(self.next())..).zip(batch.entries) {
            entries.push((index, body.len() + ENTRY_HEADER, bytes.clone()));
            Record::Entry { index, bytes }.encode(&mut body);
        }
        if body.is_empty() {
            return Ok(());
        }
        let Base { segment, sector, before } = self.put(&body)?;
        if let Some(from) = truncate_from {
            self.contents.truncate_from(from);
            self.tail.truncate_from(from);
        }
        if let Some(bytes) = batch.hard_state {
            self.contents.hard_state = bytes;
        }
        let current = self.segments.back_mut().expect("the batch is in a segment");
        for (index, offset, bytes) in entries {
            let location = Location { segment, sector, offset: before + offset, length: bytes.len() };
            self.contents.entries.push_back(location);
            current.highest = current.highest.max(index);
            self.tail.push(index, bytes, self.options.memory_bytes);
        }
        Ok(())
    }

    /// Removes all entries, and continues at this index: for a snapshot that is ahead of the log. Durable when this returns.
    pub fn reset(&mut self, next: u64) -> Result<(), LogError> {
        self.check()?;
        let mut body = Vec::new();
        Record::Reset { next }.encode(&mut body);
        self.put(&body)?;
        self.contents.reset(next);
        self.tail = Tail::default();
        self.remove_segments()
    }

    /// Removes the entries before this index. Only whole segments are deleted, so some of these entries may exist again after a restart.
    pub fn purge_before(&mut self, index: u64) -> Result<(), LogError> {
        self.check()?;
        let index = index.min(self.next());
        while self.contents.first < index && self.contents.entries.pop_front().is_some() {
            self.contents.first += 1;
        }
        self.remove_segments()
    }

    /// Returns the bytes of the entries from `from` up to, but without, `until`. Stops before the total exceeds `most_bytes`, but returns
    /// at least one entry if one exists.
    pub fn read(&self, from: u64, until: u64, most_bytes: usize) -> Result<Vec<Bytes>, LogError> {
        if from < self.contents.first {
            return Err(LogError::Purged { index: from, first: self.contents.first });
        }
        let mut found = Vec::new();
        let mut bytes = 0;
        for index in from..until.min(self.next()) {
            let at = usize::try_from(index - self.contents.first).expect("as many entries fit into memory");
            let location = self.contents.entries[at];
            bytes += location.length;
            if !found.is_empty() && bytes > most_bytes {
                break;
            }
            found.push(match self.tail.get(index) {
                Some(entry) => entry.clone(),
                None => self.read_entry(location)?,
            });
        }
        Ok(found)
    }

    /// Whether the next segment should be prepared, because the current one is half full.
    pub fn wants_segment(&self) -> bool {
        let current = self.segments.back().expect("a log has a segment");
        current.used * 2 >= current.sectors && !self.preparer.is_ready()
    }

    /// Returns the object that prepares the next segment, on any thread.
    pub fn preparer(&self) -> Arc<Preparer<D>> {
        self.preparer.clone()
    }

    pub(crate) fn check(&self) -> Result<(), LogError> {
        self.failed.clone().map_or(Ok(()), |why| Err(LogError::Failed(why)))
    }

    /// Writes and syncs a batch. Returns its position, and how many bytes precede the given body.
    pub(crate) fn put(&mut self, body: &[u8]) -> Result<Base, LogError> {
        let current = self.segments.back();
        if current.is_some_and(|segment| sector::sectors_of(body.len()) as u64 <= segment.free()) {
            return self.put_here(body, 0);
        }
        let (identity, next, hard_state) = (self.identity, self.next(), self.contents.hard_state.clone());
        let mut whole = Vec::new();
        Record::Start { identity, next, hard_state }.encode(&mut whole);
        let before = whole.len();
        whole.extend_from_slice(body);
        let room =
            usize::try_from(self.options.length() / SECTOR as u64).expect("a segment fits into memory");
        if sector::sectors_of(whole.len()) > room {
            return Err(LogError::TooLong { bytes: body.len(), limit: room * PAYLOAD - before });
        }
        self.segments.push_back(Segment::new(self.preparer.take()?)?);
        self.put_here(&whole, before)
    }

    fn put_here(&mut self, body: &[u8], before: usize) -> Result<Base, LogError> {
        let batch = self.contents.batch + 1;
        let segment = self.segments.back_mut().expect("there is one to write to");
        let sector = segment.used;
        let bytes = sector::encode(segment.number, sector, batch, body);
        let written =
            segment.file.write_at(sector * SECTOR as u64, &bytes).and_then(|()| segment.file.sync());
        if let Err(error) = written {
            // It is unknown how much of the batch is on the disk, and whether the kernel still has the rest.
            let action = format!("writing to {}", segment::name(segment.number));
            self.failed = Some(format!("{action}: {error}"));
            return Err(LogError::disk(action, error));
        }
        segment.used += (bytes.len() / SECTOR) as u64;
        self.contents.batch = batch;
        Ok(Base { segment: segment.number, sector, before })
    }

    /// Deletes the oldest segments that contain no kept entry.
    fn remove_segments(&mut self) -> Result<(), LogError> {
        while self.segments.len() > 1
            && let Some(oldest) = self.segments.front()
            && oldest.highest < self.contents.first
        {
            let name = segment::name(oldest.number);
            // Each deletion is made durable before the next, oldest first, so that the remaining segments have no gap.
            let gone = self.disk.remove(&name).and_then(|()| self.disk.sync_folder());
            if let Err(error) = gone {
                let action = format!("deleting {name}");
                self.failed = Some(format!("{action}: {error}"));
                return Err(LogError::disk(action, error));
            }
            self.segments.pop_front();
        }
        Ok(())
    }

    fn read_entry(&self, location: Location) -> Result<Bytes, LogError> {
        let Location { segment, sector, offset, length } = location;
        let at = segment.checked_sub(self.segments[0].number).and_then(|at| usize::try_from(at).ok());
        let segment =
            at.and_then(|at| self.segments.get(at)).expect("a segment stays as long as an entry in it");
        let (begin, end) = (offset / PAYLOAD, (offset + length).div_ceil(PAYLOAD).max(offset / PAYLOAD + 1));
        let from = sector + begin as u64;
        let mut sectors = vec![0; (end - begin) * SECTOR];
        let name = segment::name(segment.number);
        let read = segment.file.read_at(from * SECTOR as u64, &mut sectors);
        read.map_err(|error| LogError::disk(format!("reading {name}"), error))?;
        let mut bytes = Vec::with_capacity(sectors.len());
        for (number, one) in (from..).zip(sectors.chunks_exact(SECTOR)) {
            match sector::decode(segment.number, number, one) {
                Sector::Written(written) => bytes.extend_from_slice(written.payload),
                _ => return Err(segment.damaged(number, "its checksum is wrong")),
            }
        }
        let skipped = offset - begin * PAYLOAD;
        let entry = Bytes::from(bytes);
        if entry.len() < skipped + length {
            return Err(segment.damaged(from, "it is shorter than it was written"));
        }
        Ok(entry.slice(skipped..skipped + length))
    }
}

/// The position of a batch.
#[derive(Clone, Copy)]
pub(crate) struct Base {
    segment: u64,
    sector: u64,
    /// How many bytes precede the caller's body.
    before: usize,
}

impl Options {
    /// Returns the length of a segment, in bytes, as a multiple of the sector length.
    pub(crate) const fn length(self) -> u64 {
        self.segment_bytes - self.segment_bytes % SECTOR as u64
    }
}
