//! Checks the program before the wait for the lock and before a start is recorded, so that neither is wasted on a missing program.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags};

use crate::exit::{self, Failure};

/// Returns an error if the program cannot be executed.
pub(super) fn program(program: &OsStr) -> Result<(), Failure> {
    let shown = program.to_string_lossy();
    if program.as_encoded_bytes().contains(&b'/') {
        let path = Path::new(program);
        if !path.exists() {
            return Err(Failure::new(exit::NOT_FOUND, format!("there is no program `{shown}`")));
        }
        if !is_executable(path) {
            let message = format!("`{shown}` is not a program that can be run");
            return Err(Failure::new(exit::NOT_EXECUTABLE, message));
        }
        return interpreter(path);
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let mut places = std::env::split_paths(&path).map(|folder: PathBuf| folder.join(program));
    if let Some(place) = places.find(|place| is_executable(place)) {
        return interpreter(&place);
    }
    let message = format!("there is no program `{shown}` in any folder of PATH ({})", path.display());
    Err(Failure::new(exit::NOT_FOUND, message))
}

/// Whether this user may execute the file.
fn is_executable(path: &Path) -> bool {
    let may = || rustix::fs::accessat(rustix::fs::CWD, path, Access::EXEC_OK, AtFlags::EACCESS);
    path.is_file() && may().is_ok()
}

/// Checks that the interpreter in a script's first line exists.
fn interpreter(script: &Path) -> Result<(), Failure> {
    let mut start = Vec::new();
    // An unreadable file may still be executable, and is not a script.
    let read = File::open(script).and_then(|file| file.take(256).read_to_end(&mut start));
    let Some(line) = start.strip_prefix(b"#!").filter(|_| read.is_ok()) else { return Ok(()) };
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii();
    let name = line.split(u8::is_ascii_whitespace).next().unwrap_or_default();
    let interpreter = PathBuf::from(OsString::from_vec(name.to_vec()));
    if interpreter.as_os_str().is_empty() || is_executable(&interpreter) {
        return Ok(());
    }
    let message =
        format!("`{}` is to be run by {}, which is not there", script.display(), interpreter.display());
    Err(Failure::new(exit::NOT_FOUND, message))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_cannot_be_run_is_known_beforehand() {
        let code = |name: &str| program(OsStr::new(name)).map_err(|failure| failure.code);
        assert_eq!(code("sh"), Ok(()));
        assert_eq!(code("/bin/sh"), Ok(()));
        assert_eq!(code("no-such-program"), Err(exit::NOT_FOUND));
        assert_eq!(code("/no/such/program"), Err(exit::NOT_FOUND));
        assert_eq!(code("/etc/passwd"), Err(exit::NOT_EXECUTABLE));
        assert_eq!(code("/etc"), Err(exit::NOT_EXECUTABLE));
    }

    #[test]
    fn a_script_needs_its_interpreter() {
        let folder = tempfile::tempdir().unwrap();
        let script = folder.path().join("script");
        for (text, runs) in [("#!/no/such/thing -x\n", false), ("#! /bin/sh -e\n", true), ("echo hi\n", true)]
        {
            std::fs::write(&script, text).unwrap();
            std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
            assert_eq!(program(script.as_os_str()).is_ok(), runs, "{text}");
        }
    }
}
