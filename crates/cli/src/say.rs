//! Messages for people, one line each, on stderr. Stdout is for the command that runs, or for the output of `tenure` itself.

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};

use tenure::LockName;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::exit::{Failure, OK};
use crate::status;

/// Prints a message. A failed write to stderr is ignored.
pub(crate) fn say(text: impl AsRef<str>) {
    let mut stderr = io::stderr().lock();
    status::erase(&mut stderr);
    // One write, because other processes may write to the same terminal or log.
    let _ = stderr.write_all(format!("tenure: {}\n", text.as_ref()).as_bytes());
}

/// Returns a lock's name as messages show it, cut after 60 characters.
pub(crate) fn short(name: &LockName) -> Cow<'_, str> {
    shorten(name.as_str())
}

/// Returns the first 60 characters of a text, with `…` if it is longer.
pub(crate) fn shorten(text: &str) -> Cow<'_, str> {
    const LONGEST: usize = 60;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => Cow::Owned(format!("{}…", &text[..end])),
        None => Cow::Borrowed(text),
    }
}

/// Prints output to stdout. If the reader has closed it, as `head` does, the command ends without an error.
pub(crate) fn print(text: &str) -> Result<u8, Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => Ok(OK),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(Failure::new(OK, "")),
        Err(error) => Err(Failure::system("cannot write to stdout", error)),
    }
}

/// Prints a line as JSON.
pub(crate) fn print_json(value: &serde_json::Value) -> Result<u8, Failure> {
    print(&format!("{value}\n"))
}

/// Prints the library's log messages from this level on.
pub(crate) fn log(level: LevelFilter) {
    let writer = || {
        status::erase(&mut io::stderr().lock());
        io::stderr()
    };
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(writer)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false)
        .without_time()
        // A failed write to stderr must not cause a panic.
        .log_internal_errors(false);
    // The command reports a lost lock itself.
    let targets = Targets::new().with_default(level).with_target("tenure::lost", LevelFilter::OFF);
    tracing_subscriber::registry().with(lines).with(targets).init();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_shortened_and_a_short_one_is_not() {
        assert_eq!(shorten(&"x".repeat(60)), "x".repeat(60));
        assert_eq!(shorten(&"ü".repeat(61)), "ü".repeat(60) + "…");
    }
}
