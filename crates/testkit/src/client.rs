//! Asking a server through its own client program.

use std::ffi::OsStr;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::program;

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
