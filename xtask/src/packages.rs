//! The Debian packages that the build, the tests and the benchmarks need.
//!
//! What is missing is installed by root, or through sudo if that asks no questions; else the error is the
//! command to type. Whether it worked is judged by what is there afterwards, not by apt's exit code: a
//! service that cannot start in a container is not our concern, its program is.

use std::process::{Command, Stdio};

use crate::step::{self, Outcome};

struct Package {
    name: &'static str,
    purpose: &'static str,
    /// The program that makes the package unnecessary if it is there without it: some people have it from
    /// elsewhere, and the package would be in its way.
    program: Option<&'static str>,
}

const fn package(name: &'static str, purpose: &'static str) -> Package {
    Package { name, purpose, program: None }
}

impl Package {
    const fn unless(self, program: &'static str) -> Self {
        Self { program: Some(program), ..self }
    }
}

const NEEDED: &[Package] = &[
    package("gcc", "the linker, and the C parts of some crates"),
    package("libc6-dev", "what gcc links against"),
    package("redis-server", "the engine under test"),
    // These two bring their client programs with them.
    package("postgresql", "the engine under test, and psql, through which tests ask it"),
    package("mariadb-server", "the engine under test, and mariadb, through which tests ask it"),
    package("pgbouncer", "a pool between clients and PostgreSQL"),
    // It brings a Java with it.
    package("zookeeper", "the engine under test"),
    package("etcd-server", "the engine under test"),
    package("etcd-client", "etcdctl, through which tests ask it"),
    package("protobuf-compiler", "what the client crate of the bare etcd loop is built with")
        .unless("protoc"),
    package("libprotobuf-dev", "the definitions that protoc comes without"),
    package("iproute2", "ip: networks of a test's own, which can be cut off"),
    package("libfaketime", "servers whose clock is stepped"),
    package("util-linux", "setpriv: servers that die with their test, programs that are not root"),
    package("mount", "disks that are full"),
    package("bash", "a shell with job control, on terminals that tests type on"),
    package("python3-venv", "locks of Python, beside ours"),
    package("nodejs", "locks of JavaScript, beside ours").unless("node"),
    // The package of nodesource has npm in it, and cannot stand beside Debian's.
    package("npm", "what those are installed with").unless("npm"),
    package("libcurator-recipes-java", "locks of Java, beside ours"),
    package("default-jdk-headless", "the Java compiler for the program that uses those").unless("javac"),
    package("hyperfine", "the benchmark of the command"),
];

/// Kept in a file of its own: it runs as root, and whoever is asked for that wants to read it.
const INSTALL: &str = include_str!("install-packages.sh");

/// Installs what is missing.
pub(crate) fn ensure() -> Outcome {
    let Some(installed) = installed() else {
        println!(
            "    there is no dpkg here, so this is not checked; what Debian calls these must be installed:"
        );
        for Package { name, purpose, .. } in NEEDED {
            println!("      {name:<18} {purpose}");
        }
        return Ok(());
    };
    let missing = missing(&installed, runs);
    if missing.is_empty() {
        println!("    all {} packages are there", NEEDED.len());
        return Ok(());
    }
    println!("    missing: {}", missing.join(", "));
    install(&missing)
}

fn install(missing: &[&str]) -> Outcome {
    let by_hand = by_hand(missing);
    let mut command = if is_root() {
        Command::new("sh")
    } else if step::succeeds(Command::new("sudo").args(["-n", "true"])) {
        let mut sudo = Command::new("sudo");
        sudo.args(["-n", "sh"]);
        sudo
    } else {
        return Err(format!(
            "these packages are missing, and only root can install them. Run this:\n  {by_hand}"
        ));
    };
    let status = command.args(["-c", INSTALL, "sh"]).args(missing).stdin(Stdio::null()).status();
    let status = status.map_err(|error| format!("cannot run a shell: {error}"))?;

    let installed = installed().unwrap_or_default();
    let still = self::missing(&installed, runs);
    if still.is_empty() {
        return Ok(());
    }
    Err(format!(
        "apt-get ended with {status}, and {} is still missing. By hand:\n  {by_hand}",
        still.join(", ")
    ))
}

fn by_hand(missing: &[&str]) -> String {
    let packages = missing.join(" ");
    format!("sudo apt-get update && sudo apt-get install -y --no-install-recommends {packages}")
}

/// What dpkg knows of the packages, a line for each: its name, and its status. `None` without dpkg.
fn installed() -> Option<String> {
    let names = NEEDED.iter().map(|package| package.name);
    let query = ["--show", "--showformat=${Package} ${db:Status-Status}\\n"];
    // It fails if it does not know one of them; what it says of the others is right all the same.
    let output = Command::new("dpkg-query").args(query).args(names).output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Those that dpkg does not have, unless the program that they are needed for runs without them.
fn missing(installed: &str, runs: impl Fn(&str) -> bool) -> Vec<&'static str> {
    let is_there =
        |package: &Package| is_usable(package.name, installed) || package.program.is_some_and(&runs);
    NEEDED.iter().filter(|package| !is_there(package)).map(|package| package.name).collect()
}

/// Whether there is such a program, and it runs: what lies on the path may be a shim with nothing behind it.
pub(crate) fn runs(program: &str) -> bool {
    step::succeeds(Command::new(program).arg("--version"))
}

fn is_usable(package: &str, installed: &str) -> bool {
    installed.lines().any(|line| {
        // Half configured is all unpacked, with a service that did not start.
        let usable = ["installed", "half-configured", "triggers-awaited", "triggers-pending"];
        line.split_once(' ').is_some_and(|(name, status)| name == package && usable.contains(&status))
    })
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|output| output.stdout.trim_ascii() == b"0")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of all packages but these.
    fn installed_without(missing: &[&str]) -> String {
        let there = NEEDED.iter().filter(|package| !missing.contains(&package.name));
        there.map(|package| format!("{} installed", package.name)).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn a_package_is_missing_if_dpkg_does_not_know_it_or_has_removed_it() {
        let known = installed_without(&["libfaketime", "redis-server", "mount"]);
        let installed = format!("libfaketime config-files\nredis-server half-configured\n{known}");
        assert_eq!(missing(&installed, |_| false), ["libfaketime", "mount"]);
    }

    #[test]
    fn a_package_is_not_missing_if_its_program_is_there_without_it() {
        let installed = installed_without(&["mount", "nodejs", "npm"]);
        assert_eq!(missing(&installed, |_| false), ["mount", "nodejs", "npm"]);
        assert_eq!(missing(&installed, |program| program == "npm"), ["mount", "nodejs"]);
        assert_eq!(missing(&installed, |_| true), ["mount"], "which says of no program that it would do");
    }

    #[test]
    fn a_program_that_is_not_there_or_fails_does_not_run() {
        assert!(runs("cargo"));
        assert!(!runs("false"));
        assert!(!runs("there-is-no-such-program"));
    }

    #[test]
    fn the_command_to_type_installs_just_what_is_missing() {
        let expected = "sudo apt-get update && sudo apt-get install -y --no-install-recommends mount gcc";
        assert_eq!(by_hand(&["mount", "gcc"]), expected);
    }
}
