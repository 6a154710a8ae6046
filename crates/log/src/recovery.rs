//! Recovery: reads a log after a stop or a crash.
//!
//! - Segments are read from the oldest to the newest, batch by batch. Every sector of every segment is checked.
//! - An incomplete batch is cut only if it is the last, and if only zeros and sectors of that batch follow it. Such a batch was never
//!   synced, so no caller was told that it is durable.
//! - Everything else is damage, and nothing is changed.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::disk::{Disk, DiskFile};
use crate::error::LogError;
use crate::log::{Contents, Identity, Location, Log, Options};
use crate::record::{ENTRY_HEADER, Record};
use crate::sector::{self, SECTOR, Sector, VERSION};
use crate::segment::{self, Prepared, Segment};

/// The number of bytes of a segment that are read at once.
const CHUNK: usize = 1 << 20;

/// The contents of one segment.
struct Found {
    /// The complete batches: the first sector and the body of each.
    batches: Vec<(u64, Bytes)>,
    /// The number of the first batch.
    first_batch: Option<u64>,
    /// How many sectors the complete batches take.
    used: u64,
    /// Whether an incomplete batch follows them.
    is_torn: bool,
}

impl<D: Disk> Log<D> {
    /// Opens the log in a folder, or creates a new one in an empty folder.
    pub fn open(disk: D, identity: Identity, options: Options) -> Result<Self, LogError> {
        let failed = |action: &'static str| move |error: io::Error| LogError::disk(action, error);
        let names = disk.list().map_err(failed("listing the segments"))?;
        let mut unfinished = names.iter().filter(|name| segment::is_unfinished(name));
        if let Some(name) = unfinished.next() {
            disk.remove(name).and_then(|()| disk.sync_folder()).map_err(failed("deleting a file"))?;
        }
        let mut numbers: Vec<u64> = names.iter().filter_map(|name| segment::number(name)).collect();
        numbers.sort_unstable();
        if let Some(gap) = numbers.windows(2).find(|pair| pair[0] + 1 != pair[1]) {
            let file = segment::name(gap[0] + 1);
            return Err(LogError::Damaged { file, offset: 0, what: "it is missing".into() });
        }
        let mut segments = VecDeque::new();
        let mut contents =
            Contents { first: 1, entries: VecDeque::new(), hard_state: Bytes::new(), batch: 0 };
        let mut spare = None;
        for number in &numbers {
            let file = disk.open(&segment::name(*number));
            let file =
                file.map_err(|error| LogError::disk(format!("opening {}", segment::name(*number)), error))?;
            let mut segment = Segment::new(Prepared { number: *number, file })?;
            let is_oldest = segments.is_empty();
            let expected = (!is_oldest).then_some(contents.batch + 1);
            let found = scan(&segment, expected)?;
            if found.batches.is_empty() {
                // The segment was prepared, and perhaps its first batch was begun. It must be the last.
                if Some(number) != numbers.last() {
                    return Err(segment.damaged(0, "it is empty, and there is a later segment"));
                }
                if found.is_torn {
                    clear(&segment, 0)?;
                }
                spare = Some(Prepared { number: *number, file: segment.file });
                continue;
            }
            if is_oldest {
                contents.batch = found.first_batch.map_or(0, |first| first - 1);
            }
            for (sector, body) in found.batches {
                contents.batch += 1;
                apply(&mut segment, &mut contents, identity, is_oldest, sector, body)?;
            }
            segment.used = found.used;
            segments.push_back((segment, found.is_torn));
        }
        let newest = segments.len().saturating_sub(1);
        for (at, (segment, is_torn)) in segments.iter().enumerate() {
            if *is_torn && at < newest {
                return Err(segment.damaged(segment.used, "a batch is not whole, and later ones are there"));
            }
            if *is_torn {
                // If the first batch of the spare segment is torn too, it has the same number as this one, and was cleared above.
                clear(segment, segment.used)?;
            }
        }
        let segments: VecDeque<_> = segments.into_iter().map(|(segment, _)| segment).collect();
        let is_new = segments.is_empty();
        if is_new && spare.as_ref().is_some_and(|spare| spare.number != 1) {
            return Err(LogError::Damaged {
                file: segment::name(1),
                offset: 0,
                what: "it is missing".into(),
            });
        }
        let mut log = Self::recovered(Arc::new(disk), options, identity, segments, spare, contents);
        if is_new {
            // The first segment gets a batch at once, so that a log without any batch is known to be damaged.
            log.put(&[])?;
        }
        Ok(log)
    }
}

/// Reads a whole segment. `expected` is the number of its first batch, if it is known.
fn scan<F: DiskFile>(segment: &Segment<F>, expected: Option<u64>) -> Result<Found, LogError> {
    let mut found = Found { batches: Vec::new(), first_batch: None, used: 0, is_torn: false };
    // The batch that is being read: its first sector, and its payload so far.
    let mut open: Option<(u64, BytesMut)> = None;
    let mut next = expected;
    // The first zero sector: nothing after it is a part of the log.
    let mut end: Option<u64> = None;
    let mut chunk = vec![0; CHUNK];
    let name = segment::name(segment.number);
    let mut number = 0;
    while number < segment.sectors {
        let count = (segment.sectors - number).min((CHUNK / SECTOR) as u64);
        let bytes = &mut chunk[..usize::try_from(count).expect("a chunk fits into memory") * SECTOR];
        let read = segment.file.read_at(number * SECTOR as u64, bytes);
        read.map_err(|error| LogError::disk(format!("reading {name}"), error))?;
        for one in bytes.chunks_exact(SECTOR) {
            match sector::decode(segment.number, number, one) {
                Sector::Damaged => return Err(segment.damaged(number, "its checksum is wrong")),
                Sector::NewerVersion(version) => {
                    return Err(LogError::NewerVersion { file: name, version, known: VERSION });
                }
                Sector::Zero => {
                    end.get_or_insert(number);
                    found.is_torn |= open.take().is_some();
                }
                Sector::Written(written) if end.is_some() => {
                    // Either a part of the batch that was not synced, or damage.
                    if next.is_some_and(|next| written.batch != next) {
                        return Err(segment.damaged(
                            end.unwrap_or(number),
                            format!("it is empty, and batch {} is behind it", written.batch),
                        ));
                    }
                    next = Some(written.batch);
                    found.is_torn = true;
                }
                Sector::Written(written) => {
                    let begins = open.is_none();
                    if next.is_some_and(|next| written.batch != next) || written.is_first != begins {
                        return Err(
                            segment.damaged(number, format!("batch {} is out of order", written.batch))
                        );
                    }
                    next = Some(written.batch);
                    found.first_batch.get_or_insert(written.batch);
                    let (began, mut body) = open.take().unwrap_or_else(|| (number, BytesMut::new()));
                    body.extend_from_slice(written.payload);
                    if written.is_last {
                        found.batches.push((began, body.freeze()));
                        found.used = number + 1;
                        next = Some(written.batch + 1);
                    } else {
                        open = Some((began, body));
                    }
                }
            }
            number += 1;
        }
    }
    // A batch never crosses the end of a segment.
    if let Some((began, _)) = open {
        return Err(segment.damaged(began, "the batch that begins here has no end"));
    }
    Ok(found)
}

/// Applies a batch to the contents.
fn apply<F: DiskFile>(
    segment: &mut Segment<F>,
    contents: &mut Contents,
    identity: Identity,
    is_oldest: bool,
    sector: u64,
    mut body: Bytes,
) -> Result<(), LogError> {
    let whole = body.len();
    let mut is_first = sector == 0;
    while !body.is_empty() {
        let offset = whole - body.len();
        let Some(record) = Record::decode(&mut body) else {
            return Err(segment.damaged(sector, "a batch has a record that this program does not know"));
        };
        let out_of_place = |what: String| Err(segment.damaged(sector, what));
        match record {
            Record::Start { identity: found, .. } if found != identity => {
                return Err(LogError::Foreign { file: segment::name(segment.number) });
            }
            Record::Start { next, hard_state, .. } if is_first => {
                if is_oldest {
                    contents.reset(next);
                    contents.hard_state = hard_state;
                } else if next != contents.next() || hard_state != contents.hard_state {
                    return out_of_place(format!(
                        "it begins at entry {next}, and {} was expected",
                        contents.next()
                    ));
                }
            }
            Record::Start { .. } => return out_of_place("a segment begins in its middle".into()),
            _ if is_first => return out_of_place("it does not begin as a segment does".into()),
            Record::Entry { index, bytes } => {
                if index != contents.next() {
                    return out_of_place(format!("entry {index} follows entry {}", contents.next() - 1));
                }
                let (offset, length) = (offset + ENTRY_HEADER, bytes.len());
                contents.entries.push_back(Location { segment: segment.number, sector, offset, length });
                segment.highest = segment.highest.max(index);
            }
            // The entries before it were purged together with their segments.
            Record::Truncate { from } if from < contents.first => contents.reset(from),
            Record::Truncate { from } => contents.truncate_from(from),
            Record::Reset { next } => contents.reset(next),
            Record::HardState(bytes) => contents.hard_state = bytes,
        }
        is_first = false;
    }
    Ok(())
}

/// Overwrites the rest of a batch that was never synced.
fn clear<F: DiskFile>(segment: &Segment<F>, from: u64) -> Result<(), LogError> {
    let zeros = vec![0; CHUNK];
    let mut at = from * SECTOR as u64;
    let end = segment.sectors * SECTOR as u64;
    let failed =
        |error| LogError::disk(format!("clearing the end of {}", segment::name(segment.number)), error);
    while at < end {
        let part = (end - at).min(CHUNK as u64);
        let zeros = &zeros[..usize::try_from(part).expect("a chunk fits into memory")];
        segment.file.write_at(at, zeros).map_err(failed)?;
        at += part;
    }
    segment.file.sync().map_err(failed)
}
