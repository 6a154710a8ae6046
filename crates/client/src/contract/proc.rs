//! The kernel's information about a process or thread.

use std::path::Path;

/// Returns the letter of its state (`R`, `S`, `T`, `Z`, …) from its folder below `/proc`, or `None` if it has ended.
pub(super) fn state(folder: &Path) -> Option<char> {
    let stat = std::fs::read_to_string(folder.join("stat")).ok()?;
    // `pid (name) state …`: the name may contain anything, so the state is what follows the last parenthesis.
    stat.rsplit(") ").next()?.chars().next()
}
