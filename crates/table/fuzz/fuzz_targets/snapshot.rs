//! Reads anything as a snapshot, and as the records of one whose checksums are right.
#![no_main]

#[path = "../../tests/snapshot/decode.rs"]
mod decode;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = decode::read(bytes);
    let _ = decode::read(&decode::sealed(bytes));
});
