//! Servers that all test programs of a run share.
//!
//! A run starts the program `tenure-test-servers` once. It starts one server of each kind, and tells where they are in
//! lines of its output, which the run gives to its test programs as they are, in the variable [`VARIABLE`]. A test program
//! that is started without it has servers of its own.

use std::env;
use std::io::{self, Write};
use std::path::PathBuf;
use std::thread;

use crate::server::Server;
use crate::{Etcd, MariaDb, Postgres, Redis, ZooKeeper};

/// What a run gives its test programs.
const VARIABLE: &str = "TENURE_TEST_SERVERS";

/// The line after those that say where the servers are.
const READY: &str = "ready";

/// Where a server is that another process has started.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Elsewhere {
    pub(crate) port: u16,
    pub(crate) pid: u32,
    pub(crate) folder: PathBuf,
}

impl Elsewhere {
    /// The server of this name, in lines of `NAME PORT PID FOLDER`.
    fn find(lines: &str, name: &str) -> Option<Self> {
        lines.lines().find_map(|line| {
            let (port, rest) = line.strip_prefix(name)?.strip_prefix(' ')?.split_once(' ')?;
            let (pid, folder) = rest.split_once(' ')?;
            Some(Self { port: port.parse().ok()?, pid: pid.parse().ok()?, folder: folder.into() })
        })
    }
}

/// The server of this name that all test programs of this run share, if this is such a run.
///
/// # Panics
///
/// If it is, and has no such server.
pub(crate) fn of_this_run(name: &'static str, answers: fn(u16) -> bool) -> Option<Server> {
    let lines = env::var(VARIABLE).ok()?;
    let at = Elsewhere::find(&lines, name);
    let at = at.unwrap_or_else(|| panic!("{VARIABLE} has no {name}: it is {lines:?}"));
    Some(Server::elsewhere(name, at, answers))
}

/// The program `tenure-test-servers`: starts the servers, says where they are, and ends them when its input ends.
///
/// # Panics
///
/// If one of them is not installed or does not start, with what to do.
pub fn serve_a_run() {
    let servers = thread::scope(|scope| {
        let starting = [
            scope.spawn(|| Server::from(Redis::to_share())),
            scope.spawn(|| Postgres::to_share().into()),
            scope.spawn(|| MariaDb::to_share().into()),
            scope.spawn(|| ZooKeeper::to_share().into()),
            scope.spawn(|| Etcd::to_share().into()),
        ];
        // Why one did not start has been said by its panic.
        starting.map(|server| server.join().expect("all servers start"))
    });
    for server in &servers {
        println!("{} {} {} {}", server.name(), server.port(), server.pid(), server.folder().display());
    }
    println!("{READY}");
    // Whoever started this may be gone already: then there is no input either.
    let _ = io::stdout().flush();
    let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_found_by_its_whole_name() {
        let lines = "Redis 4001 17 /tmp/a\nPostgreSQL 4002 18 /tmp/with a blank";
        let postgres = Elsewhere { port: 4002, pid: 18, folder: "/tmp/with a blank".into() };
        assert_eq!(Elsewhere::find(lines, "PostgreSQL"), Some(postgres));
        assert_eq!(Elsewhere::find(lines, "Postgre"), None);
        assert_eq!(Elsewhere::find("Redis many 17 /tmp/a", "Redis"), None);
    }
}
