//! A lock that was handed over: given to the first who waits, in the script that frees it, and announced by a message.
//!
//! **Belief counts from before the last request of the one who got it.** That request is what put it where the script found it, and said
//! how long a lease it is to have, so the lease began after it. The message repeats its instant, and one that repeats another is no
//! more than a reason to ask: it may be that of a lease that has come and gone.
//!
//! **The lease is short**, whatever ttl was asked for, and renewed at once: so who has just vanished, without anybody knowing, holds up the
//! others for that long and no longer.

use std::time::Duration;

use tenure_table::{FencingToken, Mode};

use super::{FIRST_RENEWAL, MARGIN, milliseconds};
use crate::clock::BootTime;
use crate::engine::{AcquireRequest, Granted};
use crate::lease::Term;

/// The longest lease that is handed over.
const LONGEST_MS: u64 = 5_000;

/// What a request leaves in the queue for the case that its turn comes: `LEASE STAMP`.
pub(super) fn offer(request: &AcquireRequest, sent_at: BootTime) -> String {
    // With none, it is woken and asks.
    let lease = lease(request).map_or(0, |lease| lease.as_millis());
    format!("{lease} {}", sent_at.since_boot().as_nanos())
}

/// The lease with which a lock is handed over, if it is.
pub(super) fn lease(request: &AcquireRequest) -> Option<Duration> {
    let is_handed = request.mode == Mode::Ex && request.renews;
    is_handed.then(|| Duration::from_millis(milliseconds(request.ttl).min(LONGEST_MS)))
}

/// What a message says to a waiter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum WakeMessage {
    /// It is to ask for the lock.
    #[default]
    Ask,
    /// It is to ask after this time: until then, the lock is offered to other programs.
    AskAfter(Duration),
    /// It has got the lock.
    Handed(Handed),
}

impl WakeMessage {
    /// `TOKEN STAMP LEASE`, or `MS`, or nothing.
    pub(super) fn parse(text: &str) -> Self {
        match (Handed::parse(text), text.parse()) {
            (Some(handed), _) => Self::Handed(handed),
            (None, Ok(ms)) => Self::AskAfter(Duration::from_millis(ms) + MARGIN),
            (None, Err(_)) => Self::Ask,
        }
    }
}

/// A lock that was handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Handed {
    token: FencingToken,
    /// The instant before the request that it was given to.
    sent_at: BootTime,
    lease: Duration,
}

impl Handed {
    fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split(' ').map(str::parse);
        let mut number = || numbers.next()?.ok();
        let token = FencingToken::new(number()?);
        let sent_at = BootTime::from_boot(Duration::from_nanos(number()?));
        Some(Self { token, sent_at, lease: Duration::from_millis(number()?) })
    }

    /// The grant, if it is that of the request that was sent at this instant, and if half of it is still ahead.
    pub(super) fn accept(self, sent_at: BootTime, now: BootTime) -> Option<Granted> {
        let Self { token, lease, .. } = self;
        let term = Term::Lease { sent_at, ttl: lease, margin: MARGIN };
        let is_in_time = term.deadline()? > now + lease / 2;
        (self.sent_at == sent_at && is_in_time)
            .then(|| Granted::new(Some(token), term).renewed_within(FIRST_RENEWAL))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::LockName;

    #[test]
    fn only_what_is_that_of_the_last_request_and_fresh_is_a_grant() {
        let sent_at = BootTime::from_boot(Duration::new(1000, 7));
        let mut request = AcquireRequest::new(LockName::parse("a").unwrap());
        assert_eq!(offer(&request, sent_at), "0 1000000000007", "nobody renews it");
        request.renews = true;
        assert_eq!(offer(&request, sent_at), "5000 1000000000007");
        let handed = Handed::parse("17 1000000000007 5000").unwrap();
        let granted = handed.accept(sent_at, sent_at + Duration::from_secs(1)).unwrap();
        assert_eq!(granted.token, Some(FencingToken::new(17)));
        assert!(granted.first_renewal.is_some());
        assert!(granted.term.deadline().unwrap() < sent_at + Duration::from_secs(5));
        let later = sent_at + Duration::from_nanos(1);
        assert!(handed.accept(later, later).is_none(), "it was given to an earlier request");
        assert!(handed.accept(sent_at, sent_at + Duration::from_secs(3)).is_none(), "it is too old");
    }

    #[test]
    fn what_is_no_grant_is_a_reason_to_ask() {
        for text in ["", "17 5", "x 5 5", "17 5 -1", "99999999999999999999999 5 5"] {
            assert_eq!(WakeMessage::parse(text), WakeMessage::Ask, "{text}");
        }
        assert_eq!(WakeMessage::parse("17"), WakeMessage::AskAfter(Duration::from_millis(17) + MARGIN));
    }
}
