//! A real `PgBouncer` on a free loopback port: a proxy through which many clients share few connections to a
//! PostgreSQL.
//!
//! It is ready when PostgreSQL has answered a query through it. Its configuration is as it comes, apart from
//! what it pools, and it lets everybody in, as the kit's PostgreSQL does.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::process::Command;

use crate::port::{free_port, loopback};
use crate::postgres::{self, POSTGRES, Postgres};
use crate::process::{self, Process};
use crate::{program, sql, user};

const PGBOUNCER: &str = "pgbouncer";

/// For how long a client keeps a connection to PostgreSQL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// For as long as it is connected itself (`pool_mode=session`).
    Sessions,
    /// For a transaction; the next one may be another session's (`pool_mode=transaction`).
    Transactions,
}

/// A running `PgBouncer`; it ends when this is dropped.
#[derive(Debug)]
pub struct PgBouncer {
    process: Process,
    port: u16,
}

impl PgBouncer {
    /// Starts one, and waits until it passes queries on.
    ///
    /// # Panics
    ///
    /// If `PgBouncer` is not installed or does not start, with what to do, or with its log.
    #[track_caller]
    pub fn before(postgres: &Postgres, pooling: Pooling) -> Self {
        let (program, folder, port) =
            (program::require(PGBOUNCER), process::folder("tenure-pgbouncer-"), free_port());
        // It refuses to be root, too, and needs nothing but a user that is there.
        let config = user::folder_of(POSTGRES, folder.path(), "config").join("pgbouncer.ini");
        let pool_mode = match pooling {
            Pooling::Sessions => "session",
            Pooling::Transactions => "transaction",
        };
        let text = format!(
            "[databases]\n{POSTGRES} = host=127.0.0.1 port={} user={POSTGRES}\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
             auth_type = any\npool_mode = {pool_mode}\n",
            postgres.port()
        );
        fs::write(&config, text).unwrap_or_else(|error| panic!("cannot write {}: {error}", config.display()));
        let mut command = Command::new(program);
        command.arg(&config);
        let process = Process::start("PgBouncer", folder, user::run_as(POSTGRES, command));
        let mut pgbouncer = Self { process, port };
        pgbouncer.process.wait_until_ready(|| {
            TcpStream::connect(loopback(port)).is_ok()
                && postgres::ask(port, sql::LOOK_LIMIT, "SELECT 1").is_ok()
        });
        pgbouncer
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        loopback(self.port)
    }

    /// `postgres://postgres@127.0.0.1:PORT/postgres`
    pub fn url(&self) -> String {
        format!("postgres://{POSTGRES}@{}/{POSTGRES}", self.addr())
    }

    /// All that it has printed so far.
    pub fn log(&self) -> String {
        self.process.log()
    }
}
