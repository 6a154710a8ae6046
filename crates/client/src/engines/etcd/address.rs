//! The members, the login and the options in a URL: `etcd://user:password@host:port,host:port?option=value`.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use tonic::transport::{Certificate, ClientTlsConfig, Identity};

use super::ENGINE;
use super::keys::OWN_KEYS;
use crate::engines::authority::{Authority, ENCODE, shown, timeout_ms};
use crate::error::EngineError;
use crate::url::{EngineUrl, UrlError};

/// The default time limit of a request.
const DEFAULT_LIMIT: Duration = Duration::from_secs(5);
const DEFAULT_PORT: u16 = 2379;
const EXAMPLE: &str = "etcd://user:password@host1:2379,host2:2379,host3:2379?prefix=app/";
const KNOWN: &str = "there is `prefix`, `timeout_ms`, and for `etcds:` `ca`, `cert` and `key`";

/// The content of a URL.
#[derive(Clone)]
pub(super) struct Address {
    authority: Authority,
    tls: Option<Tls>,
    /// The text before each lock's name in its keys.
    pub(super) prefix: String,
    pub(super) limit: Duration,
}

/// Files for a connection by TLS.
#[derive(Clone, Debug, Default)]
struct Tls {
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
}

impl Address {
    pub(super) fn parse(url: &EngineUrl<'_>) -> Result<Self, UrlError> {
        // The error does not repeat the URL, since it may contain a password.
        let wrong = |message: String| UrlError::Location {
            url: format!("{}://…", url.scheme),
            message: format!("{message}: it looks like `{EXAMPLE}`"),
        };
        let authority = Authority::parse(url.rest, DEFAULT_PORT).map_err(wrong)?;
        if !authority.path.is_empty() {
            return Err(wrong(format!(
                "nothing comes after the hosts, since etcd has no databases: `?prefix=` is for locks of your own{ENCODE}"
            )));
        }
        if authority.user.is_none() && authority.password.is_some() {
            return Err(wrong("a password needs a user".to_owned()));
        }
        let tls = (url.scheme == "etcds").then(Tls::default);
        let mut address = Self { authority, tls, prefix: String::new(), limit: DEFAULT_LIMIT };
        for (option, value) in &url.options {
            address.set(option, value).map_err(|not_set| match not_set {
                NotSet::Wrong(message) => wrong(message),
                NotSet::Unknown => {
                    // The text may be the end of a password with a `?` in it.
                    let option = if option.contains('@') { "…" } else { option };
                    UrlError::UnknownOption { engine: ENGINE, option: option.to_owned(), known: KNOWN }
                }
            })?;
        }
        Ok(address)
    }

    fn set(&mut self, option: &str, value: &str) -> Result<(), NotSet> {
        match option {
            "prefix" if value.starts_with(OWN_KEYS) => {
                return Err(NotSet::Wrong(format!(
                    "keys that start with `{OWN_KEYS}` are the engine's own: choose another prefix"
                )));
            }
            "prefix" => value.clone_into(&mut self.prefix),
            "timeout_ms" => self.limit = timeout_ms(value).map_err(NotSet::Wrong)?,
            "ca" | "cert" | "key" => {
                let path = Some(PathBuf::from(value));
                let tls = self.tls.as_mut();
                let tls = tls.ok_or_else(|| NotSet::Wrong(format!("`{option}` is for TLS: use `etcds:`")))?;
                match option {
                    "ca" => tls.ca = path,
                    "cert" => tls.cert = path,
                    _ => tls.key = path,
                }
            }
            _ => return Err(NotSet::Unknown),
        }
        Ok(())
    }

    /// Returns each member as a URL, and by its name in messages.
    pub(super) fn members(&self) -> Vec<(String, String)> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let member = |(host, port): &(String, u16)| {
            let at = shown(host, *port);
            (format!("{scheme}://{at}"), at)
        };
        self.authority.hosts.iter().map(member).collect()
    }

    pub(super) fn login(&self) -> Option<(String, String)> {
        let password = self.authority.password.clone().unwrap_or_default();
        self.authority.user.clone().map(|user| (user, password))
    }

    /// Returns the TLS configuration, if the URL asks for TLS.
    pub(super) fn tls(&self) -> Result<Option<ClientTlsConfig>, EngineError> {
        self.tls.as_ref().map(Tls::options).transpose()
    }

    /// Returns the same text for the same locks, for any order of the members, and without the login.
    pub(super) fn place(&self) -> String {
        let scheme = if self.tls.is_some() { "etcds" } else { "etcd" };
        let prefix = percent_encoding::utf8_percent_encode(&self.prefix, percent_encoding::NON_ALPHANUMERIC);
        let prefix = if self.prefix.is_empty() { String::new() } else { format!("?prefix={prefix}") };
        format!("{scheme}://{}{prefix}", self.authority.place())
    }
}

/// The reason why an option was refused.
enum NotSet {
    Wrong(String),
    Unknown,
}

impl Tls {
    fn options(&self) -> Result<ClientTlsConfig, EngineError> {
        let read = |path: &PathBuf| {
            std::fs::read(path).map_err(|error| EngineError::Refused {
                engine: ENGINE,
                message: format!("{} cannot be read", path.display()),
                cause: Some(error.into()),
            })
        };
        let options = match &self.ca {
            Some(ca) => ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read(ca)?)),
            None => ClientTlsConfig::new().with_native_roots(),
        };
        match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => Ok(options.identity(Identity::from_pem(read(cert)?, read(key)?))),
            (None, None) => Ok(options),
            _ => Err(EngineError::Refused {
                engine: ENGINE,
                message: "a client's certificate needs both `cert` and `key`".into(),
                cause: None,
            }),
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The login is left out.
        f.debug_tuple("Address").field(&self.place()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(url: &str) -> Result<Address, UrlError> {
        Address::parse(&EngineUrl::parse(url).unwrap())
    }

    #[test]
    fn a_url_says_where_and_how() {
        let address =
            parse("etcd://al%40ice:s%3Acret@Two:7000,[::1],one?prefix=app%2F&timeout_ms=250").unwrap();
        let members = address.members();
        assert_eq!(members[0], ("http://Two:7000".to_owned(), "Two:7000".to_owned()));
        assert_eq!(members[1].0, "http://[::1]:2379");
        assert_eq!(address.login(), Some(("al@ice".to_owned(), "s:cret".to_owned())));
        assert_eq!((&*address.prefix, address.limit), ("app/", Duration::from_millis(250)));
        assert_eq!(address.place(), "etcd://[::1]:2379,one:2379,two:7000?prefix=app%2F");
        assert_eq!(parse("etcd://h").unwrap().place(), parse("etcd://me:pw@H:2379").unwrap().place());
        let by_tls = parse("etcds://h?ca=/etc/ca.pem").unwrap();
        assert_eq!(
            (by_tls.place(), &*by_tls.members()[0].0),
            ("etcds://h:2379".to_owned(), "https://h:2379")
        );
        assert_eq!(parse("etcd://h").unwrap().login(), None);
    }

    #[test]
    fn what_is_wrong_is_named_and_no_password_is_repeated() {
        for (url, said) in [
            ("etcd:h", "`//`"),
            ("etcd://", "a host and a port"),
            ("etcd://h:0", "a host and a port"),
            ("etcd://me:secret@h:x", "a host and a port"),
            ("etcd://me:secret", "a host and a port"),
            ("etcd://me:abc?secret@h", "a host and a port"),
            ("etcd://me?secret@h", "no option"),
            ("etcd://:secret@h", "needs a user"),
            ("etcd://me:abc/secret@h", "a host and a port"),
            ("etcd://me:secret@h/one", "no databases"),
            ("etcd://h?ca=/x", "`etcds:`"),
            ("etcd://h?prefix=tenure:x", "the engine's own"),
            ("etcd://h?timeout_ms=0", "from 1 to 60000"),
            ("etcd://h?recipe=x", "no option `recipe`"),
        ] {
            let text = parse(url).unwrap_err().to_string();
            assert!(text.contains(said) && !text.contains("secret"), "{url}: {text}");
        }
        assert!(!format!("{:?}", parse("etcd://me:secret@h").unwrap()).contains("secret"));
        let half = parse("etcds://h?cert=/etc/cert.pem").unwrap();
        assert!(half.tls().unwrap_err().to_string().contains("both"), "one needs the other");
    }
}
