//! The only source of time.
//!
//! Deadlines are kept on `CLOCK_BOOTTIME`, which is monotonic and counts the time that a machine is suspended: after an hour of suspend,
//! a laptop must not treat a lock of thirty seconds as valid. tokio's timers do not count suspend, so a sleep here checks the clock
//! often.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::{Duration, SystemTime};

use futures_util::future::BoxFuture;
use tokio::runtime::Handle;
use tokio::sync::watch;

/// An instant on the machine's own clock: the time since boot, suspend included. It has no meaning on another machine.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BootTime(Duration);

impl BootTime {
    /// Creates the instant at this time after boot.
    pub const fn from_boot(since: Duration) -> Self {
        Self(since)
    }

    /// Returns the time from boot to this instant.
    pub const fn since_boot(self) -> Duration {
        self.0
    }

    /// Returns the current instant of the system's clock.
    pub fn now() -> Self {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        // The kernel's time since boot is never negative, and its nanoseconds are below a billion.
        Self(Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0)))
    }

    /// Returns the time since `earlier`; zero if `earlier` is later than this instant.
    pub const fn since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for BootTime {
    type Output = Self;

    /// Saturates: the largest instant is never reached.
    fn add(self, later: Duration) -> Self {
        Self(self.0.saturating_add(later))
    }
}

impl Sub<Duration> for BootTime {
    type Output = Self;

    /// Saturates at boot.
    fn sub(self, earlier: Duration) -> Self {
        Self(self.0.saturating_sub(earlier))
    }
}

impl fmt::Debug for BootTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "boot+{:?}", self.0)
    }
}

/// The source of time for a client and its engine.
pub trait Clock: Send + Sync + fmt::Debug + 'static {
    /// Returns the current instant, for deadlines.
    fn now(&self) -> BootTime;

    /// Returns the date. It is for display; and after a reboot, `file:` measures a recorded start by it. No other decision depends on it.
    fn wall(&self) -> SystemTime;

    /// Resolves at this instant or later.
    ///
    /// # Cancellation safety
    /// May be dropped at any point.
    fn sleep_until(&self, at: BootTime) -> BoxFuture<'static, ()>;
}

/// Returns the date, for display.
#[expect(clippy::disallowed_methods, reason = "this is the door")]
pub(crate) fn wall_now() -> SystemTime {
    SystemTime::now()
}

/// The system's clock.
#[derive(Clone, Debug)]
pub struct SystemClock {
    /// The runtime whose timers it uses. The caller's runtime may end while a lock is waited for.
    timers: Handle,
}

impl SystemClock {
    /// The longest sleep on a timer that does not count suspend.
    const LONGEST_NAP: Duration = Duration::from_secs(1);

    /// Creates the system's clock on the timers of this runtime, which must have time enabled and outlive every sleep.
    pub const fn on(timers: Handle) -> Self {
        Self { timers }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> BootTime {
        BootTime::now()
    }

    fn wall(&self) -> SystemTime {
        wall_now()
    }

    fn sleep_until(&self, at: BootTime) -> BoxFuture<'static, ()> {
        let timers = self.timers.clone();
        Box::pin(async move {
            loop {
                let left = at.since(BootTime::now());
                if left.is_zero() {
                    return;
                }
                let nap = {
                    let _timers_of = timers.enter();
                    tokio::time::sleep(left.min(Self::LONGEST_NAP))
                };
                nap.await;
            }
        })
    }
}

/// A clock that moves only when a test advances it.
///
/// ```
/// # use std::time::Duration;
/// # use tenure::clock::{Clock, ManualClock};
/// let clock = ManualClock::new();
/// let before = clock.now();
/// clock.advance(Duration::from_secs(30));
/// assert_eq!(clock.now().since(before), Duration::from_secs(30));
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock {
    now: watch::Sender<BootTime>,
}

impl ManualClock {
    /// Creates a clock that shows the machine's current time and does not move.
    pub fn new() -> Self {
        Self { now: watch::Sender::new(BootTime::now()) }
    }

    /// Moves the clock forwards. Clones share one time.
    pub fn advance(&self, by: Duration) {
        self.now.send_modify(|now| *now = *now + by);
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> BootTime {
        *self.now.borrow()
    }

    fn wall(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + self.now().since_boot()
    }

    fn sleep_until(&self, at: BootTime) -> BoxFuture<'static, ()> {
        let mut now = self.now.subscribe();
        Box::pin(async move {
            if now.wait_for(|now| *now >= at).await.is_err() {
                // All clones of the clock are dropped, so it never reaches that instant.
                std::future::pending::<()>().await;
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boot_clock_never_goes_back() {
        let first = BootTime::now();
        assert!(BootTime::now() >= first);
        assert_eq!(first.since(first + Duration::from_secs(1)), Duration::ZERO);
        assert_eq!(first + Duration::MAX, first + Duration::MAX + Duration::from_secs(1));
    }

    #[tokio::test]
    async fn a_manual_clock_wakes_those_whose_time_has_come_and_no_others() {
        let clock = ManualClock::new();
        let soon = clock.sleep_until(clock.now() + Duration::from_secs(1));
        let mut late = clock.sleep_until(clock.now() + Duration::from_secs(2));
        clock.advance(Duration::from_secs(1));
        soon.await;
        assert!(futures_util::poll!(&mut late).is_pending());
        clock.advance(Duration::from_secs(1));
        late.await;
    }
}
