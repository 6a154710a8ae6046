//! Running a program as somebody else than root.
//!
//! Tests often run as root in a container, and root may do everything: a file that nobody can read is read
//! all the same, and a test about permissions proves nothing. And there are servers that refuse to be root.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
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

/// `command`, run by a server's own user if the tests run as root, or else unchanged.
///
/// It still dies with its parent. The kernel forgets that wish when a process changes its user, so it is
/// uttered once more after that; see `spawner.rs`.
pub(crate) fn run_as(user: &str, command: Command) -> Command {
    if !geteuid().is_root() {
        return command;
    }
    let options = ["--reuid", user, "--regid", user, "--init-groups", "--pdeathsig", "KILL", "--"];
    program::through("setpriv", &options.map(OsStr::new), &command)
}

/// A copy of a file, in a folder of [`folder_of`], that nobody but the user of [`run_as`] may read.
pub(crate) fn copy_of(user: &str, folder: &Path, file: &Path) -> PathBuf {
    let path = folder.join(file.file_name().expect("a file has a name"));
    install(user, "--mode=0600", &[file, &path]);
    path
}

/// A new folder in `folder` that belongs to the user of [`run_as`], to whom the way there is opened.
pub(crate) fn folder_of(user: &str, folder: &Path, name: &str) -> PathBuf {
    let path = folder.join(name);
    let opened = fs::set_permissions(folder, fs::Permissions::from_mode(0o755));
    opened.unwrap_or_else(|error| panic!("cannot open {} to others: {error}", folder.display()));
    install(user, "--mode=0700", &[Path::new("--directory"), &path]);
    path
}

/// Makes something that belongs to the user of [`run_as`].
fn install(user: &str, mode: &str, what: &[&Path]) {
    let mut install = Command::new(program::require("install"));
    install.arg(mode);
    if geteuid().is_root() {
        install.args(["--owner", user, "--group", user]);
    }
    let done = install.args(what).output().expect("a program that was found can be started");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}
