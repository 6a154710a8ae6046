//! How long a request waits, and what the client does meanwhile.
//!
//! - **A wait lasts through an outage**: the client repeats the request while the engine cannot be reached and the wait is not over. If the
//!   engine cannot be reached when the wait ends, the error says so.
//! - **The engine is asked at least once, however short the wait is**: when the wait is over, the client asks once more, without waiting.

use std::time::Duration;

use futures_util::future::BoxFuture;
use tenure_table::LockName;
use tracing::{debug, warn};

use crate::clock::{BootTime, Clock};
use crate::engine::{Cancellation, Waits};
use crate::error::OperationError;
use crate::random;

/// The pause before the first retry. Each further pause is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The longest pause between two attempts of one wait.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);

/// How long a request waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Wait {
    /// Not at all.
    Try,
    /// For at most this long.
    For(Duration),
    /// Until the request is granted.
    #[default]
    Forever,
}

impl Wait {
    pub(crate) fn from(self, now: BootTime) -> WaitUntil {
        match self {
            Self::Try => WaitUntil::Try,
            Self::For(waited) => WaitUntil::At { at: now + waited, waited },
            Self::Forever => WaitUntil::Forever,
        }
    }
}

/// How long a request waits, on the client's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitUntil {
    /// Not at all.
    Try,
    /// Until this instant. `waited` is the duration that the caller gave, for the error's text.
    At { at: BootTime, waited: Duration },
    /// Without a limit.
    Forever,
}

impl WaitUntil {
    pub(crate) fn is_over(self, now: BootTime) -> bool {
        match self {
            Self::Try => true,
            Self::At { at, .. } => now >= at,
            Self::Forever => false,
        }
    }

    /// Resolves when the wait is over.
    pub(crate) async fn over(self, clock: &dyn Clock) {
        match self {
            Self::Try => {}
            Self::At { at, .. } => clock.sleep_until(at).await,
            Self::Forever => std::future::pending().await,
        }
    }
}

/// Pauses that double up to a limit.
#[derive(Debug)]
pub(crate) struct Backoff {
    pause: Duration,
    longest: Duration,
}

impl Backoff {
    pub(crate) const fn new(first: Duration, longest: Duration) -> Self {
        Self { pause: first, longest }
    }

    /// Returns the end of the next pause.
    pub(crate) fn next(&mut self, now: BootTime) -> BootTime {
        let end = now + random::jittered(self.pause);
        self.pause = (self.pause * 2).min(self.longest);
        end
    }
}

/// An operation that waits for a lock or a mode.
pub(crate) struct Waiting<'a> {
    pub(crate) clock: &'a dyn Clock,
    pub(crate) name: &'a LockName,
    pub(crate) wait: WaitUntil,
    /// Raised when the caller no longer waits for the answer.
    pub(crate) cancel: &'a Cancellation,
}

/// The last answer to an operation, and the number of attempts.
pub(crate) struct LastAnswer<T> {
    pub(crate) answer: T,
    pub(crate) times: usize,
}

impl Waiting<'_> {
    /// Asks the engine until it answers or the wait is over. `ask` gets whether the engine is to wait, and the cancellation that ends its
    /// wait.
    pub(crate) async fn ask<T, E: OperationError>(
        &self,
        ask: impl Fn(Waits, Cancellation) -> BoxFuture<'static, Result<T, E>>,
    ) -> LastAnswer<Result<T, E>> {
        let mut pauses = Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let mut times = 0;
        loop {
            times += 1;
            if self.wait.is_over(self.clock.now()) {
                let waits = if times == 1 { Waits::No } else { Waits::NoMore };
                return LastAnswer { answer: ask(waits, self.cancel.clone()).await, times };
            }
            let is_over = match self.wait {
                WaitUntil::At { .. } => self.cancel.child(),
                WaitUntil::Try | WaitUntil::Forever => self.cancel.clone(),
            };
            let mut asking = ask(Waits::Yes, is_over.clone());
            let answer = tokio::select! {
                biased;
                answer = &mut asking => answer,
                () = self.wait.over(self.clock) => {
                    is_over.cancel();
                    match asking.await {
                        Err(error) if error.is_of_no_answer() && !self.cancel.is_cancelled() => continue,
                        answer => answer,
                    }
                }
            };
            match answer {
                Err(error) if error.is_outage() && self.pause(&mut pauses, times, &error).await => {}
                answer => return LastAnswer { answer, times },
            }
        }
    }

    /// Pauses during an outage. Returns whether the wait continues after the pause.
    async fn pause(&self, pauses: &mut Backoff, times: usize, error: &impl OperationError) -> bool {
        if times == 1 {
            warn!(target: "tenure::outage", lock = %self.name, %error, "the request is repeated until the wait is over");
        } else {
            debug!(target: "tenure::outage", lock = %self.name, %error, "the engine still cannot be reached");
        }
        tokio::select! {
            biased;
            () = self.cancel.cancelled() => false,
            () = self.wait.over(self.clock) => false,
            () = self.clock.sleep_until(pauses.next(self.clock.now())) => true,
        }
    }
}
