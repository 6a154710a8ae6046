//! The engines, one module each, and how a URL picks one.

use std::sync::Arc;

use crate::engine::{Engine, EngineContext};
use crate::error::ConnectError;
#[cfg(any(feature = "postgres", feature = "mysql"))]
use crate::sql::Dialect;
use crate::url::{EngineUrl, UrlError};

#[cfg(any(
    feature = "redis",
    feature = "postgres",
    feature = "mysql",
    feature = "zookeeper",
    feature = "etcd"
))]
mod authority;
#[cfg(any(
    feature = "redis",
    feature = "postgres",
    feature = "mysql",
    feature = "zookeeper",
    feature = "etcd"
))]
mod details;
#[cfg(feature = "etcd")]
pub mod etcd;
pub mod file;
#[cfg(any(feature = "zookeeper", feature = "etcd"))]
mod kept_value;
pub mod memory;
#[cfg(any(feature = "zookeeper", feature = "etcd"))]
mod queue;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "redis")]
pub mod redlock;
#[cfg(any(feature = "zookeeper", feature = "etcd"))]
mod session;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod sql;
#[cfg(any(feature = "redis", feature = "zookeeper", feature = "etcd"))]
mod stranger;
#[cfg(any(feature = "redis", feature = "postgres", feature = "mysql"))]
mod waiting;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;

/// The schemes that [`open`] knows.
pub(crate) const SCHEMES: &[&str] = &[
    "file:",
    "memory:",
    "redis:",
    "rediss:",
    "redlock:",
    "redlocks:",
    "postgres:",
    "mysql:",
    "zookeeper:",
    "etcd:",
    "etcds:",
];

/// Opens the engine that a URL names. One that has a clock of its own puts it into the context, for its client to go by.
pub(crate) async fn open(url: &str, own: &mut EngineContext) -> Result<Arc<dyn Engine>, ConnectError> {
    let parsed = EngineUrl::parse(url)?;
    if parsed.scheme == "memory" {
        return Ok(memory::open_url(&parsed, own)?);
    }
    let context = own.clone();
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
        "postgres" | "postgresql" => sql::open_url(Dialect::Postgres, &parsed, context).await,
        #[cfg(not(feature = "postgres"))]
        "postgres" | "postgresql" => {
            Err(UrlError::NotBuilt { scheme: parsed.scheme.to_owned(), feature: "postgres" }.into())
        }
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => sql::open_url(Dialect::MySql, &parsed, context).await,
        #[cfg(not(feature = "mysql"))]
        "mysql" | "mariadb" => {
            Err(UrlError::NotBuilt { scheme: parsed.scheme.to_owned(), feature: "mysql" }.into())
        }
        #[cfg(feature = "zookeeper")]
        "zookeeper" => Ok(zookeeper::ZooKeeperEngine::open_url(&parsed, context).await?),
        #[cfg(not(feature = "zookeeper"))]
        "zookeeper" => {
            Err(UrlError::NotBuilt { scheme: parsed.scheme.to_owned(), feature: "zookeeper" }.into())
        }
        #[cfg(feature = "etcd")]
        "etcd" | "etcds" => Ok(etcd::EtcdEngine::open_url(&parsed, context).await?),
        #[cfg(not(feature = "etcd"))]
        "etcd" | "etcds" => {
            Err(UrlError::NotBuilt { scheme: parsed.scheme.to_owned(), feature: "etcd" }.into())
        }
        scheme => Err(UrlError::UnknownEngine { scheme: scheme.to_owned() }.into()),
    }
}

/// The statements that make the tables which the engine at this URL needs, for those who may not make them themselves: where they are
/// missing, the engine makes them when it is connected to. Nothing is connected to here. Empty, if the engine needs none.
///
/// ```
/// let statements = tenure::migration("postgres://db/shop?table=ops.locks")?;
/// assert!(statements[0].starts_with("CREATE TABLE IF NOT EXISTS ops.locks"));
/// assert!(tenure::migration("file:/var/lib/tenure")?.is_empty());
/// # Ok::<(), tenure::UrlError>(())
/// ```
pub fn migration(url: &str) -> Result<Vec<String>, UrlError> {
    let parsed = EngineUrl::parse(url)?;
    match parsed.scheme {
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => sql::migration(Dialect::Postgres, &parsed),
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => sql::migration(Dialect::MySql, &parsed),
        scheme if SCHEMES.contains(&format!("{scheme}:").as_str()) => Ok(Vec::new()),
        scheme => Err(UrlError::UnknownEngine { scheme: scheme.to_owned() }),
    }
}
