//! `cargo xtask`: the commands that developers and continuous integration run, the very same for both.
//!
//! Two rules. It is small and has few dependencies, so that it is built in seconds on a machine that has only Rust. And
//! whatever is missing it either installs, or names together with the command that does.

mod bench;
mod dependencies;
mod links;
mod packages;
mod peers;
mod programs;
mod servers;
mod step;
mod suites;
mod test;
mod timings;
mod tools;

use std::env;
use std::process::ExitCode;

use crate::suites::Options;

/// `EX_USAGE` of sysexits.h: the command line was not understood.
const EXIT_USAGE: u8 = 64;

const HELP: &str = "\
The commands that developers and continuous integration run.

Usage: cargo xtask COMMAND

Commands:
  test    all that must hold before a change is merged
  bench   each engine beside the bare recipe that it stands on

`cargo xtask COMMAND --help` says more about one of them.

Examples:
  cargo xtask test
  cargo xtask test --only clippy
  cargo xtask test --full
  cargo xtask bench file
";

/// What the command line asks for.
#[derive(Debug, PartialEq, Eq)]
enum Request {
    Help(String),
    Test { only: Option<String>, options: Options },
    Bench { words: Vec<String> },
}

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let request = match parse(&args) {
        Ok(request) => request,
        Err(complaint) => {
            eprintln!("error: {complaint}");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    let outcome = match request {
        Request::Help(text) => {
            print!("{text}");
            Ok(())
        }
        Request::Test { only, options } => test::run(only.as_deref(), options),
        Request::Bench { words } => bench::run(&words),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("\nerror: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn parse(args: &[String]) -> Result<Request, String> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        [] => Err(format!("a command is missing\n\n{HELP}")),
        ["--help" | "-h" | "help", ..] => Ok(Request::Help(HELP.to_owned())),
        ["test", rest @ ..] => parse_test(rest),
        ["bench", rest @ ..] => Ok(parse_bench(rest)),
        [unknown, ..] => Err(format!(
            "`{unknown}` is not a command: there are `test` and `bench`; see `cargo xtask --help`"
        )),
    }
}

fn parse_test(args: &[&str]) -> Result<Request, String> {
    let (mut only, mut options) = (None, Options::default());
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        match *arg {
            "--help" | "-h" => return Ok(Request::Help(test::help())),
            "--full" => options.full = true,
            "--timings" => options.timings = true,
            "--only" => match args.next() {
                Some(step) if test::is_step(step) => only = Some((*step).to_owned()),
                Some(step) => {
                    return Err(format!("`{step}` is not a step; the steps are: {}", test::step_names()));
                }
                None => return Err(format!("`--only` needs the name of a step: {}", test::step_names())),
            },
            unknown => return Err(format!("`{unknown}` is not understood; see `cargo xtask test --help`")),
        }
    }
    Ok(Request::Test { only, options })
}

fn parse_bench(args: &[&str]) -> Request {
    if args.iter().any(|arg| matches!(*arg, "--help" | "-h")) {
        return Request::Help(bench::HELP.to_owned());
    }
    Request::Bench { words: args.iter().map(ToString::to_string).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Request, String> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn each_command_is_understood() {
        let test = |only: Option<&str>, full, timings| {
            let only = only.map(str::to_owned);
            Ok(Request::Test { only, options: Options { full, timings } })
        };
        assert_eq!(parsed("test"), test(None, false, false));
        assert_eq!(parsed("test --only fmt"), test(Some("fmt"), false, false));
        assert_eq!(parsed("test --full --only test --timings"), test(Some("test"), true, true));
        assert_eq!(parsed("bench"), Ok(Request::Bench { words: vec![] }));
        let words = ["file", "--rounds", "3"].map(str::to_owned).to_vec();
        assert_eq!(parsed("bench file --rounds 3"), Ok(Request::Bench { words }));
    }

    #[test]
    fn each_command_has_help_with_examples() {
        for line in ["--help", "-h", "help", "test --help", "test -h", "bench --help", "bench file --help"] {
            let Ok(Request::Help(text)) = parsed(line) else { panic!("no help for `{line}`") };
            assert!(text.contains("Examples:\n  cargo xtask"), "{text}");
        }
    }

    #[test]
    fn unknown_input_is_refused_and_named() {
        for (line, named) in [
            ("", "a command is missing"),
            ("tset", "`tset` is not a command"),
            ("test fast", "`fast` is not understood"),
            ("test --only", "`--only` needs the name of a step: packages, peers, fmt"),
            ("test --only lint", "`lint` is not a step; the steps are: packages, peers, fmt"),
            ("test --only fmt clippy", "`clippy` is not understood"),
        ] {
            let complaint = parsed(line).unwrap_err();
            assert!(complaint.contains(named), "`{line}`: {complaint}");
        }
    }
}
