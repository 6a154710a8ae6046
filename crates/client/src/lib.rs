//! Tenure: locks between tasks, processes and machines, on the engine that you already run.
//!
//! ```
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! # let dir = tempfile::tempdir()?;
//! # let url = format!("file:{}", dir.path().display());
//! let client = tenure::Client::connect(&url).await?;
//!
//! let guard = client.lock("orders/42").acquire().await?; // waits; exclusive
//! println!("mine, with {:?}", guard.token()); // storage refuses older tokens
//! println!("{:?}", guard.release().await?); // Released, or AlreadyLost and why
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - A [`Guard`] is renewed in the background and knows when it is lost: [`Guard::check`], [`Guard::lost`],
//!   [`Guard::run`]. Belief in a lock ends before the engine gives it to somebody else.
//! - Every grant has a [`FencingToken`] where the engine has them, and storage that compares it is safe
//!   even from a holder that sleeps through the loss of its lock.
//! - What an engine cannot do it says ([`Capabilities`]), and refuses; it never quietly does less.
//! - A job that a whole fleet starts runs [once in a period](Client::once_per), by the engine's clock.
//! - Dropping a future or a guard leaves nothing behind.
//! - What your program does when its lock is lost can be tested, without a server and without a sleep: [`memory`].
//!
//! What each engine promises, and what it assumes, is in `docs/guarantees.md`.

mod attempt;
mod background;
pub mod blocking;
pub mod capabilities;
mod client;
pub mod clock;
#[cfg(feature = "contract-tests")]
pub mod contract;
mod conversion;
pub mod engine;
pub mod engines;
pub mod error;
pub mod fence;
mod guard;
mod hold;
mod info;
mod inner;
mod keeper;
mod lease;
mod lock_all;
mod observation;
mod once_per;
mod operation;
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub mod optimistic;
mod owner;
mod random;
mod reentrance;
mod renewal;
mod request;
mod session_lease;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod sql;
mod telemetry;
mod thread;
mod url;
mod wait;
mod watch;

pub use capabilities::{Capabilities, Capability, Unsupported};
pub use client::Client;
pub use engine::{Break, Engine};
#[cfg(feature = "memory")]
pub use engines::memory;
pub use engines::migration;
pub use error::{
    AcquireError, BreakError, CloseError, ConnectError, ConvertError, EngineError, InspectError, Lost,
    LostReason, OncePerError, ReleaseError, ValueError,
};
pub use guard::{Guard, Release};
pub use hold::{Ended, GuardState, WhenLost};
pub use info::{LockDelay, LockInfo, Member, Presence};
pub use lease::{Term, Ttl, TtlError};
pub use lock_all::{GuardSet, LockAllRequest};
pub use observation::Observation;
pub use once_per::{OncePerRequest, Record, Run, Turn};
pub use owner::Owner;
pub use request::LockRequest;
pub use session_lease::SessionLease;
pub use tenure_table::{
    FencingToken, GrantId, IdError, LockName, Mode, ModeError, ModeSet, NameError, OwnerId, Value,
};
pub use url::UrlError;
pub use wait::Wait;
pub use watch::GuardWatch;

/// The README's program is compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// So are those for tests.
#[cfg(all(doctest, feature = "memory"))]
#[doc = include_str!("../../../docs/engines/memory.md")]
struct Memory;

/// So is the one for scheduled jobs.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/scheduled-jobs.md")]
struct ScheduledJobs;
