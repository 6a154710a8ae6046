//! The configuration: the engine and other settings come from the command line, then the environment, then a file.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Deserializer};

use crate::args::EngineArgs;
use crate::duration;
use crate::exit::Failure;

/// The contents of a configuration file.
///
/// ```toml
/// url = "file:/var/lib/tenure/locks"
/// ttl = "1m"
/// ```
#[derive(Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    /// The URL of the engine.
    pub(crate) url: Option<String>,
    /// The TTL of a lock.
    #[serde(default, deserialize_with = "read_duration")]
    pub(crate) ttl: Option<Duration>,
    /// The longest wait of `tenure run` for a lock.
    #[serde(default, deserialize_with = "read_duration")]
    pub(crate) wait: Option<Duration>,
    /// The label of holders.
    pub(crate) label: Option<String>,
}

/// The selected engine.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) url: String,
    source: Source,
    /// The configuration file that was named explicitly.
    config: Option<PathBuf>,
}

/// The source of an engine's URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// The command line or the environment.
    Given,
    ConfigFile,
    /// No engine is named.
    Default,
}

impl Engine {
    /// Whether no engine is named, so that `file:` is used.
    pub(crate) fn is_implicit(&self) -> bool {
        self.source == Source::Default
    }

    /// Returns the engine's scheme and hosts, without the login.
    pub(crate) fn server(&self) -> String {
        let location = self.url.split('?').next().unwrap_or_default();
        let Some((scheme, rest)) = location.split_once("://") else { return location.to_owned() };
        let authority = rest.split('/').next().unwrap_or_default();
        format!("{scheme}://{}", authority.rsplit('@').next().unwrap_or_default())
    }

    /// Returns the environment variables with which a `tenure` inside finds the same engine. A URL from a file is not passed on, because
    /// not every process may be allowed to read it.
    pub(crate) fn for_those_inside(&self, place: &str) -> impl Iterator<Item = (String, Option<String>)> {
        // A relative path would name another folder in another working directory.
        let url = if self.url.starts_with("file:") { place.to_owned() } else { self.url.clone() };
        let absolute = self.config.as_ref().and_then(|path| std::path::absolute(path).ok());
        let config = absolute.and_then(|path| path.to_str().map(str::to_owned));
        let variables =
            [("TENURE_URL", (self.source == Source::Given).then_some(url)), ("TENURE_CONFIG", config)];
        variables.into_iter().filter_map(|(variable, value)| Some((variable.to_owned(), Some(value?))))
    }
}

fn read_duration<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(from)?;
    duration::parse(&text).map(Some).map_err(serde::de::Error::custom)
}

impl Config {
    /// Reads the named file, or the user's, or the host's. Returns an empty configuration if there is none.
    pub(crate) fn load(args: &EngineArgs) -> Result<Self, Failure> {
        if let Some(path) = &named_file(args)? {
            return Self::read(path)?
                .ok_or_else(|| Failure::usage(format!("there is no configuration file {}", path.display())));
        }
        for path in places() {
            if let Some(config) = Self::read(&path)? {
                return Ok(config);
            }
        }
        Ok(Self::default())
    }

    fn read(path: &Path) -> Result<Option<Self>, Failure> {
        let text = match std::fs::read_to_string(path) {
            // The home directory of many services is /dev/null.
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            read => read.map_err(|error| {
                let advice = "make it readable for this user, or name another file with --config";
                Failure::usage(format!("{}: {error}; {advice}", path.display()))
            })?,
        };
        toml::from_str(&text)
            .map(Some)
            .map_err(|error| Failure::usage(format!("{}: {}", path.display(), error.to_string().trim_end())))
    }

    /// Returns the engine to use.
    pub(crate) fn engine(&self, args: &EngineArgs) -> Result<Engine, Failure> {
        let (url, source) = match (URL.given(args.url.as_ref())?, &self.url) {
            (Some(given), _) => {
                let not_text = |_| Failure::usage("the URL of the engine is not valid UTF-8: correct it");
                (given.into_string().map_err(not_text)?, Source::Given)
            }
            (None, Some(url)) => (url.clone(), Source::ConfigFile),
            (None, None) => ("file:".to_owned(), Source::Default),
        };
        if url.trim() != url {
            // Usually a secret that ends with a line break. It is not printed, because it may contain a password.
            return Err(Failure::usage(
                "the URL of the engine begins or ends with a blank or a line break, which is not part of a URL: remove it",
            ));
        }
        if url.starts_with("memory:") {
            // Every run would have a separate lock.
            return Err(Failure::usage(format!(
                "`{url}` locks within one process, and would keep no run of `tenure` from another: use file: for the processes of this host"
            )));
        }
        Ok(Engine { url, source, config: named_file(args)? })
    }
}

/// A setting with an option and an environment variable.
struct Setting {
    option: &'static str,
    variable: &'static str,
    what: &'static str,
}

const URL: Setting =
    Setting { option: "--url", variable: "TENURE_URL", what: "an engine, as in redis://host:6379 or file:" };
const CONFIG: Setting =
    Setting { option: "--config", variable: "TENURE_CONFIG", what: "a configuration file" };

impl Setting {
    /// Returns the value of the option, or else of the variable. An empty value is an error: the cause is a missing secret or a typo, and
    /// the default engine may protect less.
    fn given(&self, option: Option<&OsString>) -> Result<Option<OsString>, Failure> {
        let (value, name, or) = match option {
            Some(value) => (Some(value.clone()), self.option, "leave it out"),
            None => (std::env::var_os(self.variable), self.variable, "unset it"),
        };
        match value {
            Some(value) if value.to_string_lossy().trim().is_empty() => {
                Err(Failure::usage(format!("{name} is empty: name {}, or {or}", self.what)))
            }
            value => Ok(value),
        }
    }
}

fn named_file(args: &EngineArgs) -> Result<Option<PathBuf>, Failure> {
    Ok(CONFIG.given(args.config.as_ref())?.map(PathBuf::from))
}

/// Returns the possible paths of a configuration file. The first that exists is used.
fn places() -> Vec<PathBuf> {
    let absolute = |variable| std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    let user = absolute("XDG_CONFIG_HOME").or_else(|| absolute("HOME").map(|home| home.join(".config")));
    user.into_iter().chain([PathBuf::from("/etc")]).map(|folder| folder.join("tenure/config.toml")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_says_what_need_not_be_said_each_time() {
        let config: Config = toml::from_str("url = \"file:/locks\"\nttl = \"1m30s\"").unwrap();
        assert_eq!(config.url.as_deref(), Some("file:/locks"));
        assert_eq!(config.ttl, Some(Duration::from_secs(90)));
        let text = |wrong: &str| toml::from_str::<Config>(wrong).unwrap_err().to_string();
        assert!(text("ttl = \"90\"").contains("Write 90s"));
        assert!(text("tll = \"90s\"").contains("unknown field `tll`"));
        assert!(text("ttl = 90").contains("expected a string"));
    }

    #[test]
    fn a_server_is_shown_without_its_login() {
        let shown = |url: &str| Engine { url: url.to_owned(), source: Source::Given, config: None }.server();
        assert_eq!(shown("redis://user:pa%40ss@db1:6379,[::1]:1/0?ca=x"), "redis://db1:6379,[::1]:1");
        assert_eq!(shown("postgres://user:p@ss@db1/shop"), "postgres://db1");
        assert_eq!(shown("file:/var/lib/tenure?x=y"), "file:/var/lib/tenure");
    }
}
