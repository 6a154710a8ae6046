//! The capabilities of an engine, as data. A request for an undeclared capability fails at once with [`Unsupported`]. An engine never
//! silently does less.

use std::fmt;

use tenure_table::{Mode, ModeSet};

/// The capabilities of an engine with one of its recipes.
///
/// An engine starts from [`Capabilities::minimal`] and sets its further capabilities. The contract suite tests every field.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(clippy::struct_excessive_bools, reason = "each is a capability of its own, and is set by its name")]
pub struct Capabilities {
    /// The URL's scheme: `file`, `redis`, …
    pub engine: &'static str,
    /// The way the engine is used for locking.
    pub recipe: &'static str,
    /// The modes that the engine can grant.
    pub modes: ModeSet,
    /// Whether a grant's mode can be changed while it is held.
    pub conversion: bool,
    /// Whether a value stays with the resource.
    pub value: bool,
    /// Whether the engine records, by its own clock, the last start of the job that a lock protects: for
    /// [`once_per`](crate::Client::once_per).
    pub remembers: bool,
    /// Whether every grant has a fencing token.
    pub fencing: bool,
    /// Whether waiters are served in the order of their arrival.
    pub fair: bool,
    /// Whether a wait that can never end is refused.
    pub deadlock_detection: bool,
    /// Whether a holder is notified when another request waits for its lock: for [`Guard::wanted`](crate::Guard::wanted).
    pub notices: bool,
    /// Whether a lock can be kept from others for a while after its holder's lease has expired.
    pub lock_delay: bool,
    /// Whether an owner also re-enters from another client, in this process or another one.
    pub shared_owners: bool,
    /// Whether [`Client::inspect`](crate::Client::inspect) shows the waiters.
    pub visible_waiters: bool,
    /// Whether [`Client::observe`](crate::Client::observe) reports changes.
    pub observes: bool,
    /// Whether several locks are granted at one instant, or none of them: for [`lock_all`](crate::Client::lock_all). Otherwise a client
    /// acquires one after the other.
    pub atomic_sets: bool,
    /// Whether the grants of a client depend on one session, which keeps any number of them alive together.
    pub sessions: bool,
    /// What an operator can do about a held lock.
    pub breaking: Breaking,
    /// How a grant ends when its holder no longer answers.
    pub expiry: Expiry,
    /// How a waiter is notified that the lock is free.
    pub waking: Waking,
    /// How far a lock reaches.
    pub reach: Reach,
}

impl Capabilities {
    /// Returns the capabilities of an exclusive lock with a lease, between processes on one network, for which waiters poll.
    pub const fn minimal(engine: &'static str, recipe: &'static str) -> Self {
        Self {
            engine,
            recipe,
            modes: ModeSet::of(&[Mode::Ex]),
            conversion: false,
            value: false,
            remembers: false,
            fencing: false,
            fair: false,
            deadlock_detection: false,
            notices: false,
            lock_delay: false,
            shared_owners: false,
            visible_waiters: false,
            observes: false,
            atomic_sets: false,
            sessions: false,
            breaking: Breaking::None,
            expiry: Expiry::Lease,
            waking: Waking::Poll,
            reach: Reach::Network,
        }
    }

    /// Returns whether the engine has this capability.
    pub fn has(&self, capability: Capability) -> bool {
        match capability {
            Capability::Mode(mode) => self.modes.contains(mode),
            Capability::Conversion => self.conversion,
            Capability::Value => self.value,
            Capability::Remember => self.remembers,
            Capability::Fencing => self.fencing,
            Capability::Fair => self.fair,
            Capability::DeadlockDetection => self.deadlock_detection,
            Capability::Notices => self.notices,
            Capability::LockDelay => self.lock_delay,
            Capability::Observe => self.observes,
            Capability::AtomicSets => self.atomic_sets,
            Capability::Sessions => self.sessions,
            Capability::SharedOwners => self.shared_owners,
            Capability::Lease => self.expiry == Expiry::Lease,
            Capability::NoPolling => self.waking != Waking::Poll,
            Capability::Network => self.reach == Reach::Network,
        }
    }

    /// Returns an error if the engine does not have this capability.
    pub fn require(&self, capability: Capability) -> Result<(), Unsupported> {
        if self.has(capability) { Ok(()) } else { Err(self.unsupported(capability.to_string())) }
    }

    /// Returns the error for an operation that the engine does not offer.
    pub fn unsupported(&self, what: impl Into<String>) -> Unsupported {
        Unsupported { engine: self.engine, recipe: self.recipe, what: what.into() }
    }
}

/// How a grant ends when its holder no longer answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// A lease expires. The holder's deadline is before that.
    Lease,
    /// The server ends the grant when it sees the end of the connection. The holder is notified *afterwards*, as soon as its side detects
    /// the dead connection.
    Connection,
    /// The kernel ends the grant when the process ends, and at no other time: a process that is stopped still holds the lock.
    Kernel,
}

/// How a waiter is notified that the lock is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waking {
    /// One waiter is woken.
    One,
    /// All waiters are woken, or one in each client, and one of them gets the lock.
    All,
    /// Each waiter asks repeatedly, with a jittered back-off.
    Poll,
}

/// The scope within which a lock excludes other holders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// The tasks and threads of one process.
    Process,
    /// The processes of one host.
    Host,
    /// All clients that can reach the engine's server.
    Network,
}

/// What an operator can do about a held lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Breaking {
    /// Nothing, except to find the process and end it.
    None,
    /// Ask the holder to release the lock, which its client does.
    Ask,
    /// Ask, or free the lock at once although its holder may still rely on it.
    Force,
}

/// A capability that a request can require: see [`LockRequest::require`](crate::LockRequest::require).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Capability {
    /// This mode can be granted.
    Mode(Mode),
    /// A grant's mode can be changed.
    Conversion,
    /// A value stays with the resource.
    Value,
    /// The last start of the job that a lock protects is recorded, by the engine's clock.
    Remember,
    /// Every grant has a fencing token.
    Fencing,
    /// Waiters are served in the order of their arrival.
    Fair,
    /// A wait that can never end is refused.
    DeadlockDetection,
    /// A holder is notified when another request waits for its lock.
    Notices,
    /// A lock can be kept from others for a while after its holder's lease has expired.
    LockDelay,
    /// The holders of a lock can be observed as they change.
    Observe,
    /// Several locks are granted at one instant.
    AtomicSets,
    /// All locks of a client are kept alive together.
    Sessions,
    /// An owner also re-enters from another process.
    SharedOwners,
    /// A holder that no longer answers loses the lock when its lease expires.
    Lease,
    /// A waiter is woken.
    NoPolling,
    /// The lock reaches beyond this host.
    Network,
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mode(mode) => write!(f, "mode {mode}"),
            Self::Conversion => f.write_str("conversion of a held lock"),
            Self::Value => f.write_str("a value that stays with the lock"),
            Self::Remember => f.write_str("a memory of the last start, which once_per needs"),
            Self::Fencing => f.write_str("fencing tokens"),
            Self::Fair => f.write_str("first come, first served"),
            Self::DeadlockDetection => f.write_str("deadlock detection"),
            Self::Notices => f.write_str("notices to a holder whose lock is wanted"),
            Self::LockDelay => f.write_str("a lock-delay"),
            Self::Observe => f.write_str("observation of a lock's holders"),
            Self::AtomicSets => f.write_str("several locks at one instant"),
            Self::Sessions => f.write_str("a session that keeps all locks alive together"),
            Self::SharedOwners => f.write_str("an owner that re-enters from another client"),
            Self::Lease => f.write_str("a lease"),
            Self::NoPolling => f.write_str("waiting without polling"),
            Self::Network => f.write_str("locking between hosts"),
        }
    }
}

/// An operation that the engine does not offer. The engine refuses it instead of doing less.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "engine `{engine}` with recipe `{recipe}` does not offer {what}: choose an engine that does (docs/guarantees.md compares them)"
)]
pub struct Unsupported {
    /// The engine.
    pub engine: &'static str,
    /// Its recipe.
    pub recipe: &'static str,
    /// The operation or capability that was requested.
    pub what: String,
}
