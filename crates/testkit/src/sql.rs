//! What the SQL servers of the kit have in common: they are set up before the first start, and asked
//! through their own client programs.

use std::ffi::OsStr;
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::program;
use crate::wait::DEFAULT_LIMIT;

/// How long one look at whether a server is ready may take, before it is looked whether it still runs.
pub(crate) const LOOK_LIMIT: Duration = Duration::from_secs(5);
/// How long a statement may take.
pub(crate) const STATEMENT_LIMIT: Duration = DEFAULT_LIMIT;

pub(crate) fn folder(prefix: &str) -> TempDir {
    let folder = tempfile::Builder::new().prefix(prefix).tempdir();
    folder.expect("a test may make a folder for temporary files")
}

/// Runs the program that makes a server's data folder.
#[track_caller]
pub(crate) fn set_up(server: &str, mut command: Command) {
    let output = command.stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("cannot set up {server}: {error}"));
    let printed = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    assert!(output.status.success(), "cannot set up {server}: {}\n{}", output.status, printed.concat());
}

/// Runs a client program, and returns what it printed, or else what it complained about.
pub(crate) fn ask(limit: Duration, client: &Command) -> Result<String, String> {
    let seconds = limit.as_secs().to_string();
    let mut command = program::through("timeout", &[OsStr::new(&seconds)], client);
    let output = command.stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    match output.status.code() {
        Some(0) => Ok(text(&output.stdout)),
        Some(124) => Err(format!("no answer within {limit:?}")),
        _ => Err(text(&output.stderr)),
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end_matches('\n').to_owned()
}

/// Keeps settings that are meant for other servers from a client: all variables that start so.
pub(crate) fn forget_variables(client: &mut Command, prefix: &str) {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with(prefix) {
            client.env_remove(name);
        }
    }
}
