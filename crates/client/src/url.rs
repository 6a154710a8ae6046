//! Engine URLs: `scheme:rest?option=value&…`. The scheme picks the engine; what the rest means is the engine's.

use percent_encoding::percent_decode_str;

/// An engine's URL, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EngineUrl<'a> {
    pub(crate) scheme: &'a str,
    /// What stands between the scheme and the options, percent-encoded as it came.
    pub(crate) rest: &'a str,
    /// The options, decoded, in their order.
    pub(crate) options: Vec<(String, String)>,
}

/// Why a text is not the URL of an engine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UrlError {
    /// There is no scheme.
    #[error("`{url}` has no scheme: an engine's URL looks like `file:/var/lib/tenure`")]
    NoScheme {
        /// The URL.
        url: String,
    },
    /// The scheme is not one of an engine.
    #[error("`{scheme}:` is not an engine: there is {known}", known = crate::engines::known())]
    UnknownEngine {
        /// The scheme.
        scheme: String,
    },
    /// The engine is there, but not in this program.
    #[error(
        "this program was built without the engine `{scheme}:`: build it with the feature `{feature}` of the crate `tenure`"
    )]
    NotBuilt {
        /// The scheme.
        scheme: String,
        /// The feature that brings it.
        feature: &'static str,
    },
    /// The engine has no such option.
    #[error("engine `{engine}` has no option `{option}`: {known}")]
    UnknownOption {
        /// The engine.
        engine: &'static str,
        /// The option.
        option: String,
        /// What it has.
        known: &'static str,
    },
    /// The URL does not say where.
    #[error("`{url}`: {message}")]
    Location {
        /// The URL.
        url: String,
        /// What is wrong with it, and how it should look.
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
