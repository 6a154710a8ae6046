//! The `tenure` command. Each subcommand is one file, except `run`: it has two processes, and is a folder.
//!
//! It is a library with one function, so that tests can run `tenure run` with another engine.

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

/// The function by which `tenure run` connects to the engine of a URL.
pub type Connect = fn(String) -> Pin<Box<dyn Future<Output = Result<Client, ConnectError>> + Send>>;

/// Connects to one of the library's engines.
pub fn connect(url: String) -> Pin<Box<dyn Future<Output = Result<Client, ConnectError>> + Send>> {
    Box::pin(async move { Client::connect(&url).await })
}

/// Runs the command line. Must be called before a second thread is started.
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
                // Errors of the library contain the full name.
                say::say(match &name {
                    Some(name) => failure.message.replace(name.as_str(), &say::short(name)),
                    None => failure.message,
                });
            }
            ExitCode::from(failure.code)
        }
    }
}

/// Prints an error of the command line. Help and version are not errors, and are printed to stdout.
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

/// Returns an argument like `-5s`, which the parser takes for an option.
fn negative_number() -> Option<String> {
    let words = std::env::args_os().skip(1).take_while(|word| word != "--");
    words.map(|word| word.to_string_lossy().into_owned()).find(|word| {
        let digits = word.strip_prefix('-').unwrap_or_default();
        digits.starts_with(|first: char| first.is_ascii_digit())
    })
}

/// Whether the `--` is missing, as in `tenure run job command`.
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
