//! The engines, one module each, and the choice of an engine by URL.

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
mod etcd;
#[cfg(feature = "file")]
pub mod file;
#[cfg(any(feature = "zookeeper", feature = "etcd"))]
mod kept_value;
#[cfg(feature = "memory")]
pub mod memory;
#[cfg(any(feature = "redis", feature = "postgres", feature = "mysql"))]
mod notifications;
#[cfg(any(feature = "zookeeper", feature = "etcd"))]
mod observed;
#[cfg(any(feature = "zookeeper", feature = "etcd"))]
mod queue;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "redis")]
mod redlock;
#[cfg(any(feature = "zookeeper", feature = "etcd"))]
mod session;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod sql;
#[cfg(any(feature = "redis", feature = "zookeeper", feature = "etcd"))]
mod stranger;
#[cfg(feature = "zookeeper")]
mod zookeeper;

/// The schemes of all engines, each with the feature of this crate that provides it.
const SCHEMES: &[(&str, &str)] = &[
    ("file", "file"),
    ("memory", "memory"),
    ("redis", "redis"),
    ("rediss", "redis"),
    ("redlock", "redis"),
    ("redlocks", "redis"),
    ("postgres", "postgres"),
    ("postgresql", "postgres"),
    ("mysql", "mysql"),
    ("mariadb", "mysql"),
    ("zookeeper", "zookeeper"),
    ("etcd", "etcd"),
    ("etcds", "etcd"),
];

/// Returns all schemes, for messages.
pub(crate) fn known() -> String {
    SCHEMES.iter().map(|(scheme, _)| format!("{scheme}:")).collect::<Vec<_>>().join(", ")
}

/// Returns the error for a scheme whose engine is not built into this program.
fn missing(scheme: &str) -> UrlError {
    let scheme = scheme.to_owned();
    match SCHEMES.iter().find(|(known, _)| *known == scheme) {
        Some((_, feature)) => UrlError::NotBuilt { scheme, feature },
        None => UrlError::UnknownEngine { scheme },
    }
}

/// Opens the engine that a URL names. An engine with its own clock puts that clock into the context, and the client uses it.
#[allow(
    clippy::unused_async,
    unused_variables,
    reason = "a program may have none of these engines, and bring its own"
)]
pub(crate) async fn open(url: &str, context: &mut EngineContext) -> Result<Arc<dyn Engine>, ConnectError> {
    let url = EngineUrl::parse(url)?;
    match url.scheme {
        #[cfg(feature = "memory")]
        "memory" => Ok(memory::open_url(&url, context)?),
        #[cfg(feature = "file")]
        "file" => Ok(file::FileEngine::open_url(&url, context.clone()).await?),
        #[cfg(feature = "redis")]
        "redis" | "rediss" => redis::RedisEngine::open_url(&url, context.clone()).await,
        #[cfg(feature = "redis")]
        "redlock" | "redlocks" => redlock::RedlockEngine::open_url(&url, context.clone()).await,
        #[cfg(feature = "postgres")]
        "postgres" | "postgresql" => sql::open_url(Dialect::Postgres, &url, context.clone()).await,
        #[cfg(feature = "mysql")]
        "mysql" | "mariadb" => sql::open_url(Dialect::MySql, &url, context.clone()).await,
        #[cfg(feature = "zookeeper")]
        "zookeeper" => Ok(zookeeper::ZooKeeperEngine::open_url(&url, context.clone()).await?),
        #[cfg(feature = "etcd")]
        "etcd" | "etcds" => etcd::EtcdEngine::open_url(&url, context.clone()).await,
        scheme => Err(missing(scheme).into()),
    }
}

/// Returns the statements that create the tables of the engine at this URL; the list is empty if the engine needs none.
///
/// Use it for database users without the right to create tables: otherwise, the engine creates missing tables when it connects. This
/// function connects to nothing.
///
/// ```
/// # #[cfg(feature = "postgres")] {
/// let statements = tenure::migration("postgres://db/shop?table=ops.locks")?;
/// assert!(statements[0].starts_with("CREATE TABLE IF NOT EXISTS ops.locks"));
/// # }
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
        scheme => match SCHEMES.iter().find(|(known, _)| *known == scheme) {
            Some((_, feature)) if !matches!(*feature, "postgres" | "mysql") => Ok(Vec::new()),
            _ => Err(missing(scheme)),
        },
    }
}
