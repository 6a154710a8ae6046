//! The servers, the login and the options in a URL: `zookeeper://user:password@host:port,host:port/root?option=value`.

use std::fmt;
use std::time::Duration;

use zookeeper_client::Acls;

use super::Recipe;
use super::paths::{Naming, Root};
use crate::engines::authority::{Authority, ENCODE, shown, timeout_ms};
use crate::url::{EngineUrl, UrlError};

const EXAMPLE: &str = "zookeeper://user:password@host1:2181,host2,host3/root";
const DEFAULT_PORT: u16 = 2181;

/// The default time limit of a request.
const DEFAULT_LIMIT: Duration = Duration::from_secs(5);

/// ZooKeeper's default `tickTime`.
const DEFAULT_TICK: Duration = Duration::from_secs(2);

/// The content of a URL.
#[derive(Clone)]
pub(super) struct Address {
    authority: Authority,
    pub(super) root: Root,
    pub(super) recipe: Recipe,
    pub(super) names: Naming,
    /// The time limit of one request.
    pub(super) limit: Duration,
    /// The servers' `tickTime`.
    pub(super) tick: Duration,
    /// Whether the server supports container nodes, which it removes when they are empty.
    pub(super) containers: bool,
}

impl Address {
    pub(super) fn parse(url: &EngineUrl<'_>) -> Result<Self, UrlError> {
        // The error does not repeat the URL, since it may contain a password.
        let wrong = |message: String| UrlError::Location {
            url: format!("{}://…", url.scheme),
            message: format!("{message}: it looks like `{EXAMPLE}`"),
        };
        let authority = Authority::parse(url.rest, DEFAULT_PORT).map_err(wrong)?;
        let root = root(&authority.path).map_err(wrong)?;
        let mut address = Self {
            authority,
            root,
            recipe: Recipe::Sequential,
            names: Naming::Kazoo,
            limit: DEFAULT_LIMIT,
            tick: DEFAULT_TICK,
            containers: true,
        };
        for (option, value) in &url.options {
            if !address.set(option, value).map_err(wrong)? {
                // The text may be the end of a password with a `?` in it.
                let option = if option.contains('@') { "…" } else { option };
                return Err(UrlError::UnknownOption {
                    engine: "zookeeper",
                    option: option.to_owned(),
                    known: "there is `recipe`, `names`, `timeout_ms`, `tick_ms` and `containers`",
                });
            }
        }
        Ok(address)
    }

    /// Sets an option. Returns whether it exists.
    fn set(&mut self, option: &str, value: &str) -> Result<bool, String> {
        match option {
            "recipe" => self.recipe = Recipe::parse(value)?,
            "names" => self.names = Naming::parse(value)?,
            "timeout_ms" => self.limit = timeout_ms(value)?,
            "tick_ms" => {
                let tick = value.parse().ok().filter(|ms| (1..=60_000).contains(ms));
                let tick = tick.ok_or_else(|| format!("`tick_ms` is from 1 to 60000, and not `{value}`"))?;
                self.tick = Duration::from_millis(tick);
            }
            "containers" => {
                self.containers = match value {
                    "true" => true,
                    "false" => false,
                    _ => return Err(format!("`containers` is `true` or `false`, and not `{value}`")),
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Returns the servers in the format of the client crate and of messages.
    pub(super) fn hosts(&self) -> String {
        let each: Vec<_> = self.authority.hosts.iter().map(|(host, port)| shown(host, *port)).collect();
        each.join(",")
    }

    /// Returns host and port of each server.
    pub(super) fn servers(&self) -> &[(String, u16)] {
        &self.authority.hosts
    }

    /// Whether the URL names only one server.
    pub(super) const fn is_one_server(&self) -> bool {
        self.authority.hosts.len() == 1
    }

    /// Returns the login for the servers.
    pub(super) fn login(&self) -> Option<String> {
        let user = self.authority.user.as_deref()?;
        Some(format!("{user}:{}", self.authority.password.as_deref().unwrap_or_default()))
    }

    /// Returns the permissions of new nodes: with a login, only its user has access.
    pub(super) const fn acls(&self) -> Acls<'static> {
        if self.authority.user.is_some() { Acls::creator_all() } else { Acls::anyone_all() }
    }

    /// Returns the same text for the same locks, for any order of the servers, and without the login.
    pub(super) fn place(&self) -> String {
        format!("zookeeper://{}{}", self.authority.place(), self.root.as_str())
    }
}

fn root(path: &str) -> Result<Root, String> {
    let path = path.trim_end_matches('/');
    if path.is_empty() {
        return Ok(Root::new(String::new()));
    }
    let is_usable = |part: &str| {
        !part.is_empty()
            && part != "."
            && part != ".."
            && !part.contains('%')
            && !part.contains(char::is_control)
    };
    if !path.split('/').all(is_usable) || path.split('/').next() == Some("zookeeper") {
        return Err(format!("what comes after the hosts is not a path for locks{ENCODE}"));
    }
    Ok(Root::new(format!("/{path}")))
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
        let address = parse(
            "zookeeper://al:s%3Acret@Zk1:7000,[::1]/apps/locks/?recipe=simple&timeout_ms=250&tick_ms=500",
        )
        .unwrap();
        assert_eq!(address.hosts(), "Zk1:7000,[::1]:2181");
        assert_eq!(address.login().as_deref(), Some("al:s:cret"));
        assert_eq!((address.root.as_str(), address.recipe), ("/apps/locks", Recipe::Simple));
        assert_eq!((address.limit, address.tick), (Duration::from_millis(250), Duration::from_millis(500)));
        assert_eq!(address.place(), "zookeeper://[::1]:2181,zk1:7000/apps/locks");
        assert_eq!(
            parse("zookeeper://h").unwrap().place(),
            parse("zookeeper://me:pw@H:2181/").unwrap().place()
        );
    }

    #[test]
    fn what_is_wrong_is_named_and_no_password_is_repeated() {
        for (url, said) in [
            ("zookeeper:h", "`//`"),
            ("zookeeper://", "a host and a port"),
            ("zookeeper://me:secret@h:x", "a host and a port"),
            ("zookeeper://me?secret@h", "no option"),
            ("zookeeper://me:secret@h/a//b", "not a path"),
            ("zookeeper://h/zookeeper", "not a path"),
            ("zookeeper://h/a/..", "not a path"),
            ("zookeeper://h?recipe=table", "`sequential`"),
            ("zookeeper://h?names=etcd", "`kazoo` or `curator`"),
            ("zookeeper://h?tick_ms=0", "from 1 to 60000"),
            ("zookeeper://h?containers=no", "`true` or `false`"),
            ("zookeeper://h?prefix=x", "no option `prefix`"),
        ] {
            let text = parse(url).unwrap_err().to_string();
            assert!(text.contains(said) && !text.contains("secret"), "{url}: {text}");
        }
        assert!(!format!("{:?}", parse("zookeeper://me:secret@h").unwrap()).contains("secret"));
    }
}
