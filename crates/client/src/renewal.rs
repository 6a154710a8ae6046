//! The schedule of a grant's renewals.
//!
//! A renewal is due after a third of the usable lease, counted from the moment at which the last successful request was *sent*: a slow
//! response must not push the next renewal beyond the deadline. An unanswered renewal is not waited for, since renewing twice does no
//! harm.

use std::time::Duration;

use crate::clock::BootTime;
use crate::lease::{Term, Ttl};
use crate::random;

/// The largest number of renewals under way at a time.
const MOST_UNDER_WAY: u8 = 3;

/// The longest pause after a renewal that failed.
const LONGEST_RETRY: Duration = Duration::from_secs(1);

/// The renewal schedule of one grant.
#[derive(Debug)]
pub(crate) struct Renewal {
    /// The interval for the requested ttl.
    longest: Duration,
    /// The interval for the lease that was granted last.
    interval: Duration,
    next: Option<BootTime>,
    under_way: u8,
}

impl Renewal {
    /// Creates a schedule without renewals.
    pub(crate) const fn off() -> Self {
        Self { longest: Duration::ZERO, interval: Duration::ZERO, next: None, under_way: 0 }
    }

    /// Creates the schedule for a grant of this term.
    pub(crate) fn on(term: &Term, ttl: Ttl, now: BootTime) -> Self {
        let mut renewal = Self { longest: ttl.renewal_interval(), ..Self::off() };
        renewal.plan(term, now);
        renewal
    }

    fn plan(&mut self, term: &Term, now: BootTime) {
        self.interval = self.longest;
        let from = match *term {
            Term::Lease { sent_at, ttl, .. } => {
                let usable = term.deadline().map_or(ttl, |deadline| deadline.since(sent_at));
                self.interval = self.interval.min(usable / 3);
                sent_at
            }
            // The engine keeps the session alive.
            Term::Session(_) => {
                self.next = None;
                return;
            }
            Term::Open => now,
        };
        // At least a short pause, also where the lease counts from before the request and the usable time is short.
        let left = term.deadline().map_or(self.interval, |deadline| deadline.since(now));
        let pause = (self.interval / 4).min(left / 2);
        self.next = Some((from + random::slightly_below(self.interval)).max(now + pause));
    }

    /// Makes the next renewal due at this instant at the latest, whatever the lease is.
    pub(crate) fn hasten(&mut self, latest: BootTime) {
        self.next = self.next.map(|next| next.min(latest));
    }

    /// Returns the instant of the next renewal.
    pub(crate) const fn due_at(&self) -> Option<BootTime> {
        self.next
    }

    /// Begins a renewal if one is due. Returns whether an earlier one is still unanswered.
    pub(crate) fn begin_if_due(&mut self, now: BootTime) -> Option<Begun> {
        if self.next? > now {
            return None;
        }
        let begun = if self.under_way == 0 { Begun::InTime } else { Begun::Late };
        self.under_way += 1;
        self.next = (self.under_way < MOST_UNDER_WAY).then(|| now + self.interval / 2);
        Some(begun)
    }

    pub(crate) fn succeeded(&mut self, term: &Term, now: BootTime) {
        self.under_way = self.under_way.saturating_sub(1);
        self.plan(term, now);
    }

    pub(crate) fn failed(&mut self, now: BootTime) {
        self.under_way = self.under_way.saturating_sub(1);
        self.next = Some(now + random::jittered((self.interval / 4).min(LONGEST_RETRY)));
    }
}

/// The reason why a renewal begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Begun {
    InTime,
    /// An earlier renewal is still unanswered.
    Late,
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(30);

    fn lease(sent_at: BootTime, margin: Duration) -> Term {
        Term::Lease { sent_at, ttl: TTL, margin }
    }

    #[test]
    fn a_slow_answer_does_not_push_the_renewal_beyond_the_deadline() {
        let sent_at = BootTime::now();
        let term = lease(sent_at, Duration::ZERO);
        let renewal = Renewal::on(&term, Ttl::DEFAULT, sent_at + Duration::from_secs(22));
        assert!(renewal.due_at().unwrap() <= sent_at + Duration::from_secs(25));
        let renewal = Renewal::on(&term, Ttl::DEFAULT, sent_at + Duration::from_secs(29));
        assert!(renewal.due_at().unwrap() < term.deadline().unwrap());
    }

    #[test]
    fn a_large_margin_makes_renewal_more_frequent() {
        let now = BootTime::now();
        let term = lease(now, Duration::from_secs(21));
        let renewal = Renewal::on(&term, Ttl::DEFAULT, now);
        assert!(renewal.due_at().unwrap() < now + Duration::from_secs(3));
    }

    #[test]
    fn a_lease_that_counts_from_long_ago_is_not_renewed_without_a_pause() {
        let now = BootTime::now();
        let term = lease(now - Duration::from_secs(20), Duration::ZERO);
        let mut renewal = Renewal::on(&term, Ttl::DEFAULT, now);
        assert!(renewal.due_at().unwrap() > now);
        renewal.begin_if_due(renewal.due_at().unwrap());
        renewal.succeeded(&term, now);
        assert!(renewal.due_at().unwrap() >= now + Duration::from_secs(2));
    }

    #[test]
    fn a_short_lease_at_first_does_not_make_those_after_it_short() {
        let now = BootTime::now();
        let first = Term::Lease { sent_at: now, ttl: TTL / 6, margin: Duration::ZERO };
        let mut renewal = Renewal::on(&first, Ttl::DEFAULT, now);
        let latest = now + TTL / 100;
        renewal.hasten(latest);
        let at = renewal.due_at().unwrap();
        assert_eq!(at, latest);
        renewal.begin_if_due(at);
        renewal.succeeded(&lease(at, Duration::ZERO), at);
        assert!(renewal.due_at().unwrap() > at + TTL / 4);
    }

    #[test]
    fn a_renewal_that_does_not_answer_is_repeated_and_not_without_end() {
        let mut now = BootTime::now();
        let mut renewal = Renewal::on(&lease(now, Duration::ZERO), Ttl::DEFAULT, now);
        let mut begun = Vec::new();
        while let Some(at) = renewal.due_at() {
            now = at;
            begun.extend(renewal.begin_if_due(now));
        }
        assert_eq!(begun, [Begun::InTime, Begun::Late, Begun::Late]);
        renewal.failed(now);
        assert!(renewal.due_at().is_some(), "an answer, and be it a failure, makes room for the next");
    }
}
