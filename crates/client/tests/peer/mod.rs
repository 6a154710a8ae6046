//! A program in another language that locks by its own library, as a test sees it.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use tenure::contract::within;
use tenure_testkit::find_program;
use tokio::sync::mpsc;

/// How long anything may take on a slow machine: some of it is waiting for one's turn among many.
const PATIENCE: Duration = Duration::from_mins(5);

/// It is killed when this is dropped.
pub(crate) struct Peer {
    child: Child,
    input: ChildStdin,
    said: mpsc::UnboundedReceiver<String>,
}

/// Where `cargo xtask test --only peers` has installed the libraries of a language.
pub(crate) fn installed(language: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/peers").join(language);
    // It is written when all else is there.
    let is_installed = folder.join("made-from").exists();
    assert!(is_installed, "the locks of {language} are missing: run `cargo xtask test --only peers`");
    folder
}

impl Peer {
    /// A program below `tests`, run by its interpreter.
    pub(crate) fn start(interpreter: &Path, program: &str, words: &[&str]) -> Self {
        // Whatever becomes of the thread that the test runs on, the peer does not outlive it.
        let mut command = Command::new(find_program("setpriv").unwrap());
        command.args(["--pdeathsig", "KILL", "--"]).arg(interpreter);
        command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(program)).args(words);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the peer can be run");
        let input = child.stdin.take().expect("its input is piped");
        let output = BufReader::new(child.stdout.take().expect("its output is piped"));
        let (send, said) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let _ = send.send(line);
            }
        });
        Self { child, input, said }
    }

    /// The next word that it says; how it ended, if it did without one. May be dropped: no word is lost.
    pub(crate) async fn says(&mut self) -> String {
        let said = within(PATIENCE, "the peer says something", self.said.recv()).await;
        said.unwrap_or_else(|| format!("nothing any more: {}", self.child.wait().unwrap()))
    }

    /// Lets one that holds the lock release it: whether it was `released`, or `lost` before.
    pub(crate) async fn releases(&mut self) -> String {
        writeln!(self.input).expect("the peer reads its input");
        self.says().await
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
