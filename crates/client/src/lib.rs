//! Distributed locks with deadlines and fencing tokens, on the store that you already run.
//!
//! ```
//! # tokio::runtime::Runtime::new()?.block_on(async {
//! # let dir = tempfile::tempdir()?;
//! # let url = format!("file:{}", dir.path().display());
//! let client = tenure::Client::connect(&url).await?;
//! let guard = client.lock("orders/42").acquire().await?; // waits in the queue; exclusive
//! println!("fencing token {:?}", guard.token()); // the storage refuses older ones
//! let shipped = guard.run(async { "shipped" }).await?; // cancelled if the lock is lost
//! println!("{shipped}, {:?}", guard.release().await?); // Released, or AlreadyLost and why
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! - A [`Guard`] is renewed in the background. [`Guard::check`] fails from the guard's deadline on, and the deadline is always before the
//!   expiry at the engine. [`Guard::lost`] and [`Guard::run`] report a loss as it happens.
//! - Every exclusive grant has a [`FencingToken`] where the engine has them. Storage that compares tokens refuses a writer whose lock has
//!   expired: [`fence`].
//! - An engine declares its [`Capabilities`]. A request that needs more is refused with [`Unsupported`]; no engine silently does less.
//! - [`Client::once_per`] runs a job once in a period, on any number of servers.
//! - A dropped future or guard leaves neither a lock nor a waiter behind.
//! - [`memory`] tests what a program does when its lock is lost, without a server and without sleeping. [`contract`] tests an engine.
//! - [`blocking`] is the same API without async.
//!
//! # Engines
//!
//! [`Client::connect`] takes a URL. Each engine is a feature of this crate; `file` and `memory` are the default.
//!
//! | URL | feature | what it needs | a lock of a crashed holder is freed |
//! | --- | --- | --- | --- |
//! | `file:/path` | `file` | a local directory; locks between the processes of one host | by the kernel, at once |
//! | `memory:name` | `memory` | nothing; locks within one process, for tests | when its lease expires |
//! | `redis://host` | `redis` | one Redis | when its lease expires |
//! | `redlock://a,b,c` | `redis` | three or five independent Redis servers | when its lease expires |
//! | `postgres://user@host/db` | `postgres` | a PostgreSQL | when its lease expires |
//! | `mysql://user@host/db` | `mysql` | a MariaDB or MySQL | when its lease expires |
//! | `zookeeper://a,b,c` | `zookeeper` | a ZooKeeper ensemble | when its session expires |
//! | `etcd://a,b,c` | `etcd` | an etcd cluster | when its lease expires |
//!
//! In the repository, `docs/choose-an-engine.md` compares them, `docs/guarantees.md` lists what each one assumes, and `docs/engines` has a page
//! for each.
//!
//! # Other features
//!
//! | feature | adds |
//! | --- | --- |
//! | `engines` | all engines |
//! | `http` | [`fence`] as a layer in front of an HTTP service |
//! | `contract-tests` | [`contract`], the test suite for engines |
//!
//! # Errors
//!
//! Each operation has an error type of its own: [`AcquireError`], [`ReleaseError`], [`ConvertError`] and others in [`error`]. A lock that
//! is held by another owner ([`AcquireError::Busy`]), a wait that has ended ([`AcquireError::TimedOut`]), a deadlock
//! ([`AcquireError::Deadlock`]), a lost lock ([`Lost`]) and an engine that does not answer ([`EngineError::Unreachable`]) are different values.
//!
//! # Metrics, spans and events
//!
//! The crate records through [`metrics`](https://docs.rs/metrics) and [`tracing`](https://docs.rs/tracing). All names begin with `tenure`:
//!
//! | name | kind | labels |
//! | --- | --- | --- |
//! | `tenure_acquires_total` | counter | `engine`, `outcome`: granted, busy, `timed_out`, deadlock, failed |
//! | `tenure_acquire_seconds` | histogram | `engine` |
//! | `tenure_locks_held` | gauge | `engine` |
//! | `tenure_renewals_total` | counter | `engine`, `outcome`: renewed, lost, failed |
//! | `tenure_releases_total` | counter | `engine`, `outcome`: released, `not_held`, failed |
//! | `tenure_losses_total` | counter | `engine`, `reason` |
//! | `tenure_turns_total` | counter | `engine`, `outcome`: yours, `already_run`, failed |
//! | `tenure.acquire` | span (debug) | `lock`, `mode`, `outcome`, `token`, `waited_ms` |
//!
//! Output of the Prometheus exporter of `metrics`, and of `tracing-subscriber` with `FmtSpan::CLOSE`:
//!
//! ```text
//! tenure_acquires_total{engine="redis",outcome="granted"} 3
//! tenure_losses_total{engine="redis",reason="expired"} 1
//! tenure_locks_held{engine="redis"} 0
//! DEBUG tenure.acquire{lock=orders/42 mode=EX outcome="granted" waited_ms=0 token=1795139806473000}: tenure::request: close
//!  WARN tenure::lost: lock lost lock=orders/42 token=1795139808780000 reason=its lease ran out
//! ```
//!
//! The events are listed in `docs/observability.md` in the repository.

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
