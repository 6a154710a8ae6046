//! The status line: one line at the bottom of a terminal. It is redrawn in place, and erased before other output.

use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use unicode_width::UnicodeWidthChar;

/// Whether the line is on the terminal. Changed only while stderr is locked.
static DRAWN: AtomicBool = AtomicBool::new(false);

/// The width for terminals that do not report one.
const COLUMNS: usize = 80;

/// The status line on stderr. It is erased when this is dropped.
pub(crate) struct StatusLine {
    stderr: io::Stderr,
}

impl StatusLine {
    /// Returns the status line, if stderr is a terminal that can erase it.
    pub(crate) fn open() -> Option<Self> {
        let is_dumb = std::env::var_os("TERM").is_some_and(|terminal| terminal == "dumb");
        let stderr = io::stderr();
        (stderr.is_terminal() && !is_dumb).then_some(Self { stderr })
    }

    /// Draws the line over the one before, cut to the width of the terminal. Draws nothing while a shell is in the foreground.
    pub(crate) fn draw(&self, text: &str) {
        let mut stderr = self.stderr.lock();
        if !in_foreground() {
            DRAWN.store(false, Ordering::Relaxed);
            return;
        }
        let columns = rustix::termios::tcgetwinsize(&stderr).map_or(0, |size| usize::from(size.ws_col));
        let columns = if columns == 0 { COLUMNS } else { columns };
        // A character in the last column would move the cursor to the next line on some terminals.
        let line = format!("\r{}\x1b[K", cut(text, columns.saturating_sub(1)));
        // One write, because other processes may draw a line too.
        let _ = stderr.write_all(line.as_bytes());
        DRAWN.store(true, Ordering::Relaxed);
    }
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        erase(&mut self.stderr.lock());
    }
}

/// Erases the line, if it is drawn, to make room for other output.
pub(crate) fn erase(stderr: &mut io::StderrLock<'_>) {
    if DRAWN.swap(false, Ordering::Relaxed) && in_foreground() {
        let _ = stderr.write_all(b"\r\x1b[K");
    }
}

/// Whether this process group, and not a shell's prompt, has the terminal.
fn in_foreground() -> bool {
    rustix::termios::tcgetpgrp(io::stderr()) == Ok(rustix::process::getpgrp())
}

/// Returns the longest beginning of a text that fits into `columns` columns.
fn cut(text: &str, columns: usize) -> &str {
    let mut width = 0;
    for (start, character) in text.char_indices() {
        width += character.width().unwrap_or(0);
        if width > columns {
            return &text[..start];
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_cut_by_columns_and_not_by_characters() {
        assert_eq!(cut("waiting", 7), "waiting");
        assert_eq!(cut("waiting", 4), "wait");
        assert_eq!(cut("日本語", 5), "日本");
        assert_eq!(cut("e\u{301}e\u{301}", 1), "e\u{301}");
        assert_eq!(cut("waiting", 0), "");
    }
}
