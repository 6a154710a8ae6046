//! Waiting for a condition instead of sleeping.
//!
//! The limit is generous, because it is only reached by a test that fails: a slow machine must not turn
//! a good test red. The only sleep of the kit, and of the tests that use it, is the pause between two
//! looks.

use std::fmt::Display;
use std::thread;
use std::time::Duration;

use crate::deadline::Deadline;

/// How long [`eventually`] waits before it calls the condition failed.
pub(crate) const DEFAULT_LIMIT: Duration = Duration::from_mins(1);

const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// What a look at the world may return: whether it is so (`bool`), or the thing that was found (`Option`).
pub trait Condition {
    /// What [`eventually`] returns once it is there.
    type Found;

    /// The thing that was found, if it was.
    fn found(self) -> Option<Self::Found>;
}

impl Condition for bool {
    type Found = ();

    fn found(self) -> Option<()> {
        self.then_some(())
    }
}

impl<T> Condition for Option<T> {
    type Found = T;

    fn found(self) -> Option<T> {
        self
    }
}

/// Looks again and again until `look` returns `true` or `Some`, for at most 60 seconds.
///
/// It blocks its thread: an async test calls it through `spawn_blocking`, or has more than one worker.
///
/// # Panics
///
/// If it does not come true in time; `what` then completes the sentence "waited in vain for …".
#[track_caller]
pub fn eventually<C: Condition>(what: impl Display, look: impl FnMut() -> C) -> C::Found {
    eventually_within(DEFAULT_LIMIT, what, look)
}

/// The same as [`eventually`], with a limit of one's own.
///
/// # Panics
///
/// If it does not come true within `limit`.
#[track_caller]
pub fn eventually_within<C: Condition>(
    limit: Duration,
    what: impl Display,
    look: impl FnMut() -> C,
) -> C::Found {
    match poll(limit, look) {
        Some(found) => found,
        None => panic!("waited in vain for {what}, for {limit:?}"),
    }
}

/// [`eventually_within`] for those who have something better to say than its message.
pub(crate) fn poll<C: Condition>(limit: Duration, mut look: impl FnMut() -> C) -> Option<C::Found> {
    let deadline = Deadline::after(limit);
    let mut pause = FIRST_PAUSE;
    loop {
        // Whether time is up is asked *before* the look: the last look is then never an early one, even
        // if this thread did not get a processor for the whole limit.
        let last = deadline.passed();
        if let Some(found) = look().found() {
            return Some(found);
        }
        if last {
            return None;
        }
        thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
