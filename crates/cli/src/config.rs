//! Which engine, and what else need not be said each time: the command line, then the environment, then a file.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Deserializer};

use crate::args::EngineArgs;
use crate::duration;
use crate::exit::Failure;

/// What a configuration file may say.
///
/// ```toml
/// url = "file:/var/lib/tenure/locks"
/// ttl = "1m"
/// ```
#[derive(Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub(crate) struct Config {
    /// The engine.
    pub(crate) url: Option<String>,
    /// How long a lock lives without renewal.
    #[serde(default, deserialize_with = "read_duration")]
    pub(crate) ttl: Option<Duration>,
    /// How long `tenure run` waits for a lock.
    #[serde(default, deserialize_with = "read_duration")]
    pub(crate) wait: Option<Duration>,
    /// What holders call themselves.
    pub(crate) label: Option<String>,
}

/// The URL of an engine.
#[derive(Debug)]
pub(crate) struct Url {
    pub(crate) text: String,
    /// Whether it was given on the command line or in the environment.
    pub(crate) given: bool,
}

fn read_duration<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(from)?;
    duration::parse(&text).map(Some).map_err(serde::de::Error::custom)
}

impl Config {
    /// Reads the file that was named, or the user's, or the host's; nothing if there is none.
    pub(crate) fn load(args: &EngineArgs) -> Result<Self, Failure> {
        if let Some(path) = &args.config {
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
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(|error| Failure::usage(format!("{}: {error}", path.display())))?,
        };
        toml::from_str(&text)
            .map(Some)
            .map_err(|error| Failure::usage(format!("{}: {}", path.display(), error.to_string().trim_end())))
    }

    /// The engine's URL.
    pub(crate) fn url(&self, args: &EngineArgs) -> Url {
        // A variable that is set to nothing is how many tools unset one.
        match args.url.clone().filter(|url| !url.is_empty()) {
            Some(text) => Url { text, given: true },
            None => Url { text: self.url.clone().unwrap_or_else(|| "file:".to_owned()), given: false },
        }
    }
}

/// Where a configuration file may lie, the first that exists counts.
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
}
