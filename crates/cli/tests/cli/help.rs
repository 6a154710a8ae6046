//! Help that can be trusted: its examples are run, and the completions and man pages are what they should be.

use crate::place::{Done, Place};

const COMMANDS: [&str; 8] = ["run", "ls", "who", "watch", "break", "migrate", "completions", "man"];

fn examples(help: &str) -> Vec<String> {
    let behind = help.split_once("Examples:\n").unwrap_or_else(|| panic!("no examples in:\n{help}")).1;
    behind.lines().take_while(|line| !line.is_empty()).map(|line| line.trim().to_owned()).collect()
}

#[test]
fn every_example_in_a_help_text_works() {
    let mut seen = 0;
    for arguments in COMMANDS
        .map(|command| vec![command, "--help"])
        .into_iter()
        .chain([vec!["--help"], vec!["help-is-short", "-h"]])
    {
        if arguments[0] == "help-is-short" {
            continue;
        }
        let place = Place::new();
        let help = place.run(&arguments).expect(0, "").out;
        let _stuck = place.hold("stuck-job");
        for example in examples(&help) {
            assert!(example.starts_with("tenure "), "{example}");
            let output = place.program("sh").args(["-c", &example]).output().unwrap();
            let done = Done::of(&output);
            assert!(output.status.success(), "{example}: {done:#?}");
            seen += 1;
        }
    }
    assert!(seen > 15, "{seen}");
}

#[test]
fn help_and_version_are_no_errors_and_nothing_is_one() {
    let place = Place::new();
    for arguments in [["--help"], ["--version"], ["-h"]] {
        assert!(!place.run(&arguments).expect(0, "").out.is_empty());
    }
    let nothing = place.run(&[]);
    assert_eq!(nothing.code, Some(64));
    for command in COMMANDS {
        assert!(place.run(&["--help"]).out.contains(&format!("\n  {command} ")), "{command}");
    }
}

#[test]
fn completions_are_for_every_shell_and_sound() {
    let place = Place::new();
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let done = place.run(&["completions", shell]).expect(0, "");
        assert!(done.out.contains("once-per"), "{shell}");
    }
    let mut bash = place.program("bash");
    let script = "eval \"$(tenure completions bash)\"; COMP_WORDS=(tenure run --once); COMP_CWORD=2; _tenure tenure --once run; echo ${COMPREPLY[*]}";
    let done = Done::of(&bash.args(["-c", script]).output().unwrap());
    assert_eq!((done.out.as_str(), done.err.as_str()), ("--once-per\n", ""));
}

#[test]
fn there_is_a_manual_page_for_every_command() {
    let place = Place::new();
    assert!(place.run(&["man"]).expect(0, "").out.contains(".TH tenure 1"));
    place.run(&["man", "--folder", "man/man1"]).expect(0, "");
    for command in COMMANDS {
        let page = std::fs::read_to_string(place.path(&format!("man/man1/tenure-{command}.1"))).unwrap();
        assert!(page.contains(".SH SYNOPSIS") && page.contains("Examples:"), "{page}");
    }
    assert!(place.path("man/man1/tenure.1").exists());
}
