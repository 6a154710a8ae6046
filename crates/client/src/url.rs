//! Engine URLs: `scheme:rest?option=value&…`. The scheme selects the engine, which defines the meaning of the rest.

use percent_encoding::percent_decode_str;

/// A parsed engine URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EngineUrl<'a> {
    pub(crate) scheme: &'a str,
    /// The part between the scheme and the options, still percent-encoded.
    pub(crate) rest: &'a str,
    /// The decoded options, in their order.
    pub(crate) options: Vec<(String, String)>,
}

/// Why a text is not an engine's URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UrlError {
    /// The URL has no scheme.
    #[error("`{url}` has no scheme: an engine's URL looks like `file:/var/lib/tenure`")]
    NoScheme {
        /// The URL.
        url: String,
    },
    /// The scheme is not an engine's.
    #[error("`{scheme}:` is not an engine: there is {known}", known = crate::engines::known())]
    UnknownEngine {
        /// The scheme.
        scheme: String,
    },
    /// The engine exists, but is not built into this program.
    #[error(
        "this program was built without the engine `{scheme}:`: build it with the feature `{feature}` of the crate `tenure`"
    )]
    NotBuilt {
        /// The scheme.
        scheme: String,
        /// The feature that adds the engine.
        feature: &'static str,
    },
    /// The engine has no such option.
    #[error("engine `{engine}` has no option `{option}`: {known}")]
    UnknownOption {
        /// The engine.
        engine: &'static str,
        /// The option.
        option: String,
        /// The options of the engine.
        known: &'static str,
    },
    /// The URL has no valid location.
    #[error("`{url}`: {message}")]
    Location {
        /// The URL.
        url: String,
        /// What is wrong with the URL, and how it should look.
        message: String,
    },
}

impl<'a> EngineUrl<'a> {
    pub(crate) fn parse(url: &'a str) -> Result<Self, UrlError> {
        let valid =
            |scheme: &str| !scheme.is_empty() && scheme.bytes().all(|b| b.is_ascii_lowercase() || b == b'+');
        let (scheme, rest) = url
            .split_once(':')
            .filter(|(scheme, _)| valid(scheme))
            .ok_or_else(|| UrlError::NoScheme { url: url.to_owned() })?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let options = query
            .split('&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| {
                let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
                (decoded(key), decoded(value))
            })
            .collect();
        Ok(Self { scheme, rest, options })
    }
}

fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_taken_apart() {
        let url = EngineUrl::parse("redis://host:6379/0?fair=true&label=a%20b").unwrap();
        assert_eq!((url.scheme, url.rest), ("redis", "//host:6379/0"));
        assert_eq!(url.options, [("fair".into(), "true".into()), ("label".into(), "a b".into())]);
        assert_eq!(EngineUrl::parse("file:").unwrap().rest, "");
        assert!(matches!(EngineUrl::parse("/var/lib"), Err(UrlError::NoScheme { .. })));
    }
}
