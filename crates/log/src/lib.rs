//! The segment log of Tenure's server. It is independent of the consensus protocol: entries are bytes with an index, and the hard state is
//! bytes.
//!
//! - **A batch is durable when [`Log::write`] returns.** After a crash at any other moment, either all of a batch exists or none of it.
//! - **A torn tail is cut. Any other damage is an error** that names file and offset ([`LogError::Damaged`]). Every sector has a checksum,
//!   so recovery distinguishes a batch that was not synced from a batch that was synced and later changed.
//! - **A failed write or sync is final.** The kernel may have dropped the data, so the log refuses all later writes. The process must exit,
//!   and recovery finds what is durable. A full disk is not final, because it is detected before anything is written.
//! - **One batch at a time.** A batch is written after the batch before it is synced.
//!
//! `docs/format.md` describes the bytes. The disk is behind a trait, [`Disk`], so that crash tests and a simulator run the same code.

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
