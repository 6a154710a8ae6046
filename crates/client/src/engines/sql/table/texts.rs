//! The statements of the recipe `table`, in both dialects.

use std::fmt::Write;

use tenure_table::GrantId;

use super::book::{Book, Holder, Waiter};
use crate::engines::sql::connection::Sql;
use crate::sql::Dialect;

/// The state of a lock's row.
///
/// A lock that is free, or that has one holder, no waiters and no value, needs no other row: one statement takes it, and one releases it.
/// In all other cases, the holders and waiters are in separate tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i64)]
pub(super) enum State {
    Free = 0,
    /// The row names the only holder.
    Alone = 1,
    /// The holders are in a separate table.
    Listed = 2,
}

/// The statements for one table name.
#[derive(Debug)]
pub(super) struct Texts {
    dialect: Dialect,
    table: String,
    /// Takes a free lock. PostgreSQL answers with the token, MySQL with the number of the statement.
    pub(super) take: Sql,
    /// Releases the lock of a single holder.
    pub(super) give_back: Sql,
    /// Keeps a place in the queue.
    pub(super) keep_place: Sql,
    /// Finds a waiter ahead in the queue that has not expired.
    pub(super) before: Sql,
    /// Renews the lease of a single holder.
    pub(super) renew: Sql,
    /// Creates the row of a lock, if there is none.
    pub(super) make: Sql,
    /// The names of locks that are held or waited for, from one name up to another, exclusive.
    pub(super) names: Sql,
    /// The last start of a job, and the current time.
    pub(super) started: Sql,
    /// Frees locks whose single holder expired long ago.
    pub(super) sweep: Sql,
    /// The names of locks with holders or waiters that expired long ago.
    pub(super) stale: Sql,
}

impl Texts {
    pub(super) fn new(dialect: Dialect, table: &str) -> Self {
        let text = |sql: &str| dialect.statement(table, sql);
        let make = match dialect {
            Dialect::Postgres => "INSERT INTO {t} (name) VALUES ($1) ON CONFLICT (name) DO NOTHING",
            Dialect::MySql => "INSERT IGNORE INTO {t} (name) VALUES ($1)",
        };
        Self {
            dialect,
            table: table.to_owned(),
            take: dialect.next_token(
                table,
                "state = 1, holder = $1, owner = $2, mode = $3, expires = {now} + $4, details = $5",
                "name = $6 AND state = 0",
            ),
            give_back: text(
                "UPDATE {t} SET state = 0, holder = NULL WHERE name = $1 AND holder = $2 AND state = 1",
            ),
            renew: text("UPDATE {t} SET expires = {now} + $1 WHERE name = $2 AND holder = $3 AND state = 1"),
            keep_place: text(
                "UPDATE {t}_waiter SET kept_until = {now} + $1 WHERE name = $2 AND waiter = $3 AND called = 0",
            ),
            before: text(
                "SELECT w.ticket FROM {t}_waiter w WHERE w.name = $1 AND w.kept_until > {now} AND w.ticket < \
                 (SELECT m.ticket FROM {t}_waiter m WHERE m.name = $2 AND m.waiter = $3) LIMIT 1",
            ),
            make: text(make),
            names: text(
                "SELECT name FROM {t} WHERE name >= $1 AND name < $2 AND \
                 (state = 1 OR EXISTS (SELECT 1 FROM {t}_holder h WHERE h.name = {t}.name) \
                 OR EXISTS (SELECT 1 FROM {t}_waiter w WHERE w.name = {t}.name)) ORDER BY name",
            ),
            started: text("SELECT started, {now} FROM {t} WHERE name = $1"),
            sweep: text("UPDATE {t} SET state = 0, holder = NULL WHERE state = 1 AND expires < {now} - $1"),
            stale: text(
                "SELECT name FROM {t}_holder WHERE expires < {now} - $1 UNION \
                 SELECT name FROM {t}_waiter WHERE kept_until < {now} - $2",
            ),
        }
    }

    /// Returns the queries for the record of a lock. With `locked`, other transactions cannot change it until this one ends.
    pub(super) fn read(&self, name: &[u8], locked: bool) -> String {
        let (t, now, name) = (&self.table, self.dialect.now(), self.dialect.bytes(name));
        // A read without a lock sees one consistent snapshot.
        let (begin, lock, end) = match (locked, self.dialect) {
            (true, _) => ("BEGIN; ", " FOR UPDATE", ""),
            (false, Dialect::Postgres) => {
                ("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; ", "", "; COMMIT")
            }
            (false, Dialect::MySql) => (
                "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; \
                 START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY; ",
                "",
                "; COMMIT",
            ),
        };
        format!(
            "{begin}SELECT token, state, holder, owner, mode, expires, details, value, doubt, started, start_id, {now} \
             FROM {t} WHERE name = {name}{lock}; \
             SELECT holder, owner, mode, token, expires, details, broken FROM {t}_holder WHERE name = {name} \
             ORDER BY token, holder; \
             SELECT ticket, waiter, owner, mode, client, kept_until, called, details FROM {t}_waiter \
             WHERE name = {name} ORDER BY ticket{end}"
        )
    }

    /// Returns the statements that write the changes, and end the transaction. With PostgreSQL, they also notify the waiters in `called`.
    pub(super) fn write(
        &self,
        name: &[u8],
        state: State,
        was: &Book,
        book: &Book,
        called: &[(String, GrantId)],
    ) -> String {
        let (t, name) = (&self.table, self.dialect.bytes(name));
        let mut sql = String::new();
        let queue_only = Book { waiters: was.waiters.clone(), ..book.clone() } == *was;
        if queue_only && self.dialect == Dialect::Postgres {
            // A place that is lost in a crash of the database is asked for again, so the commit does not wait for the disk.
            sql.push_str("SET LOCAL synchronous_commit = off; ");
        }
        let listed = |book: &Book, state: State| match state {
            State::Listed => book.holders.clone(),
            State::Free | State::Alone => Vec::new(),
        };
        let next = State::of(book);
        let (before, after) = (listed(was, state), listed(book, next));
        for gone in before.iter().filter(|one| !after.iter().any(|other| other.grant == one.grant)) {
            let grant = self.dialect.id(gone.grant.as_u128());
            let _ = write!(sql, "DELETE FROM {t}_holder WHERE name = {name} AND holder = {grant}; ");
        }
        for holder in &after {
            match before.iter().find(|one| one.grant == holder.grant) {
                Some(same) if same == holder => {}
                Some(_) => {
                    let (grant, expires) = (self.dialect.id(holder.grant.as_u128()), holder.expires);
                    let broken = i32::from(holder.broken);
                    let _ = write!(
                        sql,
                        "UPDATE {t}_holder SET expires = {expires}, broken = {broken} \
                         WHERE name = {name} AND holder = {grant}; "
                    );
                }
                None => self.add_holder(&mut sql, &name, holder),
            }
        }
        for gone in
            was.waiters.iter().filter(|one| !book.waiters.iter().any(|other| other.grant == one.grant))
        {
            let _ =
                write!(sql, "DELETE FROM {t}_waiter WHERE ticket = {}; ", gone.ticket.unwrap_or_default());
        }
        for waiter in &book.waiters {
            match was.waiters.iter().find(|one| one.grant == waiter.grant) {
                Some(same) if same == waiter => {}
                Some(_) => {
                    let (until, called) = (waiter.kept_until, i32::from(waiter.called));
                    let (client, ticket) =
                        (self.dialect.text(&waiter.client), waiter.ticket.unwrap_or_default());
                    let _ = write!(
                        sql,
                        "UPDATE {t}_waiter SET kept_until = {until}, called = {called}, client = {client} \
                         WHERE ticket = {ticket}; "
                    );
                }
                None => self.add_waiter(&mut sql, &name, waiter),
            }
        }
        self.change_row(&mut sql, &name, next, book);
        if self.dialect == Dialect::Postgres {
            for (client, grant) in called.iter().filter(|(client, _)| !client.is_empty()) {
                let _ = write!(sql, "SELECT pg_notify({}, '{grant}'); ", self.dialect.text(client));
            }
        }
        sql.push_str("COMMIT");
        if self.dialect == Dialect::MySql {
            let mut clients: Vec<i64> = called.iter().filter_map(|(client, _)| client.parse().ok()).collect();
            clients.sort_unstable();
            clients.dedup();
            for client in clients {
                let _ = write!(sql, "; SELECT CAST(IS_USED_LOCK('tenure_listener_{client}') AS SIGNED)");
            }
        }
        sql
    }

    fn change_row(&self, sql: &mut String, name: &str, state: State, book: &Book) {
        let (t, token, number) = (&self.table, book.token, state as i64);
        let holder = match (state, book.holders.as_slice()) {
            (State::Alone, [one]) => {
                let (grant, owner) =
                    (self.dialect.id(one.grant.as_u128()), self.dialect.id(one.owner.as_u128()));
                let (mode, expires, details) = (one.mode, one.expires, self.dialect.text(&one.details));
                format!(
                    "holder = {grant}, owner = {owner}, mode = '{mode}', expires = {expires}, details = {details}"
                )
            }
            _ => "holder = NULL".to_owned(),
        };
        let value = book.value.as_ref().map_or_else(|| "NULL".to_owned(), |value| self.dialect.bytes(value));
        let doubt = i32::from(book.in_doubt);
        let (started, id) = match &book.start {
            Some((at, id)) => (at.to_string(), self.dialect.bytes(id)),
            None => ("NULL".to_owned(), "NULL".to_owned()),
        };
        let _ = write!(
            sql,
            "UPDATE {t} SET token = {token}, state = {number}, {holder}, value = {value}, doubt = {doubt}, \
             started = {started}, start_id = {id} WHERE name = {name}; "
        );
    }

    fn add_holder(&self, sql: &mut String, name: &str, holder: &Holder) {
        let t = &self.table;
        let (grant, owner) =
            (self.dialect.id(holder.grant.as_u128()), self.dialect.id(holder.owner.as_u128()));
        let Holder { mode, token, expires, .. } = holder;
        let (details, broken) = (self.dialect.text(&holder.details), i32::from(holder.broken));
        let _ = write!(
            sql,
            "INSERT INTO {t}_holder (name, holder, owner, mode, token, expires, details, broken) \
             VALUES ({name}, {grant}, {owner}, '{mode}', {token}, {expires}, {details}, {broken}); "
        );
    }

    fn add_waiter(&self, sql: &mut String, name: &str, waiter: &Waiter) {
        let t = &self.table;
        let (grant, owner) =
            (self.dialect.id(waiter.grant.as_u128()), self.dialect.id(waiter.owner.as_u128()));
        let (mode, until, called) = (waiter.mode, waiter.kept_until, i32::from(waiter.called));
        let (client, details) = (self.dialect.text(&waiter.client), self.dialect.text(&waiter.details));
        let _ = write!(
            sql,
            "INSERT INTO {t}_waiter (name, waiter, owner, mode, client, kept_until, called, details) \
             VALUES ({name}, {grant}, {owner}, '{mode}', {client}, {until}, {called}, {details}); "
        );
    }
}

impl State {
    /// Returns the simplest state that can record all of it.
    pub(super) fn of(book: &Book) -> Self {
        let plain = book.waiters.is_empty() && book.value.is_none();
        match book.holders.as_slice() {
            [] if plain => Self::Free,
            [one] if plain && !one.broken => Self::Alone,
            _ => Self::Listed,
        }
    }

    pub(super) fn read(number: i64) -> Option<Self> {
        [Self::Free, Self::Alone, Self::Listed].into_iter().find(|state| *state as i64 == number)
    }
}

/// The tables of the recipe `table`: the suffixes of their names, and their columns.
pub(super) const COLUMNS: [(&str, &str); 3] = [
    ("", "name, token, state, holder, owner, mode, expires, details, value, doubt, started, start_id"),
    ("_holder", "name, holder, owner, mode, token, expires, details, broken"),
    ("_waiter", "ticket, name, waiter, owner, mode, client, kept_until, called, details"),
];

/// Returns the statements that create the tables of the recipe `table`.
pub(in crate::engines::sql) fn tables(dialect: Dialect, t: &str) -> [String; 3] {
    // The name of an index has no schema.
    let short = t.rsplit('.').next().unwrap_or(t);
    match dialect {
        Dialect::Postgres => [
            format!(
                "CREATE TABLE IF NOT EXISTS {t} (\n  name bytea PRIMARY KEY,\n  token bigint NOT NULL DEFAULT 0,\n  \
                 state bigint NOT NULL DEFAULT 0,\n  holder bytea,\n  owner bytea,\n  mode text,\n  \
                 expires bigint NOT NULL DEFAULT 0,\n  details text,\n  value bytea,\n  \
                 doubt bigint NOT NULL DEFAULT 0,\n  started bigint,\n  start_id bytea\n) WITH (fillfactor = 50)"
            ),
            format!(
                "CREATE TABLE IF NOT EXISTS {t}_holder (\n  name bytea NOT NULL,\n  holder bytea NOT NULL,\n  \
                 owner bytea NOT NULL,\n  mode text NOT NULL,\n  token bigint NOT NULL,\n  expires bigint NOT NULL,\n  \
                 details text NOT NULL,\n  broken bigint NOT NULL DEFAULT 0,\n  PRIMARY KEY (name, holder)\n)"
            ),
            format!(
                "CREATE TABLE IF NOT EXISTS {t}_waiter (\n  ticket bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,\n  name bytea NOT NULL,\n  \
                 waiter bytea NOT NULL,\n  owner bytea NOT NULL,\n  mode text NOT NULL,\n  client text NOT NULL,\n  \
                 kept_until bigint NOT NULL,\n  called bigint NOT NULL DEFAULT 0,\n  details text NOT NULL,\n  \
                 CONSTRAINT {short}_waiter_once UNIQUE (name, waiter)\n)"
            ),
        ],
        Dialect::MySql => [
            format!(
                "CREATE TABLE IF NOT EXISTS {t} (\n  name varbinary(512) NOT NULL PRIMARY KEY,\n  \
                 token bigint NOT NULL DEFAULT 0,\n  state bigint NOT NULL DEFAULT 0,\n  holder binary(16),\n  \
                 owner binary(16),\n  mode char(2) CHARACTER SET ascii,\n  expires bigint NOT NULL DEFAULT 0,\n  \
                 details text CHARACTER SET utf8mb4,\n  value varbinary(1024),\n  doubt bigint NOT NULL DEFAULT 0,\n  \
                 started bigint,\n  start_id binary(16)\n) ENGINE = InnoDB"
            ),
            format!(
                "CREATE TABLE IF NOT EXISTS {t}_holder (\n  name varbinary(512) NOT NULL,\n  holder binary(16) NOT NULL,\n  \
                 owner binary(16) NOT NULL,\n  mode char(2) CHARACTER SET ascii NOT NULL,\n  token bigint NOT NULL,\n  \
                 expires bigint NOT NULL,\n  details text CHARACTER SET utf8mb4 NOT NULL,\n  \
                 broken bigint NOT NULL DEFAULT 0,\n  PRIMARY KEY (name, holder)\n) ENGINE = InnoDB"
            ),
            format!(
                "CREATE TABLE IF NOT EXISTS {t}_waiter (\n  ticket bigint NOT NULL AUTO_INCREMENT PRIMARY KEY,\n  \
                 name varbinary(512) NOT NULL,\n  waiter binary(16) NOT NULL,\n  owner binary(16) NOT NULL,\n  \
                 mode char(2) CHARACTER SET ascii NOT NULL,\n  client varchar(64) CHARACTER SET ascii NOT NULL,\n  \
                 kept_until bigint NOT NULL,\n  called bigint NOT NULL DEFAULT 0,\n  \
                 details text CHARACTER SET utf8mb4 NOT NULL,\n  UNIQUE KEY {short}_waiter_once (name, waiter),\n  \
                 KEY {short}_waiter_client (client)\n) ENGINE = InnoDB"
            ),
        ],
    }
}
