//! Metrics and logs, in one place, so that their names stay the same. `docs/observability.md` lists them.

use std::time::Duration;

use metrics::{Counter, Gauge, Key, Label, Level, Metadata};
use tenure_table::{FencingToken, Mode};
use tracing::field::Empty;
use tracing::{Span, debug, debug_span, warn};

use crate::engine::Grant;
use crate::error::{AcquireError, LostReason, OncePerError, ReleaseError, RenewError};
use crate::guard::Guard;
use crate::hold::Hold;
use crate::lease::Term;
use crate::once_per::Turn;

static METADATA: Metadata<'static> = Metadata::new("tenure", Level::INFO, Some("tenure"));

/// The metrics of one client. The keys of metrics for every lock are created once. The recorder is looked up each time, since it may be
/// installed after the client.
#[derive(Debug)]
pub(crate) struct Telemetry {
    engine: &'static str,
    granted: Key,
    seconds: Key,
    held: Key,
    released: Key,
}

/// The span of an acquire. Its outcome is recorded by [`Telemetry::acquired`].
pub(crate) fn acquire_span(lock: &str, mode: Mode) -> Span {
    debug_span!(target: "tenure::request", "tenure.acquire", %lock, %mode, outcome = Empty, token = Empty, waited_ms = Empty)
}

impl Telemetry {
    pub(crate) fn new(engine: &'static str) -> Self {
        Self {
            engine,
            granted: with_outcome("tenure_acquires_total", engine, "granted"),
            seconds: Key::from_parts("tenure_acquire_seconds", vec![Label::new("engine", engine)]),
            held: Key::from_parts("tenure_locks_held", vec![Label::new("engine", engine)]),
            released: with_outcome("tenure_releases_total", engine, "released"),
        }
    }

    /// Counts an acquire, and completes its span.
    pub(crate) fn acquired(&self, span: &Span, result: Result<&Guard, &AcquireError>, took: Duration) {
        let outcome = match result {
            Ok(_) => "granted",
            Err(AcquireError::Busy { .. }) => "busy",
            Err(AcquireError::TimedOut { .. }) => "timed_out",
            Err(AcquireError::Deadlock { .. }) => "deadlock",
            Err(_) => "failed",
        };
        span.record("outcome", outcome);
        span.record("waited_ms", u64::try_from(took.as_millis()).unwrap_or(u64::MAX));
        let Ok(guard) = result else { return self.count("tenure_acquires_total", outcome) };
        if let Some(token) = guard.token() {
            span.record("token", token.get());
        }
        counter(&self.granted).increment(1);
        metrics::with_recorder(|recorder| {
            recorder.register_histogram(&self.seconds, &METADATA).record(took);
        });
    }

    pub(crate) fn turn(&self, result: &Result<Turn, OncePerError>) {
        let outcome = match result {
            Ok(Turn::Yours(_)) => "yours",
            Ok(Turn::AlreadyRun { .. }) => "already_run",
            Err(_) => "failed",
        };
        self.count("tenure_turns_total", outcome);
    }

    pub(crate) fn begun(&self) {
        self.held().increment(1.0);
    }

    pub(crate) fn ended(&self) {
        self.held().decrement(1.0);
    }

    pub(crate) fn renewed(&self, hold: &Hold, result: &Result<Term, RenewError>) {
        let outcome = match result {
            Ok(_) => "renewed",
            Err(RenewError::Lost(_)) => "lost",
            Err(RenewError::Engine(_)) => "failed",
        };
        self.count("tenure_renewals_total", outcome);
        if let Err(RenewError::Engine(error)) = result {
            warn!(lock = %hold.name, %error, "renewal failed; it is tried again");
        } else {
            debug!(lock = %hold.name, outcome, "renewal");
        }
    }

    pub(crate) fn released(&self, grant: &Grant, result: &Result<(), ReleaseError>) {
        let outcome = match result {
            Ok(()) => "released",
            Err(ReleaseError::NotHeld(_)) => "not_held",
            Err(ReleaseError::Engine(_)) => "failed",
        };
        if result.is_ok() {
            counter(&self.released).increment(1);
        } else {
            self.count("tenure_releases_total", outcome);
        }
        if let Err(ReleaseError::Engine(error)) = result {
            warn!(lock = %grant.name, %error, "release failed; it is tried again");
        } else {
            debug!(lock = %grant.name, outcome, "release");
        }
    }

    pub(crate) fn lost(&self, grant: &Grant, reason: LostReason) {
        let label = match reason {
            LostReason::Expired => "expired",
            LostReason::MaxHold => "max_hold",
            LostReason::Broken => "broken",
            LostReason::Forgotten => "forgotten",
            LostReason::Disconnected => "disconnected",
            LostReason::Closed => "closed",
        };
        metrics::counter!("tenure_losses_total", "engine" => self.engine, "reason" => label).increment(1);
        // A separate target, for programs that report losses themselves.
        let token = grant.token.map(FencingToken::get);
        warn!(target: "tenure::lost", lock = %grant.name, token, %reason, "lock lost");
    }

    fn count(&self, name: &'static str, outcome: &'static str) {
        counter(&with_outcome(name, self.engine, outcome)).increment(1);
    }

    fn held(&self) -> Gauge {
        metrics::with_recorder(|recorder| recorder.register_gauge(&self.held, &METADATA))
    }
}

fn with_outcome(name: &'static str, engine: &'static str, outcome: &'static str) -> Key {
    Key::from_parts(name, vec![Label::new("engine", engine), Label::new("outcome", outcome)])
}

fn counter(key: &Key) -> Counter {
    metrics::with_recorder(|recorder| recorder.register_counter(key, &METADATA))
}

/// Logs that a fence in front of a service has refused a request.
#[cfg(feature = "http")]
pub(crate) fn fenced_off(resource: &crate::LockName, token: FencingToken, error: &crate::fence::FenceError) {
    let token = token.get();
    if let crate::fence::FenceError::Stale { newest, .. } = error {
        warn!(target: "tenure::fence", %resource, token, newest = newest.get(), "stale token refused");
    } else {
        let cause = std::error::Error::source(error).map(ToString::to_string);
        warn!(target: "tenure::fence", %resource, token, %error, cause, "token not accepted");
    }
}
