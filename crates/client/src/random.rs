//! The only source of randomness: ids, and the jitter that prevents clients from acting at the same time.

use std::time::Duration;

use tenure_table::{GrantId, OwnerId};

/// Returns the id of a new grant.
pub(crate) fn grant_id() -> GrantId {
    GrantId::from_u128(rand::random())
}

/// Returns the id of a new owner.
pub(crate) fn owner_id() -> OwnerId {
    OwnerId::from_u128(rand::random())
}

/// Returns a seed for hash maps.
#[cfg(feature = "memory")]
pub(crate) fn seed() -> u64 {
    rand::random()
}

/// Returns a number below `end`.
#[cfg(feature = "etcd")]
pub(crate) fn below(end: usize) -> usize {
    rand::random_range(0..end)
}

/// Returns a duration between half of `around` and one and a half times it.
pub(crate) fn jittered(around: Duration) -> Duration {
    around.mul_f64(rand::random_range(0.5..1.5))
}

/// Returns a duration between nine tenths of `at_most` and all of it.
pub(crate) fn slightly_below(at_most: Duration) -> Duration {
    at_most.mul_f64(rand::random_range(0.9..=1.0))
}
