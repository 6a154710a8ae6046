//! What can be seen of a lock from outside: for people and their tools. Nothing is decided by it.

use std::time::SystemTime;

use tenure_table::{FencingToken, GrantId, LockName, Mode, OwnerId, Value};

/// A resource, with who holds it and who waits for it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockInfo {
    /// The resource.
    pub name: LockName,
    /// Who holds it, longest first.
    pub holders: Vec<Member>,
    /// Who waits for it, longest first. Empty where the engine cannot see waiters.
    pub waiters: Vec<Member>,
    /// What keeps it from others although its holder expired. Empty where the engine has no lock-delay.
    pub lock_delays: Vec<LockDelay>,
    /// The largest token that was granted, where the engine has tokens.
    pub last_token: Option<FencingToken>,
    /// The resource's value.
    pub value: Value,
}

impl LockInfo {
    /// A resource that nobody holds or waits for.
    pub const fn free(name: LockName) -> Self {
        Self {
            name,
            holders: Vec::new(),
            waiters: Vec::new(),
            lock_delays: Vec::new(),
            last_token: None,
            value: Value { bytes: bytes::Bytes::new(), in_doubt: false },
        }
    }

    /// Whether nobody holds it, waits for it or has left a lock-delay.
    pub const fn is_unused(&self) -> bool {
        self.holders.is_empty() && self.waiters.is_empty() && self.lock_delays.is_empty()
    }

    /// The holders that are there, as far as the engine knows.
    pub fn present_holders(&self) -> impl Iterator<Item = &Member> {
        self.holders.iter().filter(|member| member.presence == Presence::Present)
    }
}

/// A grant that expired and asked for a lock-delay, see [`LockRequest::lock_delay`](crate::LockRequest::lock_delay).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockDelay {
    /// Which grant.
    pub grant: GrantId,
    /// The mode that it held.
    pub mode: Mode,
    /// When the delay ends, by this host's calendar.
    pub until: Option<SystemTime>,
}

impl LockDelay {
    /// One whose end is not known.
    pub const fn new(grant: GrantId, mode: Mode) -> Self {
        Self { grant, mode, until: None }
    }
}

/// Somebody who holds a lock, or waits for one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Member {
    /// Which grant, or which request.
    pub grant: GrantId,
    /// Whose.
    pub owner: OwnerId,
    /// The mode that is held or asked for.
    pub mode: Mode,
    /// The grant's token.
    pub token: Option<FencingToken>,
    /// What the holder called itself.
    pub label: Option<String>,
    /// Its host.
    pub host: Option<String>,
    /// Its process, on that host.
    pub pid: Option<u32>,
    /// Since when it holds or waits, by its own host's calendar.
    pub since: Option<SystemTime>,
    /// Whether it is still there.
    pub presence: Presence,
}

impl Member {
    /// Somebody of whom nothing more is known.
    pub const fn new(grant: GrantId, owner: OwnerId, mode: Mode) -> Self {
        Self {
            grant,
            owner,
            mode,
            token: None,
            label: None,
            host: None,
            pid: None,
            since: None,
            presence: Presence::Present,
        }
    }
}

/// Whether a member is still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It is.
    Present,
    /// It died without a word. It holds nothing any more, and its traces go with the next grant.
    Gone,
}
