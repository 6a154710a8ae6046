//! A server whose wall clock tests step forwards and backwards, by means of libfaketime.
//!
//! The library is loaded before the server's own, and answers in place of the kernel when the server asks
//! for the time. It reads the offset from a file at every call (`FAKETIME_NO_CACHE`), which is what lets a
//! *running* server see a step. Only the wall clock is stepped: `CLOCK_MONOTONIC` goes on as it does on a
//! machine whose administrator or NTP sets the date.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::program;

const LIBRARIES: &str = "/usr/lib";
const FAKETIME: &str = "faketime/libfaketime.so.1";
/// glibc's own allocator as a separate library: a part of every glibc since 2.34.
const GLIBC_MALLOC: &str = "libc_malloc_debug.so.0";

/// The wall clock of one server.
#[derive(Debug)]
pub struct Faketime {
    file: PathBuf,
    offset_s: i64,
}

impl Faketime {
    /// A clock that shows the true time, to begin with, and `command` changed so that it obeys it.
    ///
    /// The clock is a file in `folder`, which the server must be able to read.
    ///
    /// # Panics
    ///
    /// If libfaketime is not installed, with advice on how to change that.
    pub fn around(command: &Command, folder: &Path) -> (Self, Command) {
        let clock = Self { file: folder.join("faketime"), offset_s: 0 };
        clock.write();

        let settings = [
            variable("LD_PRELOAD", &preload(Path::new(LIBRARIES))),
            variable("FAKETIME_TIMESTAMP_FILE", clock.file.as_os_str()),
            OsString::from("FAKETIME_NO_CACHE=1"),
            OsString::from("FAKETIME_DONT_FAKE_MONOTONIC=1"),
        ];
        let settings: Vec<&OsStr> = settings.iter().map(OsString::as_os_str).collect();
        // `env`, and not the environment of the command, which would put `setpriv` on the false clock too.
        (clock, program::through("env", &settings, command))
    }

    /// Steps the clock: forwards by so many seconds, or backwards if the number is negative.
    pub fn step(&mut self, by_s: i64) {
        self.offset_s += by_s;
        self.write();
    }

    /// To be called once the server is ready: removes the names of the memory that libfaketime shares with
    /// the forks of `pid`. It works on without a name. A server that is killed would leave it behind, and
    /// libfaketime refuses to start a later process that happens to get the same id.
    pub fn tidy(&self, pid: u32) {
        for name in [format!("faketime_shm_{pid}"), format!("sem.faketime_sem_{pid}")] {
            let _ = fs::remove_file(Path::new("/dev/shm").join(name));
        }
    }

    fn write(&self) {
        // Renamed into place: the server may read at any moment, and must not find half a number.
        let new = self.file.with_extension("new");
        let written =
            fs::write(&new, format!("{:+}\n", self.offset_s)).and_then(|()| fs::rename(&new, &self.file));
        written.unwrap_or_else(|error| panic!("cannot write {}: {error}", self.file.display()));
    }
}

fn variable(name: &str, value: &OsStr) -> OsString {
    let mut setting = OsString::from(name);
    setting.push("=");
    setting.push(value);
    setting
}

/// The libraries to load first.
///
/// libfaketime cannot start in a program that is linked to jemalloc, as Debian's Redis is: jemalloc asks
/// for the time while it sets itself up, libfaketime then looks up the true function, for which it needs
/// memory, and so on in a circle. glibc's allocator in front of both breaks it.
fn preload(libraries: &Path) -> OsString {
    let faketime = library(libraries, FAKETIME).unwrap_or_else(|| {
        panic!("libfaketime is not installed: run `cargo xtask test`, or `apt-get install libfaketime`")
    });
    let mut list = OsString::new();
    if let Some(malloc) = library(libraries, GLIBC_MALLOC) {
        list.push(malloc);
        list.push(" ");
    }
    list.push(faketime);
    list
}

/// Finds a library below `/usr/lib/x86_64-linux-gnu`, or whatever this machine calls it.
fn library(libraries: &Path, name: &str) -> Option<PathBuf> {
    let folders = fs::read_dir(libraries).ok()?.flatten().map(|folder| folder.path());
    let mut found: Vec<PathBuf> =
        folders.map(|folder| folder.join(name)).filter(|path| path.exists()).collect();
    // The order of a folder is random. On a machine with several architectures the own one is wanted.
    found.sort_by_key(|path| !path.to_string_lossy().contains(std::env::consts::ARCH));
    found.into_iter().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(
        expected = "libfaketime is not installed: run `cargo xtask test`, or `apt-get install libfaketime`"
    )]
    fn a_missing_libfaketime_gives_the_advice() {
        let empty = tempfile::tempdir().unwrap();
        preload(empty.path());
    }
}
