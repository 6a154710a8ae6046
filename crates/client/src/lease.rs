//! How long a grant lives without renewal, and when its holder must stop relying on it.
//!
//! The rule for every engine: a holder's deadline is before the expiry at the engine. The deadline counts from just *before* the request
//! was sent, on a clock that counts suspend. It is the TTL less the drift that two clocks may have in that time, less the engine's margin.

use std::fmt;
use std::time::Duration;

use crate::clock::BootTime;
use crate::session_lease::SessionLease;

/// How long a grant lives without renewal: 100 ms to 24 h.
///
/// With a short TTL, a dead holder is replaced soon. With a long TTL, a slow network or a long pause does not cost the lock. A grant is
/// renewed every third of its TTL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ttl(Duration);

/// Why a duration is not a [`Ttl`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a ttl is between {min:?} and {max:?}, and this one is {given:?}", min = Ttl::MIN.0, max = Ttl::MAX.0)]
pub struct TtlError {
    given: Duration,
}

impl Ttl {
    /// The shortest TTL: below it, a short scheduling delay costs the lock.
    pub const MIN: Self = Self(Duration::from_millis(100));
    /// The longest TTL: beyond it, a dead holder would block for days. A holder that is alive renews.
    pub const MAX: Self = Self(Duration::from_hours(24));
    /// The default, 30 seconds: longer than a garbage collection or a leader election, and short enough to wait for.
    pub const DEFAULT: Self = Self(Duration::from_secs(30));

    /// Checks a duration and returns it as a TTL.
    pub fn new(duration: Duration) -> Result<Self, TtlError> {
        if (Self::MIN.0..=Self::MAX.0).contains(&duration) {
            Ok(Self(duration))
        } else {
            Err(TtlError { given: duration })
        }
    }

    /// Returns the TTL as a duration.
    pub const fn get(self) -> Duration {
        self.0
    }

    /// Returns the time between two renewals of a grant with this TTL.
    pub fn renewal_interval(self) -> Duration {
        self.0 / 3
    }
}

impl Default for Ttl {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl fmt::Display for Ttl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

/// How long the engine keeps a grant if no further request arrives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Term {
    /// Until a lease expires.
    Lease {
        /// The instant just before the request that made or renewed the lease was sent.
        sent_at: BootTime,
        /// The TTL that the engine granted, which may differ from the requested one.
        ttl: Duration,
        /// How long before the engine's expiry the deadline is, besides the drift: the resolution of the engine's own clock.
        margin: Duration,
    },
    /// As long as a session is kept alive, with all grants that depend on it. The engine keeps the session alive, so the grant itself is
    /// not renewed. Only for a grant that is to be renewed.
    Session(SessionLease),
    /// As long as a connection or a process lives, without a time limit.
    Open,
}

impl Term {
    /// Returns the instant from which the holder must no longer rely on the lock.
    pub fn deadline(&self) -> Option<BootTime> {
        match *self {
            Self::Lease { sent_at, ttl, margin } => {
                Some(sent_at + ttl.saturating_sub(drift(ttl)).saturating_sub(margin))
            }
            Self::Session(ref session) => Some(session.deadline()),
            Self::Open => None,
        }
    }
}

/// The most by which two clocks may drift apart during a lease of this length: a hundredth of it, far more than the drift of crystals, and
/// 2 ms for coarse clocks. Redlock uses the same figure.
fn drift(ttl: Duration) -> Duration {
    ttl / 100 + Duration::from_millis(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn belief_ends_before_the_lease_does() {
        let sent_at = BootTime::from_boot(Duration::from_secs(100));
        let ttl = Duration::from_secs(10);
        let margin = Duration::from_millis(500);
        let deadline = Term::Lease { sent_at, ttl, margin }.deadline().unwrap();
        assert_eq!(deadline, sent_at + Duration::from_millis(10_000 - 100 - 2 - 500));
        assert!(deadline + margin < sent_at + ttl);
        assert_eq!(Term::Open.deadline(), None);
        // A margin beyond the TTL leaves no time at all, rather than wrapping around.
        assert_eq!(Term::Lease { sent_at, ttl, margin: ttl * 2 }.deadline(), Some(sent_at));
    }

    #[test]
    fn a_ttl_is_between_its_bounds() {
        assert!(Ttl::new(Duration::from_millis(99)).is_err());
        assert!(Ttl::new(Duration::from_secs(86_401)).is_err());
        assert_eq!(Ttl::new(Duration::from_secs(30)), Ok(Ttl::DEFAULT));
    }
}
