//! Starting children that die when this process dies, also by `kill -9`.
//!
//! The kernel does it: a child may ask for a signal at the death of its parent (`PR_SET_PDEATHSIG`).
//! `setpriv` asks on the child's behalf, and then becomes the program by `exec`, which keeps the request.
//!
//! Two traps, and how they are avoided:
//! - "The parent" is the *thread* that forked. A test has a thread of its own, and what it started would
//!   die with it, a shared server too. So every child is started by one thread that never ends.
//! - The request is forgotten when the child changes its user. A server that must not run as root is
//!   therefore started by `setpriv --reuid … --pdeathsig KILL`, which asks last, and not through
//!   `runuser`, which loses the request.

use std::ffi::OsStr;
use std::io;
use std::process::{Child, Command};
use std::sync::OnceLock;
use std::sync::mpsc::{Sender, channel};
use std::thread;

use crate::program;

struct Order {
    command: Command,
    answer: Sender<io::Result<Child>>,
}

/// Starts `command` so that it does not outlive this process.
///
/// Standard streams belong to the caller, who says by `streams` where they go.
pub(crate) fn spawn(command: &Command, streams: impl FnOnce(&mut Command)) -> io::Result<Child> {
    static ORDERS: OnceLock<Sender<Order>> = OnceLock::new();

    let options = ["--pdeathsig", "KILL", "--"].map(OsStr::new);
    let mut command = program::through("setpriv", &options, command);
    streams(&mut command);
    let (answer, answered) = channel();
    ORDERS
        .get_or_init(start_spawner)
        .send(Order { command, answer })
        .expect("the spawner never ends: its loop has no way out while this sender lives");
    answered.recv().expect("the spawner answers every order")
}

fn start_spawner() -> Sender<Order> {
    let (orders, incoming) = channel::<Order>();
    thread::Builder::new()
        .name("testkit-spawner".to_owned())
        .spawn(move || {
            for mut order in incoming {
                // Nobody waits any more if the caller's thread has died: the child is then nobody's.
                if let Err(unclaimed) = order.answer.send(order.command.spawn())
                    && let Ok(mut child) = unclaimed.0
                {
                    let _ = child.kill();
                    let _ = child.wait();
                }
            }
        })
        .expect("a process that runs tests may start a thread");
    orders
}
