//! The command `tenure`. One file for each of its commands; `run` is a folder, since it is two processes.
//!
//! It is a library with one function, so that `tenure run` can be given an engine that is not one of ours: its tests do.

mod args;
mod config;
mod duration;
mod exit;
mod migrate;
mod paper;
mod run;
mod say;
mod show;

use std::future::Future;
use std::pin::Pin;
use std::process::ExitCode;

use clap::Parser;
use clap::error::ErrorKind;
use tenure::{Client, ConnectError};

use crate::args::{Cli, Command};
use crate::config::Config;
use crate::exit::Failure;

/// How `tenure run` gets a client of the engine that a URL names.
pub type Connect = fn(String) -> Pin<Box<dyn Future<Output = Result<Client, ConnectError>> + Send>>;

/// The engines that the library has.
pub fn connect(url: String) -> Pin<Box<dyn Future<Output = Result<Client, ConnectError>> + Send>> {
    Box::pin(async move { Client::connect(&url).await })
}

/// Does what the command line says. To be called before there is a second thread.
pub fn main(connect: Connect) -> ExitCode {
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
    match dispatch(cli, connect) {
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

fn dispatch(cli: Cli, connect: Connect) -> Result<u8, Failure> {
    let config = || Config::load(&cli.engine);
    let url = || Ok::<_, Failure>(config()?.engine(&cli.engine)?.url);
    match cli.command {
        Command::Run(args) => {
            let config = config()?;
            let engine = config.engine(&cli.engine)?;
            run::run(args, config, engine, connect)
        }
        Command::Ls(args) => show::ls(&url()?, &args),
        Command::Who(args) => show::who(&url()?, &args),
        Command::Watch(args) => show::watch(&url()?, &args),
        Command::Break(args) => show::break_lock(&url()?, &args),
        Command::Migrate(args) => migrate::migrate(&url()?, &args),
        Command::Completions(args) => paper::completions(&args),
        Command::Man(args) => paper::man(&args),
    }
}
