//! Finding the programs that the kit runs, and running one program through another.
//!
//! The rule: a missing program is never a skipped test. It is an error that says how to get it.

use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A program that a test needs is not on this machine; its text says how to install it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingProgram {
    program: String,
}

impl fmt::Display for MissingProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { program } = self;
        let package = package_of(program);
        write!(f, "{program} is not installed: run `cargo xtask test`, or `apt-get install {package}`")
    }
}

impl std::error::Error for MissingProgram {}

/// Debian's home of PostgreSQL: a folder for each version.
const POSTGRES: &str = "/usr/lib/postgresql";

/// Where `program` is: on the `PATH`, in one of the `sbin` folders, which ordinary users' paths lack, or
/// where Debian hides the programs of PostgreSQL.
pub fn find_program(program: impl AsRef<OsStr>) -> Result<PathBuf, MissingProgram> {
    let program = program.as_ref();
    let missing = || MissingProgram { program: program.to_string_lossy().into_owned() };
    let path = env::var_os("PATH").unwrap_or_default();
    let sbin = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(PathBuf::from);
    env::split_paths(&path)
        .chain(sbin)
        .chain(postgres_folders(Path::new(POSTGRES)))
        // A program with a slash in its name is looked for where it says: `join` keeps absolute paths.
        .map(|folder| folder.join(program))
        .find(|candidate| is_executable(candidate))
        .ok_or_else(missing)
}

/// [`find_program`] for set-up code, which can do nothing but fail.
pub(crate) fn require(program: impl AsRef<OsStr>) -> PathBuf {
    find_program(program).unwrap_or_else(|missing| panic!("{missing}"))
}

/// A file that comes with a package and is no program, such as what Java runs.
pub(crate) fn require_file<'a>(package: &str, file: &'a str) -> &'a str {
    assert!(Path::new(file).is_file(), "{}", MissingProgram { program: package.to_owned() });
    file
}

/// The program of that name in the same folder as `sibling`, or else wherever it is.
///
/// What Debian has on the `PATH` for PostgreSQL's clients is a script that looks for the right version,
/// and takes its time.
pub(crate) fn require_beside(sibling: &Path, program: &str) -> PathBuf {
    let beside = sibling.with_file_name(program);
    if is_executable(&beside) { beside } else { require(program) }
}

/// A command that runs `inner` through `outer`, as in `setpriv … -- redis-server …`.
///
/// Takes over the program, the arguments, the environment and the folder of `inner`, but not its standard
/// streams, because a [`Command`] does not tell those.
pub(crate) fn through(outer: &str, options: &[&OsStr], inner: &Command) -> Command {
    let mut command = Command::new(require(outer));
    command.args(options).arg(inner.get_program()).args(inner.get_args());
    for (name, value) in inner.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    if let Some(folder) = inner.get_current_dir() {
        command.current_dir(folder);
    }
    command
}

/// The Debian package of a program, where it is called otherwise.
fn package_of(program: &str) -> &str {
    match program {
        "setpriv" | "ipcrm" | "unshare" | "nsenter" => "util-linux",
        "postgres" | "initdb" => "postgresql",
        "psql" => "postgresql-client",
        "mariadbd" | "mariadb-install-db" => "mariadb-server",
        "mariadb" => "mariadb-client",
        "umount" => "mount",
        "env" | "install" | "timeout" => "coreutils",
        "ip" => "iproute2",
        "node" => "nodejs",
        "java" => "default-jre-headless",
        "etcd" => "etcd-server",
        "etcdctl" => "etcd-client",
        same => same,
    }
}

/// The newest version first: a test is about the server that people install today.
fn postgres_folders(home: &Path) -> Vec<PathBuf> {
    let versions = fs::read_dir(home).into_iter().flatten().flatten();
    let mut versions: Vec<u32> =
        versions.filter_map(|version| version.file_name().to_str()?.parse().ok()).collect();
    versions.sort_unstable_by(|one, other| other.cmp(one));
    versions.into_iter().map(|version| home.join(version.to_string()).join("bin")).collect()
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_on_the_path_is_found_and_a_full_path_is_kept() {
        let found = find_program("setpriv").unwrap();
        assert!(found.is_absolute() && found.ends_with("setpriv"));
        assert_eq!(find_program(&found), Ok(found));
    }

    #[test]
    fn of_several_versions_of_postgresql_the_newest_is_found() {
        let home = tempfile::tempdir().unwrap();
        for version in ["9", "15", "13", "common"] {
            fs::create_dir(home.path().join(version)).unwrap();
        }
        let expected = ["15", "13", "9"].map(|version| home.path().join(version).join("bin"));
        assert_eq!(postgres_folders(home.path()), expected);
        assert!(postgres_folders(&home.path().join("15").join("nothing")).is_empty());
    }

    #[test]
    fn the_advice_names_the_package_where_it_differs_from_the_program() {
        let missing = MissingProgram { program: "setpriv".to_owned() };
        assert!(missing.to_string().ends_with("`apt-get install util-linux`"));
    }
}
