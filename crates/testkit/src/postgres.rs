//! A real PostgreSQL on a free loopback port, with its data in a folder that vanishes.
//!
//! It is ready when it has answered a query, so a test may speak to it as soon as it has one. It is as
//! durable as PostgreSQL is by default, and trusts everybody who connects from this machine.
//!
//! It is many processes, one for each connection among them. Whatever a test does to it (kill, pause)
//! happens to all of them, and they all die with the test process.

use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use rustix::process::Signal;

use crate::certificates::{Certificates, OfServer};
use crate::faketime::Faketime;
use crate::port::{free_port, loopback};
use crate::process::{self, Process};
use crate::server::{Server, is_a_server};
use crate::{client, program, shared, sql, user};

/// The user that Debian's package makes, since PostgreSQL refuses to be root. Also the name of its program,
/// of its first role and of its first database.
pub(crate) const POSTGRES: &str = "postgres";

/// A killed PostgreSQL leaves a small piece of System V shared memory, of which a machine has only 4096. Its
/// number is the second one in the seventh line of this file, which a PostgreSQL that ends by itself removes.
const FORGET_SHARED_MEMORY: &str =
    "set -- $(sed -n 7p data/postmaster.pid) && [ -n \"$2\" ] && ipcrm -m \"$2\"";

/// Many tests at once, each with some clients, have more than the usual 100.
const MANY_CONNECTIONS: [&str; 2] = ["-c", "max_connections=500"];

/// What sort of PostgreSQL to start; see [`Postgres::builder`].
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct PostgresBuilder {
    faketime: bool,
    certificates: Option<OfServer>,
    args: Vec<String>,
}

impl PostgresBuilder {
    /// Starts it on a wall clock of its own, for [`Server::step_clock`].
    pub fn faketime(mut self) -> Self {
        self.faketime = true;
        self
    }

    /// Lets it speak TLS to those who want to, with the server's certificate. It knows the authority, and so can tell its clients'
    /// certificates.
    pub fn tls(mut self, certificates: &Certificates) -> Self {
        self.certificates = Some(certificates.of_server());
        self
    }

    /// Another argument, as on the command line. It comes after those of the kit, and so overrides them.
    pub fn arg(mut self, arg: impl Into<String>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// Other arguments: `["-c", "max_connections=20"]`.
    pub fn args<A: Into<String>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Starts it, and waits until it answers.
    ///
    /// # Panics
    ///
    /// If PostgreSQL is not installed or does not start, with what to do, or with its log.
    #[track_caller]
    pub fn start(self) -> Postgres {
        // Asked for first: without its package there is no such user either, which is no advice.
        program::require(POSTGRES);
        program::require("ipcrm");
        let folder = process::folder("tenure-postgres-");
        let data = user::folder_of(POSTGRES, folder.path(), "data");
        sql::set_up("PostgreSQL", user::run_as(POSTGRES, initdb(&data)));

        let port = free_port();
        let mut command = self.command(folder.path(), &data, port);
        let mut faketime = None;
        if self.faketime {
            let (clock, changed) = Faketime::around(&command, folder.path());
            (command, faketime) = (changed, Some(clock));
        }
        // SIGINT ends it at once, and SIGTERM only when the last client has gone.
        let process = Process::start("PostgreSQL", folder, user::run_as(POSTGRES, command))
            .with_children()
            .stopped_by(Signal::INT)
            .guarded(POSTGRES, FORGET_SHARED_MEMORY);
        Postgres(Server::new(Postgres::NAME, process, port, faketime, answers))
    }

    fn command(&self, folder: &Path, data: &Path, port: u16) -> Command {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let mut command = Command::new(program::require(POSTGRES));
        command.arg("-D").arg(data).args(["-p", &port.to_string()]);
        command.args(["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]);
        // What a killed one leaves in /dev/shm would stay there. In its folder it vanishes.
        command.args(["-c", "dynamic_shared_memory_type=mmap"]);
        // Each of its processes has this in its command line, which is how the guard knows them.
        command.arg("-c").arg(format!("cluster_name={name}"));
        if let Some(certificates) = &self.certificates {
            let [ca, cert, key] = certificates.copied_for(POSTGRES, folder);
            command.args(["-c", "ssl=on", "-c"]).arg(format!("ssl_ca_file={ca}"));
            command
                .arg("-c")
                .arg(format!("ssl_cert_file={cert}"))
                .arg("-c")
                .arg(format!("ssl_key_file={key}"));
        }
        command.args(&self.args);
        command
    }
}

/// A running PostgreSQL; it ends when this is dropped.
#[derive(Debug)]
pub struct Postgres(Server);

is_a_server!(Postgres);

impl Postgres {
    pub(crate) const NAME: &str = "PostgreSQL";

    /// One for many tests at once.
    pub(crate) fn to_share() -> Self {
        Self::builder().args(MANY_CONNECTIONS).start()
    }

    /// A PostgreSQL as it comes.
    ///
    /// # Panics
    ///
    /// As [`PostgresBuilder::start`].
    #[track_caller]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// A PostgreSQL with wishes.
    pub fn builder() -> PostgresBuilder {
        PostgresBuilder::default()
    }

    /// One PostgreSQL for all tests of a run, or of this test program if it was started by itself. Each test uses names of its own.
    ///
    /// It cannot be killed, paused or stepped, since all of these need a `&mut`.
    ///
    /// # Panics
    ///
    /// As [`PostgresBuilder::start`].
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Postgres> = OnceLock::new();
        SHARED.get_or_init(|| shared::of_this_run(Self::NAME, answers).map_or_else(Self::to_share, Self))
    }

    /// Lets it live as long as this process, for a test binary whose tests share several. Its folder
    /// vanishes then.
    pub fn leak(self) -> &'static Self {
        Box::leak(Box::new(self))
    }

    /// `postgres://postgres@127.0.0.1:PORT/postgres`
    pub fn url(&self) -> String {
        format!("postgres://{POSTGRES}@{}/{POSTGRES}", self.addr())
    }

    /// Runs one or more statements on a connection of their own: a line for each row, with `|` between its
    /// columns and nothing for a NULL.
    ///
    /// # Panics
    ///
    /// If PostgreSQL answers with an error, or not within 60 seconds; [`Postgres::try_sql`] is for those
    /// who expect that.
    #[track_caller]
    pub fn sql(&self, statement: &str) -> String {
        match self.try_sql(statement) {
            Ok(rows) => rows,
            Err(error) => panic!("PostgreSQL did not do {statement:?}: {error}"),
        }
    }

    /// The same as [`Postgres::sql`], with the text of the error if there is one.
    pub fn try_sql(&self, statement: &str) -> Result<String, String> {
        ask(self.port(), sql::STATEMENT_LIMIT, statement)
    }
}

fn answers(port: u16) -> bool {
    // Asked first, since it costs less than a client that finds nobody there.
    TcpStream::connect(loopback(port)).is_ok() && ask(port, sql::LOOK_LIMIT, "SELECT 1").is_ok()
}

fn initdb(data: &Path) -> Command {
    let mut initdb = Command::new(program::require_beside(&program::require(POSTGRES), "initdb"));
    initdb.arg("-D").arg(data).args(["--username", POSTGRES, "--auth=trust"]);
    // The same everywhere, whatever the language of the machine is.
    initdb.args(["--encoding=UTF8", "--locale=C"]);
    // The machine does not crash in a test, only the server does, and what that writes is synced as ever.
    initdb.arg("--no-sync");
    initdb
}

pub(crate) fn ask(port: u16, limit: Duration, statement: &str) -> Result<String, String> {
    let mut psql = Command::new(program::require_beside(&program::require(POSTGRES), "psql"));
    client::forget_variables(&mut psql, "PG");
    psql.args(["--no-psqlrc", "--no-password", "-qAt", "-v", "ON_ERROR_STOP=1"]);
    psql.args(["-h", "127.0.0.1", "-p", &port.to_string(), "-U", POSTGRES, "-d", POSTGRES]);
    psql.args(["-c", statement]);
    client::ask(limit, &psql)
}
