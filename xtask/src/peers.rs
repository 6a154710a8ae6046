//! The locks of other languages that the engines `redis:` and `zookeeper:` are tested beside, in `target/peers`:
//! one virtual environment of Python for all of them, and a folder with packages for node.
//!
//! Their versions are pinned by hashes, in files beside the programs that use them. What is there and was made
//! from the same files is left alone, so that the network is needed once, and not again.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::packages;
use crate::step::{self, Outcome, root};

/// What the programs of Python need, a file for each engine. They share an environment, and so a version.
const REQUIREMENTS: [&str; 2] = [
    "crates/client/tests/redis/peers/requirements.txt",
    "crates/client/tests/zookeeper/peers/requirements.txt",
];
/// The programs of node, and what they need.
const NODE_PROGRAMS: &str = "crates/client/tests/redis/peers";
/// What says, in each folder, what it was made from. It is written last: without it, the folder is half-made.
const STAMP: &str = "made-from";
/// What to do where a program is missing.
const INSTALL: &str = "Run `cargo xtask test --only packages`";

/// Makes what is not there, or was made from something else.
pub(crate) fn ensure() -> Outcome {
    let peers = root().join("target/peers");
    ensure_python(&peers.join("python"))?;
    ensure_node(&peers.join("node"))
}

fn ensure_python(folder: &Path) -> Outcome {
    let (python, version) = find_python()?;
    let requirements = REQUIREMENTS.into_iter().map(read).collect::<Result<String, _>>()?;
    // What is installed for one version of Python is not found by another.
    let made_from = format!("{version}\n{requirements}");
    make("the Python packages", folder, &made_from, || {
        step::run(Command::new(python).args(["-m", "venv"]).arg(folder))?;
        let mut pip = Command::new(folder.join("bin/python"));
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]);
        pip.args(["--only-binary", ":all:", "--require-hashes"]);
        pip.args(REQUIREMENTS.iter().flat_map(|file| ["--requirement", file]));
        step::run(pip.current_dir(root()))
            .map_err(|error| fetched_from("PyPI", &REQUIREMENTS.join(" and "), &error))
    })
}

fn ensure_node(folder: &Path) -> Outcome {
    let [manifest, lock] = ["package.json", "package-lock.json"];
    let (in_manifest, in_lock) =
        (read(&format!("{NODE_PROGRAMS}/{manifest}"))?, read(&format!("{NODE_PROGRAMS}/{lock}"))?);
    make("the node packages", folder, &format!("{in_manifest}{in_lock}"), || {
        for program in ["node", "npm"] {
            if !packages::runs(program) {
                return Err(format!(
                    "`{program}` does not run here. {INSTALL}, or `apt-get install nodejs npm`"
                ));
            }
        }
        write(&folder.join(manifest), &in_manifest)?;
        write(&folder.join(lock), &in_lock)?;
        let mut npm = Command::new("npm");
        npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier"]);
        step::run(npm.current_dir(folder))
            .map_err(|error| fetched_from("npm's registry", &format!("{NODE_PROGRAMS}/{lock}"), &error))
    })
}

/// A Python that can make virtual environments, and its version. Debian's comes first: another one on the path may
/// be of any age.
fn find_python() -> Result<(&'static str, String), String> {
    // The packages want at least this version; without ensurepip, a virtual environment has no pip.
    let asked =
        "import sys, venv, ensurepip; assert sys.version_info >= (3, 10); print(sys.version.split()[0])";
    let found = ["/usr/bin/python3", "python3"].into_iter().find_map(|python| {
        let output = Command::new(python).args(["-c", asked]).output().ok()?;
        let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        output.status.success().then_some((python, version))
    });
    found.ok_or_else(|| {
        format!(
            "no python3 here is at least 3.10 and has `venv`. {INSTALL}, or `apt-get install python3-venv`"
        )
    })
}

/// Makes a folder anew, unless it was made from the same before.
fn make(what: &str, folder: &Path, made_from: &str, work: impl FnOnce() -> Outcome) -> Outcome {
    let stamp = folder.join(STAMP);
    if fs::read_to_string(&stamp).is_ok_and(|before| before == made_from) {
        println!("    {what} are up to date");
        return Ok(());
    }
    if folder.exists() {
        fs::remove_dir_all(folder).map_err(|error| format!("cannot remove {}: {error}", folder.display()))?;
    }
    fs::create_dir_all(folder).map_err(|error| format!("cannot make {}: {error}", folder.display()))?;
    work()?;
    write(&stamp, made_from)
}

fn fetched_from(registry: &str, named_in: &str, error: &str) -> String {
    format!(
        "{error}. This fetches from {registry} what is named in {named_in}, and needs a network that reaches it"
    )
}

fn read(path: &str) -> Result<String, String> {
    fs::read_to_string(root().join(path)).map_err(|error| format!("cannot read {path}: {error}"))
}

fn write(path: &Path, text: &str) -> Outcome {
    fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::{env, process};

    use super::*;

    #[test]
    fn a_folder_is_made_once_and_again_if_it_failed_or_is_to_be_made_from_something_else() {
        let folder = env::temp_dir().join(format!("tenure-xtask-peers-{}", process::id()));
        let left_over = folder.join("left-over");
        let fails = || {
            write(&left_over, "")?;
            Err("no network".to_owned())
        };
        assert_eq!(make("they", &folder, "one", fails), Err("no network".to_owned()));
        for (made_from, is_made) in
            [("one", true), ("one", false), ("two", true), ("two", false), ("one", true)]
        {
            let mut made = false;
            let work = || {
                made = true;
                assert!(!left_over.exists(), "what was there before is gone");
                write(&left_over, "")
            };
            assert_eq!(make("they", &folder, made_from, work), Ok(()));
            assert_eq!(made, is_made, "{made_from}");
        }
        fs::remove_dir_all(folder).unwrap();
    }
}
