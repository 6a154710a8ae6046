//! The one door through which randomness comes in: ids, and the jitter that keeps a fleet from moving in step.

use std::time::Duration;

use tenure_table::{GrantId, OwnerId};

/// The id of a new grant.
pub(crate) fn grant_id() -> GrantId {
    GrantId::from_u128(rand::random())
}

/// The id of a new owner.
pub(crate) fn owner_id() -> OwnerId {
    OwnerId::from_u128(rand::random())
}

/// What hash maps are seeded with.
#[cfg(feature = "memory")]
pub(crate) fn seed() -> u64 {
    rand::random()
}

/// A number below this one.
#[cfg(feature = "etcd")]
pub(crate) fn below(end: usize) -> usize {
    rand::random_range(0..end)
}

/// A duration between half of `around` and one and a half times it.
pub(crate) fn jittered(around: Duration) -> Duration {
    around.mul_f64(rand::random_range(0.5..1.5))
}

/// A duration a little below `at_most`: between nine tenths of it and all of it.
pub(crate) fn slightly_below(at_most: Duration) -> Duration {
    at_most.mul_f64(rand::random_range(0.9..=1.0))
}
