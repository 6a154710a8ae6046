//! The command `tenure`. One file for each of its commands; `run` is a folder, since it is two processes.

mod args;
mod config;
mod duration;
mod exit;
mod paper;
mod run;
mod say;
mod show;

use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;

use crate::args::{Cli, Command};
use crate::config::Config;
use crate::exit::Failure;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and the version are asked for, and go to stdout.
            let code = if error.use_stderr() { exit::USAGE } else { exit::OK };
            let _ = error.print();
            if error.kind() == ErrorKind::UnknownArgument && forgot_the_dashes() {
                say::say("write `--` before the command: tenure run NAME -- COMMAND");
            }
            return ExitCode::from(code);
        }
    };
    match dispatch(cli) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            if !failure.message.is_empty() {
                say::say(&failure.message);
            }
            ExitCode::from(failure.code)
        }
    }
}

/// Whether somebody wrote `tenure run job command`.
fn forgot_the_dashes() -> bool {
    let mut words = std::env::args_os().skip(1);
    words.any(|word| word == "run") && !words.any(|word| word == "--")
}

fn dispatch(cli: Cli) -> Result<u8, Failure> {
    let config = || Config::load(&cli.engine);
    let url = || Ok::<_, Failure>(config()?.engine(&cli.engine).url);
    match cli.command {
        Command::Run(args) => {
            let config = config()?;
            let engine = config.engine(&cli.engine);
            run::run(args, config, engine)
        }
        Command::Ls(args) => show::ls(&url()?, &args),
        Command::Who(args) => show::who(&url()?, &args),
        Command::Watch(args) => show::watch(&url()?, &args),
        Command::Break(args) => show::break_lock(&url()?, &args),
        Command::Completions(args) => paper::completions(&args),
        Command::Man(args) => paper::man(&args),
    }
}
