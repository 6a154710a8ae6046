//! What can be seen of a table: for tools, and for a leader that has just come. Nothing is decided by it.

use compact_str::CompactString;

use crate::{CycleMember, FencingToken, GrantId, LockName, Mode, OwnerId, SessionId, Value};

/// A resource, with who holds it and who waits for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceView {
    /// Its name.
    pub name: LockName,
    /// Who holds it, in the order of the grants. Those who convert are here too, in their old mode.
    pub holders: Vec<HolderView>,
    /// Who waits for another mode, in line.
    pub converters: Vec<WaiterView>,
    /// Who waits for it, in line behind those.
    pub waiters: Vec<WaiterView>,
    /// What dead holders left standing, in the order of their deaths.
    pub delays: Vec<DelayView>,
    /// Its value.
    pub value: Value,
    /// How long ago the last start was that it remembers.
    pub started_ago_ms: Option<u64>,
}

/// Somebody who holds a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderView {
    /// Which grant.
    pub grant: GrantId,
    /// Whose.
    pub owner: OwnerId,
    /// On whose life it hangs.
    pub session: SessionId,
    /// The mode that is held.
    pub mode: Mode,
    /// The fencing token.
    pub token: FencingToken,
    /// What the holder called itself.
    pub label: Option<CompactString>,
    /// Since when it is held, by the table's time.
    pub since_ms: u64,
    /// Its lock-delay.
    pub lock_delay_ms: u64,
    /// Whether its holder is told when somebody waits behind it.
    pub notify: bool,
    /// Whether an operator has asked it to let go.
    pub let_go: bool,
}

/// Somebody who waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaiterView {
    /// Which grant is to come of it, or to be converted.
    pub grant: GrantId,
    /// For whom.
    pub owner: OwnerId,
    /// On whose life it hangs.
    pub session: SessionId,
    /// The number of the request.
    pub number: u64,
    /// The mode that is wanted.
    pub mode: Mode,
    /// What it called itself.
    pub label: Option<CompactString>,
    /// Since when it waits, by the table's time.
    pub since_ms: u64,
    /// For how many locks the request waits, if it is for several at once.
    pub together: u32,
}

/// What a dead grant left standing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DelayView {
    /// The dead grant.
    pub grant: GrantId,
    /// The resource.
    pub name: LockName,
    /// The mode that still stands.
    pub mode: Mode,
    /// For how long in all.
    pub for_ms: u64,
    /// Since when, by the table's time.
    pub since_ms: u64,
}

/// A session, as a leader needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionView {
    /// Which.
    pub session: SessionId,
    /// Its epoch: the one to expire it by.
    pub epoch: u64,
    /// How long it lives unheard of.
    pub ttl_ms: u64,
    /// What its client calls itself.
    pub label: Option<CompactString>,
    /// How many locks it holds or waits for.
    pub locks: u32,
}

/// One step of the chain that a waiter waits in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Link {
    /// Who waits, for what.
    pub waiter: CycleMember,
    /// For whom: the first of them.
    pub behind: Behind,
}

/// Why somebody waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Behind {
    /// Somebody holds the resource in a conflicting mode.
    Holder(HolderView),
    /// Somebody is ahead in line.
    Ahead(CycleMember),
    /// A dead holder's delay is not over.
    Delay(DelayView),
    /// Nobody here: the request is for several locks, and waits at another of them.
    Itself,
}
