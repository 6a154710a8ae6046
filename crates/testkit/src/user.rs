//! Running a program as nobody, so that a test about permissions means something.
//!
//! Tests often run as root in a container, and root may do everything: a file that nobody can read is read
//! all the same, and the test proves nothing.

use std::ffi::OsStr;
use std::process::Command;

use rustix::process::geteuid;

use crate::program;

/// A command that runs `program` without any privilege: as nobody, in no group but nogroup.
///
/// If the tests run as an ordinary user, they have no privilege to give up, and the program is that user's.
/// The program itself, and every folder above it, must be open to others.
///
/// # Panics
///
/// If `setpriv` is not installed, with advice on how to change that.
pub fn unprivileged(program: impl AsRef<OsStr>) -> Command {
    if !geteuid().is_root() {
        return Command::new(program);
    }
    let mut command = Command::new(program::require("setpriv"));
    // By number: a small container may lack the names.
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"]).arg(program);
    command
}
