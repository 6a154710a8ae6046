//! The critical section of the tests: a counter in a file that only the lock protects, and a mark that names the process inside.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::proc;

/// A critical section.
pub struct Inside {
    counter: PathBuf,
    mark: PathBuf,
    enough: PathBuf,
}

impl Inside {
    /// Returns the critical section in this folder.
    pub fn new(folder: &Path) -> Self {
        Self { counter: folder.join("counter"), mark: folder.join("inside"), enough: folder.join("enough") }
    }

    /// Returns the value of the counter.
    pub fn count(&self) -> u64 {
        let mut bytes = [0; 8];
        File::open(&self.counter)
            .and_then(|file| file.read_exact_at(&mut bytes, 0))
            .map_or(0, |()| u64::from_le_bytes(bytes))
    }

    /// Asks all processes to stop entering.
    pub(super) fn is_enough(&self) {
        File::create(&self.enough).expect("a file can be made in the test's folder");
    }

    pub(super) fn has_enough(&self) -> bool {
        self.enough.exists()
    }

    /// Enters, increments, waits for `stay` between the read and the write, and leaves. A second process inside would lose an increment.
    /// Fails if another task or process is inside.
    pub fn increment(&self, stay: Duration) -> Result<(), String> {
        self.enter()?;
        let before = self.count();
        std::thread::sleep(stay);
        OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(&self.counter)
            .and_then(|file| file.write_all_at(&(before + 1).to_le_bytes(), 0))
            .map_err(|error| format!("the counter cannot be written: {error}"))?;
        std::fs::remove_file(&self.mark).map_err(|error| format!("somebody removed the mark: {error}"))
    }

    fn enter(&self) -> Result<(), String> {
        loop {
            match OpenOptions::new().write(true).create_new(true).open(&self.mark) {
                Ok(mut mark) => {
                    let pid = std::process::id().to_string();
                    return mark
                        .write_all(pid.as_bytes())
                        .map_err(|error| format!("the mark cannot be written: {error}"));
                }
                Err(error) if error.kind() == ErrorKind::AlreadyExists => self.bury()?,
                Err(error) => return Err(format!("the mark cannot be made: {error}")),
            }
        }
    }

    /// Removes the mark of a process that was killed inside. Fails if that process is alive.
    fn bury(&self) -> Result<(), String> {
        for _ in 0..500 {
            let Ok(text) = std::fs::read_to_string(&self.mark) else {
                return Err("somebody was inside, and has just left".into());
            };
            // An empty mark is of a process that was killed before it wrote its pid. The parent counts the killed processes.
            let Ok(pid) = text.parse::<u32>() else {
                std::thread::sleep(Duration::from_millis(10));
                continue;
            };
            if pid == std::process::id() {
                return Err("another task of this process is inside".into());
            }
            if is_dead(pid) {
                return std::fs::remove_file(&self.mark)
                    .map_err(|error| format!("somebody buried it before: {error}"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        if std::fs::read(&self.mark).is_ok_and(|text| text.is_empty()) {
            return std::fs::remove_file(&self.mark)
                .map_err(|error| format!("somebody buried it before: {error}"));
        }
        Err("somebody else is inside, and lives".into())
    }
}

fn is_dead(pid: u32) -> bool {
    matches!(proc::state(Path::new(&format!("/proc/{pid}"))), None | Some('Z' | 'X'))
}
