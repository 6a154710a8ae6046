//! A disk so small that a test can fill it: a tmpfs of a given size.
//!
//! It is a real file system with a real `ENOSPC`, mounted on a temporary folder and unmounted when dropped.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::geteuid;
use tempfile::TempDir;

use crate::program;

/// What a tmpfs gives out at a time: writing in such pieces leaves no free remainder.
const PAGE: [u8; 4096] = [0; 4096];

/// A file system of a few kilobytes or megabytes.
#[derive(Debug)]
pub struct SmallDisk {
    mounted_on: TempDir,
}

impl SmallDisk {
    /// A disk that holds `bytes`, rounded up to whole pages of 4 KiB.
    ///
    /// # Panics
    ///
    /// If this process may not mount a file system, which needs root.
    pub fn new(bytes: u64) -> Self {
        assert!(
            geteuid().is_root(),
            "a small disk must be mounted, which needs root: run the tests as root, or in a container"
        );
        let mounted_on = tempfile::Builder::new()
            .prefix("tenure-disk-")
            .tempdir()
            .expect("a test may make a folder for temporary files");
        let size = format!("size={bytes}");
        let options = ["-t", "tmpfs", "-o", &size, "tenure-small-disk"].map(OsStr::new);
        run("mount", &options, mounted_on.path()).unwrap_or_else(|problem| {
            panic!("cannot mount a small disk (a container needs CAP_SYS_ADMIN for it): {problem}")
        });
        Self { mounted_on }
    }

    /// The folder where it is mounted.
    pub fn path(&self) -> &Path {
        self.mounted_on.path()
    }

    /// Fills it to the last page: from now on there is no space left for new data.
    ///
    /// What a full disk still allows, here as elsewhere: new empty files, and writes into the last page of
    /// a file, as long as there is room in that page.
    ///
    /// # Panics
    ///
    /// If writing fails for another reason than a full disk.
    pub fn fill(&self) {
        let filled = self.filler();
        let written = File::options().create(true).append(true).open(&filled).and_then(|mut file| {
            loop {
                file.write_all(&PAGE)?;
            }
        });
        match written {
            Err(full) if full.kind() == io::ErrorKind::StorageFull => {}
            Err(error) => panic!("cannot fill {}: {error}", filled.display()),
            Ok(()) => unreachable!("only an error ends the loop"),
        }
    }

    /// Gives back what [`SmallDisk::fill`] took.
    ///
    /// # Panics
    ///
    /// If it was not filled.
    pub fn free_up(&self) {
        let filler = self.filler();
        // Emptied first: a child that another thread is starting right now may have a copy of the open file
        // until its `exec`, and the space of a removed file is only free when nobody has it open.
        let emptied = File::options().write(true).open(&filler).and_then(|file| file.set_len(0));
        emptied
            .and_then(|()| fs::remove_file(&filler))
            .unwrap_or_else(|error| panic!("cannot empty and remove {}: {error}", filler.display()));
    }

    fn filler(&self) -> PathBuf {
        self.path().join(".filled-by-the-testkit")
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a server that is about to be dropped may still have a file open there. The folder below
        // is removed after this, by its own `drop`. A panic here would hide the one that led to it.
        if let Err(problem) = run("umount", &[OsStr::new("--lazy")], self.path()) {
            eprintln!("a small disk stays mounted: {problem}");
        }
    }
}

fn run(program: &str, options: &[&OsStr], folder: &Path) -> Result<(), String> {
    let program = program::find_program(program).map_err(|missing| missing.to_string())?;
    let output = Command::new(&program).args(options).arg(folder).output();
    let output = output.map_err(|error| format!("{}: {error}", program.display()))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}
