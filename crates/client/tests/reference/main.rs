//! Tests on an engine that keeps everything in this process: of the contract suite itself, and of the layer that all
//! engines share.

mod endings;
mod engine;
mod fault;
mod layer;
mod once;
mod outage;
mod suite;
