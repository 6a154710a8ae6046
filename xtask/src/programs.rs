//! The test programs and examples of the workspace, as cargo builds them: all by one command, and so with one set of features.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;

use crate::step::{cargo, judge, shown};

/// What all steps that compile are told: with the same packages and features, dependencies are built once.
pub(crate) const ALL: [&str; 3] = ["--workspace", "--all-features", "--locked"];

/// A program that cargo has built from the workspace.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Program {
    /// The name of its target: `redis` for `tests/redis/main.rs`.
    pub(crate) name: String,
    pub(crate) package: String,
    pub(crate) kind: Kind,
    pub(crate) executable: PathBuf,
    /// Where its package is, which is where cargo runs tests.
    pub(crate) folder: PathBuf,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The unit tests of a library or a program.
    UnitTests,
    /// A file or folder in `tests`.
    Tests,
    Example,
    /// A program that tests run.
    Command,
}

impl Program {
    /// What people call it.
    pub(crate) fn title(&self) -> String {
        match self.kind {
            Kind::UnitTests => format!("{} (unit)", self.name),
            _ => self.name.clone(),
        }
    }

    /// How cargo is told to run just this one.
    pub(crate) fn selector(&self) -> String {
        match self.kind {
            Kind::UnitTests => format!("-p {} --lib --bins", self.package),
            Kind::Tests => format!("--workspace --test {}", self.name),
            Kind::Example => format!("--workspace --example {}", self.name),
            Kind::Command => format!("--workspace --bin {}", self.name),
        }
    }
}

/// Builds all of them.
pub(crate) fn build() -> Result<Vec<Program>, String> {
    let mut command = cargo(&["test", "--no-run", "--message-format=json-render-diagnostics"]);
    command.args(ALL).stdout(Stdio::piped());
    let shown = shown(&command);
    println!("    {shown}");
    let mut child = command.spawn().map_err(|error| format!("cannot run `{shown}`: {error}"))?;
    let messages = BufReader::new(child.stdout.take().expect("its output is piped"));
    let programs = messages.lines().map_while(Result::ok).filter_map(|line| parse(&line)).collect();
    let status = child.wait().map_err(|error| format!("lost `{shown}`: {error}"))?;
    judge(&shown, status)?;
    Ok(programs)
}

/// A line of cargo's, if it is about such a program.
fn parse(line: &str) -> Option<Program> {
    let message: Value = serde_json::from_str(line).ok()?;
    let (target, executable) = (&message["target"], message["executable"].as_str()?);
    let kind = match target["kind"][0].as_str()? {
        "example" => Kind::Example,
        "bin" if message["profile"]["test"] == false => Kind::Command,
        "test" => Kind::Tests,
        _ => Kind::UnitTests,
    };
    let manifest = Path::new(message["manifest_path"].as_str()?);
    let folder = manifest.parent()?.to_owned();
    let package = package_of(message["package_id"].as_str()?)?.to_owned();
    let name = target["name"].as_str()?.to_owned();
    Some(Program { name, package, kind, executable: executable.into(), folder })
}

/// The name in `path+file:///work/crates/table#tenure-table@0.1.0`; without a name, it is that of the folder.
fn package_of(id: &str) -> Option<&str> {
    let (url, behind) = id.rsplit_once('#')?;
    behind.split_once('@').map(|(name, _)| name).or_else(|| url.rsplit_once('/').map(|(_, folder)| folder))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: &str, test: bool, executable: &str) -> String {
        format!(
            r#"{{"reason":"compiler-artifact","package_id":"path+file:///w/crates/client#tenure@0.1.0",
            "manifest_path":"/w/crates/client/Cargo.toml","target":{{"kind":["{kind}"],"name":"redis"}},
            "profile":{{"test":{test}}},"executable":{executable}}}"#
        )
    }

    #[test]
    fn programs_are_read_from_what_cargo_says() {
        let expected = |kind| Program {
            name: "redis".to_owned(),
            package: "tenure".to_owned(),
            kind,
            executable: "/w/target/debug/deps/redis-1".into(),
            folder: "/w/crates/client".into(),
        };
        let executable = r#""/w/target/debug/deps/redis-1""#;
        assert_eq!(parse(&message("test", true, executable)), Some(expected(Kind::Tests)));
        assert_eq!(parse(&message("lib", true, executable)), Some(expected(Kind::UnitTests)));
        assert_eq!(parse(&message("example", false, executable)), Some(expected(Kind::Example)));
        assert_eq!(parse(&message("bin", false, executable)), Some(expected(Kind::Command)));
        assert_eq!(parse(&message("bin", true, executable)), Some(expected(Kind::UnitTests)));
        assert_eq!(parse(&message("lib", false, "null")), None, "a library");
        assert_eq!(parse(r#"{"reason":"build-finished","success":true}"#), None);
        assert_eq!(parse("no JSON"), None);
    }

    #[test]
    fn a_package_may_be_named_by_its_folder() {
        assert_eq!(package_of("path+file:///w/crates/table#tenure-table@0.1.0"), Some("tenure-table"));
        assert_eq!(package_of("path+file:///w/xtask#0.1.0"), Some("xtask"));
    }
}
