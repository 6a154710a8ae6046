//! What the SQL servers of the kit have in common: they are set up before the first start.

use std::process::{Command, Stdio};
use std::time::Duration;

use crate::wait::DEFAULT_LIMIT;

/// How long one look at whether a server is ready may take, before it is looked whether it still runs.
pub(crate) const LOOK_LIMIT: Duration = Duration::from_secs(5);
/// How long a statement may take.
pub(crate) const STATEMENT_LIMIT: Duration = DEFAULT_LIMIT;

/// Runs the program that makes a server's data folder.
#[track_caller]
pub(crate) fn set_up(server: &str, mut command: Command) {
    let output = command.stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("cannot set up {server}: {error}"));
    let printed = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(output.status.success(), "cannot set up {server}: {}\n{}", output.status, printed.concat());
}
