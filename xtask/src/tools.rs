//! The parts of the Rust toolchain that are not there by themselves.

use std::process::Command;

use crate::step::{self, Outcome, cargo};

/// `cargo fmt` and `cargo clippy`, which are components of rustup.
pub(crate) fn ensure_components() -> Outcome {
    if ["fmt", "clippy"].into_iter().all(|tool| step::succeeds(&mut cargo(&[tool, "--version"]))) {
        return Ok(());
    }
    step::run(
        Command::new("rustup").args(["component", "add", "rustfmt", "clippy"]).current_dir(step::root()),
    )
}

/// `cargo deny`, which is a program of its own.
pub(crate) fn ensure_deny() -> Outcome {
    if step::succeeds(&mut cargo(&["deny", "--version"])) {
        return Ok(());
    }
    println!("    cargo-deny is not installed; building it takes some minutes, this once");
    step::run(&mut cargo(&["install", "cargo-deny", "--locked"]))
}
