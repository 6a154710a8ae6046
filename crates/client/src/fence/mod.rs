//! The fence: the check where the data is.
//!
//! A process can be stopped between any two of its instructions, for an hour if need be, and a request can be under way for as long. So no
//! lock can keep a late write out. What can is the storage, which is there when the write arrives: it keeps the newest
//! [`FencingToken`](crate::FencingToken) that it has seen for each resource, and refuses an older one. This module is that check, for storage that you
//! have already:
//!
//! | the data is in | use | check and write are |
//! | --- | --- | --- |
//! | PostgreSQL, MariaDB, MySQL | [`SqlFence`], in your own transaction | one |
//! | Redis | [`RedisFence`]: `set`, or your own Lua script | one |
//! | whatever an HTTP service writes to | [`FenceLayer`] in front of it | two, one after the other |
//!
//! A token that is equal to the newest is accepted: it is the same grant, which may write as often as it likes.
//!
//! The rules are few:
//!
//! - **All who write to the resource must come through the fence.** One who does not is not kept out, nor noticed.
//! - **The resource of the fence is the lock's name**, or at least one resource always goes with one lock: tokens of different locks say
//!   nothing about each other.
//! - **Only tokens of exclusive grants** (EX and PW) can be compared. Readers have none that mean anything here.
//! - **Whoever may write may also lock others out**, with a token that is too large. The fence is against mistakes, not against
//!   enemies: these are the login's matter.
//!
//! How it is used on each is in `docs/fence.md`.

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

/// What the page shows is compiled.
#[cfg(all(doctest, feature = "redis", feature = "postgres", feature = "http"))]
#[doc = include_str!("../../../../docs/fence.md")]
struct Page;
