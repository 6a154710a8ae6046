//! Licences, sources and bans of the dependencies, by the rules in `deny.toml` and what cargo knows of each package.
//!
//! It is the part of `cargo deny check` that a change breaks in practice. `cargo xtask test --full` runs cargo-deny itself, which
//! takes minutes to build.

use std::fs;

use serde_json::Value;
use spdx::{Expression, Licensee, ParseMode};
use toml::Table;

use crate::step::{Outcome, cargo, root, shown};

/// Where packages of this workspace come from, for cargo: nowhere.
const LOCAL: &str = "";

/// What `deny.toml` says.
struct Rules {
    licences: Vec<Licensee>,
    banned: Vec<String>,
    registries: Vec<String>,
}

/// What cargo knows of a package.
#[derive(Clone, Copy)]
struct Package<'a> {
    name: &'a str,
    version: &'a str,
    licence: &'a str,
    source: &'a str,
}

pub(crate) fn check() -> Outcome {
    let text = fs::read_to_string(root().join("deny.toml"))
        .map_err(|error| format!("cannot read deny.toml: {error}"))?;
    let rules = Rules::parse(&text)?;
    let metadata = metadata()?;
    let packages: Vec<_> = metadata["packages"].as_array().into_iter().flatten().map(Package::of).collect();
    let complaints: Vec<String> = packages.iter().filter_map(|package| rules.complaint(package)).collect();
    if packages.is_empty() {
        return Err("`cargo metadata` names no packages".to_owned());
    }
    println!("    {} packages keep the rules of deny.toml", packages.len() - complaints.len());
    if complaints.is_empty() { Ok(()) } else { Err(complaints.join("\n  ")) }
}

fn metadata() -> Result<Value, String> {
    let mut command = cargo(&["metadata", "--format-version=1", "--all-features", "--locked"]);
    let shown = shown(&command);
    let output = command.output().map_err(|error| format!("cannot run `{shown}`: {error}"))?;
    if !output.status.success() {
        return Err(format!("`{shown}` failed: {}", String::from_utf8_lossy(&output.stderr)));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| format!("`{shown}` prints no JSON: {error}"))
}

impl<'a> Package<'a> {
    fn of(value: &'a Value) -> Self {
        let text = |key: &str| value[key].as_str().unwrap_or_default();
        Self {
            name: text("name"),
            version: text("version"),
            licence: text("license"),
            source: text("source"),
        }
    }
}

impl Rules {
    fn parse(text: &str) -> Result<Self, String> {
        let file: Table = text.parse().map_err(|error| format!("deny.toml: {error}"))?;
        let list = |section: &str, key: &str| {
            let list =
                file.get(section).and_then(|section| section.get(key)).and_then(|list| list.as_array());
            list.ok_or_else(|| format!("deny.toml has no list `{key}` in `[{section}]`"))
        };
        let words = |section: &str, key: &str| -> Result<Vec<String>, String> {
            Ok(list(section, key)?.iter().filter_map(|word| word.as_str()).map(str::to_owned).collect())
        };
        let licences = words("licenses", "allow")?.into_iter().map(|id| {
            Licensee::parse(&id).map_err(|error| format!("deny.toml: `{id}` is no licence: {error}"))
        });
        let banned = list("bans", "deny")?.iter().filter_map(|ban| ban.get("name")?.as_str());
        Ok(Self {
            licences: licences.collect::<Result<_, _>>()?,
            banned: banned.map(str::to_owned).collect(),
            registries: words("sources", "allow-registry")?,
        })
    }

    /// What is wrong with a package, if anything.
    fn complaint(&self, package: &Package<'_>) -> Option<String> {
        let Package { name, version, licence, source } = *package;
        if self.banned.iter().any(|banned| banned == name) {
            return Some(format!("{name} {version} is banned by deny.toml"));
        }
        let from = source.strip_prefix("registry+").unwrap_or(source);
        if source != LOCAL && !self.registries.iter().any(|registry| registry == from) {
            return Some(format!("{name} {version} comes from {source}, which deny.toml does not allow"));
        }
        let expression = Expression::parse_mode(licence, ParseMode::LAX);
        let is_allowed = expression.is_ok_and(|expression| {
            expression.evaluate(|asked| self.licences.iter().any(|allowed| allowed.satisfies(asked)))
        });
        let licence = if licence.is_empty() { "no licence that cargo knows" } else { licence };
        (!is_allowed).then(|| format!("{name} {version} has {licence}, which deny.toml does not allow"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_banned_or_comes_from_elsewhere_or_has_another_licence_is_named() {
        let rules = Rules::parse(
            r#"
            [licenses]
            allow = ["MIT", "Apache-2.0 WITH LLVM-exception", "ISC"]
            [bans]
            deny = [{ name = "openssl", reason = "one TLS stack" }]
            [sources]
            allow-registry = ["https://github.com/rust-lang/crates.io-index"]
            "#,
        )
        .unwrap();
        let good = Package {
            name: "serde",
            version: "1.0.0",
            licence: "MIT OR Apache-2.0",
            source: "registry+https://github.com/rust-lang/crates.io-index",
        };
        let complaint = |package: Package<'_>| rules.complaint(&package).unwrap_or_default();
        assert_eq!(complaint(good), "");
        assert_eq!(complaint(Package { source: LOCAL, ..good }), "");
        for licence in ["MIT/Apache-2.0", "ISC AND MIT", "GPL-3.0 OR Apache-2.0 WITH LLVM-exception"] {
            assert_eq!(complaint(Package { licence, ..good }), "");
        }
        for licence in ["GPL-3.0", "MIT AND GPL-3.0", "Apache-2.0", "", "anything at all"] {
            assert!(
                complaint(Package { licence, ..good }).ends_with("which deny.toml does not allow"),
                "{licence}"
            );
        }
        assert!(complaint(Package { name: "openssl", ..good }).contains("is banned"));
        for source in ["git+https://example.com/a", "registry+https://example.com/index"] {
            assert!(complaint(Package { source, ..good }).contains("comes from"), "{source}");
        }
    }

    #[test]
    fn rules_that_are_not_there_are_missed() {
        assert!(Rules::parse("[licenses]\nallow = []").is_err_and(|error| error.contains("bans")));
        assert!(Rules::parse("no toml").is_err());
    }
}
