//! What a database says when it says no, in words that say what to do.

use sqlx::Error;
use sqlx::error::DatabaseError;

use crate::error::{AcquireError, BreakError, EngineError, InspectError, ReleaseError};
use crate::sql::Dialect;

/// Why a request has no answer, or not the one that it asked for.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) what: What,
    pub(super) error: EngineError,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// All connections were in use, so nothing was asked.
    Full,
    /// There was no connection, so nothing was asked.
    NotSent,
    /// No answer came: whether the request was done is not known.
    NoAnswer,
    /// The database took it back, for others' sake: the same once more may succeed at once.
    Conflict,
    /// It was told to stop, and did nothing.
    Cancelled,
    /// A table is missing.
    NoTable,
    /// A table has other columns.
    OtherTable,
    /// It waited for as long as it was told to.
    LockTimeout,
    /// It refused, and did nothing.
    Refused,
}

impl What {
    /// Whether the same request may succeed later.
    pub(super) const fn is_silence(self) -> bool {
        matches!(self, Self::Full | Self::NotSent | Self::NoAnswer | Self::Conflict | Self::Cancelled)
    }
}

impl Fault {
    pub(super) fn silence(dialect: Dialect, what: What, message: String, cause: Option<Error>) -> Self {
        let cause = cause.map(Into::into);
        Self { what, error: EngineError::Unreachable { engine: dialect.engine(), message, cause } }
    }

    pub(super) fn refused(dialect: Dialect, message: String, cause: Option<Error>) -> Self {
        let cause = cause.map(Into::into);
        Self { what: What::Refused, error: EngineError::Refused { engine: dialect.engine(), message, cause } }
    }

    pub(super) fn late(dialect: Dialect, at: &str, limit: std::time::Duration, what: What) -> Self {
        let message = format!(
            "{at} did not answer within {limit:?}: see whether it runs, and whether this host may reach it"
        );
        Self::silence(dialect, what, message, None)
    }

    /// What an error of the client crate means.
    pub(super) fn of(dialect: Dialect, at: &str, error: Error) -> Self {
        let Error::Database(said) = &error else {
            if let Error::Decode(_) | Error::ColumnDecode { .. } = &error {
                let message =
                    format!("{at} has something in its tables that was never written there: {error}");
                let error = EngineError::Damaged { engine: dialect.engine(), message };
                return Self { what: What::Refused, error };
            }
            if let Some(advice) = about_tls(&error) {
                return Self::refused(dialect, format!("{at} {advice}"), Some(error));
            }
            if matches!(error, Error::Io(_) | Error::PoolTimedOut | Error::PoolClosed) {
                let message =
                    format!("{at} does not answer: see whether it runs, and whether this host may reach it");
                return Self::silence(dialect, What::NoAnswer, message, Some(error));
            }
            // What cannot be understood may have been done.
            let message = format!("{at} answered something else than was asked");
            return Self::silence(dialect, What::NoAnswer, message, Some(error));
        };
        match meant(dialect, said.as_ref()) {
            Meant::Silence(advice) => {
                Self::silence(dialect, What::NoAnswer, format!("{at} {advice}"), Some(error))
            }
            Meant::Is(What::NoTable) => {
                let message = format!("{at} lacks a table: make it with `tenure migrate`");
                Self { what: What::NoTable, ..Self::refused(dialect, message, Some(error)) }
            }
            Meant::Is(What::OtherTable) => {
                let message = format!(
                    "{at} has a table of that name with other columns, somebody else's or of another version: name another one with `table=`, or drop it if nothing is locked, and run `tenure migrate`"
                );
                Self { what: What::OtherTable, ..Self::refused(dialect, message, Some(error)) }
            }
            Meant::Is(what) => {
                let message = match what {
                    What::Cancelled => format!("{at} was told to cancel it: see who does that"),
                    What::LockTimeout => {
                        format!("{at} has a row locked for long: see which client stands still")
                    }
                    _ => format!("{at} took it back: try again"),
                };
                Self { what, ..Self::silence(dialect, what, message, Some(error)) }
            }
            Meant::Refused(advice) => {
                Self::refused(dialect, format!("{at} does not do it: {advice}"), Some(error))
            }
        }
    }
}

/// What is wrong with TLS, if it is that.
fn about_tls(error: &Error) -> Option<&'static str> {
    let said = match error {
        Error::Tls(said) => said.to_string(),
        Error::Io(said) => said.to_string(),
        _ => return None,
    };
    if said.contains("not valid for name") {
        return Some("shows a certificate of another host: connect by a name that is in it");
    }
    if said.contains("ertificate") {
        return Some("shows a certificate that is not trusted: give the file of its authority as `?ca=`");
    }
    let refuses = matches!(error, Error::Tls(_));
    refuses.then_some("does not speak TLS as it was asked to: see the cause, or connect without `tls=verify`")
}

fn meant(dialect: Dialect, said: &dyn DatabaseError) -> Meant {
    let code = said.code().unwrap_or_default();
    match dialect {
        Dialect::Postgres => of_postgres(&code),
        Dialect::MySql => of_mysql(mysql_number(said), &code),
    }
}

/// What it says, in a word.
pub(super) fn meaning(dialect: Dialect, said: &dyn DatabaseError) -> What {
    match meant(dialect, said) {
        Meant::Silence(_) => What::NoAnswer,
        Meant::Is(what) => what,
        Meant::Refused(_) => What::Refused,
    }
}

/// What a code means.
enum Meant {
    /// It is not in a state to answer.
    Silence(&'static str),
    Is(What),
    Refused(&'static str),
}

const FULL: &str =
    "has no connection left: raise its limit, or lower `connections=` in the URL of its clients";
const PREPARED: &str =
    "has no room for another prepared statement: raise its `max_prepared_stmt_count`, or see who leaves them";
const LOGIN: &str = "user, password or database is wrong: correct the URL";
const DENIED: &str = "this user may not do it: let somebody who may create the tables (`tenure migrate --print` shows how), and let it read and write them";
const READ_ONLY: &str = "it is read-only, perhaps a replica: connect to the one that may be written to";

/// Through such a proxy, each transaction may be in another session, where neither locks nor prepared statements are one's own.
pub(super) const POOLED: &str =
    "a proxy in between pools transactions: connect to the database itself, or have the proxy pool sessions";

fn of_postgres(code: &str) -> Meant {
    match code {
        "53300" | "53400" => Meant::Silence(FULL),
        // It starts, stops, or ended this connection.
        "57P01" | "57P02" | "57P03" | "57P05" | "25P03" | "25P04" => {
            Meant::Silence("closed the connection: see whether it restarts, and its log")
        }
        "57014" => Meant::Is(What::Cancelled),
        // Also a row that two make at once, the other of whom was faster.
        "40001" | "40P01" | "23505" => Meant::Is(What::Conflict),
        "42P01" | "3F000" => Meant::Is(What::NoTable),
        "42703" => Meant::Is(What::OtherTable),
        "55P03" => Meant::Is(What::LockTimeout),
        "25006" => Meant::Refused(READ_ONLY),
        // A prepared statement that is there before it is made, or is not there after that.
        "42P05" | "26000" => Meant::Refused(POOLED),
        "42501" => Meant::Refused(DENIED),
        "3D000" => Meant::Refused(LOGIN),
        _ if code.starts_with("28") => Meant::Refused(LOGIN),
        _ if code.starts_with("08") => Meant::Silence("lost the connection: see whether it runs"),
        _ => Meant::Refused("see what it says"),
    }
}

fn of_mysql(number: u16, code: &str) -> Meant {
    match number {
        1040 | 1203 | 1226 => Meant::Silence(FULL),
        1461 => Meant::Silence(PREPARED),
        1044 | 1045 | 1049 | 1698 => Meant::Refused(LOGIN),
        1142 | 1143 | 1227 | 1370 => Meant::Refused(DENIED),
        1053 | 1077 | 1079 | 1080 | 1152 | 1159 | 1927 | 4031 => {
            Meant::Silence("closed the connection: see whether it restarts, and its log")
        }
        1317 | 1969 | 3024 => Meant::Is(What::Cancelled),
        1213 | 1020 | 1050 | 1062 | 3101 => Meant::Is(What::Conflict),
        1205 | 3572 => Meant::Is(What::LockTimeout),
        1146 => Meant::Is(What::NoTable),
        1054 => Meant::Is(What::OtherTable),
        1290 | 1792 | 1836 => Meant::Refused(READ_ONLY),
        // A prepared statement that is not there after it was made.
        1243 => Meant::Refused(POOLED),
        _ if code.starts_with("08") => Meant::Silence("lost the connection: see whether it runs"),
        _ => Meant::Refused("see what it says"),
    }
}

#[cfg(feature = "mysql")]
fn mysql_number(said: &dyn DatabaseError) -> u16 {
    said.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>()
        .map_or(0, sqlx::mysql::MySqlDatabaseError::number)
}

#[cfg(not(feature = "mysql"))]
fn mysql_number(_: &dyn DatabaseError) -> u16 {
    0
}

macro_rules! fault_into {
    ($($error:ident),*) => {$(
        impl From<Fault> for $error {
            fn from(fault: Fault) -> Self {
                Self::Engine(fault.error)
            }
        }
    )*};
}
fault_into!(AcquireError, BreakError, InspectError, ReleaseError);
