//! The command `tenure`. One file for each of its commands; `run` is a folder, since it is two processes.
//!
//! It is a library with one function, so that `tenure run` can be given an engine that is not one of ours: its tests do.

mod args;
mod config;
mod connection;
mod duration;
mod exit;
mod migrate;
mod paper;
mod run;
mod say;
mod show;
mod status;

use std::future::Future;
use std::pin::Pin;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser};
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
        Err(error) => return refuse(error),
    };
    let name = cli.command.name().cloned();
    match dispatch(cli, connect) {
        Ok(code) => ExitCode::from(code),
        Err(failure) => {
            if !failure.message.is_empty() {
                // The errors of the library have the whole name in them.
                say::say(match &name {
                    Some(name) => failure.message.replace(name.as_str(), &say::short(name)),
                    None => failure.message,
                });
            }
            ExitCode::from(failure.code)
        }
    }
}

/// Prints what is wrong with the command line; or the help or the version, which are no errors and go to stdout.
fn refuse(mut error: clap::Error) -> ExitCode {
    let code = if error.use_stderr() { exit::USAGE } else { exit::OK };
    if let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue) {
        let value = say::shorten(value).into_owned();
        error.insert(ContextKind::InvalidValue, ContextValue::String(value));
    }
    let is_unknown = error.kind() == ErrorKind::UnknownArgument;
    if let Some(number) = negative_number().filter(|_| is_unknown) {
        error = Cli::command().error(ErrorKind::ValueValidation, duration::negative(&number));
    }
    let _ = error.print();
    if error.kind() == ErrorKind::UnknownArgument && forgot_the_dashes() {
        say::say("write `--` before the command: tenure run NAME -- COMMAND");
    }
    ExitCode::from(code)
}

/// A word like `-5s`, which the parser takes for an option.
fn negative_number() -> Option<String> {
    let words = std::env::args_os().skip(1).take_while(|word| word != "--");
    words.map(|word| word.to_string_lossy().into_owned()).find(|word| {
        let digits = word.strip_prefix('-').unwrap_or_default();
        digits.starts_with(|first: char| first.is_ascii_digit())
    })
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
