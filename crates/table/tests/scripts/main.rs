//! The rules of `docs/lock-table.md`, told as stories and played on the real table.
//!
//! The stories are in `scripts/*.txt`. A block is one or more commands, the line `----`, and what came out, up to an empty
//! line. A line that starts with `===` begins a story: a new table, the rules that it tells, and its title. `#` starts a
//! comment. Sessions, owners and grants are words, which stand for ids.
//!
//! `TENURE_SCRIPTS=write cargo test -p tenure-table --test scripts` writes what came out into the scripts. **Read the diff**
//! after it: it is the rules that say what is right, and not the table.

mod story;
mod tell;
mod words;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use crate::story::Story;

#[test]
fn every_story_ends_as_it_is_told() {
    let mut complaints = Vec::new();
    for (path, text) in scripts() {
        let played = play(&path, &text, Snapshots::Asked);
        if writes() && played.complaints.iter().all(|complaint| complaint.is_difference) {
            fs::write(folder().join(path), played.text).unwrap();
        } else {
            complaints.extend(played.complaints);
        }
    }
    fail_if_any(&complaints);
}

/// No command may depend on anything that is not in a snapshot.
#[test]
fn every_story_ends_so_if_the_table_is_restored_after_each_command() {
    if writes() {
        return; // The scripts are being written.
    }
    let played = scripts().map(|(path, text)| play(&path, &text, Snapshots::Always));
    fail_if_any(&played.flat_map(|played| played.complaints).collect::<Vec<_>>());
}

#[test]
fn every_rule_has_its_story() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/lock-table.md");
    let page = fs::read_to_string(page).unwrap();
    let numbered = page.lines().filter_map(|line| line.split_once(". ")).map(|(number, _)| number);
    let mut rules: BTreeSet<_> =
        numbered.filter(|number| number.parse::<u32>().is_ok()).map(str::to_owned).collect();
    assert!(rules.len() >= 30, "the rules are not found any more");
    // These have no numbers.
    rules.extend(["limits", "views"].map(str::to_owned));
    let told: BTreeSet<_> = scripts().flat_map(|(_, text)| rules_told(&text)).collect();
    assert_eq!(rules, told, "the rules of the page, and those that are told");
}

#[test]
fn a_script_that_is_wrong_is_refused_with_its_place() {
    let complaint = |text: &str| {
        let played = play("x.txt", text, Snapshots::Asked);
        assert_eq!(played.complaints.len(), 1, "{text}");
        played.complaints[0].text.clone()
    };
    assert!(
        complaint("=== 1: t\nopen s1\nshut s1\n----\n").contains("x.txt:3: `shut s1`: unknown word `shut`")
    );
    assert!(
        complaint("=== 1: t\nopen s1\nkeep s2\n----\n").contains("x.txt:3: `keep s2`: unknown session `s2`")
    );
    assert!(complaint("=== 1: t\nopen s1 quickly=1\n----\nx\n").contains("unknown word `quickly=1`"));
    assert!(complaint("=== 1: t\n\nopen s1\n").contains("x.txt:3: nothing is said to come of it"));
    assert!(complaint("=== 1: t\n\nopen s1\n----\n\n").contains("x.txt:3: nothing is said to come of it"));
    assert!(complaint("open s1\n----\ns1 open, epoch 1\n").contains("x.txt:1: no story has begun"));
    let difference = complaint("=== 1: t\n\nopen s1 s2\n----\ns1 open, epoch 1\ns2 open, epoch 7\n");
    assert!(difference.contains("x.txt:3: 1: t\n"), "{difference}");
    assert!(
        difference.contains("    s1 open, epoch 1\n  - s2 open, epoch 7\n  + s2 open, epoch 1\n"),
        "{difference}"
    );
}

/// Whether what came out is to be written into the scripts.
fn writes() -> bool {
    match env::var("TENURE_SCRIPTS") {
        Ok(what) => {
            what == "write" || panic!("TENURE_SCRIPTS={what}: the only thing that it can be is `write`")
        }
        Err(_) => false,
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/scripts")
}

/// All scripts, in the order of their names.
fn scripts() -> impl Iterator<Item = (String, String)> {
    let files = fs::read_dir(folder()).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    let mut files: Vec<_> =
        files.filter(|name| Path::new(name).extension() == Some("txt".as_ref())).collect();
    assert!(!files.is_empty(), "no scripts in {}", folder().display());
    files.sort();
    files.into_iter().map(|name| (name.clone(), fs::read_to_string(folder().join(name)).unwrap()))
}

/// The rules that the stories of a script name.
fn rules_told(text: &str) -> Vec<String> {
    let titles = text.lines().filter_map(|line| line.strip_prefix("=== "));
    let rules =
        titles.map(|title| title.split_once(": ").unwrap_or_else(|| panic!("`{title}` names no rule")).0);
    rules.flat_map(|rules| rules.split(", ").map(str::to_owned)).collect()
}

fn fail_if_any(complaints: &[Complaint]) {
    let all: Vec<_> = complaints.iter().map(|complaint| complaint.text.as_str()).collect();
    assert!(all.is_empty(), "{} blocks are not as they are told\n\n{}", all.len(), all.join("\n"));
}

/// When the table is written down and read back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Snapshots {
    /// When the script says `restore`.
    Asked,
    /// After each command.
    Always,
}

struct Played {
    /// The script with what came out.
    text: String,
    complaints: Vec<Complaint>,
}

struct Complaint {
    text: String,
    /// Something else came out, which may be written into the script. All else is a mistake in it.
    is_difference: bool,
}

fn play(file: &str, text: &str, snapshots: Snapshots) -> Played {
    let (mut out, mut complaints) = (Vec::new(), Vec::new());
    let mut complain = |line: usize, what: &str, is_difference| {
        complaints.push(Complaint { text: format!("{file}:{line}: {what}"), is_difference });
    };
    let mut title = "";
    let mut story = Err("no story has begun: a line `=== rule: title` begins one");
    let mut lines = (1..).zip(text.lines()).peekable();
    while let Some((at, line)) = lines.next() {
        out.push(line.to_owned());
        if let Some(heading) = line.strip_prefix("=== ") {
            title = heading;
            story = Ok(Story::new(snapshots));
        }
        if line.is_empty() || line.starts_with("===") || line.starts_with('#') {
            continue;
        }
        let mut commands = vec![(at, line)];
        while let Some(command) = lines.next_if(|(_, line)| !line.is_empty() && *line != "----") {
            out.push(command.1.to_owned());
            commands.push(command);
        }
        out.push("----".to_owned());
        let ruler = lines.next_if(|(_, line)| *line == "----");
        let mut told = Vec::new();
        while let Some((_, line)) = lines.next_if(|(_, line)| ruler.is_some() && !line.is_empty()) {
            told.push(line);
        }
        let came = match &mut story {
            Ok(story) => story.block(&commands),
            Err("") => continue,
            Err(why) => Err((at, (*why).to_owned())),
        };
        match came {
            Ok(came) => {
                if told.is_empty() {
                    complain(at, "nothing is said to come of it", true);
                } else if told != came {
                    complain(at, &format!("{title}\n{}", difference(&told, &came)), true);
                }
                out.extend(came);
            }
            Err((at, what)) => {
                complain(at, &what, false);
                // What comes after a mistake means nothing, up to the next story.
                story = Err("");
            }
        }
    }
    Played { text: out.join("\n") + "\n", complaints }
}

/// What was told and what came: the lines that are the same at the start and at the end, and what is between them in both.
fn difference(told: &[&str], came: &[String]) -> String {
    let same = told.iter().zip(came).take_while(|(a, b)| a == b).count();
    let (told_rest, came_rest) = (&told[same..], &came[same..]);
    let end = told_rest.iter().rev().zip(came_rest.iter().rev()).take_while(|(a, b)| a == b).count();
    let mut text = String::new();
    let mut put = |mark: char, line: &str| writeln!(text, "  {mark} {line}").unwrap();
    told[..same].iter().for_each(|line| put(' ', line));
    told_rest[..told_rest.len() - end].iter().for_each(|line| put('-', line));
    came_rest[..came_rest.len() - end].iter().for_each(|line| put('+', line));
    came_rest[came_rest.len() - end..].iter().for_each(|line| put(' ', line));
    text
}
