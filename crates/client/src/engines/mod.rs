//! The engines, one module each, and how a URL picks one.

use std::sync::Arc;

use crate::engine::{Engine, EngineContext};
use crate::error::ConnectError;
use crate::url::{EngineUrl, UrlError};

#[cfg(any(feature = "redis", feature = "postgres", feature = "mysql"))]
mod authority;
#[cfg(any(feature = "redis", feature = "postgres", feature = "mysql"))]
mod details;
pub mod file;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "redis")]
pub mod redlock;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod sql;
#[cfg(any(feature = "redis", feature = "postgres", feature = "mysql"))]
mod waiting;

/// The schemes that [`open`] knows.
pub(crate) const SCHEMES: &[&str] =
    &["file:", "redis:", "rediss:", "redlock:", "redlocks:", "postgres:", "mysql:"];

pub(crate) async fn open(url: &str, context: EngineContext) -> Result<Arc<dyn Engine>, ConnectError> {
    let parsed = EngineUrl::parse(url)?;
    match parsed.scheme {
        "file" => Ok(file::FileEngine::open_url(&parsed, context).await?),
        #[cfg(feature = "redis")]
        "redis" | "rediss" => Ok(redis::RedisEngine::open_url(&parsed, context).await?),
        #[cfg(feature = "redis")]
        "redlock" | "redlocks" => Ok(redlock::RedlockEngine::open_url(&parsed, context).await?),
        #[cfg(not(feature = "redis"))]
        "redis" | "rediss" | "redlock" | "redlocks" => {
            Err(UrlError::NotBuilt { scheme: parsed.scheme.to_owned(), feature: "redis" }.into())
        }
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => sql::open_url(sql::Brand::Postgres, &parsed, context).await,
        #[cfg(not(feature = "postgres"))]
        "postgres" | "postgresql" => {
            Err(UrlError::NotBuilt { scheme: parsed.scheme.to_owned(), feature: "postgres" }.into())
        }
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => sql::open_url(sql::Brand::MySql, &parsed, context).await,
        #[cfg(not(feature = "mysql"))]
        "mysql" | "mariadb" => {
            Err(UrlError::NotBuilt { scheme: parsed.scheme.to_owned(), feature: "mysql" }.into())
        }
        scheme => Err(UrlError::UnknownEngine { scheme: scheme.to_owned() }.into()),
    }
}
