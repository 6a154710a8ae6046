//! What is counted and what is logged, in one place, so that the names stay the same.
//!
//! | metric | kind | labels |
//! | --- | --- | --- |
//! | `tenure_acquires_total` | counter | `engine`, `outcome`: granted, busy, timed_out, deadlock, failed |
//! | `tenure_acquire_seconds` | histogram | `engine`: from the call to the grant |
//! | `tenure_locks_held` | gauge | `engine` |
//! | `tenure_renewals_total` | counter | `engine`, `outcome`: renewed, failed, lost |
//! | `tenure_releases_total` | counter | `engine`, `outcome`: released, not_held, failed |
//! | `tenure_losses_total` | counter | `engine`, `reason` |
//! | `tenure_turns_total` | counter | `engine`, `outcome` of a `once_per`: yours, already_run, failed |

use std::time::Duration;

use tracing::{debug, warn};

use crate::engine::{Engine, Grant};
use crate::error::{AcquireError, LostReason, OncePerError, ReleaseError, RenewError};
use crate::hold::Hold;
use crate::lease::Term;
use crate::once_per::Turn;
use crate::token::FencingToken;

pub(crate) fn acquired<T>(engine: &dyn Engine, result: &Result<T, AcquireError>, took: Duration) {
    let engine = engine.capabilities().engine;
    let outcome = match result {
        Ok(_) => "granted",
        Err(AcquireError::Busy { .. }) => "busy",
        Err(AcquireError::TimedOut { .. }) => "timed_out",
        Err(AcquireError::Deadlock { .. }) => "deadlock",
        Err(_) => "failed",
    };
    metrics::counter!("tenure_acquires_total", "engine" => engine, "outcome" => outcome).increment(1);
    if result.is_ok() {
        metrics::histogram!("tenure_acquire_seconds", "engine" => engine).record(took);
    }
}

pub(crate) fn turn(engine: &dyn Engine, result: &Result<Turn, OncePerError>) {
    let outcome = match result {
        Ok(Turn::Yours(_)) => "yours",
        Ok(Turn::AlreadyRun { .. }) => "already_run",
        Err(_) => "failed",
    };
    metrics::counter!("tenure_turns_total", "engine" => engine.capabilities().engine, "outcome" => outcome)
        .increment(1);
}

pub(crate) fn held(engine: &dyn Engine, by: f64) {
    metrics::gauge!("tenure_locks_held", "engine" => engine.capabilities().engine).increment(by);
}

pub(crate) fn renewed(engine: &dyn Engine, hold: &Hold, result: &Result<Term, RenewError>) {
    let outcome = match result {
        Ok(_) => "renewed",
        Err(RenewError::Lost(_)) => "lost",
        Err(RenewError::Engine(_)) => "failed",
    };
    metrics::counter!("tenure_renewals_total", "engine" => engine.capabilities().engine, "outcome" => outcome).increment(1);
    if let Err(RenewError::Engine(error)) = result {
        warn!(lock = %hold.name, %error, "renewal failed; it is tried again");
    } else {
        debug!(lock = %hold.name, outcome, "renewal");
    }
}

pub(crate) fn released(engine: &dyn Engine, grant: &Grant, result: &Result<(), ReleaseError>) {
    let outcome = match result {
        Ok(()) => "released",
        Err(ReleaseError::NotHeld(_)) => "not_held",
        Err(ReleaseError::Engine(_)) => "failed",
    };
    metrics::counter!("tenure_releases_total", "engine" => engine.capabilities().engine, "outcome" => outcome).increment(1);
    if let Err(ReleaseError::Engine(error)) = result {
        warn!(lock = %grant.name, %error, "release failed; it is tried again");
    } else {
        debug!(lock = %grant.name, outcome, "release");
    }
}

pub(crate) fn lost(engine: &dyn Engine, grant: &Grant, reason: LostReason) {
    let label = match reason {
        LostReason::Expired => "expired",
        LostReason::MaxHold => "max_hold",
        LostReason::Broken => "broken",
        LostReason::Forgotten => "forgotten",
        LostReason::Disconnected => "disconnected",
        LostReason::Closed => "closed",
    };
    metrics::counter!("tenure_losses_total", "engine" => engine.capabilities().engine, "reason" => label)
        .increment(1);
    // A target of its own, for programs that tell of it themselves.
    let token = grant.token.map(FencingToken::get);
    warn!(target: "tenure::lost", lock = %grant.name, token, %reason, "lock lost");
}
