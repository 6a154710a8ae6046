//! The program `tenure`.

use std::process::ExitCode;

fn main() -> ExitCode {
    tenure_cli::main(tenure_cli::connect)
}
