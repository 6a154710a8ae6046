//! What every server of the kit has in common: a process, a port, and a clock of its own if it was asked for.

use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitStatus;

use crate::faketime::Faketime;
use crate::port::loopback;
use crate::process::{self, Process};
use crate::shared::Elsewhere;

/// A running server; it ends when this is dropped. [`Redis`](crate::Redis), [`Postgres`](crate::Postgres),
/// [`MariaDb`](crate::MariaDb), [`ZooKeeper`](crate::ZooKeeper) and [`Etcd`](crate::Etcd) are such.
#[derive(Debug)]
pub struct Server {
    name: &'static str,
    life: Life,
    port: u16,
    faketime: Option<Faketime>,
    /// Whether the server on this port answers.
    answers: fn(u16) -> bool,
}

/// Whose child a server is.
#[derive(Debug)]
enum Life {
    Ours(Box<Process>),
    /// Of the program that keeps the servers of a run. It is only ever shared, and so never ended from here.
    Elsewhere(Elsewhere),
}

impl Server {
    /// One that runs already, for all tests of a run.
    pub(crate) fn elsewhere(name: &'static str, at: Elsewhere, answers: fn(u16) -> bool) -> Self {
        Self { name, port: at.port, life: Life::Elsewhere(at), faketime: None, answers }
    }

    /// Its process, which is a child of this one.
    pub(crate) fn process(&mut self) -> &mut Process {
        match &mut self.life {
            Life::Ours(process) => process,
            Life::Elsewhere(_) => unreachable!("{} is shared by `&'static`", self.name),
        }
    }

    /// Waits until it answers.
    #[track_caller]
    pub(crate) fn new(
        name: &'static str,
        process: Process,
        port: u16,
        faketime: Option<Faketime>,
        answers: fn(u16) -> bool,
    ) -> Self {
        let mut server = Self { name, life: Life::Ours(Box::new(process)), port, faketime, answers };
        server.wait_until_ready();
        server
    }

    /// What kind of server it is.
    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        loopback(self.port)
    }

    /// The port where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The id of its process; of its first one, if it has several.
    pub fn pid(&self) -> u32 {
        match &self.life {
            Life::Ours(process) => process.pid(),
            Life::Elsewhere(at) => at.pid,
        }
    }

    /// Where it keeps its data and its log.
    pub fn folder(&self) -> &Path {
        match &self.life {
            Life::Ours(process) => process.folder(),
            Life::Elsewhere(at) => &at.folder,
        }
    }

    /// All that it has printed so far.
    pub fn log(&self) -> String {
        process::log_in(self.folder())
    }

    /// Asks it to end, and waits until it has; see [`Process::stop`].
    pub fn stop(&mut self) -> ExitStatus {
        self.process().stop()
    }

    /// Kills it (SIGKILL), with all of its processes, and waits until they are gone.
    pub fn kill(&mut self) {
        self.process().kill();
    }

    /// Halts it, with all of its processes: connections stay open and nobody answers; see [`Process::pause`].
    pub fn pause(&mut self) {
        self.process().pause();
    }

    /// Lets it run on after [`Server::pause`].
    pub fn resume(&mut self) {
        self.process().resume();
    }

    /// Starts it once more, on the same port and with the same data, and waits until it answers. Stops it
    /// before, if it still runs. Its wall clock stays stepped.
    #[track_caller]
    pub fn restart(&mut self) {
        self.process().restart();
        self.wait_until_ready();
    }

    /// Steps its wall clock: forwards by so many seconds, or backwards if the number is negative.
    ///
    /// It sees that the next time that it looks at its clock, which these servers do for each command.
    ///
    /// # Panics
    ///
    /// Unless it was started by its builder with `faketime()`.
    #[track_caller]
    pub fn step_clock(&mut self, by_s: i64) {
        let Some(clock) = &mut self.faketime else {
            panic!("this {} runs on the clock of the machine: start it by `builder().faketime()`", self.name);
        };
        clock.step(by_s);
    }

    #[track_caller]
    fn wait_until_ready(&mut self) {
        let (answers, port) = (self.answers, self.port);
        self.process().wait_until_ready(|| answers(port));
        if let Some(clock) = &self.faketime {
            clock.tidy(self.pid());
        }
    }
}

/// Makes a server of the kit one that is such.
macro_rules! is_a_server {
    ($name:ident) => {
        impl std::ops::Deref for $name {
            type Target = $crate::server::Server;

            fn deref(&self) -> &Self::Target {
                &self.0
            }
        }

        impl std::ops::DerefMut for $name {
            fn deref_mut(&mut self) -> &mut Self::Target {
                &mut self.0
            }
        }

        impl From<$name> for $crate::server::Server {
            fn from(server: $name) -> Self {
                server.0
            }
        }
    };
}
pub(crate) use is_a_server;
