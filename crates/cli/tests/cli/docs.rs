//! The documentation: its commands work as they are written, and its programs are those of the examples.

use std::fs;
use std::path::{Path, PathBuf};

use tenure_testkit::{Etcd, MariaDb, Postgres, Redis, ZooKeeper};

use crate::place::{Done, Place};

/// Commands of cargo are for the reader, who builds what this test has built.
const OF_CARGO: [&str; 5] = ["cargo add ", "cargo install ", "cargo run ", "cargo test ", "cargo xtask "];

/// Commands whose output may be empty: there may be no locks, and a job that has run is not run again.
const MAY_BE_SILENT: [&str; 3] = ["tenure ls", "tenure who", "not sent"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn files(folder: &str, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|found| found == extension)).collect();
    files.sort();
    files
}

/// What stands in the code blocks of this language.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}\n");
    page.split(&fence).skip(1).map(|block| block.split_once("```").unwrap().0.to_owned()).collect()
}

/// Servers of ours in place of those that the documentation names.
struct Servers {
    redlock: [Redis; 3],
}

impl Servers {
    /// A command line with the URL of a server that is there.
    fn in_place_of(&self, line: &str) -> String {
        let Some((before, behind)) = line.split_once("--url ") else { return line.to_owned() };
        let (named, rest) = behind.split_once(' ').unwrap();
        let named = named.trim_matches('\'');
        let (scheme, query) =
            (named.split_once(':').unwrap().0, named.split_once('?').map_or("", |(_, query)| query));
        let url = match scheme {
            "file" => format!("file:{}", named.rsplit_once('/').unwrap().1),
            "redis" => Redis::shared().url(),
            "redlock" => {
                let all = self.redlock.each_ref().map(|redis| redis.addr().to_string());
                format!("redlock://{}", all.join(","))
            }
            "postgres" => Postgres::shared().url(),
            "mysql" => MariaDb::shared().url(),
            "zookeeper" => format!("{}/documented", ZooKeeper::shared().url()),
            "etcd" => Etcd::shared().url(),
            other => panic!("no server for `{other}:` in `{line}`"),
        };
        let separator = match (query, url.contains('?')) {
            ("", _) => "",
            (_, true) => "&",
            (_, false) => "?",
        };
        format!("{before}--url '{url}{separator}{query}' {rest}")
    }
}

#[test]
fn every_command_in_the_documentation_works() {
    let servers = Servers { redlock: [Redis::start(), Redis::start(), Redis::start()] };
    let mut pages = vec![root().join("README.md")];
    pages.extend(files("docs", "md"));
    pages.extend(files("docs/engines", "md"));
    let mut run = 0;
    for page in pages {
        let text = fs::read_to_string(&page).unwrap();
        // Pages use the same names of locks.
        let place = Place::new();
        for name in ["report", "report.sh"] {
            fs::write(place.path(name), "echo done\n").unwrap();
        }
        for line in blocks(&text, "sh").iter().flat_map(|block| block.lines()) {
            if OF_CARGO.iter().any(|cargo| line.starts_with(cargo)) {
                continue;
            }
            assert!(line.starts_with("tenure "), "{}: {line}", page.display());
            let script = format!("chmod +x report report.sh; PATH=$PWD:$PATH; {}", servers.in_place_of(line));
            let done = Done::of(&place.program("sh").args(["-c", &script]).output().unwrap());
            // `who` says so by its exit code if the lock is free.
            let is_free = line.starts_with("tenure who") && done.code == Some(1);
            assert!(done.code == Some(0) || is_free, "{}: {script}: {done:#?}", page.display());
            let may_be_silent = MAY_BE_SILENT.iter().any(|part| line.contains(part));
            assert!(may_be_silent || !done.out.is_empty(), "{}: {script}: {done:#?}", page.display());
            run += 1;
        }
    }
    assert!(run > 30, "{run}");
}

#[test]
fn the_programs_of_the_cookbook_are_those_of_the_examples() {
    let examples: Vec<_> =
        files("crates/client/examples", "rs").iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    let blocks = blocks(&fs::read_to_string(root().join("docs/cookbook.md")).unwrap(), "rust");
    assert!(blocks.len() > 4, "{}", blocks.len());
    for block in blocks {
        assert!(examples.iter().any(|example| example.contains(&block)), "in no example:\n{block}");
    }
}
