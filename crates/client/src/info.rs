//! The state of a lock as an observer sees it: for operators and their tools. No decision depends on it.

use std::time::SystemTime;

use tenure_table::{FencingToken, GrantId, LockName, Mode, OwnerId, Value};

/// A resource with its holders and waiters.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockInfo {
    /// The resource.
    pub name: LockName,
    /// The holders, the longest-standing first.
    pub holders: Vec<Member>,
    /// The waiters, the longest-waiting first. Empty where the engine cannot see waiters.
    pub waiters: Vec<Member>,
    /// The lock-delays that keep the resource from others after a holder's lease expired. Empty where the engine has none.
    pub lock_delays: Vec<LockDelay>,
    /// The largest token that was granted, where the engine has tokens.
    pub last_token: Option<FencingToken>,
    /// The resource's value.
    pub value: Value,
}

impl LockInfo {
    /// Returns a resource without holders and waiters.
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

    /// Returns whether the resource has no holder, no waiter and no lock-delay.
    pub const fn is_unused(&self) -> bool {
        self.holders.is_empty() && self.waiters.is_empty() && self.lock_delays.is_empty()
    }

    /// Returns the holders whose processes still exist, as far as the engine knows.
    pub fn present_holders(&self) -> impl Iterator<Item = &Member> {
        self.holders.iter().filter(|member| member.presence == Presence::Present)
    }
}

/// The lock-delay of a grant that expired, see [`LockRequest::lock_delay`](crate::LockRequest::lock_delay).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockDelay {
    /// The expired grant.
    pub grant: GrantId,
    /// The mode of that grant.
    pub mode: Mode,
    /// The end of the delay, by this host's calendar.
    pub until: Option<SystemTime>,
}

impl LockDelay {
    /// Creates a lock-delay whose end is not known.
    pub const fn new(grant: GrantId, mode: Mode) -> Self {
        Self { grant, mode, until: None }
    }
}

/// A holder or a waiter of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Member {
    /// The id of the grant or of the request.
    pub grant: GrantId,
    /// The owner of the grant.
    pub owner: OwnerId,
    /// The mode that is held or requested.
    pub mode: Mode,
    /// The grant's token.
    pub token: Option<FencingToken>,
    /// The label that the holder gave.
    pub label: Option<String>,
    /// The holder's host.
    pub host: Option<String>,
    /// The holder's process, on that host.
    pub pid: Option<u32>,
    /// When the hold or the wait began, by the holder's own calendar.
    pub since: Option<SystemTime>,
    /// Whether the member's process still exists.
    pub presence: Presence,
}

impl Member {
    /// Creates a member of which nothing more is known.
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

/// Whether a member's process still exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// The process exists.
    Present,
    /// The process died without a release. It holds nothing any more, and the next grant removes its record.
    Gone,
}
