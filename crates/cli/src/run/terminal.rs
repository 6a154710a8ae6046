//! The terminal: who is in the foreground, and how it is left behind.

use std::cell::Cell;
use std::fs::File;
use std::io::IsTerminal;

use rustix::process::Pid;
use rustix::termios::{OptionalActions, Termios};

/// The controlling terminal of `tenure run`.
#[derive(Debug)]
pub(super) struct Terminal {
    tty: File,
    /// The group that `tenure run` itself is in.
    home: Pid,
    /// How the terminal was set when the command got it.
    modes: Option<Termios>,
    /// Whether the command has, or last had, the foreground.
    given: Cell<bool>,
}

impl Terminal {
    /// The terminal, if there is one.
    pub(super) fn open() -> Option<Self> {
        let tty = File::options().read(true).write(true).open("/dev/tty").ok()?;
        let modes = rustix::termios::tcgetattr(&tty).ok();
        Some(Self { tty, home: rustix::process::getpgrp(), modes, given: Cell::new(false) })
    }

    /// Whether our group has the foreground.
    pub(super) fn is_ours(&self) -> bool {
        rustix::termios::tcgetpgrp(&self.tty) == Ok(self.home)
    }

    /// Whether the command should have the foreground from its start: not if something else of the same pipeline may want it.
    /// If it asks for it later, it gets it then.
    pub(super) fn should_be_given(&self) -> bool {
        self.is_ours() && std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
    }

    /// Notes that the command's group has the foreground.
    pub(super) fn note_given(&self) {
        self.given.set(true);
    }

    pub(super) fn was_given(&self) -> bool {
        self.given.get()
    }

    /// Gives a group the foreground. The caller has SIGTTOU blocked.
    pub(super) fn give(&self, group: Pid) {
        let _ = rustix::termios::tcsetpgrp(&self.tty, group);
    }

    /// Takes the foreground back from the group of a command that has ended, if it had it to the end; and sets the terminal as it was, if a
    /// signal ended the command, which may have been in the middle of anything. Whether it had it.
    pub(super) fn take_back(&self, group: Pid, killed: bool) -> bool {
        if rustix::termios::tcgetpgrp(&self.tty) != Ok(group) {
            // It was sent to the background, and somebody else has the terminal now.
            return false;
        }
        let _ = rustix::termios::tcsetpgrp(&self.tty, self.home);
        if let (true, Some(modes)) = (killed, &self.modes) {
            let _ = rustix::termios::tcsetattr(&self.tty, OptionalActions::Drain, modes);
        }
        true
    }
}
