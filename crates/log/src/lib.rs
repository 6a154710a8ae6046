//! The segment log of Tenure's server. It knows nothing of consensus: entries are bytes with an index, and the hard state is bytes.
//!
//! - **What [`Log::write`] has returned for is durable.** A crash at any other moment leaves all of a batch or none of it.
//! - **A torn tail is cut; any other damage is a refusal** that names file and offset ([`LogError::Damaged`]). Every sector has a checksum, so a
//!   batch that was not synced is told apart from one that was synced and has changed since.
//! - **A failed write or sync is final.** The log refuses everything after it, since the kernel may have dropped the data: the process
//!   must exit, and recovery decides. Only a full disk is not final: it is noticed before anything is written.
//! - **One batch in flight.** A batch is written after the one before it is synced.
//!
//! The bytes are described in `docs/format.md`. The disk is behind a trait, [`Disk`], so that crash tests and a simulator run this very code.

mod disk;
mod error;
mod log;
mod record;
mod recovery;
mod sector;
mod segment;
#[cfg(feature = "simulated")]
pub mod simulated;

pub use disk::{Disk, DiskFile, Folder, FolderFile};
pub use error::LogError;
pub use log::{Batch, Identity, Log, Options};
pub use sector::SECTOR;
pub use segment::Preparer;
