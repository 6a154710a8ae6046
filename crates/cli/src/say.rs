//! What is said to people, on stderr, a line at a time. Stdout belongs to the command that is run, or to what was asked for.

use std::io::{self, IsTerminal, Write};

use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::exit::{Failure, OK};

/// Says one thing. That nobody listens is no reason to fail.
pub(crate) fn say(text: impl AsRef<str>) {
    let _ = writeln!(io::stderr().lock(), "tenure: {}", text.as_ref());
}

/// Prints what was asked for. A reader that has gone away, as `head` does, has what it wanted: then there is nothing more to do.
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

/// Shows what the library warns of, from this level on.
pub(crate) fn log(level: LevelFilter) {
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .with_target(false)
        .without_time()
        // That nobody listens is no reason to panic.
        .log_internal_errors(false);
    // We tell of a lost lock in our own words.
    let quietly = Targets::new().with_default(level).with_target("tenure::lost", LevelFilter::OFF);
    tracing_subscriber::registry().with(lines).with(quietly).init();
}
