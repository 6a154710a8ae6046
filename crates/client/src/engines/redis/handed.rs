//! A lock that was handed over: granted to the first waiter, by the script that frees the lock, and announced by a message.
//!
//! **The lease counts from before the waiter's last request.** That request put the waiter where the script found it, and set the length of
//! the lease, so the lease began after it. The message repeats the instant of that request. A message with another instant is only a reason
//! to ask again: its lease may be over already.
//!
//! **The lease is short**, whatever TTL was asked for, and is renewed at once. So a waiter that has just vanished without notice delays the
//! others for no longer than this lease.

use std::time::Duration;

use tenure_table::{FencingToken, Mode};

use super::{FIRST_RENEWAL, MARGIN, milliseconds};
use crate::clock::BootTime;
use crate::engine::{AcquireRequest, Granted};
use crate::lease::Term;

/// The longest lease of a lock that is handed over.
const LONGEST_MS: u64 = 5_000;

/// Returns the terms that a request leaves in the queue for a later grant: `LEASE STAMP`.
pub(super) fn offer(request: &AcquireRequest, sent_at: BootTime) -> String {
    // A waiter with a lease of 0 is woken, and asks for the lock.
    let lease = lease(request).map_or(0, |lease| lease.as_millis());
    format!("{lease} {}", sent_at.since_boot().as_nanos())
}

/// Returns the lease for a lock that is handed over to this request, or `None` if the request must ask for it.
pub(super) fn lease(request: &AcquireRequest) -> Option<Duration> {
    let is_handed = request.mode == Mode::Ex && request.renews;
    is_handed.then(|| Duration::from_millis(milliseconds(request.ttl).min(LONGEST_MS)))
}

/// A message to a waiter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum WakeMessage {
    /// The waiter is to ask for the lock.
    #[default]
    Ask,
    /// The waiter is to ask after this time: until then, the lock is offered to other programs.
    AskAfter(Duration),
    /// The lock was granted to the waiter.
    Handed(Handed),
}

impl WakeMessage {
    /// Parses `TOKEN STAMP LEASE`, or `MS`, or an empty text.
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
    /// The instant before the request for which the lock was granted.
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

    /// Returns the grant, if it is for the request that was sent at this instant, and if at least half of the lease remains.
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
