//! Fencing: the check of tokens at the data.
//!
//! A process can be paused between any two instructions, for an hour if need be, and a request can be in transit for as long. So no lock
//! can keep out a late write. The storage can, since it is present when the write arrives: it keeps the newest
//! [`FencingToken`](crate::FencingToken) that it has seen for each resource, and refuses an older one. This module provides that check
//! for existing storage:
//!
//! | the data is in | use | check and write are |
//! | --- | --- | --- |
//! | PostgreSQL, MariaDB, MySQL | [`SqlFence`], in your own transaction | one |
//! | Redis | [`RedisFence`]: `set`, or your own Lua script | one |
//! | any data behind an HTTP service | [`FenceLayer`] in front of it | two, one after the other |
//!
//! A token that is equal to the newest is accepted: it belongs to the same grant, which may write any number of times.
//!
//! Four rules:
//!
//! - **Every writer of the resource must use the fence.** A writer that bypasses it is neither refused nor noticed.
//! - **The resource of the fence is the lock's name**, or at least each resource always belongs to the same lock: tokens of different
//!   locks cannot be compared.
//! - **Only tokens of exclusive grants** (EX and PW) can be compared. Tokens of readers have no meaning here.
//! - **A client that may write can also lock others out**, with a token that is too large. The fence protects against mistakes, not
//!   against attackers: authentication must keep attackers out.
//!
//! `docs/fence.md` shows the use with each storage.

mod error;
#[cfg(feature = "http")]
mod http;
#[cfg(feature = "redis")]
mod redis;
mod source;
#[cfg(any(feature = "postgres", feature = "mysql"))]
mod sql;
mod store;

#[cfg(feature = "http")]
pub use self::http::{Accepted, FenceLayer, FenceService, HEADER};
#[cfg(feature = "redis")]
pub use self::redis::{FencedCall, FencedScript, RedisFence, RedisStore};
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub use self::sql::{CreateTableError, SqlFence, SqlStore};
#[cfg(any(feature = "postgres", feature = "mysql"))]
pub use crate::sql::{Dialect, IdentifierError, SqlConnection, SqlDatabase, TableName};
pub use error::FenceError;
pub use source::TokenSource;
pub use store::{FenceStore, MemoryStore};

/// Compiles the examples of the page.
#[cfg(all(doctest, feature = "redis", feature = "postgres", feature = "http"))]
#[doc = include_str!("../../../../docs/fence.md")]
struct Page;
