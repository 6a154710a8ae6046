//! What must hold of whatever bytes a snapshot is read from. Tests run it on damaged ones; the fuzz target runs it on anything.

use tenure_table::{SnapshotError, Table};

/// Reads bytes as a snapshot. Whatever comes of it is a table that is right, or an error.
pub(crate) fn read(bytes: &[u8]) -> Result<Table, SnapshotError> {
    let table = Table::read_snapshot(bytes, 1)?;
    if let Err(fault) = table.check() {
        panic!("a wrong table was read: {fault}");
    }
    let mut again = Vec::new();
    table.write_snapshot(&mut again).expect("memory takes all");
    let reread = Table::read_snapshot(again.as_slice(), 2).expect("what was written can be read");
    assert_eq!(table.state_hash(), reread.state_hash());
    Ok(table)
}

/// A snapshot that says just this, with all its checksums right: damage that they cannot find.
pub(crate) fn sealed(records: &[u8]) -> Vec<u8> {
    let mut snapshot = b"TENURELT\x02\x00".to_vec();
    let blocks: &[&[u8]] = if records.is_empty() { &[&[]] } else { &[records, &[]] };
    for (number, block) in blocks.iter().enumerate() {
        let mut head = u32::try_from(block.len()).expect("tests are short").to_le_bytes().to_vec();
        head.extend(u32::try_from(number).expect("tests are short").to_le_bytes());
        let mut checksum = crc32fast::Hasher::new();
        checksum.update(&head);
        checksum.update(block);
        snapshot.extend(head);
        snapshot.extend(checksum.finalize().to_le_bytes());
        snapshot.extend(*block);
    }
    snapshot
}
