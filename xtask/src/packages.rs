//! The Debian packages that the build, the tests and the benchmarks need.
//!
//! What is missing is installed by root, or through sudo if that asks no questions; else the error is the
//! command to type. Whether it worked is judged by what is there afterwards, not by apt's exit code: a
//! service that cannot start in a container is not our concern, its program is.

use std::process::{Command, Stdio};

use crate::step::{self, Outcome};

/// A package, and what it is for.
const NEEDED: &[(&str, &str)] = &[
    ("gcc", "the linker, and the C parts of some crates"),
    ("libc6-dev", "what gcc links against"),
    ("redis-server", "the engine under test"),
    ("libfaketime", "a Redis whose clock is stepped"),
    ("util-linux", "setpriv: servers that die with their test, programs that are not root"),
    ("mount", "disks that are full"),
    ("bash", "a shell with job control, on terminals that tests type on"),
    ("hyperfine", "the benchmark of the command"),
];

/// Kept in a file of its own: it runs as root, and whoever is asked for that wants to read it.
const INSTALL: &str = include_str!("install-packages.sh");

/// Installs what is missing.
pub(crate) fn ensure() -> Outcome {
    let Some(installed) = installed() else {
        println!(
            "    there is no dpkg here, so this is not checked; what Debian calls these must be installed:"
        );
        for (package, purpose) in NEEDED {
            println!("      {package:<14} {purpose}");
        }
        return Ok(());
    };
    let missing = missing(&installed);
    if missing.is_empty() {
        println!("    all {} packages are installed", NEEDED.len());
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
    let still: Vec<&str> =
        missing.iter().copied().filter(|package| !is_usable(package, &installed)).collect();
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
    let names = NEEDED.iter().map(|(package, _)| package);
    let query = ["--show", "--showformat=${Package} ${db:Status-Status}\\n"];
    // It fails if it does not know one of them; what it says of the others is right all the same.
    let output = Command::new("dpkg-query").args(query).args(names).output().ok()?;
    Some(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn missing(installed: &str) -> Vec<&'static str> {
    NEEDED.iter().map(|(package, _)| *package).filter(|package| !is_usable(package, installed)).collect()
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

    #[test]
    fn a_package_is_missing_if_dpkg_does_not_know_it_or_has_removed_it() {
        let installed = "gcc installed\nlibc6-dev installed\nlibfaketime config-files\n\
                         redis-server half-configured\nutil-linux installed\nbash installed\nhyperfine installed\n";
        assert_eq!(missing(installed), ["libfaketime", "mount"]);
    }

    #[test]
    fn the_command_to_type_installs_just_what_is_missing() {
        let expected = "sudo apt-get update && sudo apt-get install -y --no-install-recommends mount gcc";
        assert_eq!(by_hand(&["mount", "gcc"]), expected);
    }
}
