//! A terminal with a program on it: what people type, and what they see.

use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;

use crate::wait::{DEFAULT_LIMIT, poll};
use crate::{program, spawner};

const ROWS: u16 = 24;
const COLUMNS: u16 = 200;

/// A pseudo-terminal, and a program that has it as its controlling terminal, in a session of its own.
#[derive(Debug)]
pub struct Terminal {
    keyboard: File,
    columns: u16,
    screen: Arc<Mutex<Vec<u8>>>,
    /// How much of the screen was waited for.
    seen: usize,
    child: Child,
}

impl Terminal {
    /// Starts `command` on a new terminal.
    ///
    /// # Panics
    ///
    /// If the program or `setsid` is not installed, or if there is no terminal to be had.
    pub fn start(command: &Command) -> Self {
        Self::start_with_columns(COLUMNS, command)
    }

    /// Starts `command` on a new terminal with so many columns.
    ///
    /// # Panics
    ///
    /// If the program or `setsid` is not installed, or if there is no terminal to be had.
    pub fn start_with_columns(columns: u16, command: &Command) -> Self {
        program::require(command.get_program());
        let keyboard = open().expect("the kernel has pseudo-terminals");
        let size = Winsize { ws_row: ROWS, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        rustix::termios::tcsetwinsize(&keyboard, size).expect("a terminal has a size");
        let name = rustix::pty::ptsname(&keyboard, Vec::new()).expect("a terminal has a name");
        let name = name.to_str().expect("its name is a path");
        let line =
            || File::options().read(true).write(true).open(name).expect("a terminal that was just made");
        let options = ["--ctty", "--"].map(AsRef::as_ref);
        let (stdin, stdout, stderr) = (line(), line(), line());
        let child = spawner::spawn(&program::through("setsid", &options, command), |command| {
            command.stdin(stdin).stdout(stdout).stderr(stderr);
        });
        let screen = Arc::<Mutex<Vec<u8>>>::default();
        let (shown, mut reader) = (screen.clone(), keyboard.try_clone().expect("an open file can be shared"));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // Ends with the last process on the terminal.
            while let Ok(read @ 1..) = reader.read(&mut bytes) {
                shown.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&bytes[..read]);
            }
        });
        Self { keyboard, columns, screen, seen: 0, child: child.expect("what was found can be started") }
    }

    /// Types keys: `\n` is Enter, `\x03` Ctrl-C, `\x04` Ctrl-D, `\x1a` Ctrl-Z.
    pub fn type_keys(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).expect("a terminal takes keys");
    }

    /// All that was shown so far.
    pub fn shown(&self) -> String {
        String::from_utf8_lossy(&self.screen.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }

    /// The lines that are on the screen now, without blanks at their ends: what a person sees after the cursor was moved and text was erased.
    pub fn screen(&self) -> Vec<String> {
        let [rows, columns] =
            [ROWS, self.columns].map(|size| NonZero::new(size).expect("a terminal has rows and columns"));
        let mut parser = vt100::Parser::new(rows, columns, 0);
        parser.process(&self.screen.lock().unwrap_or_else(PoisonError::into_inner));
        let lines: Vec<_> =
            parser.screen().rows(0, self.columns).map(|line| line.trim_end().to_owned()).collect();
        let end = lines.iter().rposition(|line| !line.is_empty()).map_or(0, |last| last + 1);
        lines[..end].to_vec()
    }

    /// Waits until a text is shown, behind what was waited for before.
    ///
    /// # Panics
    ///
    /// If it is not shown within 60 seconds, with all that was.
    #[track_caller]
    pub fn wait_for(&mut self, text: &str) {
        let found = poll(DEFAULT_LIMIT, || {
            let screen = self.screen.lock().unwrap_or_else(PoisonError::into_inner);
            let unseen = &screen[self.seen..];
            unseen.windows(text.len()).position(|window| window == text.as_bytes()).map(|at| at + text.len())
        });
        match found {
            Some(behind) => self.seen += behind,
            None => panic!("{text:?} was not shown; this was:\n{}", self.shown()),
        }
    }

    /// Its program's process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the program has ended, and says how.
    ///
    /// # Panics
    ///
    /// If it does not end within 60 seconds, with all that was shown.
    #[track_caller]
    pub fn wait(&mut self) -> ExitStatus {
        let ended = poll(DEFAULT_LIMIT, || self.child.try_wait().expect("a child of ours can be waited for"));
        ended.unwrap_or_else(|| panic!("it does not end; this was shown:\n{}", self.shown()))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn open() -> rustix::io::Result<File> {
    let terminal = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    rustix::pty::grantpt(&terminal)?;
    rustix::pty::unlockpt(&terminal)?;
    Ok(terminal.into())
}
