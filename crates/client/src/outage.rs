//! A wait lasts through an outage: a request is repeated for as long as the engine cannot be reached and the wait is not over.
//!
//! An engine that is unreachable when the wait ends is the reason in the error.

use std::fmt::Display;
use std::time::Duration;

use tenure_table::LockName;
use tracing::{debug, warn};

use crate::clock::Clock;
use crate::engine::{Cancellation, WaitUntil};
use crate::random;

/// The pause before the first repetition. Each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The longest pause between two requests.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// The outages within one wait.
#[derive(Debug)]
pub(crate) struct Outage {
    pause: Duration,
}

impl Outage {
    pub(crate) const fn new() -> Self {
        Self { pause: FIRST_PAUSE }
    }

    /// Pauses before the next request; answers with the error if the wait is over or cancelled.
    pub(crate) async fn pause<E: Display>(
        &mut self,
        clock: &dyn Clock,
        name: &LockName,
        wait: WaitUntil,
        cancel: &Cancellation,
        error: E,
    ) -> Result<(), E> {
        if wait.is_over(clock.now()) {
            return Err(error);
        }
        if self.pause == FIRST_PAUSE {
            warn!(target: "tenure::outage", lock = %name, %error, "the request is repeated until the wait is over");
        } else {
            debug!(target: "tenure::outage", lock = %name, %error, "the engine still cannot be reached");
        }
        let next = wait.or_at(clock.now() + random::jittered(self.pause));
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        tokio::select! {
            biased;
            () = cancel.cancelled() => Err(error),
            () = clock.sleep_until(next) => if wait.is_over(clock.now()) { Err(error) } else { Ok(()) },
        }
    }
}
