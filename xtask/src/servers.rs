//! The servers that all test programs of a run share, kept by a program of the test kit for as long as the run lasts.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Where test programs find them.
const VARIABLE: &str = "TENURE_TEST_SERVERS";

/// The servers of a run. They end when this is dropped.
pub(crate) struct Servers {
    keeper: Child,
    /// Where they are, as their keeper says and the test kit understands it.
    lines: String,
}

impl Servers {
    /// Starts them; `keeper` is the program `tenure-test-servers`.
    pub(crate) fn start(keeper: &Path) -> Result<Self, String> {
        let mut command = Command::new(keeper);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut keeper =
            command.spawn().map_err(|error| format!("cannot run {}: {error}", keeper.display()))?;
        let mut output = BufReader::new(keeper.stdout.take().expect("its output is piped"));
        let mut lines = String::new();
        while !lines.ends_with("ready\n") {
            if output.read_line(&mut lines).map_err(|error| format!("the servers' keeper: {error}"))? == 0 {
                let _ = keeper.wait();
                return Err(
                    "the servers for the tests did not start; what is missing is said above".to_owned()
                );
            }
        }
        Ok(Self { keeper, lines })
    }

    /// Lets a test program use them.
    pub(crate) fn lend_to(&self, program: &mut Command) {
        program.env(VARIABLE, &self.lines);
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        // The end of its input tells it that the run is over.
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}
