//! The door to the disk: one folder with files in it.

use std::fmt::Debug;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// A folder on a disk.
pub trait Disk: Debug + Send + Sync + 'static {
    /// A file in it.
    type File: DiskFile;

    /// The names of all files.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Makes a file of zeros, which are on the disk when this returns. Its name is when the folder is [synced](Self::sync_folder).
    fn create(&self, name: &str, length: u64) -> io::Result<Self::File>;

    /// Opens a file.
    fn open(&self, name: &str) -> io::Result<Self::File>;

    /// Gives a file another name, which no other file has.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Deletes a file.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes the names durable.
    fn sync_folder(&self) -> io::Result<()>;
}

/// A file of a constant length.
pub trait DiskFile: Debug + Send + Sync + 'static {
    /// Its length in bytes.
    fn length(&self) -> io::Result<u64>;

    /// Reads as many bytes as there is room for.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;

    /// Overwrites bytes. They are durable when the file is [synced](Self::sync); until then a crash may keep any of the sectors and lose the
    /// others.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes all that was written durable.
    fn sync(&self) -> io::Result<()>;
}

/// A folder of the file system.
#[derive(Clone, Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// The folder at this path, which is made if it is missing.
    pub fn open(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        fs::create_dir_all(&path)?;
        if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
            File::open(parent)?.sync_all()?;
        }
        Ok(Self(path))
    }

    /// Its path.
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
        // Zeros, and not a hole or an unwritten extent: a later sync has no metadata to write, and takes half of the time.
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
