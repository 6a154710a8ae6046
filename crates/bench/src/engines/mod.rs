//! The contenders of each engine: bare recipes first, then other crates, ours last.

mod etcd;
mod file;
mod mysql;
mod postgres;
mod recipes;
mod redis;
mod redlock;
mod rslock;
mod sql;
mod tenure;
mod thread;
mod zookeeper;

use std::any::Any;

use anyhow::Result;

use crate::workload::Contender;

pub(crate) const NAMES: [&str; 7] = ["file", "redis", "redlock", "mysql", "postgres", "zookeeper", "etcd"];

/// What is measured of an engine, one after the other: its recipes, if there are several that have nothing in common, or on how many servers.
pub(crate) fn recipes(engine: &str) -> &'static [&'static str] {
    match engine {
        "mysql" => &["table", "row", "named"],
        "postgres" => &["table", "row", "advisory"],
        "zookeeper" => &["sequential", "simple", "sequential on three servers"],
        "etcd" => &["one server", "three servers"],
        _ => &[""],
    }
}

/// Who is measured on an engine, with one recipe.
pub(crate) struct Lineup {
    pub(crate) contenders: Vec<Box<dyn Contender>>,
    /// The folder or the servers on which they meet, which must outlive them.
    _ground: Box<dyn Any>,
}

/// Starts what the engine needs, and connects to it: connections are driven by the runtime that awaits this.
pub(crate) async fn start(engine: &str, recipe: &str) -> Result<Lineup> {
    match engine {
        "file" => file::lineup().await,
        "redis" => redis::lineup().await,
        "redlock" => redlock::lineup().await,
        "mysql" => mysql::lineup(recipe).await,
        "postgres" => postgres::lineup(recipe).await,
        "zookeeper" => zookeeper::lineup(recipe).await,
        "etcd" => etcd::lineup(recipe).await,
        _ => unreachable!("engines are checked against their names"),
    }
}
