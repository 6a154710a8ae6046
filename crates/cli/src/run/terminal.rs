//! The terminal: its foreground group, and its state after the command.

use std::cell::Cell;
use std::fs::File;
use std::io::IsTerminal;

use rustix::process::Pid;
use rustix::termios::{OptionalActions, Termios};

/// The controlling terminal of `tenure run`.
#[derive(Debug)]
pub(super) struct Terminal {
    tty: File,
    /// The process group of `tenure run`.
    home: Pid,
    /// The settings of the terminal before the command got it.
    modes: Option<Termios>,
    /// Whether the command has, or last had, the foreground.
    given: Cell<bool>,
}

impl Terminal {
    /// Opens the terminal, if there is one.
    pub(super) fn open() -> Option<Self> {
        let tty = File::options().read(true).write(true).open("/dev/tty").ok()?;
        let modes = rustix::termios::tcgetattr(&tty).ok();
        Some(Self { tty, home: rustix::process::getpgrp(), modes, given: Cell::new(false) })
    }

    /// Whether this process group is in the foreground.
    pub(super) fn is_ours(&self) -> bool {
        rustix::termios::tcgetpgrp(&self.tty) == Ok(self.home)
    }

    /// Whether the command should get the foreground from its start. Not if another process of the same pipeline may need it. The command
    /// can still get it later, when it asks for it.
    pub(super) fn should_be_given(&self) -> bool {
        self.is_ours() && std::io::stdin().is_terminal() && std::io::stdout().is_terminal()
    }

    /// Records that the command's group is in the foreground.
    pub(super) fn note_given(&self) {
        self.given.set(true);
    }

    pub(super) fn was_given(&self) -> bool {
        self.given.get()
    }

    /// Gives a group the foreground. The caller must have SIGTTOU blocked.
    pub(super) fn give(&self, group: Pid) {
        let _ = rustix::termios::tcsetpgrp(&self.tty, group);
    }

    /// Takes the foreground back from the group of an ended command, if the group still has it. Also restores the terminal's settings if
    /// the command was killed, because it may not have done so. Returns whether the group had the foreground.
    pub(super) fn take_back(&self, group: Pid, killed: bool) -> bool {
        if rustix::termios::tcgetpgrp(&self.tty) != Ok(group) {
            // The command was sent to the background, and another group has the terminal now.
            return false;
        }
        let _ = rustix::termios::tcsetpgrp(&self.tty, self.home);
        if let (true, Some(modes)) = (killed, &self.modes) {
            let _ = rustix::termios::tcsetattr(&self.tty, OptionalActions::Drain, modes);
        }
        true
    }
}
