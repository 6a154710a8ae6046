//! The interface to the disk: one folder with files.

use std::fmt::Debug;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A folder on a disk.
pub trait Disk: Debug + Send + Sync + 'static {
    /// The type of its files.
    type File: DiskFile;

    /// Returns the names of all files.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Creates a file of zeros. The zeros are durable when this returns. The name is durable after [`sync_folder`](Self::sync_folder).
    fn create(&self, name: &str, length: u64) -> io::Result<Self::File>;

    /// Opens a file.
    fn open(&self, name: &str) -> io::Result<Self::File>;

    /// Renames a file. No file has the new name.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Deletes a file.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes all changes of names durable.
    fn sync_folder(&self) -> io::Result<()>;
}

/// A file of constant length.
pub trait DiskFile: Debug + Send + Sync + 'static {
    /// Returns the length in bytes.
    fn length(&self) -> io::Result<u64>;

    /// Fills the buffer with the bytes at this offset.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;

    /// Overwrites bytes. They are durable after [`sync`](Self::sync). Before that, a crash may keep any of the sectors and lose the others.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes all earlier writes durable.
    fn sync(&self) -> io::Result<()>;
}

/// A folder of the file system.
#[derive(Clone, Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Opens the folder at this path, and creates it if it does not exist.
    pub fn open(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        fs::create_dir_all(&path)?;
        if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            File::open(parent)?.sync_all()?;
        }
        Ok(Self(path))
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Disk for Folder {
    type File = FolderFile;

    fn list(&self) -> io::Result<Vec<String>> {
        let name = |entry: io::Result<fs::DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
        fs::read_dir(&self.0)?.map(name).collect()
    }

    fn create(&self, name: &str, length: u64) -> io::Result<FolderFile> {
        const CHUNK: u64 = 1 << 20;
        let file = File::options().read(true).write(true).create_new(true).open(self.0.join(name))?;
        let zeros = vec![0; usize::try_from(length.min(CHUNK)).expect("a chunk fits into memory")];
        let mut at = 0;
        // Writes zeros, not a hole or an unwritten extent: a later sync then has no metadata to write, and takes half the time.
        while at < length {
            let part = usize::try_from((length - at).min(CHUNK)).expect("a chunk fits into memory");
            file.write_all_at(&zeros[..part], at)?;
            at += part as u64;
        }
        file.sync_all()?;
        Ok(FolderFile(file))
    }

    fn open(&self, name: &str) -> io::Result<FolderFile> {
        Ok(FolderFile(File::options().read(true).write(true).open(self.0.join(name))?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        fs::rename(self.0.join(from), self.0.join(to))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.0.join(name))
    }

    fn sync_folder(&self) -> io::Result<()> {
        File::open(&self.0)?.sync_all()
    }
}

/// A file of the file system.
#[derive(Debug)]
pub struct FolderFile(File);

impl DiskFile for FolderFile {
    fn length(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(into, offset)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}
