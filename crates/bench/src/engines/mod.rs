//! The contenders of each engine: bare recipes first, then other crates, ours last.

mod file;
mod redis;
mod redlock;
mod rslock;
mod tenure;

use std::any::Any;

use anyhow::Result;

use crate::workload::Contender;

pub(crate) const NAMES: [&str; 3] = ["file", "redis", "redlock"];

/// Who is measured on an engine.
pub(crate) struct Lineup {
    pub(crate) contenders: Vec<Box<dyn Contender>>,
    /// The folder or the servers on which they meet, which must outlive them.
    _ground: Box<dyn Any>,
}

/// Starts what the engine needs, and connects to it: connections are driven by the runtime that awaits this.
pub(crate) async fn start(engine: &str) -> Result<Lineup> {
    match engine {
        "file" => file::lineup().await,
        "redis" => redis::lineup().await,
        "redlock" => redlock::lineup().await,
        _ => unreachable!("engines are checked against their names"),
    }
}
