//! A real MariaDB on a free loopback port, with its data in a folder that vanishes.
//!
//! It is ready when it has made the database `tenure`, so a test may speak to it as soon as it has one. It is
//! as durable as MariaDB is by default, and root has no password.

use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use crate::certificates::{Certificates, OfServer};
use crate::faketime::Faketime;
use crate::port::{free_port, loopback};
use crate::process::{self, Process};
use crate::server::{Server, is_a_server};
use crate::{client, program, shared, sql, user};

/// The user that Debian's package makes, since MariaDB refuses to be root.
const USER: &str = "mysql";
const SERVER: &str = "mariadbd";
const DATABASE: &str = "tenure";

/// Small files, which are made quickly. They must be of the same size when it is set up and when it starts.
const SMALL: [&str; 2] = ["--innodb-log-file-size=8M", "--innodb-buffer-pool-size=16M"];

/// Many tests at once, each with some clients, have more than the usual 151.
const MANY_CONNECTIONS: &str = "--max-connections=500";

/// What sort of MariaDB to start; see [`MariaDb::builder`].
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct MariaDbBuilder {
    faketime: bool,
    certificates: Option<OfServer>,
    args: Vec<String>,
}

impl MariaDbBuilder {
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

    /// Other arguments: `["--max-connections=20", "--innodb-flush-log-at-trx-commit=0"]`.
    pub fn args<A: Into<String>>(mut self, args: impl IntoIterator<Item = A>) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// Starts it, and waits until it answers.
    ///
    /// # Panics
    ///
    /// If MariaDB is not installed or does not start, with what to do, or with its log.
    #[track_caller]
    pub fn start(self) -> MariaDb {
        // Asked for first: without its package there is no such user either, which is no advice.
        program::require(SERVER);
        let folder = process::folder("tenure-mariadb-");
        for name in ["data", "tmp"] {
            user::folder_of(USER, folder.path(), name);
        }
        sql::set_up("MariaDB", user::run_as(USER, install_db(folder.path())));

        let port = free_port();
        let mut command = self.command(folder.path(), port);
        let mut faketime = None;
        if self.faketime {
            let (clock, changed) = Faketime::around(&command, folder.path());
            (command, faketime) = (changed, Some(clock));
        }
        let process = Process::start("MariaDB", folder, user::run_as(USER, command)).guarded(SERVER, "");
        MariaDb(Server::new(MariaDb::NAME, process, port, faketime, answers))
    }

    fn command(&self, folder: &Path, port: u16) -> Command {
        let mut command = Command::new(program::require(SERVER));
        command.args(places(folder)).args(SMALL);
        command.args(["--bind-address=127.0.0.1", "--skip-name-resolve"]).arg(format!("--port={port}"));
        if let Some(certificates) = &self.certificates {
            let [ca, cert, key] = certificates.copied_for(USER, folder);
            command.args([
                format!("--ssl-ca={ca}"),
                format!("--ssl-cert={cert}"),
                format!("--ssl-key={key}"),
            ]);
        }
        // In the data folder: the full path may be longer than the kernel allows for a socket.
        command.arg("--socket=socket").args(&self.args);
        command
    }
}

/// A running MariaDB; it ends when this is dropped.
#[derive(Debug)]
pub struct MariaDb(Server);

is_a_server!(MariaDb);

impl MariaDb {
    pub(crate) const NAME: &str = "MariaDB";

    /// One for many tests at once.
    pub(crate) fn to_share() -> Self {
        Self::builder().arg(MANY_CONNECTIONS).start()
    }

    /// A MariaDB as it comes.
    ///
    /// # Panics
    ///
    /// As [`MariaDbBuilder::start`].
    #[track_caller]
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// A MariaDB with wishes.
    pub fn builder() -> MariaDbBuilder {
        MariaDbBuilder::default()
    }

    /// One MariaDB for all tests of a run, or of this test program if it was started by itself. Each test uses names of its own.
    ///
    /// It cannot be killed, paused or stepped, since all of these need a `&mut`.
    ///
    /// # Panics
    ///
    /// As [`MariaDbBuilder::start`].
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<MariaDb> = OnceLock::new();
        SHARED.get_or_init(|| shared::of_this_run(Self::NAME, answers).map_or_else(Self::to_share, Self))
    }

    /// Lets it live as long as this process, for a test binary whose tests share several. Its folder
    /// vanishes then.
    pub fn leak(self) -> &'static Self {
        Box::leak(Box::new(self))
    }

    /// `mysql://root@127.0.0.1:PORT/tenure`
    pub fn url(&self) -> String {
        format!("mysql://root@{}/{DATABASE}", self.addr())
    }

    /// Runs one or more statements on a connection of their own: a line for each row, with a tab between
    /// its columns and `NULL` for a NULL.
    ///
    /// # Panics
    ///
    /// If MariaDB answers with an error, or not within 60 seconds; [`MariaDb::try_sql`] is for those who
    /// expect that.
    #[track_caller]
    pub fn sql(&self, statement: &str) -> String {
        match self.try_sql(statement) {
            Ok(rows) => rows,
            Err(error) => panic!("MariaDB did not do {statement:?}: {error}"),
        }
    }

    /// The same as [`MariaDb::sql`], with the text of the error if there is one.
    pub fn try_sql(&self, statement: &str) -> Result<String, String> {
        ask(self.port(), sql::STATEMENT_LIMIT, &["--database", DATABASE, "--execute", statement])
    }
}

fn answers(port: u16) -> bool {
    let make_database = format!("CREATE DATABASE IF NOT EXISTS {DATABASE}");
    // Asked first, since it costs less than a client that finds nobody there.
    TcpStream::connect(loopback(port)).is_ok()
        && ask(port, sql::LOOK_LIMIT, &["--execute", &make_database]).is_ok()
}

fn install_db(folder: &Path) -> Command {
    let mut install = Command::new(program::require("mariadb-install-db"));
    install.args(places(folder)).args(SMALL);
    install.args(["--skip-test-db", "--auth-root-authentication-method=normal"]);
    install
}

/// No configuration but the arguments, and nothing outside of `folder`. This is true of temporary files
/// too: a MariaDB that starts removes what it takes for left over from itself, also if it is another's.
fn places(folder: &Path) -> [String; 3] {
    let place = |option, name| format!("--{option}={}", folder.join(name).display());
    ["--no-defaults".to_owned(), place("datadir", "data"), place("tmpdir", "tmp")]
}

fn ask(port: u16, limit: Duration, what: &[&str]) -> Result<String, String> {
    let mut client = Command::new(program::require("mariadb"));
    client::forget_variables(&mut client, "MYSQL_");
    client.args(["--no-defaults", "--batch", "--skip-column-names"]);
    client.args(["--protocol=tcp", "--host=127.0.0.1", "--user=root"]).arg(format!("--port={port}"));
    client.args(what);
    client::ask(limit, &client)
}
