//! The gate that every byte of a proxy goes through, and that decides whether it passes, waits or is lost.
//!
//! Who closes the gate waits until those who are inside have left. They never stay long, since a write has
//! a time limit: that is what makes a fault hold from the moment when its call returns.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::link::Link;

#[derive(Debug, Default)]
pub(super) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    cut: bool,
    answers_dropped: bool,
    requests_inside: usize,
    answers_inside: usize,
}

/// Which way a byte travels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Requests,
    Answers,
}

/// What the gate decided.
pub(super) enum Passage<'a> {
    /// To be sent while this is held.
    Open(Inside<'a>),
    /// To be thrown away: the network lost it.
    Lost,
    /// The connection is no more.
    Closed,
}

/// Somebody is in the gate; leaves when dropped.
pub(super) struct Inside<'a> {
    gate: &'a Gate,
    direction: Direction,
}

impl Gate {
    pub(super) fn cut(&self) {
        let mut state = self.lock();
        state.cut = true;
        self.wait_until(state, |state| state.requests_inside + state.answers_inside == 0);
    }

    /// Cuts these connections alone.
    pub(super) fn cut_off<'a>(&self, links: impl Iterator<Item = &'a Link>) {
        let state = self.lock();
        for link in links {
            link.set_cut(true);
        }
        self.wait_until(state, |state| state.requests_inside + state.answers_inside == 0);
    }

    /// Mends the network, and with it these connections.
    pub(super) fn heal<'a>(&self, links: impl Iterator<Item = &'a Link>) {
        let mut state = self.lock();
        state.cut = false;
        for link in links {
            link.set_cut(false);
        }
        drop(state);
        self.changed.notify_all();
    }

    pub(super) fn drop_answers(&self, dropped: bool) {
        let mut state = self.lock();
        state.answers_dropped = dropped;
        // Not for the requests, which go on: on a busy network there is always one inside.
        self.wait_until(state, |state| state.answers_inside == 0);
    }

    /// Runs `close` so that no one who waits at the gate misses it.
    pub(super) fn close(&self, close: impl FnOnce()) {
        let state = self.lock();
        close();
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until the network is whole, then says what happens to the next bytes of `link`.
    pub(super) fn enter(&self, link: &Link, direction: Direction) -> Passage<'_> {
        let mut state = self.lock();
        loop {
            if link.is_closed() {
                return Passage::Closed;
            }
            if !state.cut && !link.is_cut() {
                break;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        if direction == Direction::Answers && (state.answers_dropped || link.has_hole()) {
            // Noted with the lock held: who stops the dropping then knows of every hole.
            link.note_hole();
            return Passage::Lost;
        }
        *state.inside(direction) += 1;
        Passage::Open(Inside { gate: self, direction })
    }

    fn wait_until(&self, mut state: MutexGuard<'_, State>, reached: impl Fn(&State) -> bool) {
        while !reached(&state) {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn inside(&mut self, direction: Direction) -> &mut usize {
        match direction {
            Direction::Requests => &mut self.requests_inside,
            Direction::Answers => &mut self.answers_inside,
        }
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        *self.gate.lock().inside(self.direction) -= 1;
        self.gate.changed.notify_all();
    }
}
