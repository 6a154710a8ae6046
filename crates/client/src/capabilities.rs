//! What an engine can do, as data: what it does not declare answers [`Unsupported`], at once, and never quietly
//! gives less.

use std::fmt;

use tenure_table::{Mode, ModeSet};

/// What an engine, used by one of its recipes, can do.
///
/// An engine starts from [`Capabilities::minimal`] and sets what it has beside that. The contract suite holds it to
/// every field.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[expect(clippy::struct_excessive_bools, reason = "each is a capability of its own, and is set by its name")]
pub struct Capabilities {
    /// The URL's scheme: `file`, `redis`, …
    pub engine: &'static str,
    /// The way the engine is used for locking.
    pub recipe: &'static str,
    /// The modes it can grant.
    pub modes: ModeSet,
    /// Whether a grant's mode can be changed while it is held.
    pub conversion: bool,
    /// Whether a value stays with the resource.
    pub value: bool,
    /// Whether it remembers, by its own clock, when what a lock protects was last started: for
    /// [`once_per`](crate::Client::once_per).
    pub remembers: bool,
    /// Whether every grant has a fencing token.
    pub fencing: bool,
    /// Whether waiters are served first come, first served.
    pub fair: bool,
    /// Whether a wait that can never end is refused.
    pub deadlock_detection: bool,
    /// Whether a holder is told that another request waits for its lock: for [`Guard::wanted`](crate::Guard::wanted).
    pub notices: bool,
    /// Whether a lock whose holder expired can be kept from others for a while.
    pub lock_delay: bool,
    /// Whether an owner re-enters also from another client, in this process or another one.
    pub shared_owners: bool,
    /// Whether [`Client::inspect`](crate::Client::inspect) shows who waits.
    pub visible_waiters: bool,
    /// Whether [`Client::observe`](crate::Client::observe) is told of changes.
    pub observes: bool,
    /// Whether several locks are granted at one instant, or none of them: for [`lock_all`](crate::Client::lock_all). Elsewhere a client gets
    /// them one after the other.
    pub atomic_sets: bool,
    /// Whether the grants of a client hang on a session: however many it holds, they are kept alive together.
    pub sessions: bool,
    /// What an operator can do about a lock that somebody holds.
    pub breaking: Breaking,
    /// How a grant ends when its holder is no longer heard of.
    pub expiry: Expiry,
    /// How a waiter learns that the lock is free.
    pub waking: Waking,
    /// How far a lock reaches.
    pub reach: Reach,
}

impl Capabilities {
    /// An exclusive lock with a lease, between processes on one network, for which waiters poll.
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

    /// Whether it has this.
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

    /// Refuses if it does not have this.
    pub fn require(&self, capability: Capability) -> Result<(), Unsupported> {
        if self.has(capability) { Ok(()) } else { Err(self.unsupported(capability.to_string())) }
    }

    /// The error for something that it does not do.
    pub fn unsupported(&self, what: impl Into<String>) -> Unsupported {
        Unsupported { engine: self.engine, recipe: self.recipe, what: what.into() }
    }
}

/// How a grant ends when its holder is no longer heard of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expiry {
    /// A lease runs out. The holder's belief ends before that.
    Lease,
    /// The server ends it when it sees the connection end. The holder is told *afterwards*, as fast as the dead
    /// connection can be seen.
    Connection,
    /// The kernel ends it when the process ends, and at no other time: a process that is stopped still holds.
    Kernel,
}

/// How a waiter learns that the lock is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waking {
    /// One waiter is woken.
    One,
    /// All waiters are woken, or one in each client, and one of them gets it.
    All,
    /// Each looks again and again, with a jittered back-off.
    Poll,
}

/// How far a lock reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reach {
    /// The tasks and threads of one process.
    Process,
    /// The processes of one host.
    Host,
    /// Whoever reaches the engine's server.
    Network,
}

/// What an operator can do about a lock that somebody holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Breaking {
    /// Nothing: find the process, and end it.
    None,
    /// Ask the holder to let go, which its client does.
    Ask,
    /// Ask, or free it at once while the holder may still believe.
    Force,
}

/// Something that a caller can insist on: see [`LockRequest::require`](crate::LockRequest::require).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Capability {
    /// This mode can be granted.
    Mode(Mode),
    /// A grant's mode can be changed.
    Conversion,
    /// A value stays with the resource.
    Value,
    /// The last start of what a lock protects is remembered, by the engine's clock.
    Remember,
    /// Every grant has a fencing token.
    Fencing,
    /// First come, first served.
    Fair,
    /// A wait that can never end is refused.
    DeadlockDetection,
    /// A holder is told that another request waits for its lock.
    Notices,
    /// A lock whose holder expired can be kept from others for a while.
    LockDelay,
    /// The holders of a lock can be observed as they change.
    Observe,
    /// Several locks are granted at one instant.
    AtomicSets,
    /// All locks of a client are kept alive together.
    Sessions,
    /// An owner re-enters also from another process.
    SharedOwners,
    /// A holder that is not heard of loses the lock by a lease.
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

/// The engine does not do this, and says so instead of doing less.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "engine `{engine}` with recipe `{recipe}` does not offer {what}: choose an engine that does (docs/guarantees.md compares them)"
)]
pub struct Unsupported {
    /// The engine.
    pub engine: &'static str,
    /// Its recipe.
    pub recipe: &'static str,
    /// What was asked of it.
    pub what: String,
}
