//! A shell that outlives this process, for servers that need their folder as long as they run.
//!
//! A killed process cannot tidy up, and one that ends does not drop what it has leaked. The kernel then
//! kills its servers, but removes no folder, and knows nothing of a server's own children, which may be
//! halted, or busy for hours. The guard does that. It learns of the end from a pipe, whose other end closes
//! with the process that holds it.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::program;

/// In a file of its own: what kills and removes is to be read as a whole.
const SCRIPT: &str = include_str!("guard.sh");

/// The guard of one server and its folder. When it is dropped, both are gone.
#[derive(Debug)]
pub(crate) struct Guard {
    shell: Child,
}

impl Guard {
    /// Stands guard over the processes of `server`, a program that has the folder's name in its command
    /// line, and over `folder`. `last` is what else to do in the folder before it is removed, in the
    /// language of the shell.
    pub(crate) fn over(folder: &Path, server: &str, last: &str) -> Self {
        let mut command = Command::new(program::require("sh"));
        command.args(["-c", SCRIPT]);
        // In the environment: in the guard's own command line the folder would be taken for a server's.
        command.env("GUARDED_FOLDER", folder).env("GUARDED_SERVER", server).env("GUARD_LAST", last);
        // A group of its own: Ctrl-C on the terminal of the tests is not for the guard.
        command.process_group(0).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        Self { shell: command.spawn().expect("a shell that was found can be started") }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}
