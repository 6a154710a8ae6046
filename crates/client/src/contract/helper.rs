//! Another process with its own client: the test binary, run again. It can be killed, stopped and resumed.
//!
//! The helper reads one command per line. Its answers start with `@`, so that the output of a test harness is not taken for an answer.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::mpsc;

use super::trial::within;
use super::{Inside, Subject, proc};
use crate::{Client, Guard, Mode, OwnerId, Record, Run, Turn, Wait};

const ADDRESS: &str = "TENURE_CONTRACT_HELPER";

/// The longest time for one answer on a slow machine. It includes waits behind many other processes.
const PATIENCE: Duration = Duration::from_mins(5);

/// A helper process, controlled by a case. Dropping this kills the process.
pub struct Helper {
    child: Child,
    commands: ChildStdin,
    answers: mpsc::UnboundedReceiver<String>,
}

impl Helper {
    /// Starts the test binary again, with a client of the engine at that address. `module` is a case's module path in the suite.
    pub async fn start(module: &str, address: &str) -> Self {
        // In `crate::…::suite::area`, the helper is a test of the module `suite`. The names of tests do not contain the crate.
        let suite = module.split_once("::").and_then(|(_, path)| path.rsplit_once("::"));
        let (suite, _) = suite.expect("a case is in a module of the suite");
        let mut child = Command::new(std::env::current_exe().expect("a test binary knows its own path"))
            .args([&format!("{suite}::helper_process"), "--exact", "--nocapture", "--test-threads=1"])
            .env(ADDRESS, address)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the test binary can be run again");
        let commands = child.stdin.take().expect("its input is piped");
        let output = BufReader::new(child.stdout.take().expect("its output is piped"));
        let (send, answers) = mpsc::unbounded_channel();
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                // The harness may have printed at the beginning of the line.
                if let Some((_, answer)) = line.split_once('@') {
                    let _ = send.send(answer.to_owned());
                }
            }
        });
        let mut helper = Self { child, commands, answers };
        assert_eq!(helper.answer().await, "ready");
        helper
    }

    /// Sends a command.
    pub fn tell(&mut self, command: &str) {
        writeln!(self.commands, "{command}").expect("the helper reads its commands");
    }

    /// Returns the answer to a command.
    pub async fn answer(&mut self) -> String {
        within(PATIENCE, "the helper answers", self.answers.recv()).await.unwrap_or_else(|| "gone".to_owned())
    }

    /// Sends a command and waits for its answer.
    pub async fn ask(&mut self, command: &str) -> String {
        self.tell(command);
        self.answer().await
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Kills the process, as a crash does.
    pub fn kill(&mut self) {
        self.child.kill().expect("one's own child can be killed");
        self.child.wait().expect("one's own child can be waited for");
    }

    /// Stops the process. All of its threads are stopped when this returns.
    pub fn stop(&self) {
        self.signal(Signal::STOP);
        while !self.stands_still() {
            std::thread::yield_now();
        }
    }

    fn stands_still(&self) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id()));
        // A thread that has ended meanwhile counts as stopped.
        let stands_still = |state: Option<char>| matches!(state, None | Some('T' | 'Z' | 'X'));
        tasks
            .expect("one's own child has its threads there")
            .flatten()
            .all(|task| stands_still(proc::state(&task.path())))
    }

    /// Resumes the process.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a child has a pid");
        kill_process(pid, signal).expect("one's own child can be signalled");
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the helper process. Returns at once in any other process.
pub fn run_helper<S: Subject>() {
    let Ok(address) = std::env::var(ADDRESS) else { return };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime can be built");
    let client = runtime.block_on(S::connect(&address));
    let (mut guards, mut runs) = (HashMap::new(), Vec::new());
    println!("\n@ready");
    for command in std::io::stdin().lines().map_while(Result::ok) {
        let words: Vec<&str> = command.split(' ').collect();
        let answer = runtime.block_on(obey(&client, &mut guards, &mut runs, &words));
        println!("@{}", answer.unwrap_or_else(|error| format!("error {error}")));
    }
    // The parent has exited or closed the input.
    std::process::exit(0);
}

async fn obey(
    client: &Client,
    guards: &mut HashMap<String, Guard>,
    runs: &mut Vec<Run>,
    words: &[&str],
) -> Result<String, Box<dyn std::error::Error>> {
    let held = |name: &str| guards.get(name).ok_or("the helper does not hold that");
    match *words {
        ["acquire", name, mode, ttl_ms] => {
            let request = client.lock(name).mode(mode.parse()?).ttl(Duration::from_millis(ttl_ms.parse()?));
            let guard = request.label("helper").acquire().await?;
            let token = guard.token().map_or(0, crate::FencingToken::get);
            guards.insert(name.to_owned(), guard);
            Ok(format!("got {token}"))
        }
        ["reenter", name, owner, ttl_ms] => {
            let (owner, ttl): (OwnerId, _) = (owner.parse()?, Duration::from_millis(ttl_ms.parse()?));
            let guard = client.owner_with_id(owner).lock(name).ttl(ttl).wait(Wait::Try).acquire().await?;
            let token = guard.token().map_or(0, crate::FencingToken::get);
            guards.insert(name.to_owned(), guard);
            Ok(format!("got {token}"))
        }
        ["check", name] => Ok(match held(name)?.check() {
            Ok(()) => "held".to_owned(),
            Err(lost) => format!("lost {:?}", lost.reason),
        }),
        ["value", name, value] => {
            held(name)?.set_value(value.as_bytes().to_vec()).await?;
            Ok("written".to_owned())
        }
        ["release", name] => {
            let guard = guards.remove(name).ok_or("the helper does not hold that")?;
            Ok(format!("{:?}", guard.release().await?))
        }
        ["increment", name, folder, times, stay_ms, ttl_ms] => {
            let inside = Inside::new(folder.as_ref());
            let (stay, ttl) =
                (Duration::from_millis(stay_ms.parse()?), Duration::from_millis(ttl_ms.parse()?));
            let times = if times == "until-enough" { usize::MAX } else { times.parse()? };
            for done in (1..=times).take_while(|_| !inside.has_enough()) {
                let guard = client.lock(name).mode(Mode::Ex).ttl(ttl).acquire().await?;
                inside.increment(stay)?;
                // Reported before the release, so that a killed process has at most one unreported increment.
                println!("@done {done}");
                let _ = guard.release().await?;
            }
            Ok("finished".to_owned())
        }
        ["once", name, recorded, ttl_ms] => {
            let record = if recorded == "start" { Record::AtStart } else { Record::AtSuccess };
            let request = client.once_per(name, Duration::from_hours(1)).record(record);
            Ok(match request.ttl(Duration::from_millis(ttl_ms.parse()?)).begin().await? {
                // The run continues until this process exits.
                Turn::Yours(run) => {
                    runs.push(run);
                    "yours".to_owned()
                }
                Turn::AlreadyRun { .. } => "already".to_owned(),
            })
        }
        _ => Err(format!("no such command: {words:?}").into()),
    }
}
