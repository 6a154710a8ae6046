//! The lock table: a distributed lock manager as a pure state machine.
//!
//! [`Table::apply`] carries out a [`Command`] and reports the results as [`Effect`]s. It does no I/O, reads no clock and uses no
//! randomness, and nothing depends on the order of a hash map. The same commands give the same effects and the same
//! [hash](Table::state_hash) on every replica and in every simulation.
//!
//! ```
//! use tenure_table::*;
//!
//! let mut table = Table::new(Limits::default(), 7);
//! let session = SessionId::from_u128(1);
//! let mut effects = Vec::new();
//! table.apply(Command::OpenSession { session, ttl_ms: 30_000, label: None }, &mut effects);
//! effects.clear();
//!
//! let acquire = Acquire::new(GrantId::from_u128(7), LockName::parse("orders/42")?, Mode::Ex);
//! table.apply(Command::request(session, 1, Request::Acquire(acquire)), &mut effects);
//! let Effect::Answer { outcome: Ok(Answer::Granted(granted)), .. } = &effects[0] else { panic!() };
//! assert_eq!(granted.token, FencingToken::new(1));
//! # Ok::<(), NameError>(())
//! ```
//!
//! `docs/lock-table.md` explains the rules. `docs/format.md` describes the bytes of a snapshot.

mod acquire;
mod answer;
mod arena;
mod brief;
mod check;
mod command;
mod convert;
mod deadlock;
mod effect;
mod ids;
mod index;
mod label;
mod limits;
mod list;
mod lock;
mod mode;
mod name;
mod observe;
mod once;
mod owner;
mod release;
mod resource;
mod serve;
mod session;
mod snapshot;
mod table;
mod token;
mod value;
mod view;

pub use command::{Acquire, AcquireAll, Break, Command, Item, Request, Wait};
pub use effect::{
    Answer, CycleMember, Effect, Granted, LossReason, Outcome, Refusal, SessionEnd, SessionRefusal,
};
pub use ids::{GrantId, IdError, OwnerId, SessionId};
pub use label::Label;
pub use limits::Limits;
pub use mode::{Mode, ModeError, ModeSet};
pub use name::{LockName, NameError};
pub use snapshot::{SnapshotError, StateHash};
pub use table::Table;
pub use token::FencingToken;
pub use value::{SharedValue, Value};
pub use view::{
    Behind, DelayView, HeldView, HolderView, Link, ResourceView, SessionState, SessionView, WaiterView,
    WaitingView,
};
