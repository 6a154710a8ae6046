//! The URL of a Redis: `redis://user:password@host:port/db?option=value`.

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use redis::io::tcp::{TcpSettings, socket2};
use redis::{
    Client, ClientTlsConfig, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo, TlsCertificates,
};

use crate::engines::authority::{Authority, ENCODE, shown, timeout_ms};
use crate::error::{ConnectError, EngineError};
use crate::url::{EngineUrl, UrlError};

/// The default time limit of a request.
const DEFAULT_LIMIT: Duration = Duration::from_secs(5);
const DEFAULT_PORT: u16 = 6379;

/// The contents of a URL, for one server or several.
#[derive(Clone)]
pub(in crate::engines) struct Address {
    pub(in crate::engines) engine: &'static str,
    authority: Authority,
    pub(in crate::engines) db: i64,
    tls: Option<Tls>,
    /// The prefix of the key before each lock's name.
    pub(in crate::engines) prefix: String,
    /// The time limit of one request, if the URL sets it.
    limit: Option<Duration>,
    /// `?fair=true`, if the engine has this option.
    pub(in crate::engines) fair: bool,
    /// `?fencing=true`, if the engine has this option.
    pub(in crate::engines) fencing: bool,
}

/// The files for a TLS connection.
#[derive(Clone, Debug, Default)]
struct Tls {
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
}

/// The options that the URL of an engine on Redis may have.
pub(in crate::engines) struct Form {
    pub(in crate::engines) engine: &'static str,
    /// An example of a URL, for errors.
    pub(in crate::engines) example: &'static str,
    pub(in crate::engines) options: &'static [&'static str],
    /// The options as a sentence.
    pub(in crate::engines) known: &'static str,
}

impl Address {
    pub(in crate::engines) fn parse(url: &EngineUrl<'_>, form: &Form) -> Result<Self, UrlError> {
        // An error does not repeat a URL that contains a password.
        let wrong = |message: String| UrlError::Location {
            url: format!("{}://…", url.scheme),
            message: format!("{message}: it looks like `{}`", form.example),
        };
        let authority = Authority::parse(url.rest, DEFAULT_PORT).map_err(wrong)?;
        let db = match &*authority.path {
            "" => 0,
            number => number.parse().ok().filter(|db| *db >= 0).ok_or_else(|| {
                wrong(format!("what comes after the host is not the number of a database{ENCODE}"))
            })?,
        };
        let mut address = Self {
            engine: form.engine,
            authority,
            db,
            tls: (url.scheme == format!("{}s", form.engine)).then(Tls::default),
            prefix: String::new(),
            limit: None,
            fair: false,
            fencing: false,
        };
        for (option, value) in &url.options {
            if !form.options.contains(&option.as_str()) {
                // The option may be the end of a password that contains a `?`.
                let option = if option.contains('@') { "…" } else { option };
                return Err(UrlError::UnknownOption {
                    engine: form.engine,
                    option: option.to_owned(),
                    known: form.known,
                });
            }
            address.set(option, value).map_err(wrong)?;
        }
        Ok(address)
    }

    fn set(&mut self, option: &str, value: &str) -> Result<(), String> {
        let yes_or_no = || match value {
            "true" | "" => Ok(true),
            "false" => Ok(false),
            _ => Err(format!("`{option}` is `true` or `false`, and not `{value}`")),
        };
        match option {
            "fair" => self.fair = yes_or_no()?,
            "fencing" => self.fencing = yes_or_no()?,
            "prefix" if value.starts_with(OWN_KEYS) => {
                return Err(format!(
                    "keys that start with `{OWN_KEYS}` are the engine's own: choose another prefix"
                ));
            }
            "prefix" => value.clone_into(&mut self.prefix),
            "timeout_ms" => self.limit = Some(timeout_ms(value)?),
            _ => {
                let path = Some(PathBuf::from(value));
                let Some(tls) = &mut self.tls else {
                    return Err(format!("`{option}` is for TLS: use `rediss:` or `redlocks:`"));
                };
                match option {
                    "ca" => tls.ca = path,
                    "cert" => tls.cert = path,
                    "key" => tls.key = path,
                    _ => unreachable!("the options of a form are known here"),
                }
            }
        }
        Ok(())
    }

    /// Returns the host and port of each server.
    pub(in crate::engines) fn hosts(&self) -> &[(String, u16)] {
        &self.authority.hosts
    }

    pub(in crate::engines) const fn limit(&self) -> Option<Duration> {
        self.limit
    }

    pub(in crate::engines) fn limit_or_default(&self) -> Duration {
        self.limit.unwrap_or(DEFAULT_LIMIT)
    }

    /// Returns the same text for the same locks: with the servers in a fixed order, and without the login.
    pub(in crate::engines) fn place(&self) -> String {
        let scheme = if self.tls.is_some() { format!("{}s", self.engine) } else { self.engine.to_owned() };
        let prefix = percent_encoding::utf8_percent_encode(&self.prefix, percent_encoding::NON_ALPHANUMERIC);
        let prefix = if self.prefix.is_empty() { String::new() } else { format!("?prefix={prefix}") };
        format!("{scheme}://{}/{}{prefix}", self.authority.place(), self.db)
    }

    /// Returns a client for each server, which does not connect yet.
    pub(in crate::engines) fn clients(&self) -> Result<Vec<(Client, String)>, ConnectError> {
        let certificates = self.tls.as_ref().map(|tls| tls.certificates(self.engine)).transpose()?;
        self.hosts()
            .iter()
            .map(|(host, port)| Ok((self.client(host, *port, certificates.as_ref())?, shown(host, *port))))
            .collect()
    }

    fn client(
        &self,
        host: &str,
        port: u16,
        certificates: Option<&TlsCertificates>,
    ) -> Result<Client, EngineError> {
        let addr = match certificates {
            None => ConnectionAddr::Tcp(host.to_owned(), port),
            Some(_) => {
                ConnectionAddr::TcpTls { host: host.to_owned(), port, insecure: false, tls_params: None }
            }
        };
        let mut login = RedisConnectionInfo::default().set_db(self.db);
        if let Some(user) = &self.authority.user {
            login = login.set_username(user);
        }
        if let Some(password) = &self.authority.password {
            login = login.set_password(password);
        }
        // A peer that vanished is noticed well within the default TTL.
        let keepalive = socket2::TcpKeepalive::new()
            .with_time(Duration::from_secs(5))
            .with_interval(Duration::from_secs(2))
            .with_retries(3);
        let tcp = TcpSettings::default()
            .set_nodelay(true)
            .set_keepalive(keepalive)
            .set_user_timeout(Duration::from_secs(10));
        let info =
            addr.into_connection_info().map(|info| info.set_redis_settings(login).set_tcp_settings(tcp));
        let client = info.and_then(|info| match certificates {
            None => Client::open(info),
            Some(certificates) => {
                if rustls::crypto::CryptoProvider::get_default().is_none() {
                    // Another thread may have installed a provider first, which serves as well.
                    let _ = rustls::crypto::ring::default_provider().install_default();
                }
                Client::build_with_tls(info, certificates.clone())
            }
        });
        client.map_err(|error| EngineError::Refused {
            engine: self.engine,
            message: format!("{} cannot be used: check the URL and its certificates", shown(host, port)),
            cause: Some(error.into()),
        })
    }
}

impl Tls {
    fn certificates(&self, engine: &'static str) -> Result<TlsCertificates, EngineError> {
        let read = |path: &PathBuf| {
            std::fs::read(path).map_err(|error| EngineError::Refused {
                engine,
                message: format!("{} cannot be read", path.display()),
                cause: Some(error.into()),
            })
        };
        let client_tls = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => {
                Some(ClientTlsConfig { client_cert: read(cert)?, client_key: read(key)? })
            }
            (None, None) => None,
            _ => {
                return Err(EngineError::Refused {
                    engine,
                    message: "a client's certificate needs both `cert` and `key`".into(),
                    cause: None,
                });
            }
        };
        Ok(TlsCertificates { client_tls, root_cert: self.ca.as_ref().map(read).transpose()? })
    }
}

/// The prefix of keys that are not locks.
pub(in crate::engines) const OWN_KEYS: &str = "tenure:";

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the login.
        f.debug_tuple("Address").field(&self.place()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORM: Form = Form {
        engine: "redis",
        example: "redis://host:6379/0",
        options: &["fair", "prefix", "timeout_ms", "ca"],
        known: "there is `fair`",
    };

    fn parse(url: &str) -> Result<Address, UrlError> {
        Address::parse(&EngineUrl::parse(url).unwrap(), &FORM)
    }

    #[test]
    fn a_url_says_where_and_how() {
        let address =
            parse("redis://al%40ice:s%3Acret@Db1:7000,[::1]/2?fair=true&prefix=lock%3A&timeout_ms=250")
                .unwrap();
        assert_eq!(address.hosts(), [("Db1".to_owned(), 7000), ("::1".to_owned(), 6379)]);
        assert_eq!(
            (address.authority.user.as_deref(), address.authority.password.as_deref()),
            (Some("al@ice"), Some("s:cret"))
        );
        assert_eq!((address.db, address.fair, &*address.prefix), (2, true, "lock:"));
        assert_eq!(address.limit(), Some(Duration::from_millis(250)));
        assert_eq!(address.place(), "redis://[::1]:6379,db1:7000/2?prefix=lock%3A");
        assert_eq!(
            parse("redis://h").unwrap().place(),
            parse("redis://me:pw@H:6379/0?fair=true").unwrap().place()
        );
        assert_eq!(parse("rediss://h?ca=/etc/ca.pem").unwrap().place(), "rediss://h:6379/0");
    }

    #[test]
    fn what_is_wrong_is_named_and_no_password_is_repeated() {
        for (url, said) in [
            ("redis:h", "`//`"),
            ("redis://", "a host and a port"),
            ("redis://h:0", "the port is not a number from 1 to 65535"),
            ("redis://h:99999", "the port is not a number from 1 to 65535"),
            ("redis://me:secret@h:x", "the port is not"),
            ("redis://me:secret", "a host and a port"),
            ("redis://me:abc?secret@h", "a host and a port"),
            ("redis://me?secret@h", "no option"),
            ("redis://:abc/secret=@h:6379", "%2F"),
            ("redis://me:secret@h/one", "not the number"),
            ("redis://h?fair=perhaps", "`true` or `false`"),
            ("redis://h?ca=/x", "`rediss:`"),
            ("redis://h?prefix=tenure:x", "the engine's own"),
            ("redis://h?timeout_ms=0", "from 1 to 60000"),
            ("redis://h?recipe=x", "no option `recipe`"),
        ] {
            let text = parse(url).unwrap_err().to_string();
            assert!(text.contains(said) && !text.contains("secret"), "{url}: {text}");
        }
        assert!(!format!("{:?}", parse("redis://me:secret@h").unwrap()).contains("secret"));
    }
}
