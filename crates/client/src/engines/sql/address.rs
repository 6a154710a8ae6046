//! The URL of a database: `postgres://user:password@host:port/database?option=value`.

use std::fmt;
use std::fs::File;
use std::path::PathBuf;
use std::time::Duration;

use super::Recipe;
use crate::engines::authority::{Authority, shown, timeout_ms};
use crate::sql::Dialect;
use crate::url::{EngineUrl, UrlError};

/// The default time limit of a request.
const DEFAULT_LIMIT: Duration = Duration::from_secs(5);

/// The default limit of connections: most databases allow about a hundred in all.
const DEFAULT_CONNECTIONS: usize = 16;

/// The contents of a URL.
#[derive(Clone)]
pub(super) struct Address {
    pub(super) dialect: Dialect,
    pub(super) authority: Authority,
    pub(super) recipe: Recipe,
    /// The name of the main table, and the prefix of the others.
    pub(super) table: String,
    pub(super) tls: Tls,
    /// The time limit of one request.
    pub(super) limit: Duration,
    /// The highest number of open connections.
    pub(super) connections: usize,
}

/// The protection of the connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Tls {
    pub(super) mode: TlsMode,
    pub(super) ca: Option<PathBuf>,
    pub(super) cert: Option<PathBuf>,
    pub(super) key: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum TlsMode {
    Off,
    /// TLS if the server offers it, without verification of its certificate, like the databases' own clients.
    #[default]
    Prefer,
    /// TLS, with a verified certificate for this host.
    Verify,
}

impl Tls {
    /// Returns a message about a file that cannot be read. sqlx would report it as a server that does not answer.
    pub(super) fn unreadable(&self) -> Option<String> {
        [("ca", &self.ca), ("cert", &self.cert), ("key", &self.key)].into_iter().find_map(|(option, path)| {
            let path = path.as_ref()?;
            let error = File::open(path).err()?;
            Some(format!(
                "the file `{}` cannot be read: correct `{option}=` in the URL: {error}",
                path.display()
            ))
        })
    }
}

impl Address {
    pub(super) fn parse(url: &EngineUrl<'_>, dialect: Dialect) -> Result<Self, UrlError> {
        // An error does not repeat a URL that contains a password.
        let wrong = |message: String| UrlError::Location {
            url: format!("{}://…", url.scheme),
            message: format!("{message}: it looks like `{}`", dialect.example()),
        };
        let authority = Authority::parse(url.rest, dialect.default_port()).map_err(wrong)?;
        if authority.hosts.len() != 1 {
            return Err(wrong("it names several servers, and this engine uses one".into()));
        }
        if authority.path.is_empty() {
            return Err(wrong("it does not name a database".into()));
        }
        let mut address = Self {
            dialect,
            authority,
            recipe: Recipe::Table,
            table: "tenure_lock".into(),
            tls: Tls::default(),
            limit: DEFAULT_LIMIT,
            connections: DEFAULT_CONNECTIONS,
        };
        for (option, value) in &url.options {
            if !address.set(option, value).map_err(wrong)? {
                // The option may be the end of a password that contains a `?`.
                let option = if option.contains('@') { "…" } else { option };
                return Err(UrlError::UnknownOption {
                    engine: dialect.engine(),
                    option: option.to_owned(),
                    known: "there is `recipe`, `table`, `connections`, `timeout_ms`, `tls`, `ca`, `cert` and `key`",
                });
            }
        }
        if address.tls.ca.is_some() && address.tls.mode != TlsMode::Verify {
            return Err(wrong("`ca` is for `tls=verify`".into()));
        }
        if address.tls.cert.is_some() != address.tls.key.is_some() {
            return Err(wrong("a client's certificate needs both `cert` and `key`".into()));
        }
        Ok(address)
    }

    /// Sets an option. Returns whether it exists.
    fn set(&mut self, option: &str, value: &str) -> Result<bool, String> {
        match option {
            "recipe" => self.recipe = Recipe::parse(self.dialect, value)?,
            "table" => self.table = table(value)?,
            "timeout_ms" => self.limit = timeout_ms(value)?,
            "connections" => {
                let count = value.parse().ok().filter(|count| (2..=10_000).contains(count));
                self.connections =
                    count.ok_or_else(|| format!("`connections` is from 2 to 10000, and not `{value}`"))?;
            }
            "tls" => {
                self.tls.mode = match value {
                    "off" => TlsMode::Off,
                    "prefer" => TlsMode::Prefer,
                    "verify" => TlsMode::Verify,
                    _ => return Err(format!("`tls` is `off`, `prefer` or `verify`, and not `{value}`")),
                }
            }
            "ca" => {
                self.tls.ca = Some(value.into());
                self.tls.mode = TlsMode::Verify;
            }
            "cert" => self.tls.cert = Some(value.into()),
            "key" => self.tls.key = Some(value.into()),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Returns product, host and port, for messages.
    pub(super) fn server(&self) -> String {
        let (host, port) = self.host();
        format!("{} at {}", self.dialect.product(), shown(host, port))
    }

    pub(super) fn host(&self) -> (&str, u16) {
        let (host, port) = &self.authority.hosts[0];
        (host, *port)
    }

    /// Returns the same text for the same locks, without the login.
    pub(super) fn place(&self) -> String {
        let (engine, recipe) = (self.dialect.engine(), self.recipe.name(self.dialect));
        let database =
            percent_encoding::utf8_percent_encode(&self.authority.path, percent_encoding::NON_ALPHANUMERIC);
        format!("{engine}://{}/{database}?recipe={recipe}&table={}", self.authority.place(), self.table)
    }
}

/// Checks a table's name: lowercase letters, digits and `_`, with an optional schema. Such a name needs no quotes.
fn table(text: &str) -> Result<String, String> {
    /// Leaves room for the suffixes of the names.
    const LONGEST: usize = 48;
    let is_word = |word: &str| {
        (1..=LONGEST).contains(&word.len())
            && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
            && !word.starts_with(|c: char| c.is_ascii_digit())
    };
    let words: Vec<_> = text.split('.').collect();
    if words.len() <= 2 && words.iter().all(|word| is_word(word)) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "`table` has up to {LONGEST} small letters, digits and `_`, with `schema.` before them or not, and `{text}` has not"
    ))
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the login.
        f.debug_tuple("Address").field(&self.place()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Address, UrlError> {
        let url = EngineUrl::parse(url).unwrap();
        Address::parse(&url, if url.scheme == "mysql" { Dialect::MySql } else { Dialect::Postgres })
    }

    #[test]
    fn a_url_says_where_and_how() {
        let address =
            parse("postgres://al%40ice:s%3Acret@Db1/shop?recipe=advisory&table=ops.locks&timeout_ms=250")
                .unwrap();
        assert_eq!(address.host(), ("Db1", 5432));
        assert_eq!(address.authority.password.as_deref(), Some("s:cret"));
        assert_eq!((address.recipe, address.limit), (Recipe::Session, Duration::from_millis(250)));
        assert_eq!(address.place(), "postgres://db1:5432/shop?recipe=advisory&table=ops.locks");
        assert_eq!(parse("mysql://h/shop").unwrap().host(), ("h", 3306));
    }

    #[test]
    fn what_is_wrong_is_named_and_no_password_is_repeated() {
        for (url, said) in [
            ("postgres://me:secret@h", "a database"),
            ("postgres://a,b/d", "several servers"),
            ("postgres://me:secret@h/d?recipe=named", "`table`, `row`, `advisory`"),
            ("mysql://me:secret@h/d?recipe=advisory", "`table`, `row`, `named`"),
            ("postgres://h/d?table=Locks", "small letters"),
            ("postgres://h/d?table=a;drop", "small letters"),
            ("postgres://h/d?connections=1", "from 2"),
            ("postgres://h/d?tls=maybe", "`off`, `prefer` or `verify`"),
            ("postgres://h/d?cert=/x", "both `cert` and `key`"),
            ("postgres://h/d?ca=/x&tls=off", "`tls=verify`"),
            ("postgres://h/d?fair=true", "no option `fair`"),
        ] {
            let text = parse(url).unwrap_err().to_string();
            assert!(text.contains(said) && !text.contains("secret"), "{url}: {text}");
        }
        assert!(!format!("{:?}", parse("mysql://me:secret@h/d").unwrap()).contains("secret"));
    }
}
