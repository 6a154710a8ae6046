//! The files of the engine: one folder for each resource below the engine's directory.
//!
//! ```text
//! DIR/orders_42.9f86d081884c7d659a2feaa0c55ad015/
//!     lock            flock(2) on this one file is the lock; its content says how the last holder ended
//!     state           token and value: two slots, written in turn (state.rs)
//!     holder-GRANT    a holder: its process keeps the file flocked, which distinguishes live holders from dead ones
//!     joined-GRANT    an owner that re-entered through another client
//!     waiter-GRANT    a waiter
//!     break-GRANT     an operator asks that holder to release the lock
//!     new-GRANT       one of the above before it has its name; state.new likewise
//! ```
//!
//! The folder's name is readable up to the dot, and a hash of the whole lock name after it. No two lock names share a folder, also on a
//! case-insensitive file system, and no name leads out of the directory. The state contains the lock name, and readers compare it.

use std::fmt::Write;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, percent_encode};
use sha2::{Digest, Sha256};
use tenure_table::LockName;

use crate::url::{EngineUrl, UrlError};

/// The number of characters of a lock name in the folder's name.
const SHOWN: usize = 40;

/// Returns the folder of a resource.
pub(super) fn folder(directory: &Path, name: &LockName) -> PathBuf {
    let mut folder: String = name
        .as_str()
        .chars()
        .take(SHOWN)
        .map(|c| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' })
        .collect();
    folder.push('.');
    // 128 bits: a collision is less likely than a memory error, and it would be detected.
    for byte in Sha256::digest(name.as_str().as_bytes()).iter().take(16) {
        let _ = write!(folder, "{byte:02x}");
    }
    directory.join(folder)
}

/// Creates the directory and all missing ancestors, durably: they exist after a crash too.
pub(super) fn create(directory: &Path) -> io::Result<()> {
    let missing: Vec<_> = directory.ancestors().take_while(|ancestor| !ancestor.exists()).collect();
    std::fs::create_dir_all(directory)?;
    for created in missing {
        if let Some(parent) = created.parent() {
            File::open(parent)?.sync_all()?;
        }
    }
    Ok(())
}

/// Returns the directory that a URL names.
pub(super) fn directory(url: &EngineUrl<'_>) -> Result<PathBuf, UrlError> {
    let wrong = |message: &str| UrlError::Location {
        url: format!("{}:{}", url.scheme, url.rest),
        message: message.to_owned(),
    };
    if let Some((option, _)) = url.options.first() {
        let option = option.clone();
        return Err(UrlError::UnknownOption { engine: "file", option, known: "it has none" });
    }
    let path = match url.rest.strip_prefix("//") {
        None => url.rest,
        Some(path) if path.starts_with('/') => path,
        Some(_) => {
            return Err(wrong(
                "a directory on another host cannot be locked; write file:/path for one on this host",
            ));
        }
    };
    if path.is_empty() {
        return state_directory()
            .map(|state| state.join("tenure/locks"))
            .ok_or_else(|| wrong("there is no state directory: set HOME or XDG_STATE_HOME, or name a directory as in file:/path"));
    }
    let path = percent_decode_str(path).decode_utf8().map_err(|_| wrong("the path is not UTF-8"))?;
    if path.contains('\0') {
        return Err(wrong("the path has a zero byte in it"));
    }
    // A later change of the working directory must not move the locks.
    std::path::absolute(&*path).map_err(|error| wrong(&error.to_string()))
}

/// Encodes a directory for a URL.
pub(super) fn encoded(directory: &Path) -> String {
    const SPECIAL: &AsciiSet = &CONTROLS.add(b'%').add(b'?').add(b'#').add(b' ');
    percent_encode(directory.as_os_str().as_bytes(), SPECIAL).to_string()
}

/// Returns the user's state directory, by the rules of the XDG base directories.
fn state_directory() -> Option<PathBuf> {
    let absolute = |variable| std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("XDG_STATE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".local/state")))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_two_names_meet_and_none_leaves_the_directory() {
        let dir = Path::new("/locks");
        let long = "x".repeat(LockName::MAX_BYTES);
        let names =
            ["..", ".", "/", "a/b", "a_b", "a.b", "A/B", "../../etc/passwd", "日本", &long, &long[1..]];
        let folders: HashSet<_> = names
            .iter()
            .map(|name| {
                let folder = folder(dir, &LockName::parse(name).unwrap());
                assert_eq!(folder.parent(), Some(dir), "{name}");
                let own = folder.file_name().unwrap().to_str().unwrap();
                assert!(!own.starts_with('.') && own.len() < 128, "{own}");
                own.to_lowercase()
            })
            .collect();
        assert_eq!(folders.len(), names.len());
    }

    #[test]
    fn a_url_names_a_directory() {
        let parse = |url: &str| directory(&EngineUrl::parse(url).unwrap());
        assert_eq!(parse("file:/var/lib/a%20b"), Ok(PathBuf::from("/var/lib/a b")));
        assert_eq!(parse("file:///var/lib"), Ok(PathBuf::from("/var/lib")));
        let odd = Path::new("/var/a b/50%?#/ü");
        assert_eq!(parse(&format!("file:{}", encoded(odd))).as_deref(), Ok(odd));
        assert!(parse("file:locks").unwrap().is_absolute());
        assert!(matches!(parse("file://host/share"), Err(UrlError::Location { .. })));
        assert!(matches!(parse("file:/x?fair=true"), Err(UrlError::UnknownOption { .. })));
    }
}
