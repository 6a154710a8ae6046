//! `file:` beside flock(2) alone, and beside flock(2) with what a token costs: one synced write of 4 KiB in place.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use rustix::fs::{FlockOperation, flock};

use super::Lineup;
use super::tenure::Tenure;
use crate::workload::{Contender, Held, LockClient, Pair};

pub(crate) async fn lineup() -> Result<Lineup> {
    let folder = tempfile::tempdir()?;
    let bare = |syncs| Box::new(Bare { folder: folder.path().to_owned(), syncs });
    let url = format!("file:{}", folder.path().join("tenure").display());
    Ok(Lineup {
        contenders: vec![bare(false), bare(true), Box::new(Tenure::connect("tenure, `file:`", &url).await?)],
        _ground: Box::new(folder),
    })
}

/// open, flock, unlock, close.
struct Bare {
    folder: PathBuf,
    /// Whether a token is written and synced under the lock.
    syncs: bool,
}

impl Contender for Bare {
    fn name(&self) -> &'static str {
        if self.syncs { "bare flock + synced token" } else { "bare flock" }
    }

    fn client(&self) -> Result<Box<dyn LockClient>> {
        Ok(Box::new(BareClient { folder: self.folder.clone(), syncs: self.syncs }))
    }
}

struct BareClient {
    folder: PathBuf,
    syncs: bool,
}

impl LockClient for BareClient {
    fn pair<'a>(&'a mut self, key: &'a str, held: Held) -> Pair<'a> {
        let path = self.folder.join(key.replace('/', "_"));
        let syncs = self.syncs;
        Box::pin(async move {
            let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path)?;
            let file = if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                file
            } else {
                // As a program without a runtime does it: a thread that waits in the kernel.
                let waiting = move || flock(&file, FlockOperation::LockExclusive).map(|()| file);
                tokio::task::spawn_blocking(waiting).await??
            };
            if syncs {
                raise_token(&path.with_extension("token"))?;
            }
            held.await;
            Ok(flock(&file, FlockOperation::Unlock)?)
        })
    }
}

/// What a token costs: a slot is read, written in place and synced.
fn raise_token(path: &Path) -> Result<()> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
    let mut slot = [0; 4096];
    let _ = file.read_at(&mut slot, 0)?;
    slot[0] = slot[0].wrapping_add(1);
    file.write_all_at(&slot, 0)?;
    Ok(file.sync_data()?)
}
