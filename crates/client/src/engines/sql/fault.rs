//! The errors of a database: the meaning of each, the server's own words, and advice to the user.

use std::fmt::Display;

use sqlx::Error;
use sqlx::error::DatabaseError;

use crate::engines::authority::is_unknown_host;
use crate::error::{AcquireError, BreakError, Cause, EngineError, InspectError, ReleaseError, RememberError};
use crate::sql::Dialect;

/// The reason why a request has no answer, or not the requested one.
#[derive(Debug)]
pub(super) struct Fault {
    pub(super) what: What,
    pub(super) error: EngineError,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// All connections were in use, so the request was not sent.
    Full,
    /// There was no connection, so the request was not sent.
    NotSent,
    /// The database has no room for another connection or prepared statement, and did nothing.
    Exhausted,
    /// No answer arrived. It is not known whether the request was carried out.
    NoAnswer,
    /// The database rolled back the transaction because of another one: the same request may succeed at once.
    Conflict,
    /// The statement was cancelled, and had no effect.
    Cancelled,
    /// A table is missing.
    NoTable,
    /// A table has other columns.
    OtherTable,
    /// The statement waited for a lock until its timeout.
    LockTimeout,
    /// The database refused, and did nothing.
    Refused,
}

impl What {
    /// Returns whether the same request may succeed later.
    pub(super) const fn is_silence(self) -> bool {
        matches!(
            self,
            Self::Full | Self::NotSent | Self::Exhausted | Self::NoAnswer | Self::Conflict | Self::Cancelled
        )
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

    /// Returns the meaning of an error of the client crate, for the server `at`.
    pub(super) fn of(dialect: Dialect, at: &str, error: Error) -> Self {
        let engine = dialect.engine();
        let Error::Database(said) = &error else { return Self::of_connection(dialect, at, error) };
        let meant = meant(dialect, said.as_ref());
        let said = said.message().trim_end().to_owned();
        let told = |what: &dyn Display, advice: &str| format!("{at} {what}: {said}; {advice}");
        match meant {
            Meant::Silence(what, advice) => {
                Self::silence(dialect, What::NoAnswer, told(&what, advice), Some(error))
            }
            Meant::Exhausted(advice) => {
                Self::silence(dialect, What::Exhausted, told(&"has no room left", advice), Some(error))
            }
            Meant::Is(what @ What::NoTable) => {
                let message = told(&"lacks a table", "make it with `tenure migrate`");
                Self { what, ..Self::refused(dialect, message, Some(error)) }
            }
            Meant::Is(what @ What::OtherTable) => {
                const ADVICE: &str = "name another table with `table=`, or drop this one if nothing is locked, and run `tenure migrate`";
                let message = told(&"has a table of that name with other columns", ADVICE);
                Self { what, ..Self::refused(dialect, message, Some(error)) }
            }
            Meant::Is(what) => {
                let message = match what {
                    What::Cancelled => told(&"cancelled the statement", "see which client does that"),
                    What::LockTimeout => {
                        told(&"has a row locked for long", "see which client does not go on")
                    }
                    _ => told(&"took the transaction back", "try again"),
                };
                Self::silence(dialect, what, message, Some(error))
            }
            Meant::Login => {
                let message = format!("{at} refused the login: {said}");
                let error = EngineError::Denied { engine, message, cause: Some(error.into()) };
                Self { what: What::Refused, error }
            }
            Meant::Denied => {
                const ADVICE: &str = "have another user create the tables (`tenure migrate --print` shows how), and grant this one access to them";
                let message = told(&"does not let this user do that", ADVICE);
                let error = EngineError::Denied { engine, message, cause: Some(error.into()) };
                Self { what: What::Refused, error }
            }
            Meant::NoDatabase => {
                let message = format!("{at} has no such database: {said}");
                let error = EngineError::NotFound { engine, message, cause: Some(error.into()) };
                Self { what: What::Refused, error }
            }
            Meant::Refused(advice) => Self::refused(dialect, told(&"refused", advice), Some(error)),
            Meant::Unknown => Self::refused(dialect, format!("{at} refused: {said}"), Some(error)),
        }
    }

    /// Returns the meaning of an error that is not an answer of the database.
    fn of_connection(dialect: Dialect, at: &str, error: Error) -> Self {
        let (engine, said) = (dialect.engine(), reason(&error));
        match &error {
            Error::Decode(_) | Error::ColumnDecode { .. } => {
                let message =
                    format!("{at} has something in its tables that was never written there: {error}");
                Self { what: What::Refused, error: EngineError::Damaged { engine, message } }
            }
            _ if let Some((what, advice)) = about_tls(&error, &said) => {
                Self::refused(dialect, format!("{at} {what}: {said}; {advice}"), Some(error))
            }
            // For example, a key that cannot be read.
            Error::Configuration(said) => {
                let message = format!("no connection to {at} can be set up: {said}; correct the URL");
                Self::refused(dialect, message, Some(error))
            }
            // The host may be found later, so a wait continues for a while.
            Error::Io(_) if is_unknown_host(&said) => {
                let message = format!("the host of {at} is not known: {said}; correct the URL");
                let cause: Option<Cause> = Some(error.into());
                Self { what: What::NoAnswer, error: EngineError::NotFound { engine, message, cause } }
            }
            Error::Io(_) => {
                let message =
                    format!("{at}: {said}; see whether it runs, and whether this host may reach it");
                Self::silence(dialect, What::NoAnswer, message, Some(error))
            }
            // A request with an unreadable answer may have been carried out.
            _ => {
                let message = format!("{at} answered something else than was asked: {said}");
                Self::silence(dialect, What::NoAnswer, message, Some(error))
            }
        }
    }
}

/// Returns the words of the system, of TLS or of the client crate, without that crate's prefix.
fn reason(error: &Error) -> String {
    match error {
        Error::Io(said) => said.to_string(),
        Error::Tls(said) => said.to_string(),
        error => error.to_string(),
    }
}

/// Returns the problem with TLS, if there is one, and advice to the user.
fn about_tls(error: &Error, said: &str) -> Option<(&'static str, &'static str)> {
    if !matches!(error, Error::Tls(_) | Error::Io(_)) {
        return None;
    }
    if said.contains("not valid for") || said.contains("NotValidForName") {
        return Some(("has a certificate of another host", "connect by a name that is in it"));
    }
    let says = |words: &[&str]| words.iter().any(|word| said.contains(word));
    if says(&["certificate expired", "Expired", "not valid yet", "NotValidYet"]) {
        return Some(("has a certificate that is not valid now", "renew it, or correct this host's clock"));
    }
    // With two authorities of the same name, the wrong one shows as a bad signature.
    if says(&["UnknownIssuer", "BadSignature"]) {
        const ADVICE: &str = "give the file of its authority as `?ca=`";
        return Some(("has a certificate of an unknown issuer", ADVICE));
    }
    if says(&["ertificate"]) {
        return Some(("has a certificate that is not accepted", "replace it"));
    }
    let advice = "set it up for TLS, or connect without `tls=verify`";
    matches!(error, Error::Tls(_)).then_some(("cannot be used by TLS", advice))
}

fn meant(dialect: Dialect, said: &dyn DatabaseError) -> Meant {
    let code = said.code().unwrap_or_default();
    match dialect {
        Dialect::Postgres => of_postgres(&code),
        Dialect::MySql => of_mysql(mysql_number(said), &code),
    }
}

/// Returns the kind of an error.
pub(super) fn meaning(dialect: Dialect, said: &dyn DatabaseError) -> What {
    match meant(dialect, said) {
        Meant::Silence(..) => What::NoAnswer,
        Meant::Exhausted(_) => What::Exhausted,
        Meant::Is(what) => what,
        Meant::Login | Meant::Denied | Meant::NoDatabase | Meant::Refused(_) | Meant::Unknown => {
            What::Refused
        }
    }
}

/// The meaning of a code.
enum Meant {
    /// The server cannot answer at present: what happened, and advice to the user.
    Silence(&'static str, &'static str),
    /// The server has no room.
    Exhausted(&'static str),
    Is(What),
    Login,
    /// This user lacks a privilege.
    Denied,
    NoDatabase,
    Refused(&'static str),
    Unknown,
}

const CLOSED: Meant = Meant::Silence("closed the connection", "see whether it restarts, and its log");
const BROKEN: Meant = Meant::Silence("lost the connection", "see whether it runs");
const FULL: &str = "raise its limit of connections, or lower `connections=` in the URL of its clients";
const PREPARED: &str = "raise its `max_prepared_stmt_count`, or see which client leaves prepared statements";
const READ_ONLY: &str = "it is read-only, perhaps a replica: connect to the one that may be written to";

/// Advice for a pooling proxy. Behind it, each transaction may run in another session, so locks and prepared statements do not belong to
/// the client.
pub(super) const POOLED: &str =
    "a proxy in between pools transactions: connect to the database itself, or have the proxy pool sessions";

fn of_postgres(code: &str) -> Meant {
    match code {
        "53300" | "53400" => Meant::Exhausted(FULL),
        // The server starts, stops, or ended this connection.
        "57P01" | "57P02" | "57P03" | "57P05" | "25P03" | "25P04" => CLOSED,
        "57014" => Meant::Is(What::Cancelled),
        // Includes a row that another request inserted first.
        "40001" | "40P01" | "23505" => Meant::Is(What::Conflict),
        "42P01" | "3F000" => Meant::Is(What::NoTable),
        "42703" => Meant::Is(What::OtherTable),
        "55P03" => Meant::Is(What::LockTimeout),
        "25006" => Meant::Refused(READ_ONLY),
        // A prepared statement that exists before it is made, or is missing afterwards.
        "42P05" | "26000" => Meant::Refused(POOLED),
        "42501" => Meant::Denied,
        "3D000" => Meant::NoDatabase,
        _ if code.starts_with("28") => Meant::Login,
        _ if code.starts_with("08") => BROKEN,
        _ => Meant::Unknown,
    }
}

fn of_mysql(number: u16, code: &str) -> Meant {
    match number {
        1040 | 1203 | 1226 => Meant::Exhausted(FULL),
        1461 => Meant::Exhausted(PREPARED),
        1044 | 1045 | 1698 => Meant::Login,
        1049 => Meant::NoDatabase,
        1142 | 1143 | 1227 | 1370 => Meant::Denied,
        1053 | 1077 | 1079 | 1080 | 1152 | 1159 | 1927 | 4031 => CLOSED,
        1317 | 1969 | 3024 => Meant::Is(What::Cancelled),
        1213 | 1020 | 1050 | 1062 | 3101 => Meant::Is(What::Conflict),
        1205 | 3572 => Meant::Is(What::LockTimeout),
        1146 => Meant::Is(What::NoTable),
        1054 => Meant::Is(What::OtherTable),
        1290 | 1792 | 1836 => Meant::Refused(READ_ONLY),
        // A prepared statement that is missing after it was made.
        1243 => Meant::Refused(POOLED),
        _ if code.starts_with("08") => BROKEN,
        _ => Meant::Unknown,
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
fault_into!(AcquireError, BreakError, InspectError, ReleaseError, RememberError);

#[cfg(test)]
mod tests {
    use super::*;

    const AT: &str = "PostgreSQL at db:5432";

    #[cfg(feature = "redis")]
    #[test]
    fn an_error_of_tls_shows_its_reason() {
        use rustls::CertificateError;
        for (error, said) in [
            (CertificateError::Expired, "is not valid now"),
            (CertificateError::NotValidYet, "is not valid now"),
            (CertificateError::UnknownIssuer, "of an unknown issuer"),
            (CertificateError::NotValidForName, "of another host"),
            (CertificateError::Revoked, "is not accepted"),
        ] {
            let reason = format!("{error:?}");
            let error = rustls::Error::InvalidCertificate(error);
            let fault = Fault::of(Dialect::Postgres, AT, Error::Tls(error.into()));
            assert_eq!(fault.what, What::Refused);
            let message = fault.error.to_string();
            assert!(message.contains(said) && message.matches(&reason).count() == 1, "{message}");
        }
    }

    #[test]
    fn a_host_that_is_not_known_is_no_outage_of_a_name_server() {
        let of = |reason| {
            let message = format!("failed to lookup address information: {reason}");
            Fault::of(Dialect::Postgres, AT, Error::Io(std::io::Error::other(message)))
        };
        let unknown = of("Name or service not known");
        assert!(matches!(unknown.error, EngineError::NotFound { .. }), "{unknown:?}");
        assert!(unknown.what.is_silence(), "a wait goes on: {unknown:?}");
        let outage = of("Temporary failure in name resolution");
        assert!(matches!(outage.error, EngineError::Unreachable { .. }), "{outage:?}");
    }
}
