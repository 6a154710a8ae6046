//! A sector: the unit that a disk writes completely or not at all. Each has a checksum, and the number of its batch.
//!
//! This distinguishes three kinds of sectors: one of zeros was never written, one with a correct checksum is as it was written, and every
//! other one is damaged.

/// The length of a sector. A disk with larger sectors writes several of these together, which is equally safe.
pub const SECTOR: usize = 512;

/// The bytes before the payload: checksum, batch number, flags, version, length of the payload.
const HEADER: usize = 16;

/// The number of payload bytes in a sector.
pub(crate) const PAYLOAD: usize = SECTOR - HEADER;

/// The version of the format.
pub(crate) const VERSION: u8 = 1;

const FIRST: u8 = 1;
const LAST: u8 = 2;

/// The state of a sector.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Sector<'a> {
    /// The sector was never written.
    Zero,
    Written(Written<'a>),
    NewerVersion(u8),
    Damaged,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Written<'a> {
    pub(crate) batch: u64,
    pub(crate) is_first: bool,
    pub(crate) is_last: bool,
    pub(crate) payload: &'a [u8],
}

/// Returns how many sectors a batch of this many bytes takes.
pub(crate) const fn sectors_of(bytes: usize) -> usize {
    if bytes == 0 { 1 } else { bytes.div_ceil(PAYLOAD) }
}

/// Includes the position, so that a sector at a wrong position counts as damaged.
fn checksum(segment: u64, number: u64, sector: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(&segment.to_le_bytes());
    hasher.update(&number.to_le_bytes());
    hasher.update(&sector[4..]);
    hasher.finalize()
}

/// Encodes a batch as sectors, starting at sector `from` of the segment.
pub(crate) fn encode(segment: u64, from: u64, batch: u64, body: &[u8]) -> Vec<u8> {
    let count = sectors_of(body.len());
    let mut bytes = vec![0; count * SECTOR];
    for (number, sector) in bytes.chunks_exact_mut(SECTOR).enumerate() {
        let payload = &body[number * PAYLOAD..body.len().min((number + 1) * PAYLOAD)];
        let first = if number == 0 { FIRST } else { 0 };
        let last = if number + 1 == count { LAST } else { 0 };
        let length = u16::try_from(payload.len()).expect("a payload is shorter than a sector");
        sector[4..12].copy_from_slice(&batch.to_le_bytes());
        sector[12] = first | last;
        sector[13] = VERSION;
        sector[14..16].copy_from_slice(&length.to_le_bytes());
        sector[HEADER..HEADER + payload.len()].copy_from_slice(payload);
        let checksum = checksum(segment, from + number as u64, sector);
        sector[..4].copy_from_slice(&checksum.to_le_bytes());
    }
    bytes
}

/// Decodes a sector of a segment.
pub(crate) fn decode(segment: u64, number: u64, sector: &[u8]) -> Sector<'_> {
    if sector.iter().all(|byte| *byte == 0) {
        return Sector::Zero;
    }
    let stored = u32::from_le_bytes(sector[..4].try_into().expect("four bytes"));
    if stored != checksum(segment, number, sector) {
        return Sector::Damaged;
    }
    if sector[13] != VERSION {
        return Sector::NewerVersion(sector[13]);
    }
    let batch = u64::from_le_bytes(sector[4..12].try_into().expect("eight bytes"));
    let length = usize::from(u16::from_le_bytes(sector[14..16].try_into().expect("two bytes")));
    match sector[HEADER..].get(..length) {
        Some(payload) => Sector::Written(Written {
            batch,
            is_first: sector[12] & FIRST != 0,
            is_last: sector[12] & LAST != 0,
            payload,
        }),
        None => Sector::Damaged,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_comes_back_as_it_went() {
        for length in [0, 1, PAYLOAD - 1, PAYLOAD, PAYLOAD + 1, 5 * PAYLOAD] {
            let body: Vec<u8> = (0..=250).cycle().take(length).collect();
            let bytes = encode(7, 3, 9, &body);
            assert_eq!(bytes.len(), sectors_of(length) * SECTOR);
            let mut found = Vec::new();
            for (number, sector) in bytes.chunks_exact(SECTOR).enumerate() {
                let Sector::Written(written) = decode(7, 3 + number as u64, sector) else {
                    panic!("{number}")
                };
                assert_eq!(written.batch, 9);
                assert_eq!(written.is_first, number == 0);
                assert_eq!(written.is_last, number + 1 == sectors_of(length));
                found.extend_from_slice(written.payload);
            }
            assert_eq!(found, body);
        }
    }

    #[test]
    fn every_flipped_bit_and_every_other_place_is_damage() {
        let bytes = encode(7, 3, 9, b"entry");
        for bit in 0..SECTOR * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(7, 3, &flipped), Sector::Damaged, "bit {bit}");
        }
        assert_eq!(decode(7, 4, &bytes), Sector::Damaged);
        assert_eq!(decode(8, 3, &bytes), Sector::Damaged);
        assert_eq!(decode(7, 3, &[0; SECTOR]), Sector::Zero);
    }
}
