//! The contenders of each engine: bare recipes first, ours last.

mod file;
mod tenure;

use anyhow::Result;

use crate::workload::Contender;

pub(crate) const NAMES: [&str; 1] = ["file"];

/// Starts what the engine needs.
pub(crate) fn start(engine: &str) -> Result<Vec<Box<dyn Contender>>> {
    match engine {
        "file" => file::contenders(),
        _ => unreachable!("engines are checked against their names"),
    }
}
