//! What the kernel says about a process or thread.

use std::path::Path;

/// The letter of its state (`R`, `S`, `T`, `Z`, …), from its folder below `/proc`; nothing if it is gone.
pub(super) fn state(folder: &Path) -> Option<char> {
    let stat = std::fs::read_to_string(folder.join("stat")).ok()?;
    // `pid (name) state …`: the name may hold anything, so the state is what follows the last parenthesis.
    stat.rsplit(") ").next()?.chars().next()
}
