//! The statements of the recipes `row`, `advisory` and `named`.
//!
//! The database itself shows whether a session still holds: by its advisory lock, by the start of its transaction, or by its named lock. So
//! a release need not change a row, and a row that a dead session left behind shows no holder.

use std::fmt::Write;
use std::time::Duration;

use sha2::{Digest, Sha256};
use tenure_table::{LockName, Mode};

use crate::engine::AcquireRequest;
use crate::engines::sql::address::Address;
use crate::engines::sql::connection::Sql;
use crate::engines::sql::dialect::{NEXT, hex};
use crate::engines::sql::link::SessionInfo;
use crate::engines::sql::{Dialect, Recipe};

/// The longest wait of one statement for a lock, after which it is repeated. So an outage of the database is noticed, and a client that is
/// gone leaves the queue after this time.
pub(super) const SLICE: Duration = Duration::from_secs(5);

/// The kind of database lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Advisory,
    Named,
    RowOfPostgres,
    RowOfMySql,
}

impl Kind {
    pub(super) const fn is_row(self) -> bool {
        matches!(self, Self::RowOfPostgres | Self::RowOfMySql)
    }
}

#[derive(Debug)]
pub(super) struct Texts {
    pub(super) kind: Kind,
    dialect: Dialect,
    table: String,
    is_mariadb: bool,
    /// Schema and table, independent of their spelling in the URL: the same for all clients that share the tables.
    place: String,
    /// The time limit of a request.
    limit: Duration,
    /// The first statements of a session, which answer with its number and its mark. With PostgreSQL, they prepare the frequent statements,
    /// since parsing and planning these costs more than running them.
    pub(super) begin: String,
    /// `named`: takes a lock that is free, or that this session holds, and then does the same as [`Self::count_alone`].
    pub(super) lock_named: Sql,
    /// `named`: waits for a lock, up to a number of milliseconds: 1 if this session has it, 0 if not, -1 if that is unknown.
    pub(super) wait_named: Sql,
    /// Counts the next token for a single holder, and records that holder.
    pub(super) count_alone: Sql,
    /// Counts the next token for one of several holders.
    pub(super) count_shared: Sql,
    /// Creates the row of a lock's tokens, if there is none.
    pub(super) begin_count: Sql,
    /// Returns the lock to which the row belongs.
    pub(super) counted_for: Sql,
    /// Records one of several holders.
    pub(super) read_in: Sql,
    /// The last token of a lock.
    pub(super) last_token: Sql,
    /// Records a start, if the grant holds and no earlier start prevents it.
    pub(super) record_start: Sql,
    /// The last start of a lock: its time, its id, and the current time.
    pub(super) last_start: Sql,
    /// Deletes the rows of readers that died.
    pub(super) sweep: Sql,
}

impl Texts {
    pub(super) fn new(address: &Address, place: String, is_mariadb: bool) -> Self {
        let (dialect, table) = (address.dialect, &address.table);
        let kind = match (address.recipe, dialect) {
            (Recipe::Row, Dialect::Postgres) => Kind::RowOfPostgres,
            (Recipe::Row, Dialect::MySql) => Kind::RowOfMySql,
            (_, Dialect::Postgres) => Kind::Advisory,
            (_, Dialect::MySql) => Kind::Named,
        };
        let text = |sql: &str| dialect.statement(table, sql);
        let counted = format!("{table}_session");
        let read_in = "INSERT INTO {t}_reader (lock_key, session, born, token, holder, owner, details) \
                       VALUES ($1, $2, $3, $4, $5, $6, $7) ";
        let again = match dialect {
            Dialect::Postgres => {
                "ON CONFLICT (lock_key, session) DO UPDATE SET born = EXCLUDED.born, token = EXCLUDED.token, \
                 holder = EXCLUDED.holder, owner = EXCLUDED.owner, details = EXCLUDED.details"
            }
            Dialect::MySql => {
                "ON DUPLICATE KEY UPDATE born = VALUES(born), token = VALUES(token), \
                 holder = VALUES(holder), owner = VALUES(owner), details = VALUES(details)"
            }
        };
        let sweep = match dialect {
            Dialect::Postgres => {
                "DELETE FROM {t}_reader WHERE session NOT IN (SELECT pid FROM pg_stat_activity)"
            }
            Dialect::MySql => {
                "DELETE FROM {t}_reader WHERE \
                 COALESCE(IS_USED_LOCK(CONCAT(session, ':', lock_key)), 0) <> session"
            }
        };
        Self {
            kind,
            dialect,
            table: table.clone(),
            is_mariadb,
            place,
            limit: address.limit,
            begin: begin(kind, table),
            // The condition is evaluated before the row is written: a request that does not get the lock does not count.
            lock_named: text(&count_of_mysql(
                "SELECT $1, CAST($2 AS BINARY), CAST($3 AS BINARY), CAST($4 AS BINARY), $5, CONNECTION_ID() \
                 FROM DUAL WHERE GET_LOCK($6, 0) = 1",
            )),
            wait_named: text("SELECT CAST(COALESCE(GET_LOCK($1, $2 * 0.001), -1) AS SIGNED)"),
            count_alone: match dialect {
                Dialect::Postgres => dialect.next_token(
                    &counted,
                    "holder = $3, owner = $4, details = $5, session = $6, born = $7",
                    "lock_key = $1 AND name = $2",
                ),
                Dialect::MySql => text(&count_of_mysql("VALUES ($1, $2, $3, $4, $5, $6)")),
            },
            count_shared: dialect.next_token(&counted, "holder = NULL", "lock_key = $1 AND name = $2"),
            begin_count: text(&made(dialect, "{t}_session (lock_key, name) VALUES ($1, $2)")),
            counted_for: text("SELECT name FROM {t}_session WHERE lock_key = $1"),
            read_in: text(&format!("{read_in}{again}")),
            record_start: text(&format!(
                "UPDATE {{t}}_session AS s SET started = {{now}} - $1, start_id = $2 \
                 WHERE s.lock_key = $3 AND s.name = $4 AND s.holder = $5 AND {} \
                 AND (s.started IS NULL OR (s.started <= {{now}} - $6 AND s.started <= {{now}} - $7))",
                holds(kind, "s", "ExclusiveLock")
            )),
            last_start: text(
                "SELECT started, start_id, {now} FROM {t}_session WHERE lock_key = $1 AND name = $2",
            ),
            last_token: text("SELECT token FROM {t}_session WHERE lock_key = $1"),
            sweep: text(sweep),
        }
    }

    /// Returns the key of a lock in the database: a number or a text, derived from its full name.
    pub(super) fn key(&self, name: &LockName) -> String {
        let mut hash = Sha256::new();
        for part in [&*self.place, name.as_str()] {
            hash.update(part.as_bytes());
            hash.update([0]);
        }
        let digest = hash.finalize();
        match self.kind {
            Kind::Advisory => {
                let (first, _) = digest.as_slice().split_first_chunk::<8>().expect("a hash is long enough");
                i64::from_be_bytes(*first).to_string()
            }
            Kind::Named => format!("tenure:{}", hex(&digest[..20])),
            Kind::RowOfPostgres | Kind::RowOfMySql => hex(&digest[..20]),
        }
    }

    /// Returns PostgreSQL's time limit for a waiting statement. It is shorter than the caller's time limit for the answer.
    fn statement(&self) -> Duration {
        SLICE + self.limit / 2
    }

    /// Returns the settings of a session, which it gets before it asks for a lock. They are the same for most requests, and are sent once.
    ///
    /// The database ends a session that is silent for a TTL.
    pub(super) fn settings(&self, request: &AcquireRequest) -> String {
        let (ttl_ms, slice_ms) = (request.ttl.get().as_millis(), SLICE.as_millis());
        let (ttl_seconds, all_ms) = (ttl_ms.div_ceil(1000), self.statement().as_millis());
        let idle = match self.kind {
            Kind::Advisory => "idle_session_timeout",
            Kind::RowOfPostgres => "idle_in_transaction_session_timeout",
            Kind::Named => return format!("SET SESSION wait_timeout = {ttl_seconds}"),
            Kind::RowOfMySql => {
                let wait_seconds = SLICE.as_secs();
                // Which limit applies depends on the statements of the transaction.
                let idle = if self.is_mariadb {
                    ["", "_readonly", "_write"]
                        .map(|sort| format!(", idle{sort}_transaction_timeout = {ttl_seconds}"))
                } else {
                    Default::default()
                };
                let idle = idle.concat();
                // A transaction then begins with the statement that locks its row.
                return format!(
                    "SET SESSION autocommit = 0, wait_timeout = {ttl_seconds}, \
                     innodb_lock_wait_timeout = {wait_seconds}{idle}"
                );
            }
        };
        format!("SET statement_timeout = {all_ms}; SET lock_timeout = {slice_ms}; SET {idle} = {ttl_ms}")
    }

    /// Returns PostgreSQL's statement that takes a lock, which may wait for a whole slice. Its answer is a row: the number of the session,
    /// the start of its transaction, and in some cases whether it has the lock, see [`Self::answers_whether`].
    pub(super) fn lock(&self, request: &AcquireRequest, key: &str) -> String {
        let (shared, tries, t) = (request.mode == Mode::Pr, tries(request), &self.table);
        if self.kind == Kind::RowOfPostgres {
            let name = self.dialect.bytes(request.name.as_str().as_bytes());
            return if tries {
                format!("BEGIN; {} NOWAIT", row_of_postgres(t, shared, &name))
            } else {
                format!("BEGIN; EXECUTE tenure_lock_{}({name})", request.mode)
            };
        }
        if tries {
            let shared = if shared { "_shared" } else { "" };
            return format!(
                "SELECT pg_backend_pid()::bigint, 0::bigint, pg_try_advisory_lock{shared}({key})::int::bigint"
            );
        }
        format!("EXECUTE tenure_lock_{}({key})", request.mode)
    }

    /// Returns PostgreSQL's statement that counts the next token and records the holder, sent in one message with [`Self::lock`]. `None` if
    /// another session must count, or if it would count without the lock.
    pub(super) fn and_count(&self, request: &AcquireRequest, key: &str, details: &str) -> Option<String> {
        if self.kind.is_row() || tries(request) {
            return None;
        }
        let name = self.dialect.bytes(request.name.as_str().as_bytes());
        if request.mode == Mode::Pr {
            return Some(format!("; EXECUTE tenure_count_PR('{key}', {name})"));
        }
        let (grant, owner) = (request.grant.as_u128(), request.owner.as_u128());
        let (grant, owner) = (self.dialect.id(grant), self.dialect.id(owner));
        let details = self.dialect.text(details);
        Some(format!("; EXECUTE tenure_count_EX({grant}, {owner}, {details}, '{key}', {name})"))
    }

    /// Returns MySQL's statement that locks a row until the end of the transaction, and that answers if the row exists. Others cannot see
    /// which session has the row locked, so a named lock shows it, too.
    pub(super) fn lock_row(&self, request: &AcquireRequest) -> Sql {
        let lock = match (request.mode, self.is_mariadb) {
            (Mode::Pr, true) => "LOCK IN SHARE MODE",
            (Mode::Pr, false) => "FOR SHARE",
            _ => "FOR UPDATE",
        };
        let nowait = if tries(request) { " NOWAIT" } else { "" };
        self.dialect.statement(
            &self.table,
            &format!("SELECT GET_LOCK($1, 0) AS shown FROM {{t}}_row WHERE name = $2 {lock}{nowait}"),
        )
    }

    /// Returns the statement that creates the row to lock, if there is none.
    pub(super) fn make_row(&self, name: &LockName) -> String {
        let (t, name) = (&self.table, self.dialect.bytes(name.as_str().as_bytes()));
        let make = made(self.dialect, &format!("{t}_row (name) VALUES ({name})"));
        if self.kind == Kind::RowOfMySql { make + "; COMMIT" } else { make }
    }

    /// Undoes all effects of a request that failed or found no lock: afterwards the session holds nothing.
    pub(super) const fn forget(&self) -> &'static str {
        match self.kind {
            Kind::Advisory => "SELECT pg_advisory_unlock_all()",
            Kind::Named => "DO RELEASE_ALL_LOCKS(), GET_LOCK(@tenure_mark, 0)",
            Kind::RowOfPostgres => "ROLLBACK",
            Kind::RowOfMySql => "ROLLBACK; DO RELEASE_ALL_LOCKS(), GET_LOCK(@tenure_mark, 0)",
        }
    }

    /// Returns the statement that stops the current statement of a session, and leaves the session open. Each login may do that to its own
    /// sessions. A session that has the same number on another server, or later, has another mark and is not stopped.
    pub(super) fn stop(&self, SessionInfo { number, mark, .. }: &SessionInfo) -> String {
        match self.dialect {
            Dialect::Postgres => format!(
                "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE pid = {number} AND {} = {mark}",
                since("backend_start")
            ),
            // If no session holds the lock, the number is 0, which no session has.
            Dialect::MySql => format!("KILL QUERY COALESCE(IS_USED_LOCK('{mark}'), 0)"),
        }
    }

    /// Returns whether the answer says if the session has the lock: if the request only tries.
    pub(super) fn answers_whether(&self, request: &AcquireRequest) -> bool {
        self.kind == Kind::Advisory && tries(request)
    }

    /// Returns the statements that release what a session holds. For an advisory or a named lock, the answer says whether it was held.
    pub(super) fn unlock(&self, name: &LockName, mode: Mode, session: i64) -> String {
        let (t, shared) = (&self.table, mode == Mode::Pr);
        // The row is only for observers, so its deletion need not survive a crash of the database.
        let gone = if shared {
            let soon =
                if self.dialect == Dialect::Postgres { "SET LOCAL synchronous_commit = off; " } else { "" };
            let key = self.key(name);
            format!("{soon}DELETE FROM {t}_reader WHERE lock_key = '{key}' AND session = {session}; ")
        } else {
            String::new()
        };
        match self.kind {
            Kind::Advisory if shared => {
                format!("BEGIN; {gone}COMMIT; EXECUTE tenure_unlock_PR({})", self.key(name))
            }
            Kind::Advisory => format!("EXECUTE tenure_unlock_EX({})", self.key(name)),
            Kind::Named => format!(
                "SELECT CAST(COALESCE(IS_USED_LOCK('{}') = CONNECTION_ID(), 0) AS SIGNED) AS held, \
                 RELEASE_ALL_LOCKS(), GET_LOCK(@tenure_mark, 0)",
                self.key(name)
            ),
            Kind::RowOfPostgres => format!("{gone}COMMIT"),
            Kind::RowOfMySql => {
                format!("{gone}COMMIT; DO RELEASE_ALL_LOCKS(), GET_LOCK(@tenure_mark, 0)")
            }
        }
    }

    /// Returns a query for the holders: name, holder, owner, mode, token and details of each, in the order of names.
    pub(super) fn holders(&self, which: &str) -> String {
        let t = &self.table;
        let (alone, shared) = (holds(self.kind, "s", "ExclusiveLock"), holds(self.kind, "r", "ShareLock"));
        format!(
            "SELECT s.name, s.holder, s.owner, 'EX', s.token, s.details FROM {t}_session s \
             WHERE {which} AND s.holder IS NOT NULL AND {alone} UNION ALL \
             SELECT s.name, r.holder, r.owner, 'PR', r.token, r.details \
             FROM {t}_session s JOIN {t}_reader r ON r.lock_key = s.lock_key \
             WHERE {which} AND {shared} ORDER BY 1, 5, 2"
        )
    }

    /// Selects one lock.
    pub(super) fn of(&self, name: &LockName) -> String {
        format!("s.lock_key = '{}'", self.key(name))
    }

    /// Selects all locks from one name up to another, exclusive.
    pub(super) fn between(&self, from: &[u8], to: &[u8]) -> String {
        format!("s.name >= {} AND s.name < {}", self.dialect.bytes(from), self.dialect.bytes(to))
    }
}

/// Returns the condition that the session of a row holds the row's lock.
fn holds(kind: Kind, row: &str, mode: &str) -> String {
    match kind {
        Kind::Advisory => format!(
            "EXISTS (SELECT 1 FROM pg_locks l WHERE l.locktype = 'advisory' AND l.objsubid = 1 AND l.granted \
             AND l.pid = {row}.session AND l.mode = '{mode}' \
             AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database()) \
             AND ((l.classid::bigint << 32) | l.objid::bigint)::text = {row}.lock_key)"
        ),
        Kind::RowOfPostgres => format!(
            "EXISTS (SELECT 1 FROM pg_stat_activity a WHERE a.pid = {row}.session AND {} = {row}.born)",
            since("a.xact_start")
        ),
        Kind::Named => format!("IS_USED_LOCK({row}.lock_key) = {row}.session"),
        Kind::RowOfMySql => {
            format!("IS_USED_LOCK(CONCAT({row}.session, ':', {row}.lock_key)) = {row}.session")
        }
    }
}

/// Returns a statement that inserts a row, unless it exists.
fn made(dialect: Dialect, row: &str) -> String {
    match dialect {
        Dialect::Postgres => format!("INSERT INTO {row} ON CONFLICT DO NOTHING"),
        Dialect::MySql => format!("INSERT IGNORE INTO {row}"),
    }
}

/// Returns MySQL's statement that inserts the row of a lock's tokens with these values. If the row exists, the statement counts in it, and
/// records the holder. If the row belongs to another lock, it does not count. The token is the number of the statement, if one was counted.
fn count_of_mysql(values: &str) -> String {
    format!(
        "INSERT INTO {{t}}_session (lock_key, name, holder, owner, details, session) {values} \
         ON DUPLICATE KEY UPDATE token = IF(name = VALUES(name), LAST_INSERT_ID({NEXT}), token), \
         holder = VALUES(holder), owner = VALUES(owner), details = VALUES(details), session = VALUES(session)"
    )
}

/// Returns the first statements of a session.
fn begin(kind: Kind, t: &str) -> String {
    let statements = match kind {
        Kind::Named | Kind::RowOfMySql => {
            // The session holds a named lock of this name for its whole life.
            return "SET @tenure_mark = CONCAT('tenure_session_', UUID()); \
                    SELECT CAST(CONNECTION_ID() AS SIGNED), @tenure_mark, GET_LOCK(@tenure_mark, 0); "
                .to_owned();
        }
        Kind::RowOfPostgres => vec![
            ("lock_EX(bytea)", row_of_postgres(t, false, "$1")),
            ("lock_PR(bytea)", row_of_postgres(t, true, "$1")),
        ],
        Kind::Advisory => {
            let lock = |how: &str| format!("SELECT pg_backend_pid()::bigint, 0::bigint, {how}($1)");
            let unlock = |how: &str| format!("SELECT {how}($1)::int::bigint");
            let count = |changes, row| {
                let count = Dialect::Postgres.next_token(&format!("{t}_session"), changes, row);
                count.as_ref().to_owned()
            };
            vec![
                ("lock_EX(bigint)", lock("pg_advisory_lock")),
                ("lock_PR(bigint)", lock("pg_advisory_lock_shared")),
                ("unlock_EX(bigint)", unlock("pg_advisory_unlock")),
                ("unlock_PR(bigint)", unlock("pg_advisory_unlock_shared")),
                (
                    "count_EX(bytea, bytea, text, text, bytea)",
                    count(
                        "holder = $1, owner = $2, details = $3, session = pg_backend_pid(), born = 0",
                        "lock_key = $4 AND name = $5",
                    ),
                ),
                ("count_PR(text, bytea)", count("holder = NULL", "lock_key = $1 AND name = $2")),
            ]
        }
    };
    // A role that cannot see its own sessions may not stop them either.
    let mut all = format!(
        "SELECT pg_backend_pid()::bigint, COALESCE(max({}), 0)::text FROM pg_stat_activity \
         WHERE pid = pg_backend_pid(); ",
        since("backend_start")
    );
    for (name, sql) in statements {
        let _ = write!(all, "PREPARE tenure_{name} AS {sql}; ");
    }
    all
}

/// Returns PostgreSQL's statement that locks a row until the end of the transaction.
fn row_of_postgres(t: &str, shared: bool, name: &str) -> String {
    let (since, lock) = (since("now()"), if shared { "FOR SHARE" } else { "FOR UPDATE" });
    format!("SELECT pg_backend_pid()::bigint, {since} FROM {t}_row WHERE name = {name} {lock}")
}

fn tries(request: &AcquireRequest) -> bool {
    !request.waits()
}

/// Returns an instant of PostgreSQL, in microseconds.
fn since(at: &str) -> String {
    format!("floor(extract(epoch FROM {at}) * 1000000)::bigint")
}

/// Returns a query for schema and table, which URLs may spell in several ways, and for the version.
pub(super) fn place(address: &Address) -> String {
    let t = &address.table;
    match (address.dialect, t.contains('.')) {
        (Dialect::Postgres, _) => format!(
            "SELECT n.nspname || '.' || c.relname, version() FROM pg_class c \
             JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = to_regclass('{t}_session')"
        ),
        (Dialect::MySql, true) => format!("SELECT '{t}', VERSION()"),
        (Dialect::MySql, false) => format!(
            "SELECT CONCAT(IF(@@lower_case_table_names = 0, DATABASE(), LOWER(DATABASE())), '.{t}'), VERSION()"
        ),
    }
}

/// The tables of these recipes: the suffixes of their names, and their columns.
pub(super) const COLUMNS: [(&str, &str); 3] = [
    ("_session", "lock_key, name, token, holder, owner, details, session, born, started, start_id"),
    ("_reader", "lock_key, session, born, token, holder, owner, details"),
    ("_row", "name"),
];

/// Returns the statements that create the tables of these recipes.
pub(in crate::engines::sql) fn tables(dialect: Dialect, t: &str) -> [String; 3] {
    let (bytes, id, key, text, end) = match dialect {
        Dialect::Postgres => ("bytea", "bytea", "text", "text", ""),
        Dialect::MySql => (
            "varbinary(512)",
            "binary(16)",
            "varchar(64) CHARACTER SET ascii",
            "text CHARACTER SET utf8mb4",
            " ENGINE = InnoDB",
        ),
    };
    // The rows change at each grant, and the free space keeps new versions on the same page.
    let room = if dialect == Dialect::Postgres { " WITH (fillfactor = 50)" } else { end };
    [
        format!(
            "CREATE TABLE IF NOT EXISTS {t}_session (\n  lock_key {key} NOT NULL PRIMARY KEY,\n  \
             name {bytes} NOT NULL,\n  token bigint NOT NULL DEFAULT 0,\n  holder {id},\n  owner {id},\n  \
             details {text},\n  session bigint NOT NULL DEFAULT 0,\n  born bigint NOT NULL DEFAULT 0,\n  \
             started bigint,\n  start_id {id}\n){room}"
        ),
        format!(
            "CREATE TABLE IF NOT EXISTS {t}_reader (\n  lock_key {key} NOT NULL,\n  session bigint NOT NULL,\n  \
             born bigint NOT NULL,\n  token bigint NOT NULL,\n  holder {id} NOT NULL,\n  owner {id} NOT NULL,\n  \
             details {text} NOT NULL,\n  PRIMARY KEY (lock_key, session)\n){end}"
        ),
        format!("CREATE TABLE IF NOT EXISTS {t}_row (\n  name {bytes} NOT NULL PRIMARY KEY\n){end}"),
    ]
}
