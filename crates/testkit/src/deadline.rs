//! The moment until which a test waits: the only place of the kit that reads a clock.
//!
//! A deadline decides when a failing test gives up, never whether a passing one passes. That is why the
//! clock that stands still in suspend is good enough here.

use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Instant);

impl Deadline {
    pub(crate) fn after(limit: Duration) -> Self {
        Self(now() + limit)
    }

    pub(crate) fn passed(self) -> bool {
        now() >= self.0
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "a test's patience is not a lease: see the module's first lines"
)]
fn now() -> Instant {
    Instant::now()
}
