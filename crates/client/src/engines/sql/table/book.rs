//! The record of one lock, and its transitions: the rules, without a database.

use std::time::Duration;

use tenure_table::{GrantId, Mode, OwnerId};

/// How long a place in the queue is kept for a waiter that does not ask again (ms).
pub(super) const PLACE_KEPT: i64 = 10_000;

/// How long a waiter whose turn it is has to ask for the lock (ms). Then the turn passes to the next waiter.
///
/// It is longer than the longest interval at which a waiter asks without a message.
const TURN_KEPT: i64 = 6_000;

/// The record of one lock. All instants are milliseconds of the database's clock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Book {
    pub(super) now: i64,
    pub(super) token: i64,
    /// `None` without a value.
    pub(super) value: Option<Vec<u8>>,
    pub(super) in_doubt: bool,
    /// In the order of their tokens.
    pub(super) holders: Vec<Holder>,
    /// In the order of their arrival.
    pub(super) waiters: Vec<Waiter>,
    /// When the job was last started, and the id of the request that recorded it.
    pub(super) start: Option<(i64, Vec<u8>)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) grant: GrantId,
    pub(super) owner: OwnerId,
    pub(super) mode: Mode,
    pub(super) token: i64,
    pub(super) expires: i64,
    pub(super) details: String,
    /// Whether an operator has asked for its release.
    pub(super) broken: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Waiter {
    /// `None` before it is recorded.
    pub(super) ticket: Option<i64>,
    pub(super) grant: GrantId,
    pub(super) owner: OwnerId,
    pub(super) mode: Mode,
    /// The name by which its client is notified.
    pub(super) client: String,
    pub(super) kept_until: i64,
    /// Whether it was notified that it is its turn.
    pub(super) called: bool,
    pub(super) details: String,
}

/// A request for a lock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ask<'a> {
    pub(super) grant: GrantId,
    pub(super) owner: OwnerId,
    pub(super) mode: Mode,
    /// Whether the owner may hold the lock already.
    pub(super) reenter: bool,
    pub(super) ttl: i64,
    pub(super) details: &'a str,
    /// The client to notify, if the request waits.
    pub(super) client: Option<&'a str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Granted {
        token: i64,
    },
    Busy {
        expires_in: Option<Duration>,
        before: usize,
    },
    /// The owner holds the lock in a mode that does not cover the requested mode.
    Held(Mode),
}

impl Book {
    /// Removes expired holders and waiters, except the waiter that asks.
    pub(super) fn expire(&mut self, asks: Option<GrantId>) {
        let now = self.now;
        let gone = |holder: &Holder| holder.expires <= now;
        if self.holders.iter().any(|holder| gone(holder) && holder.mode.may_write()) {
            self.died_writing();
        }
        self.holders.retain(|holder| !gone(holder));
        self.waiters.retain(|waiter| waiter.kept_until > now || Some(waiter.grant) == asks);
    }

    /// Marks the value as in doubt: its writer ended without a release.
    fn died_writing(&mut self) {
        self.in_doubt |= self.value.is_some();
    }

    pub(super) fn holder(&mut self, grant: GrantId) -> Option<&mut Holder> {
        self.holders.iter_mut().find(|holder| holder.grant == grant)
    }

    /// Grants the lock, or says why not. A request that waits gets a place in the queue.
    pub(super) fn acquire(&mut self, ask: &Ask<'_>) -> Answer {
        let expires = self.now + ask.ttl;
        if let Some(held) = self.holder(ask.grant) {
            // The answer to the first request was lost.
            held.expires = expires;
            let token = held.token;
            self.leave_queue(ask.grant);
            return Answer::Granted { token };
        }
        if ask.reenter
            && let Some(token) = self.covered(ask)
        {
            return match token {
                Ok(token) => self.grant(ask, token, expires),
                Err(held) => Answer::Held(held),
            };
        }
        let place = self.waiters.iter().position(|waiter| waiter.grant == ask.grant);
        let before = place.unwrap_or(self.waiters.len());
        if let Some(place) = place {
            let waiter = &mut self.waiters[place];
            // A waiter that asks before its turn must be notified again.
            (waiter.kept_until, waiter.called) = (self.now + PLACE_KEPT, false);
            if let Some(client) = ask.client {
                client.clone_into(&mut waiter.client);
            }
        } else if let Some(client) = ask.client {
            self.waiters.push(Waiter {
                ticket: None,
                grant: ask.grant,
                owner: ask.owner,
                mode: ask.mode,
                client: client.to_owned(),
                kept_until: self.now + PLACE_KEPT,
                called: false,
                details: ask.details.to_owned(),
            });
        }
        let granted = if place.is_some() || ask.client.is_some() {
            before < self.whose_turn()
        } else {
            self.waiters.is_empty() && self.is_free_for(ask.mode)
        };
        if granted {
            self.token = self.next_token();
            return self.grant(ask, self.token, expires);
        }
        let conflicts = self.holders.iter().filter(|holder| !holder.mode.compatible_with(ask.mode));
        let expires_in =
            conflicts.map(|holder| holder.expires).min().and_then(|at| u64::try_from(at - self.now).ok());
        Answer::Busy { expires_in: expires_in.map(Duration::from_millis), before }
    }

    fn grant(&mut self, ask: &Ask<'_>, token: i64, expires: i64) -> Answer {
        self.leave_queue(ask.grant);
        let (grant, owner, mode) = (ask.grant, ask.owner, ask.mode);
        let details = ask.details.to_owned();
        self.holders.push(Holder { grant, owner, mode, token, expires, details, broken: false });
        Answer::Granted { token }
    }

    /// Returns the token of a grant by which the same owner already has the requested mode, or else the mode that it has.
    fn covered(&self, ask: &Ask<'_>) -> Option<Result<i64, Mode>> {
        let mut held = self.holders.iter().filter(|holder| holder.owner == ask.owner).peekable();
        let first = held.peek()?.mode;
        let covering = held.find(|holder| holder.mode.covers(ask.mode));
        Some(covering.map(|holder| holder.token).ok_or(first))
    }

    /// Returns the next token: larger than all earlier ones even if the record was lost, since it is never behind the date (µs).
    fn next_token(&self) -> i64 {
        (self.token + 1).max(self.now * 1000)
    }

    fn is_free_for(&self, mode: Mode) -> bool {
        self.holders.iter().all(|holder| holder.mode.compatible_with(mode))
    }

    /// Returns how many waiters at the head of the queue can hold the lock now, all together.
    fn whose_turn(&self) -> usize {
        let mut beside = Vec::new();
        let may = |waiter: &&Waiter| {
            let may = self.is_free_for(waiter.mode)
                && beside.iter().all(|mode: &Mode| mode.compatible_with(waiter.mode));
            beside.push(waiter.mode);
            may
        };
        self.waiters.iter().take_while(may).count()
    }

    /// Marks the waiters whose turn it is as notified. Returns those that were not yet.
    pub(super) fn call(&mut self) -> Vec<(String, GrantId)> {
        let (turn, until) = (self.whose_turn(), self.now + TURN_KEPT);
        let called = self.waiters.iter_mut().take(turn).filter(|waiter| !waiter.called);
        called
            .map(|waiter| {
                waiter.called = true;
                waiter.kept_until = until;
                (waiter.client.clone(), waiter.grant)
            })
            .collect()
    }

    /// Frees what a grant holds, and removes it from the queue. Returns whether it held.
    pub(super) fn release(&mut self, grant: GrantId) -> bool {
        self.leave_queue(grant);
        let held = self.holders.len();
        self.holders.retain(|holder| holder.grant != grant);
        self.holders.len() < held
    }

    fn leave_queue(&mut self, grant: GrantId) {
        self.waiters.retain(|waiter| waiter.grant != grant);
    }

    /// Frees the lock from all holders, whose leases may still be valid.
    pub(super) fn free(&mut self) {
        if self.holders.iter().any(|holder| holder.mode.may_write()) {
            self.died_writing();
        }
        self.holders.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(id: u128, mode: Mode) -> Ask<'static> {
        Ask {
            grant: GrantId::from_u128(id),
            owner: OwnerId::from_u128(id),
            mode,
            reenter: false,
            ttl: 1_000,
            details: "{}",
            client: Some("client"),
        }
    }

    fn granted(answer: Answer) -> bool {
        matches!(answer, Answer::Granted { .. })
    }

    #[test]
    fn first_come_first_served_and_readers_together() {
        let mut book = Book::default();
        assert!(granted(book.acquire(&ask(1, Mode::Ex))));
        assert_eq!(
            book.acquire(&ask(2, Mode::Pr)),
            Answer::Busy { expires_in: Some(Duration::from_secs(1)), before: 0 }
        );
        assert!(!granted(book.acquire(&ask(3, Mode::Pr))));
        assert!(!granted(book.acquire(&ask(4, Mode::Ex))));
        assert!(!granted(book.acquire(&ask(5, Mode::Pr))), "it came after a writer");
        assert!(book.call().is_empty());
        assert!(book.release(GrantId::from_u128(1)));
        let called: Vec<_> = book.call().into_iter().map(|(_, grant)| grant.as_u128()).collect();
        assert_eq!(called, [2, 3]);
        assert!(book.call().is_empty(), "they were called already");
        // In any order.
        assert!(granted(book.acquire(&ask(3, Mode::Pr))) && granted(book.acquire(&ask(2, Mode::Pr))));
        assert!(!granted(book.acquire(&ask(5, Mode::Pr))) && !granted(book.acquire(&ask(4, Mode::Ex))));
        assert!(book.release(GrantId::from_u128(2)) && book.release(GrantId::from_u128(3)));
        assert!(granted(book.acquire(&ask(4, Mode::Ex))));
        assert_eq!(book.token, 4);
    }

    #[test]
    fn who_does_not_come_when_called_is_passed_over() {
        let mut book = Book::default();
        book.acquire(&ask(1, Mode::Ex));
        book.acquire(&ask(2, Mode::Ex));
        book.acquire(&ask(3, Mode::Ex));
        book.release(GrantId::from_u128(1));
        assert_eq!(book.call().len(), 1);
        book.now += TURN_KEPT;
        book.expire(None);
        assert!(granted(book.acquire(&ask(3, Mode::Ex))));
    }

    #[test]
    fn who_only_tries_does_not_pass_those_who_wait() {
        let mut book = Book::default();
        book.acquire(&ask(1, Mode::Pr));
        assert!(!granted(book.acquire(&ask(2, Mode::Ex))));
        let tries = Ask { client: None, ..ask(3, Mode::Pr) };
        assert!(!granted(book.acquire(&tries)));
        assert_eq!(book.waiters.len(), 1, "and has no place");
    }

    #[test]
    fn a_writer_that_is_not_heard_of_leaves_doubt() {
        let mut book = Book { value: Some(vec![1]), ..Book::default() };
        book.acquire(&ask(1, Mode::Pr));
        book.now += 1_000;
        book.expire(None);
        assert!(!book.in_doubt, "a reader does not write");
        book.acquire(&ask(2, Mode::Ex));
        book.now += 1_000;
        book.expire(None);
        assert!(book.in_doubt && book.holders.is_empty());
    }

    #[test]
    fn the_same_owner_reenters_with_the_same_token() {
        let mut book = Book::default();
        book.acquire(&ask(1, Mode::Ex));
        let again = Ask { owner: OwnerId::from_u128(1), reenter: true, ..ask(2, Mode::Pr) };
        assert_eq!(book.acquire(&again), Answer::Granted { token: 1 });
        let mut book = Book::default();
        book.acquire(&ask(1, Mode::Pr));
        let more = Ask { mode: Mode::Ex, ..again };
        assert_eq!(book.acquire(&more), Answer::Held(Mode::Pr));
    }
}
